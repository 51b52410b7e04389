"""A real JupyterLab with headless Chromium in front of it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat
from playwright.sync_api import Browser, Page, Playwright

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM_FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
DARK = "JupyterLab Dark"


class Lab:
    """A JupyterLab server in a folder of its own. Use as a context manager."""

    def __init__(self, folder: Path, *, theme: str = "JupyterLab Light") -> None:
        self.folder = folder / "work"
        self.folder.mkdir(parents=True)
        self._settings = folder / "settings"
        self._set("apputils-extension/notification", fetchNews="false", checkForUpdates=False)
        self._set("apputils-extension/themes", theme=theme)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "JUPYTERLAB_SETTINGS_DIR": str(self._settings),
            "JUPYTER_CONFIG_DIR": str(folder / "config"),
            "JUPYTER_DATA_DIR": str(folder / "data"),
            "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
            "IPYTHONDIR": str(folder / "ipython"),
        }
        self._log = folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    def _set(self, plugin: str, **values: Any) -> None:
        path = self._settings / "@jupyterlab" / f"{plugin}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values), encoding="utf-8")

    def __enter__(self) -> Lab:
        command = [
            *(sys.executable, "-m", "notebook", "--no-browser", f"--port={self.port}"),
            *("--ServerApp.ip=127.0.0.1", "--ServerApp.port_retries=0", "--allow-root"),
            *("--IdentityProvider.token=", f"--ServerApp.root_dir={self.folder}"),
            *("--LabApp.expose_app_in_browser=True", "--ServerApp.disable_check_xsrf=True"),
            "--JupyterNotebookApp.expose_app_in_browser=True",
        ]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env=self._environment, cwd=self.folder
            )
        deadline = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/api/status", timeout=2):
                    return self
            except OSError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise RuntimeError(self._log.read_text(encoding="utf-8")) from None
                time.sleep(0.1)

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def write(self, name: str, cells: Sequence[str]) -> Path:
        """A new notebook with code cells."""
        notebook = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(cell) for cell in cells],
            metadata={
                "kernelspec": {
                    "name": "python3",
                    "display_name": "Python 3",
                    "language": "python",
                }
            },
        )
        path = self.folder / name
        nbformat.write(notebook, path)
        return path


def launch(playwright: Playwright) -> Browser:
    """Debian's Chromium, headless."""
    path = shutil.which("chromium")
    assert path is not None, "chromium is missing: make debian"
    return playwright.chromium.launch(executable_path=path, args=list(CHROMIUM_FLAGS))


class Notebook:
    """A notebook that is open in a page."""

    def __init__(self, page: Page, lab: Lab, name: str, *, app: str = "lab") -> None:
        self.page = page
        self._lab = lab
        self._path = {"lab": f"/doc/tree/{name}", "notebook": f"/notebooks/{name}"}[app]
        self.errors: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.open()

    def open(self) -> None:
        """Open, or open again."""
        self.page.goto(f"{self._lab.url}{self._path}")
        self.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
        self.page.wait_for_function(
            "() => window.jupyterapp !== undefined && window.jupyterapp.shell.currentWidget"
        )

    def command(self, name: str, **arguments: Any) -> None:
        """Execute one of JupyterLab's commands; does not wait for its end."""
        self.page.evaluate(
            "([name, args]) => { void window.jupyterapp.commands.execute(name, args); }",
            [name, arguments],
        )

    def wait_for_kernel(self) -> None:
        """Wait until the kernel has started and is idle."""
        self.page.wait_for_function(
            """() => {
                const kernel = window.jupyterapp.shell.currentWidget
                    ?.sessionContext?.session?.kernel;
                return kernel && kernel.status === "idle";
            }""",
            timeout=60_000,
        )

    def run_all(self) -> None:
        """Start all cells."""
        self.wait_for_kernel()
        self.command("notebook:run-all-cells")

    def cell(self, index: int) -> Any:
        """Locator of a cell."""
        return self.page.locator(".jp-Notebook .jp-Cell").nth(index)

    def wait_for_end(self, index: int, timeout: float = 60) -> None:
        """Wait until the cell has an execution number (it has none while it runs)."""
        self.page.wait_for_function(
            """(index) => {
                const cell = document.querySelectorAll(".jp-Notebook .jp-Cell")[index];
                return /\\[\\d+\\]/.test(cell?.querySelector(".jp-InputPrompt")?.textContent ?? "");
            }""",
            arg=index,
            timeout=timeout * 1000,
        )

    def save(self) -> None:
        """Save, and wait until the file is written."""
        self.page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")

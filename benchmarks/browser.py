"""Times between a real browser and the kernel, in JupyterLab, while a batch of 200 slots runs."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, TimeoutError, sync_playwright

from benchmarks import our_run
from benchmarks.schedule import lognormal
from tests.servers.handle import OpenAIServer
from tests.servers.openai_server import Rule

CHROMIUM = "/usr/bin/chromium"
SLOTS = 200
LATENCIES = lognormal(SLOTS, median=0.2, sigma=1.0, seed=7)
CLICKS = 15

SETUP = f"""\
%load_ext rlm_notebook
import json, time
import ipywidgets
from IPython.display import display
from benchmarks import our_run
context = our_run.context({SLOTS}, 1)
clicks = []
button = ipywidgets.Button(description="bench-click")
button.on_click(lambda _: clicks.append(time.time()))
display(button)
"""
REPORT = """\
zero, slots = our_run.started_at(result), result.trace.slots
batch = result.trace.batches[0]
print("KERNEL", json.dumps({
    "clicks": clicks,
    "batch": [zero + batch.submitted * 1e-9, zero + batch.ended * 1e-9],
    "ends": [zero + slot.ended * 1e-9 for slot in slots],
}), "END")
"""
LISTEN = """
(() => {
const now = () => (performance.timeOrigin + performance.now()) / 1000;
window.bench = {clicks: [], messages: []};
document.addEventListener("click", (event) => {
  if (event.target.closest(".jupyter-button")) window.bench.clicks.push(now());
}, true);

// the header of a kernel message, in both of the server's websocket protocols
function header(data) {
  if (typeof data === "string") return JSON.parse(data).header;
  const view = new DataView(data);
  const offset = (index) => Number(view.getBigUint64(8 * (index + 1), true));
  return JSON.parse(new TextDecoder().decode(data.slice(offset(1), offset(2))));
}
window.WebSocket = class extends WebSocket {
  constructor(...given) {
    super(...given);
    if (!this.url.includes("/channels")) return;
    this.addEventListener("message", (event) => {
      const arrived = now(), sent = header(event.data);
      if (sent.msg_type === "comm_msg")
        window.bench.messages.push([Date.parse(sent.date) / 1000, arrived]);
    });
  }
};
})();
"""


def notebook(cells: list[str]) -> dict[str, Any]:
    """A notebook file; with a kernel named, so that JupyterLab does not ask for one."""
    empty: dict[str, Any] = {
        "cell_type": "code",
        "metadata": {},
        "outputs": [],
        "execution_count": None,
    }
    return {
        "cells": [{**empty, "id": f"cell-{i}", "source": cell} for i, cell in enumerate(cells)],
        "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


@contextmanager
def jupyterlab(folder: Path) -> Iterator[str]:
    """A JupyterLab of its own, on loopback; gives its address."""
    runtime = folder / "runtime"
    places = {
        "JUPYTER_RUNTIME_DIR": runtime,
        "JUPYTER_CONFIG_DIR": folder / "config",
        "IPYTHONDIR": folder / "ipython",
        "JUPYTERLAB_SETTINGS_DIR": folder / "settings",
        "JUPYTERLAB_WORKSPACES_DIR": folder / "workspaces",
    }
    options = ["--no-browser", "--allow-root", "--ip=127.0.0.1", "--port=0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", *options, "--IdentityProvider.token="],
        cwd=folder,
        env={**os.environ, **{name: str(place) for name, place in places.items()}},
        stdout=subprocess.DEVNULL,
        stderr=(folder / "lab.log").open("w"),
    )
    try:
        info = runtime / f"jpserver-{process.pid}.json"
        deadline = time.monotonic() + 60
        while not info.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"JupyterLab did not start: {(folder / 'lab.log').read_text()}")
            time.sleep(0.1)
        yield json.loads(info.read_text())["url"]
    finally:
        process.terminate()
        process.wait(timeout=30)


def measure(server: OpenAIServer, root: Rule) -> dict[str, float]:
    """Medians in milliseconds."""
    server.script(root, Rule(delays=LATENCIES))
    with tempfile.TemporaryDirectory(prefix="rlm-bench-") as name:
        folder = Path(name)
        cells = [SETUP, our_run.cell(server.url), REPORT]
        (folder / "bench.ipynb").write_text(json.dumps(notebook(cells)))
        with jupyterlab(folder) as url, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1400, "height": 1600})
            page.add_init_script(LISTEN)
            page.goto(f"{url}lab/tree/bench.ipynb")
            try:
                seen, kernel = click_through(page)
            except TimeoutError:
                text = page.locator(".jp-Notebook").inner_text()
                raise RuntimeError(f"the notebook did not get through:\n{text}") from None
            browser.close()
    return {
        "click_latency": click_latency(seen["clicks"], kernel["clicks"], kernel["batch"]),
        "event_to_browser": event_to_browser(kernel["ends"], seen["messages"]),
    }


def click_through(page: Page) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run the cells, click while the second runs: what the browser saw, what the kernel saw."""
    page.locator(".jp-Notebook .jp-Cell").first.click(timeout=60_000)
    page.keyboard.press("Shift+Enter")
    button = page.locator(".jupyter-button", has_text="bench-click")
    button.wait_for(timeout=60_000)
    page.keyboard.press("Shift+Enter")
    page.keyboard.press("Shift+Enter")
    page.locator(".jp-Cell .jp-InputPrompt", has_text="[*]").first.wait_for()
    page.wait_for_timeout(1000)
    for _ in range(CLICKS):
        button.click()
        page.wait_for_timeout(100)
    report = page.locator(".jp-OutputArea-output", has_text="KERNEL")
    report.wait_for(timeout=60_000)
    text = report.inner_text().partition("KERNEL ")[2].partition(" END")[0]
    return page.evaluate("window.bench"), json.loads(text)


def click_latency(pressed: list[float], heard: list[float], batch: list[float]) -> float:
    """Milliseconds from a click to its Python callback, while the batch runs."""
    if len(pressed) != CLICKS or len(heard) != CLICKS:
        raise RuntimeError(f"{CLICKS} clicks, {len(pressed)} seen, {len(heard)} heard")
    found = [
        (there - here) * 1000
        for here, there in zip(pressed, heard, strict=True)
        if batch[0] < here < batch[1]
    ]
    if len(found) < CLICKS // 2:
        raise RuntimeError(f"only {len(found)} clicks fell into the batch")
    return statistics.median(found)


def event_to_browser(ends: list[float], messages: list[tuple[float, float]]) -> float:
    """Milliseconds from the end of a slot to the arrival of the message that carries it.

    That is the first message of the view that the kernel sent after the event: the view sends
    what has changed, up to 200 rows. (Nothing else sends comm messages meanwhile.)
    """
    found = []
    for end in ends:
        arrival = next((arrived for sent, arrived in messages if sent >= end), None)
        if arrival is None:
            raise RuntimeError("the last events never reached the browser")
        found.append((arrival - end) * 1000)
    return statistics.median(found)

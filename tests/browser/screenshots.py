"""Take the pictures of README: ``python -m tests.browser.screenshots FOLDER``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tests.browser.lab import DARK, Lab, Notebook, launch

CORPUS = """\
%load_ext rlm_notebook
import sysconfig
from pathlib import Path
library = Path(sysconfig.get_path("stdlib"))
corpus = {p.relative_to(library).as_posix(): p.read_text("utf-8", errors="replace")
          for p in sorted(library.glob("[a-h]*.py"))}"""
QUESTION = """\
%%rlm --context corpus --out result --simulate "latency=lognormal(0.6,0.8) errors=0.1 seed=5" --batch-max-concurrent 6
Which module defines the function get_close_matches?"""
THEMES = {"light": "JupyterLab Light", "dark": DARK}


def main() -> None:
    """During and after a run, in light and in dark."""
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = launch(playwright)
        for name, theme in THEMES.items():
            with Lab(Path(tempfile.mkdtemp()), theme=theme) as lab:
                page = browser.new_page(viewport={"width": 1080, "height": 1300})
                lab.write("quickstart.ipynb", [CORPUS, QUESTION])
                take(page, lab, folder, name)
                page.close()
        browser.close()


def take(page: Page, lab: Lab, folder: Path, name: str) -> None:
    """Both pictures in one theme."""
    notebook = Notebook(page, lab, "quickstart.ipynb")
    notebook.run_all()
    page.wait_for_selector('.rlm-row[data-kind="slot"][data-state="ok"]')
    page.locator('.rlm-row[data-kind="slot"]', has_text="wait").nth(9).wait_for()
    page.locator(".rlm-tree").evaluate("tree => { tree.scrollTop = 0; }")
    page.wait_for_timeout(400)
    cell = notebook.cell(1)
    cell.screenshot(path=folder / f"during-{name}.png")
    notebook.wait_for_end(1)
    page.wait_for_timeout(800)
    page.locator('.rlm-row[data-kind="slot"][data-state="error"]').first.click()
    page.wait_for_selector(".rlm-panel pre")
    page.wait_for_timeout(400)
    cell.screenshot(path=folder / f"live-{name}.png")


if __name__ == "__main__":
    main()

"""One JupyterLab and one browser for all browser tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.browser.lab import Lab, launch


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("lab")) as running:
        yield running


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        launched = launch(playwright)
        yield launched
        launched.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    made = browser.new_page(viewport={"width": 1200, "height": 1000})
    made.set_default_timeout(30_000)
    yield made
    made.close()


@pytest.fixture
def shots(request: pytest.FixtureRequest) -> Path:
    """Where screenshots go, to be looked at."""
    folder = Path(str(request.config.rootpath)) / "build" / "screenshots"
    folder.mkdir(parents=True, exist_ok=True)
    return folder

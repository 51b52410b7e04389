"""What all tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest_plugins = ["tests.servers.fixtures"]


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test runs in a folder of its own, with no settings from the environment."""
    for name in list(os.environ):
        if name.startswith(("RLM_", "OPENAI_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)

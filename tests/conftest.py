"""What all tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlm_notebook import provider_limit

pytest_plugins = ["tests.servers.fixtures"]


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has a folder of its own, no settings from the environment, and fresh limits.

    (What a provider asked for holds for the process, and the test server is one provider.)
    """
    provider_limit._limits.clear()
    for name in list(os.environ):
        if name.startswith("RLM_") or name.lower().endswith(("_proxy", "_api_key", "_base_url")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)

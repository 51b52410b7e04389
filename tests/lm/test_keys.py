"""Where keys come from, and that they go nowhere else."""

from __future__ import annotations

import os
from pathlib import Path

import keyring
import keyring.backend
import keyring.errors
import pytest

from rlm_notebook.lm import keys
from rlm_notebook.lm.lookup import get_lm
from rlm_notebook.lm.openai import OpenAILM

KEY = "sk-0123456789abcdef"


class Safe(keyring.backend.KeyringBackend):
    """A keyring in memory."""

    priority = 1  # type: ignore[assignment]

    def __init__(self, **entries: str) -> None:
        super().__init__()
        self.entries = entries

    def get_password(self, service: str, username: str) -> str | None:
        assert service == "rlm_notebook"
        if username == "LOCKED":
            raise keyring.errors.KeyringLocked("locked")
        return self.entries.get(username)

    def set_password(self, service: str, username: str, password: str) -> None:
        raise NotImplementedError


@pytest.fixture(autouse=True)
def safe() -> Safe:
    found = Safe(IN_KEYRING=KEY, EVERYWHERE="keyring")
    keyring.set_keyring(found)
    return found


def test_the_environment_comes_before_the_file_and_the_keyring(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path(".env").write_text("EVERYWHERE=file\nIN_FILE='sk file'\n")
    assert keys.find_key("EVERYWHERE") == "file"
    monkeypatch.setenv("EVERYWHERE", "environment")
    assert keys.find_key("EVERYWHERE") == "environment"
    assert keys.find_key("IN_FILE") == "sk file"
    assert keys.find_key("IN_KEYRING") == KEY
    assert keys.find_key("NOWHERE") == ""


def test_an_env_file_of_a_folder_above_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".env").write_text(f"export OPENAI_API_KEY={KEY}\nOPENAI_BASE_URL=http://h/v1\n")
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    lm = OpenAILM("m")
    assert lm.base_url == "http://h/v1"
    assert lm.key_headers(keys.find_key("OPENAI_API_KEY"), None) == {
        "authorization": f"Bearer {KEY}"
    }


def test_nothing_is_put_into_the_environment(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f"OPENAI_API_KEY={KEY}\n")
    get_lm("openai/gpt-5")
    assert "OPENAI_API_KEY" not in os.environ


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"=\n==\nnot a line", b""])
def test_a_file_that_cannot_be_read_holds_nothing(content: bytes) -> None:
    Path(".env").write_bytes(content)
    assert keys.find_variable("OPENAI_API_KEY") is None


def test_a_keyring_that_is_locked_holds_nothing() -> None:
    assert keys.find_key("LOCKED") == ""


def test_references_in_a_text_are_replaced() -> None:
    assert keys.expanded("Bearer $IN_KEYRING!") == f"Bearer {KEY}!"
    assert keys.expanded("${IN_KEYRING}x") == f"{KEY}x"
    assert keys.expanded("plain") == "plain"
    assert keys.expanded("$NOWHERE") is None

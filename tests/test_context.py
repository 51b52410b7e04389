"""Contexts: what may be one, how it is described, how files become one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlm_notebook.context import check_context, describe, read_files
from rlm_notebook.errors import ContextError


@pytest.mark.parametrize(
    "value",
    ["text", "", ["a", "b"], {"k": "v"}, [{"role": "user", "content": "x"}], [1, [2.5, None]], ()],
)
def test_plain_data_is_a_context(value: Any) -> None:
    check_context(value)


@pytest.mark.parametrize("value", [b"x", 3, None, {1}, object(), [b"x"], {"a": {"b": object()}}])
def test_other_types_are_refused_and_the_supported_ones_named(value: Any) -> None:
    with pytest.raises(ContextError, match="supported: str, list"):
        check_context(value)


def test_a_context_that_contains_itself_is_checked_in_finite_time() -> None:
    value: list[Any] = ["a"]
    value.append(value)
    check_context(value)


@pytest.mark.parametrize(
    ("value", "description"),
    [
        ("a\nb", "a str of 3 characters in 2 lines"),
        (["ab", "abcd"], "a list of 2 items: str of 2 to 4 characters, 6 in all"),
        (
            [{"role": "user", "content": "hello"}],
            "a list of 1 chat message (role, content), 5 characters",
        ),
        ({"k": "secret"}, "a dict of 1 key ('k'); values: str of 6 characters, 6 in all"),
    ],
)
def test_the_description_tells_structure_and_no_content(value: Any, description: str) -> None:
    assert describe(value) == description
    assert "secret" not in describe(value)


def test_a_file_is_a_str_and_a_glob_is_a_dict(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A", encoding="utf-8")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "b.txt").write_text("B", encoding="utf-8")
    assert read_files("a.txt", root=tmp_path) == "A"
    assert read_files("**/*.txt", root=tmp_path) == {"a.txt": "A", "deep/b.txt": "B"}


def test_a_missing_file_and_a_binary_one_give_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ContextError, match="no variable, file or glob 'nope'"):
        read_files("nope", root=tmp_path)
    with pytest.raises(ContextError, match="is not UTF-8 text"):
        read_files("x.bin", root=tmp_path)

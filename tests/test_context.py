"""Contexts: what may be one, how it is described, how files become one."""

from __future__ import annotations

import codecs
import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from rlm_notebook import RLM
from rlm_notebook.context import check_context, describe, read_files
from rlm_notebook.errors import ContextError
from rlm_notebook.magics import find_context
from tests.fakes import FakeLM, answering


@pytest.mark.parametrize(
    "value",
    ["text", "", ["a", "b"], {"k": "v"}, [{"role": "user", "content": "x"}], [1, [2.5, None]], ()],
)
def test_plain_data_is_a_context(value: Any) -> None:
    check_context(value)


@pytest.mark.parametrize("value", [3, None, {1}, object(), [{1}], {"a": {"b": object()}}])
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


TABLES = [
    (pd.DataFrame({"name": ["secret"], "age": [3]}),
     "a pandas DataFrame of 1 row and 2 columns (name: ", "age: int64)"),
    (pd.Series([1, 2]), "a pandas Series of 2 rows of int64", ""),
    (pl.DataFrame({"name": ["secret", "b"]}),
     "a polars DataFrame of 2 rows and 1 column (name: String)", ""),
    (pl.Series([1.5]), "a polars Series of 1 row of Float64", ""),
    (pa.table({"name": ["secret"]}), "a pyarrow Table of 1 row and 1 column (name: string)", ""),
    (np.zeros((3, 4)), "a numpy ndarray of shape (3, 4) and dtype float64", ""),
    (b"secret", "bytes: 6 bytes", ""),
]  # fmt: skip


@pytest.mark.parametrize(("value", "begins", "ends"), TABLES, ids=lambda v: type(v).__name__)
def test_tables_arrays_and_bytes_are_described_and_arrive_as_they_are(
    value: Any, begins: str, ends: str
) -> None:
    check_context(value)
    check_context({"deep": [value]})
    assert describe(value).startswith(begins)
    assert describe(value).endswith(ends)
    assert "secret" not in describe(value)
    lm = FakeLM(answering("[type(context).__name__, len(context)]"))
    assert RLM(lm).completion(value, "q").answer == [type(value).__name__, len(value)]


def test_a_few_different_values_are_described_one_by_one() -> None:
    value = {"notes": "secret", "people": pd.DataFrame({"age": [1, 2]}), "limit": 3, "more": ["a"]}
    assert describe(value) == (
        "a dict of 4 keys: 'notes': a str of 6 characters in 1 line; 'people': a pandas DataFrame "
        "of 2 rows and 1 column (age: int64); 'limit': an int; 'more': a list of 1 item: str of "
        "1 characters, 1 in all"
    )


def test_several_names_are_a_dict_of_their_values() -> None:
    names = {"a": "text", "b": [1], "c": {"k": 1}}
    assert find_context("a,b", names)() == {"a": "text", "b": [1]}
    assert find_context("(a, c)", names)() == {"a": "text", "c": {"k": 1}}
    assert find_context("a, 'x'", names)() == ("text", "x")
    assert find_context("pair", {"pair": ("x",)})() == ("x",)


def test_many_columns_are_counted_not_listed() -> None:
    table = pd.DataFrame({f"column{number}": [1] for number in range(50)})
    assert describe(table).endswith("column19: int64, ...)")


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        ((x for x in "ab"), r"give list\(\.\.\.\) of it"),
        (iter([1]), r"give list\(\.\.\.\) of it"),
        (io.StringIO("a"), "give its path, or its text"),
        ({1}, r"give sorted\(\.\.\.\) of it"),
        (np.array([object()]), "numpy.ndarray"),
    ],
)
def test_what_cannot_be_one_comes_with_advice(value: Any, advice: str) -> None:
    with pytest.raises(ContextError, match=advice):
        check_context(value)


@pytest.mark.parametrize(
    "table", [pd.DataFrame, pl.DataFrame, pa.table, lambda rows: np.array(rows["owner"])]
)
def test_the_builtin_model_reads_tables(table: Any) -> None:
    rows = {"city": ["Oslo", "Rome", "Bern"], "owner": ["The code is 48213.", "Ivo", "Kim"]}
    result = RLM().completion(table(rows), "What is the code?")
    assert "48213" in str(result.answer)


def test_a_path_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The code is 48213.", encoding="utf-8")
    assert "48213" in str(RLM().completion(tmp_path / "a.txt", "What is the code?").answer)


TEXT = "Smörgås, čeština, 12 €. " * 40


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le-bom", "utf-32", "cp1250"]
)
def test_the_encoding_of_a_file_is_found(tmp_path: Path, encoding: str) -> None:
    text = TEXT.replace("ö", "o").replace("å", "a") if encoding == "cp1250" else TEXT
    data = (
        codecs.BOM_UTF16_LE + text.encode("utf-16-le")
        if encoding == "utf-16-le-bom"
        else text.encode(encoding)
    )
    (tmp_path / "a.txt").write_bytes(data)
    assert read_files("a.txt", root=tmp_path) == text


def test_line_ends_are_made_one(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"a\r\nb\rc\n")
    assert read_files("a.txt", root=tmp_path) == "a\nb\nc\n"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"%PDF-1.7 ...", "is a PDF, not text"),
        (b"PK\x03\x04", "is a ZIP archive or an office document"),
        (b"\x89PNG\r\n", "is an image"),
        (b"\x1f\x8b\x08", "is compressed"),
        (b"a\x00\x01\x02", "is not text"),
        (b"\xff\xfe\x00", "is not text"),
    ],
)
def test_a_file_that_is_no_text_is_named_in_one_line(
    tmp_path: Path, data: bytes, says: str
) -> None:
    (tmp_path / "x.bin").write_bytes(data)
    with pytest.raises(ContextError, match=says):
        read_files("x.bin", root=tmp_path)


def test_a_missing_file_gives_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ContextError, match="no variable, file or glob 'nope'"):
        read_files("nope", root=tmp_path)

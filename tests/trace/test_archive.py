"""The file format: its schema, and traces of each version, which have to open for ever."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from rlm_notebook import Trace
from rlm_notebook.trace import events, jsonl

ARCHIVE = Path(__file__).parent / "archive"
SCHEMA = Path(__file__).parents[2] / "docs" / "trace-format.schema.json"
DOCUMENT = Path(__file__).parents[2] / "docs" / "trace-format.md"
FILES = sorted(ARCHIVE.glob("v*/*.rlm.jsonl"))


def shape(trace: Trace) -> list[list[Any]]:
    """What a trace says, as far as it has to stay readable."""
    return [
        [
            span.place,
            span.kind,
            span.state,
            round(span.latency, 9) if span.latency is not None else None,
            span.response,
            (span.error or {}).get("message"),
            span.attrs.get("edited"),
            span.attrs.get("answer"),
        ]
        for span in trace.find()
    ]


def ids(path: Path) -> str:
    return f"{path.parent.name}-{path.name.partition('.')[0]}"


def test_there_are_traces_of_each_version() -> None:
    versions = {int(path.parent.name[1:]) for path in FILES}
    assert versions == set(range(1, events.FORMAT_VERSION + 1))


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_a_trace_of_the_archive_opens_and_says_what_it_said(path: Path) -> None:
    trace = Trace.load(path)
    assert trace.notes == []
    expected = json.loads(
        path.with_name(path.name.replace(".rlm.jsonl", ".json")).read_text("utf-8")
    )
    assert json.loads(json.dumps(shape(trace))) == expected
    assert trace.to_html()
    assert trace.to_text()


def test_the_schema_is_that_of_the_code() -> None:
    made = msgspec.json.schema(jsonl.Line)
    assert (
        json.loads(SCHEMA.read_text("utf-8"))["$defs"] == json.loads(json.dumps(made))["$defs"]
    ), "write docs/trace-format.schema.json anew: python -m tests.trace.test_archive"


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_each_line_is_as_the_schema_says(path: Path) -> None:
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text("utf-8")))
    lines = path.read_bytes().split(b"\n")[:-1]
    for line in lines:
        validator.validate(json.loads(line))
    with pytest.raises(jsonschema.ValidationError):
        validator.validate({"e": "start", "t": "soon"})


def test_the_document_names_every_kind_state_and_line() -> None:
    text = DOCUMENT.read_text("utf-8")
    kinds = events.Kind.__args__  # type: ignore[attr-defined]
    states = events.END_STATES
    tags = ("header", "text", "start", "update", "more", "end", "reopen")
    for word in (*kinds, *states, *tags):
        assert f"`{word}`" in text, word


if __name__ == "__main__":
    found = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **msgspec.json.schema(jsonl.Line),
    }
    SCHEMA.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

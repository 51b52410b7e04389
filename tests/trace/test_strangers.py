"""Files that were damaged, edited or made by a stranger: what can be read is read, and no more."""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlm_notebook.errors import TraceError
from rlm_notebook.trace import reading
from rlm_notebook.trace.jsonl import JsonlWriter
from rlm_notebook.trace.reading import load
from rlm_notebook.trace.recorder import Recorder
from rlm_notebook.trace.trace import Trace

FUZZ = int(os.environ.get("RLM_TEST_FUZZ", "800"))
PARTS = 2
HEADER = '{"e":"header","format":1,"started_at":"","engine":"x"}'
LONG = "a long text " * 100


def recorded(path: Path, turns: int = 4, *, text: str = LONG) -> Trace:
    recorder = Recorder()
    recorder.add_sink(JsonlWriter(path, recorder.trace.header))
    run = recorder.start("run", None, question="q")
    for index in range(turns):
        turn = recorder.start("turn", run, index=index)
        call = recorder.start("lm_call", turn, messages=[{"role": "user", "content": text}])
        recorder.end(call, "ok", response=f"{text} {index}", usage={"input_tokens": 1})
        recorder.end(turn)
    recorder.end(run, "ok", answer="x")
    recorder.close()
    return recorder.trace


def written(path: Path, *lines: Any) -> Path:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in (HEADER, *lines)]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


def start(number: int, parent: int | None = None, kind: str = "turn", **attrs: Any) -> Any:
    line = {"e": "start", "t": number, "id": number, "parent": parent, "kind": kind}
    return {**line, "state": "running", "attrs": attrs}


def test_lines_in_any_order_give_the_same_tree(tmp_path: Path) -> None:
    path = tmp_path / "a.rlm.jsonl"
    trace = recorded(path)
    lines = path.read_bytes().splitlines(keepends=True)
    draw = random.Random(5)
    for _ in range(20):
        draw.shuffle(lines)
        path.write_bytes(b"".join(lines))
        loaded = load(path)
        assert list(loaded.events) == trace.events
        assert loaded.tree.totals == trace.tree.totals
        assert "its lines were out of order: they were put in order of time" in loaded.notes
        assert loaded.header == trace.header


def test_lines_that_are_there_twice_count_once(tmp_path: Path) -> None:
    path = tmp_path / "a.rlm.jsonl"
    trace = recorded(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(line * 2 for line in lines))
    loaded = load(path)
    assert loaded.events == trace.events
    assert loaded.notes == [f"{len(trace.events)} repeated lines were left out"]
    path.write_bytes(b"".join(lines * 2))  # the whole file twice
    loaded = load(path)
    assert loaded.events == trace.events
    assert loaded.tree.totals == trace.tree.totals


def test_a_gzipped_and_an_empty_file_say_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "a.rlm.jsonl"
    recorded(path)
    path.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(TraceError, match="is gzipped: unpack it first, with gunzip"):
        load(path)
    path.write_bytes(b"")
    with pytest.raises(TraceError, match="it is empty"):
        load(path)
    path.write_bytes(b"\xff\xfe\x00 not UTF-8 \x80\n" * 100)
    with pytest.raises(TraceError, match="it has no trace header"):
        load(path)


def test_bytes_that_are_no_utf8_cost_their_line_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.rlm.jsonl"
    recorded(path)
    data = path.read_bytes().replace(b'"answer":"x"', b'"answer":"\xff"')
    path.write_bytes(data)
    loaded = load(path)
    assert len(loaded.turns) == 4
    assert loaded.root is not None
    assert loaded.root.state == "interrupted"
    assert len(loaded.notes) == 1
    damaged = data.replace(LONG.encode(), LONG.encode()[:-9] + b"\xff\xff long ")
    path.write_bytes(damaged)
    loaded = load(path)
    assert "is missing from this trace" in json.dumps(loaded.turns[0].children[0].attrs)
    assert len(loaded.notes) > 1


def test_many_damaged_lines_make_few_notes(tmp_path: Path) -> None:
    path = written(tmp_path / "a.rlm.jsonl", start(1, None, "run"), *["{"] * 5_000)
    notes = load(path).notes
    assert len(notes) == reading.MOST_NOTES + 1
    assert notes[-1] == f"{5_000 - reading.MOST_NOTES:,} more lines were left out"


def test_notes_stand_in_the_views(tmp_path: Path) -> None:
    trace = load(written(tmp_path / "a.rlm.jsonl", start(1, None, "run"), "<b>{"))
    assert "line 3 was left out" in trace.to_text()
    assert "line 3 was left out" in trace.to_html()
    assert "<b>{" not in trace.to_html()


def test_a_line_of_fifty_megabytes_is_a_text_like_others(tmp_path: Path) -> None:
    path = tmp_path / "a.rlm.jsonl"
    text = "0123456789" * 5_000_000
    trace = recorded(path, 2, text=text)
    loaded = load(path)
    assert loaded.turns[1].response == trace.turns[1].response
    assert loaded.notes == []


def test_a_line_without_end_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LONGEST_LINE", 200_000)
    path = tmp_path / "a.rlm.jsonl"
    lines = [start(1, None, "run"), start(2, 1, prompt="x" * 500_000), start(3, 1)]
    loaded = load(written(path, *lines))
    assert list(loaded.tree.spans) == [1, 3]
    assert loaded.notes == ["line 3 was left out: it is too long"]
    with path.open("a") as file:
        file.write("y" * 900_000)  # cut, and too long
    assert list(load(path).tree.spans) == [1, 3]


def test_numbers_and_kinds_of_a_stranger_are_bounded(tmp_path: Path) -> None:
    huge = {"e": "start", "t": 10**400, "id": 9, "parent": 1, "kind": "x", "state": "running"}
    lines = [start(1, None, "run"), {**huge, "attrs": {}}, {**huge, "t": -1, "attrs": {}}]
    odd = start(2, 1, "of a later version", index=10**400, size=-5, usage={"cost": 10**400})
    trace = load(written(tmp_path / "a.rlm.jsonl", *lines, odd))
    assert list(trace.tree.spans) == [1, 2]
    assert trace.tree.spans[2].index is None
    assert len(trace.notes) == 2
    assert trace.to_text()
    assert len(trace.to_frame()) == 2


def test_pieces_of_a_text_do_not_add_up_to_more_than_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "STREAMED_BYTES", 0)
    text = {"e": "text", "hash": "0" * 32, "text": "x" * 100_000}
    more = [
        {"e": "more", "t": 10 + n, "id": 1, "attrs": {"text": {"$text": "0" * 32, "chars": 1}}}
        for n in range(3_000)
    ]
    path = written(tmp_path / "a.rlm.jsonl", text, start(1, None, "run"), *more)
    response = load(path).tree.spans[1].response
    assert response is not None
    assert 100_000 <= len(response) <= path.stat().st_size


def test_a_tower_of_spans_can_be_looked_at(tmp_path: Path) -> None:
    spans = [start(1, None, "run"), *(start(n, n - 1) for n in range(2, 20_000))]
    trace = load(written(tmp_path / "a.rlm.jsonl", *spans))
    assert len(trace.to_text()) < 100_000
    assert len(trace.to_html()) < 400_000
    frame = trace.to_frame()
    assert frame["place"].str.len().max() < 2_000


def test_a_text_is_read_when_it_is_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "a.rlm.jsonl"
    trace = recorded(path)
    loaded = load(path)
    path.rename(tmp_path / "moved.rlm.jsonl")  # it stays open
    held = loaded.turns[2].children[0].held
    assert held["messages"][0]["content"]["chars"] == len(LONG)
    assert loaded.turns[2].children[0].attrs == trace.turns[2].children[0].attrs
    assert loaded.events == trace.events


@pytest.mark.skipif(sys.platform != "linux", reason="limits its memory, and reads /proc")
@pytest.mark.parametrize("part", range(PARTS))
def test_mutated_files_execute_nothing_and_read_no_other_file(part: int) -> None:
    command = [sys.executable, "-m", "tests.trace.fuzz", str(FUZZ // PARTS), str(part)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-4_000:]

"""Traces on disk: whole, cut, damaged; texts stored once; nothing lost."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from rlm_notebook.errors import TraceError
from rlm_notebook.trace.jsonl import JsonlWriter
from rlm_notebook.trace.reading import load
from rlm_notebook.trace.recorder import Recorder
from rlm_notebook.trace.trace import Trace

LONG = "a long text " * 100


def recorded(path: Path, **attrs: Any) -> Trace:
    recorder = Recorder(settings={"model": "fake/lm"})
    recorder.add_sink(JsonlWriter(path, recorder.trace.header))
    run = recorder.start("run", None, question="q", **attrs)
    for index in range(3):
        turn = recorder.start("turn", run, index=index)
        call = recorder.start("lm_call", turn, messages=[{"role": "user", "content": LONG}])
        recorder.end(call, "ok", response=LONG)
        recorder.end(turn)
    recorder.end(run, "ok", answer="x")
    recorder.close()
    return recorder.trace


def test_what_was_written_is_read_back_to_the_letter(tmp_path: Path) -> None:
    trace = recorded(tmp_path / "a.rlm.jsonl")
    loaded = Trace.load(tmp_path / "a.rlm.jsonl")
    assert loaded.events == trace.events
    assert loaded.header == trace.header
    assert loaded.notes == []


def test_a_long_text_is_stored_once(tmp_path: Path) -> None:
    recorded(tmp_path / "a.rlm.jsonl")
    assert (tmp_path / "a.rlm.jsonl").read_text(encoding="utf-8").count(LONG) == 1


def test_a_file_that_is_cut_anywhere_loads_up_to_its_last_whole_line(tmp_path: Path) -> None:
    whole = tmp_path / "a.rlm.jsonl"
    trace = recorded(whole)
    data = whole.read_bytes()
    cut = tmp_path / "cut.rlm.jsonl"
    first = data.index(b"\n") + 1
    for end in range(first, len(data), 97):
        cut.write_bytes(data[:end])
        loaded = load(cut)
        assert loaded.events == trace.events[: len(loaded.events)]
        for span in loaded.tree.spans.values():
            assert (span.state == "interrupted") == (span.ended is None)


def test_damaged_lines_and_unknown_kinds_are_left_out_and_named(tmp_path: Path) -> None:
    path = tmp_path / "a.rlm.jsonl"
    trace = recorded(path)
    lines = path.read_bytes().split(b"\n")
    lines.insert(2, b"\xff\xfe not json")
    lines.insert(3, b'{"e":"from-a-later-version","t":1}')
    path.write_bytes(b"\n".join(lines))
    loaded = load(path)
    assert loaded.events == trace.events
    assert [note.split(" was")[0] for note in loaded.notes] == ["line 3", "line 4"]


def test_fields_of_a_later_version_do_not_hurt(tmp_path: Path) -> None:
    path = tmp_path / "a.rlm.jsonl"
    recorded(path)
    changed = [
        json.dumps({**json.loads(line), "new_field": [1]})
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    path.write_text("\n".join(changed) + "\n", encoding="utf-8")
    assert load(path).turns


@pytest.mark.parametrize("content", ["", "hello\n", '{"e":"start"}\n', "[]\n", "\n\n"])
def test_a_file_that_is_no_trace_gives_one_clear_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.rlm.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(TraceError, match="is not a trace"):
        load(path)


def test_a_missing_file_and_a_newer_format_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot read the trace"):
        load(tmp_path / "missing.rlm.jsonl")
    path = tmp_path / "a.rlm.jsonl"
    recorded(path)
    path.write_bytes(path.read_bytes().replace(b'"format":1', b'"format":99'))
    with pytest.raises(TraceError, match="upgrade rlm_notebook"):
        load(path)


def test_an_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "a.rlm.jsonl"
    path.write_text("mine", encoding="utf-8")
    with pytest.raises(TraceError, match="exists"):
        JsonlWriter(path, Recorder().trace.header)
    assert path.read_text(encoding="utf-8") == "mine"


def test_lone_surrogates_and_odd_values_do_not_stop_the_writing(tmp_path: Path) -> None:
    odd = {"n": 2**80, "o": object(), "s": "x\ud800y", "t": "\udfff" * 600, ("k",): 1}
    recorded(tmp_path / "a.rlm.jsonl", odd=odd)
    loaded = load(tmp_path / "a.rlm.jsonl")
    assert loaded.notes == []
    assert loaded.root is not None
    assert loaded.root.attrs["question"] == "q"
    assert loaded.root.attrs["answer"] == "x"


def test_an_event_is_on_disk_soon_without_a_close(tmp_path: Path) -> None:
    path = tmp_path / "a.rlm.jsonl"
    recorder = Recorder()
    recorder.add_sink(JsonlWriter(path, recorder.trace.header))
    recorder.start("run", None, question="is it there?")
    deadline = time.monotonic() + 10
    while b"is it there?" not in path.read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    recorder.close()


def test_events_from_many_threads_are_all_written(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.add_sink(JsonlWriter(tmp_path / "a.rlm.jsonl", recorder.trace.header))

    def work() -> None:
        for _ in range(500):
            recorder.end(recorder.start("slot", None))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.close()
    loaded = load(tmp_path / "a.rlm.jsonl")
    assert loaded.events == recorder.trace.events
    assert len(loaded.events) == 8_000


def test_a_full_disk_is_reported_once_and_the_rest_goes_on(tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("needs /dev/full")
    recorder = Recorder()
    writer = JsonlWriter(tmp_path / "a.rlm.jsonl", recorder.trace.header, on_error=recorder.warn)
    writer._file.close()
    writer._file = full.open("wb", buffering=0)
    recorder.add_sink(writer)
    for _ in range(3):
        recorder.end(recorder.start("run", None))
        time.sleep(0.06)
    recorder.close()
    assert len(recorder.warnings) == 1
    assert "No space left" in recorder.warnings[0]
    saved = recorder.trace.save(tmp_path / "b.rlm.jsonl")
    assert load(saved).events == recorder.trace.events

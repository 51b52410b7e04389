"""A trace from Python: spans, variables, frames, comparisons, the list of a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlm_notebook.errors import TraceError, UsageError
from rlm_notebook.trace.catalog import catalog
from rlm_notebook.trace.compare import compare
from rlm_notebook.trace.recorder import Recorder
from rlm_notebook.trace.trace import Trace
from tests.view.sample import Clock, sample


def test_spans_are_reached_by_name() -> None:
    trace = sample()
    assert trace.turns[1].code == "x = llm_query_batched(prompts)"
    assert trace.batches[0].slots[10].error == {
        "type": "http",
        "message": "failed an answer",
        "status": 500,
    }
    assert [span.index for span in trace.find(kind="slot", error=True)] == [10]
    slot = trace.batches[0].slots[7]
    assert trace.span(slot.id) is slot
    assert slot.place == "turn 2, code 1, llm_query_batched, slot 7"
    with pytest.raises(UsageError, match="no span 12345"):
        trace.span(12345)


def test_the_frame_has_one_row_a_span() -> None:
    trace = sample()
    frame = trace.to_frame()
    assert len(frame) == len(trace.tree.spans)
    slots = frame[frame.kind == "slot"].set_index("index")
    assert slots.latency[7] == pytest.approx(trace.batches[0].slots[7].latency)
    assert slots.error[10] == "failed an answer"
    batch = frame[frame.kind == "batch"].iloc[0]
    assert batch.approximate_latency == pytest.approx(trace.batches[0].approximate_latency)


def test_variables_are_those_after_a_turn() -> None:
    recorder = Recorder(clock=Clock())
    run = recorder.start("run", None)
    for index, rows in enumerate(
        ([["x", "int", "", "1"]], None, [["x", "str", "3 characters", "'abc'"]])
    ):
        turn = recorder.start("turn", run, index=index)
        if rows is not None:
            recorder.end(recorder.start("code", turn, index=0), "ok", variables=rows)
    trace = recorder.trace
    assert trace.variables(turn=1) == {"x": {"type": "int", "size": "", "value": "1"}}
    assert trace.variables(turn=2) == trace.variables(turn=1)
    assert trace.variables(turn=3)["x"]["value"] == "'abc'"
    with pytest.raises(UsageError, match="no turn 4: this run has 3"):
        trace.variables(turn=4)


def test_two_runs_are_aligned_by_place() -> None:
    same = compare(sample(), sample())
    assert not same.differences
    assert len(same.pairs) == len(sample().tree.spans)
    found = compare(sample(slots=20), sample(slots=22, text="another"))
    by_place = {pair.place: pair for pair in found.differences}
    slot = by_place["turn 2, code 1, llm_query_batched, slot 3"]
    assert slot.texts("response") == ("an answer", "another")
    assert by_place["turn 2, code 1, llm_query_batched, slot 21"].differs == ("only in b",)
    frame = found.to_frame()
    assert len(frame) == len(found.pairs)
    assert "places differ" in repr(found)
    html = found._repr_html_()
    assert "<script" not in html
    assert "+another" in html


def write(folder: Path, name: str, parent: str = "") -> str:
    trace = sample(text=f"of {name}")
    trace.header.run = f"run-{name}"
    trace.header.parent = {"run": parent, "place": "turn 2"} if parent else {}
    trace.save(folder / f"{name}.rlm.jsonl")
    return trace.header.run


def test_a_folder_is_listed_with_its_families_and_what_cannot_be_read(tmp_path: Path) -> None:
    first = write(tmp_path, "a")
    second = write(tmp_path, "b", first)
    write(tmp_path / "deeper", "c", second)
    write(tmp_path, "d", "a run that is not here")
    write(tmp_path, "own", "run-own")
    (tmp_path / "bad.rlm.jsonl").write_text("nothing", encoding="utf-8")
    found = catalog(tmp_path)
    depths = {entry.path.name.partition(".")[0]: depth for depth, entry in found.entries}
    assert depths == {"a": 0, "b": 1, "c": 2, "d": 0, "own": 0, "bad": 0}
    assert len(found.to_frame()) == 6
    assert "is not a trace" in repr(found)
    assert "question of c" in found._repr_html_()
    with pytest.raises(TraceError, match="there is no folder"):
        catalog(tmp_path / "nowhere")


def test_reprs_are_readable() -> None:
    trace = sample()
    assert (
        repr(trace.batches[0].slots[10]) == "<slot 10 error 0.030 s after 0.840 s failed an answer>"
    )
    assert "2 turns" in repr(trace)
    assert isinstance(Trace.view(trace)._repr_mimebundle_(), dict)

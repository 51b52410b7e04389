"""The fold from events to spans and totals."""

from __future__ import annotations

import pytest

from rlm_notebook.lm.protocol import Usage
from rlm_notebook.trace.recorder import Recorder
from rlm_notebook.trace.tree import Tree

MS = 1_000_000


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.ns = 5 * MS

    def __call__(self) -> int:
        return self.ns

    def forward(self, ms: float) -> None:
        self.ns += round(ms * MS)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def recorder(clock: Clock) -> Recorder:
    return Recorder(clock=clock)


def test_a_slot_has_its_own_queue_wait_and_latency(recorder: Recorder, clock: Clock) -> None:
    run = recorder.start("run", None)
    batch = recorder.start("batch", run, size=2, limit=1, function="llm_query_batched")
    slots = [recorder.start("slot", batch, state="waiting", index=i) for i in range(2)]
    for slot, ms in zip(slots, (100, 300), strict=True):
        recorder.running(slot)
        clock.forward(ms)
        recorder.end(slot, "ok", response="x", usage={"input_tokens": 1, "output_tokens": 2})
    recorder.end(batch)
    first, second = recorder.trace.slots
    assert first.queue_wait == 0
    assert first.latency == pytest.approx(0.1)
    assert second.queue_wait == pytest.approx(0.1)
    assert second.latency == pytest.approx(0.3)
    assert second.duration == pytest.approx(0.4)
    # What the reference library would report for both of them: total / number of prompts.
    assert recorder.trace.batches[0].approximate_latency == pytest.approx(0.2)


def test_totals_follow_the_calls(recorder: Recorder) -> None:
    run = recorder.start("run", None)
    totals = recorder.trace.tree.totals
    spans = [recorder.start("slot", run, state="waiting", index=i) for i in range(3)]
    assert (totals.waiting, totals.in_flight, totals.calls) == (3, 0, 0)
    recorder.running(spans[0])
    recorder.running(spans[1])
    assert (totals.waiting, totals.in_flight, totals.calls) == (1, 2, 2)
    recorder.end(spans[0], "ok", usage={"input_tokens": 5, "output_tokens": 7, "cost": 0.5})
    recorder.end(spans[1], "error", error={"type": "http", "message": "x"})
    recorder.end(spans[2], "not_sent")
    assert (totals.waiting, totals.in_flight, totals.errors) == (0, 0, 1)
    assert totals.usage == Usage(5, 7, 0.5, complete=True)


def test_a_usage_that_is_not_reported_makes_the_total_a_floor(recorder: Recorder) -> None:
    run = recorder.start("run", None)
    for usage in ({"input_tokens": 5, "output_tokens": 7}, {}):
        call = recorder.start("lm_call", run)
        recorder.end(call, "ok", usage=usage)
    assert recorder.trace.usage == Usage(5, 7, None, complete=False)


def test_the_first_end_wins_and_later_events_are_noise(recorder: Recorder) -> None:
    run = recorder.start("run", None)
    recorder.end(run, "cancelled")
    before = list(recorder.trace.events)
    recorder.end(run, "ok", answer="late")
    recorder.update(run, note="late")
    assert recorder.trace.events == before
    assert recorder.trace.root is not None
    assert recorder.trace.root.state == "cancelled"


def test_ending_what_is_open_ends_children_first_and_marks_unsent_slots(
    recorder: Recorder,
) -> None:
    run = recorder.start("run", None)
    batch = recorder.start("batch", run, size=2)
    sent = recorder.start("slot", batch, state="waiting", index=0)
    recorder.start("slot", batch, state="waiting", index=1)
    recorder.running(sent)
    recorder.end_open(run, "cancelled")
    assert [slot.state for slot in recorder.trace.slots] == ["cancelled", "not_sent"]
    assert recorder.trace.batches[0].state == "cancelled"
    assert recorder.trace.root is not None
    assert recorder.trace.root.open


def test_the_same_events_fold_to_the_same_tree(recorder: Recorder) -> None:
    run = recorder.start("run", None, question="q")
    recorder.end(recorder.start("lm_call", run), "empty", response="")
    again = Tree()
    for event in recorder.trace.events:
        again.apply(event)
    assert {i: (s.state, s.attrs) for i, s in again.spans.items()} == {
        i: (s.state, s.attrs) for i, s in recorder.trace.tree.spans.items()
    }


def test_a_sink_that_raises_is_dropped_and_reported_and_the_run_goes_on(
    recorder: Recorder,
) -> None:
    class Broken:
        def emit(self, event: object) -> None:
            raise ValueError("no")

        def close(self) -> None: ...

    recorder.add_sink(Broken())
    run = recorder.start("run", None)
    recorder.end(run)
    assert len(recorder.trace.events) == 2
    assert recorder.warnings == ["Broken was dropped, the run goes on: ValueError('no')"]


def test_spans_are_found_by_kind_state_and_attribute(recorder: Recorder) -> None:
    run = recorder.start("run", None)
    good = recorder.start("slot", run, model="a/b")
    bad = recorder.start("slot", run, model="a/c")
    recorder.end(good)
    recorder.end(bad, "error", error={"type": "x", "message": "y"})
    trace = recorder.trace
    assert [span.id for span in trace.find(kind="slot", error=True)] == [bad]
    assert [span.id for span in trace.find(model="a/b")] == [good]
    assert [span.id for span in trace.find(state="error")] == [bad]

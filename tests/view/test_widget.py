"""The live view's Python half: few, small, numbered messages that add up to the exact tree."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from rlm_notebook.errors import UsageError
from rlm_notebook.trace.recorder import Recorder
from rlm_notebook.trace.trace import Trace
from rlm_notebook.trace.tree import Span
from rlm_notebook.view.rows import fields, row
from rlm_notebook.view.widget import LiveView
from tests.view.sample import Clock, sample

LIMIT = 256 * 1024


class Watched:
    """A run with a live view whose messages are kept."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.recorder = Recorder(clock=self.clock)
        self.stopped = 0
        self.view = LiveView(
            self.recorder.trace,
            now=self.recorder.now,
            on_stop=self._stop,
            warnings=self.recorder.warnings,
        )
        self.messages: list[dict[str, Any]] = []
        self.view.widget.send = self.messages.append
        self.recorder.add_sink(self.view)

    def _stop(self) -> None:
        self.stopped += 1

    def ask(self, **message: Any) -> list[dict[str, Any]]:
        """What the view answers to a message of the browser."""
        before = len(self.messages)
        self.view._receive(None, message, [])
        return self.messages[before:]


@pytest.fixture
def watched() -> Watched:
    return Watched()


def folded(messages: list[dict[str, Any]]) -> dict[int, Any]:
    """What a browser knows after these messages."""
    rows: dict[int, Any] = {}
    for message in messages:
        if message["type"] in ("rows", "snapshot"):
            rows.update({each["id"]: each for each in message["rows"]})
    return rows


def exact(recorder: Recorder) -> dict[int, Any]:
    return {
        i: msgspec.json.decode(msgspec.json.encode(row(span)))
        for i, span in recorder.trace.tree.spans.items()
    }


def size(message: dict[str, Any]) -> int:
    return len(json.dumps(message, ensure_ascii=False).encode())


def test_two_thousand_slots_within_a_second_are_few_messages_and_the_exact_end(
    watched: Watched,
) -> None:
    recorder = watched.recorder
    run = recorder.start("run", None)
    batch = recorder.start("batch", run, size=2_000, function="llm_query_batched")
    slots = [recorder.start("slot", batch, state="waiting", index=i) for i in range(2_000)]
    for number, slot in enumerate(slots):
        recorder.running(slot)
        recorder.end(slot, "ok", response="x" * 500)
        if number % 134 == 0:  # what the engine does 15 times a second
            watched.view.flush()
    recorder.end(batch)
    recorder.end(run)
    recorder.close()
    assert len(watched.messages) <= 20
    assert all(size(message) < LIMIT for message in watched.messages)
    assert folded(watched.messages) == exact(recorder)
    assert [m["seq"] for m in watched.messages] == list(range(1, len(watched.messages) + 1))
    assert watched.messages[-1]["ended"] is True


def test_nothing_is_sent_when_nothing_has_changed(watched: Watched) -> None:
    watched.recorder.start("run", None)
    watched.view.flush()
    watched.view.flush()
    assert len(watched.messages) == 1


def test_a_snapshot_has_everything_in_parts_below_the_limit(watched: Watched) -> None:
    run = watched.recorder.start("run", None, question="q")
    for index in range(3_000):
        watched.recorder.start("slot", run, index=index, prompt="é" * 200)
    parts = watched.ask(type="snapshot")
    assert len(parts) > 1
    assert [p["part"] for p in parts] == list(range(len(parts)))
    assert {p["parts"] for p in parts} == {len(parts)}
    assert all(size(part) < LIMIT for part in parts)
    assert folded(parts) == exact(watched.recorder)


def test_an_empty_run_has_a_snapshot_too(watched: Watched) -> None:
    (part,) = watched.ask(type="snapshot")
    assert (part["rows"], part["parts"], part["ended"]) == ([], 1, False)


def test_a_hundred_outputs_of_five_megabytes_stay_in_python_until_they_are_asked_for(
    watched: Watched,
) -> None:
    run = watched.recorder.start("run", None)
    big = "z" * 5_000_000
    codes = [watched.recorder.start("code", run, index=i, code="c") for i in range(100)]
    for code in codes:
        error = {"type": "E", "message": big}
        watched.recorder.end(code, "error", stdout=big, traceback=big, error=error)
    watched.view.flush()
    asked = watched.ask(type="fields", id=codes[7])
    assert all(size(message) < LIMIT for message in watched.messages)
    stdout = next(field for field in asked[0]["fields"] if field["name"] == "stdout")
    assert stdout["chars"] == 5_000_000
    head = len(stdout["text"])
    (more,) = watched.ask(type="text", id=codes[7], name="stdout", offset=head)
    assert more["text"] == big[head : head + len(more["text"])]
    assert 0 < len(more["text"]) <= 64_000


def test_stop_is_passed_on(watched: Watched) -> None:
    assert watched.ask(type="stop") == []
    assert watched.stopped == 1


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"type": "unknown"},
        {"type": "fields"},
        {"type": "fields", "id": 99},
        {"type": "fields", "id": "1"},
        {"type": "text", "id": 1, "name": "nope", "offset": 0},
        {"type": "text", "id": 1, "name": "question", "offset": -1},
        {"type": "text", "id": 1, "name": "question", "offset": "0"},
        {"type": ["snapshot"]},
    ],
)
def test_a_message_that_is_no_request_is_left_alone(
    watched: Watched, message: dict[str, Any]
) -> None:
    watched.recorder.start("run", None, question="q")
    assert watched.ask(**message) == []


def test_what_is_no_message_at_all_is_left_alone(watched: Watched) -> None:
    for content in (None, 3, "stop", [1]):
        watched.view._receive(None, content, [])
    assert watched.messages == []


def test_lone_surrogates_can_be_sent(watched: Watched) -> None:
    watched.recorder.start("run", None, question="a\ud800b")
    watched.view.flush()
    watched.ask(type="fields", id=1)
    for message in watched.messages:
        json.dumps(message, ensure_ascii=False).encode()


def test_the_output_is_the_widget_while_it_runs_and_the_static_tree_afterwards(
    watched: Watched,
) -> None:
    widget = "application/vnd.jupyter.widget-view+json"
    during = watched.view.mimebundle()
    assert set(during) == {widget, "text/html", "text/plain"}
    watched.recorder.end(watched.recorder.start("run", None))
    watched.recorder.close()
    after = watched.view.mimebundle()
    assert set(after) == {"text/html", "text/plain"}
    assert watched.view.widget.place in after["text/html"]


def test_the_synced_state_is_small_but_for_the_bundle(watched: Watched) -> None:
    state = {k: v for k, v in watched.view.widget.get_state().items() if k not in ("_esm", "_css")}
    assert len(json.dumps(state, default=str)) < 1_000


def test_a_row_is_one_line_and_its_fields_are_whole() -> None:
    trace = sample(text="line 1\nline 2\t\x1b[31m" + "x" * 500)
    for span in trace.find():
        shown = row(span)
        assert "\n" not in shown.detail + shown.error + shown.label
        assert "\x1b" not in shown.detail + shown.error
        assert len(shown.detail) <= 160
        assert len(shown.error) <= 300
    code = next(trace.find(kind="code", error=True))
    names = [field.name for field in fields(code)]
    assert names == ["error", "code", "stdout", "stderr", "traceback"]
    assert next(f.text for f in fields(code) if f.name == "stdout").endswith("x" * 500)


async def test_a_fork_is_begun_where_it_is_asked_for_and_its_refusal_is_told() -> None:
    begun: list[tuple[str, dict[str, str]]] = []

    async def on_fork(trace: Trace, span: Span, edits: dict[str, str]) -> str:
        if "model" in edits:
            raise UsageError("no such model")
        begun.append((span.place, edits))
        return "run 3 begins below"

    trace = sample()
    view = LiveView(trace, now=lambda: 0, on_stop=lambda: None, warnings=[], on_fork=on_fork)
    messages: list[dict[str, Any]] = []
    view.widget.send = messages.append

    async def ask(**message: Any) -> dict[str, Any]:
        messages.clear()
        view._receive(None, message, [])
        await asyncio.sleep(0.01)
        return messages[-1]

    turn, slot = trace.turns[0], trace.slots[0]
    assert (await ask(type="snapshot"))["forks"] is True
    can = await ask(type="forkable", id=slot.id)
    assert can["texts"]["prompt"] == slot.prompt
    assert set((await ask(type="forkable", id=turn.id))["texts"]) == {
        *("code", "prompt", "response", "model")
    }
    done = await ask(type="fork", id=slot.id, edits={"prompt": "p", "code": 3})
    assert done == {"type": "forked", "id": slot.id, "message": "run 3 begins below"}
    assert begun == [(slot.place, {"prompt": "p"})]
    refused = await ask(type="fork", id=turn.id, edits={"model": "x"})
    assert refused == {"type": "refused", "id": turn.id, "message": "no such model"}
    messages.clear()
    view._receive(None, {"type": "forkable", "id": trace.batches[0].id}, [])
    view._receive(None, {"type": "fork", "id": "x"}, [])
    assert messages == []

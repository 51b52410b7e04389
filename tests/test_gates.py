"""A run stops for its user: what is shown, edited, skipped, asked again, and what the trace keeps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rlm_notebook import RLM, Trace
from rlm_notebook.errors import LMError, UsageError
from rlm_notebook.gates import Break, Gate
from rlm_notebook.live import LiveRun
from tests.fakes import FakeLM, answering, block

Choice = Callable[[Gate], "tuple[str, dict[str, str]]"]


def go(gate: Gate) -> tuple[str, dict[str, str]]:
    return "go", {}


async def stepped(
    lm: Any,
    choose: Choice = go,
    *,
    step: bool = True,
    breaks: tuple[str, ...] = (),
    **settings: Any,
) -> tuple[LiveRun, list[Gate]]:
    """Run, deciding at every gate; the gates in order."""
    live = RLM(lm, **settings).prepare("the context", "what?", step=step, breaks=breaks)
    met: list[Gate] = []
    task = asyncio.ensure_future(live.go())
    while not task.done():
        for span, gate in list(live.gates.waiting.items()):
            met.append(gate)
            live.gates.decide(span, *choose(gate))
        await asyncio.sleep(0.005)
    await task
    return live, met


def kinds(met: list[Gate]) -> list[str]:
    return [gate.kind for gate in met]


def only(kind: str, choice: tuple[str, dict[str, str]]) -> Choice:
    return lambda gate: choice if gate.kind == kind else ("go", {})


CODE = "found = llm_query_batched(['a', 'b'])\nprint(found)"


async def test_it_stops_before_calls_blocks_and_batches() -> None:
    live, met = await stepped(FakeLM(block(CODE), answering("found")))
    assert kinds(met) == ["call", "code", "batch", "call", "code"]
    assert met[1].editable["code"] == CODE
    assert json.loads(met[2].editable["prompts"]) == ["a", "b"]
    assert met[0].words == "turn 1: before the LM call"
    assert live.result is not None
    assert live.result.answer == ["A", "B"]
    pauses = list(live.trace.find(kind="pause"))
    assert [span.attrs["at"] for span in pauses] == kinds(met)
    assert all(span.state == "ok" for span in pauses)


async def test_the_time_of_a_pause_is_no_ones_latency() -> None:
    async def slowly(live: LiveRun) -> None:
        while live.result is None:
            for span in list(live.gates.waiting):
                await asyncio.sleep(0.3)
                live.gates.decide(span, "go")
            await asyncio.sleep(0.005)

    lm = FakeLM(block(CODE), answering("found"))
    live = RLM(lm, timeout=1.0).prepare("c", "q", step=True)
    deciding = asyncio.ensure_future(slowly(live))
    result = await live.go()
    await deciding
    assert result.outcome == "answered", "1.5 s of pauses do not count as the run's time"
    calls = [span for span in result.trace.find() if span.kind in ("lm_call", "slot", "batch")]
    assert max(span.duration or 0.0 for span in calls) < 0.25
    assert min(span.duration or 0.0 for span in result.trace.find(kind="pause")) >= 0.29


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("turn", ["call", "call"]),
        ("batch", ["call", "batch"]),
        ("error", ["call", "slot"]),
        ("run", ["call"]),
    ],
)
async def test_it_goes_on_to_the_next_of_a_kind(action: str, expected: list[str]) -> None:
    def leaf(prompt: str) -> str | LMError:
        return LMError("no", type="http", status=400) if prompt == "b" else prompt

    lm = FakeLM(block(CODE), answering("found"), leaf=leaf)
    _, met = await stepped(lm, lambda gate: (action, {}))
    assert kinds(met) == expected


async def test_edited_code_runs_and_both_versions_are_kept() -> None:
    lm = FakeLM(block("x = 1"), answering("x"))
    live, _ = await stepped(
        lm,
        lambda g: (
            "run" if g.editable.get("code") == "x = 1" else "go",
            {"code": "x = 2"} if g.editable.get("code") == "x = 1" else {},
        ),
    )
    assert live.result is not None
    assert live.result.answer == 2
    (code,) = [c for c in live.trace.turns[0].children if c.kind == "code"]
    assert (code.code, code.attrs["edited"]) == ("x = 2", {"code": "x = 1"})
    assert "x = 2" in lm.roots[1].messages[-2].content, "the model sees it as its own"
    assert live.trace.path is not None
    replay = await asyncio.to_thread(Trace.load(live.trace.path).replay)
    assert replay.same, replay


async def test_the_prompts_of_a_batch_are_edited() -> None:
    lm = FakeLM(block(CODE), answering("found"))
    edit = json.dumps(["a", "other"])
    live, _ = await stepped(lm, only("batch", ("run", {"prompts": edit})))
    assert live.result is not None
    assert live.result.answer == ["A", "OTHER"]
    first, second = live.trace.slots
    assert "edited" not in first.attrs
    assert (second.prompt, second.attrs["edited"]) == ("other", {"prompt": "b"})
    assert live.trace.path is not None
    assert await asyncio.to_thread(lambda: Trace.load(live.trace.path or "").replay().same)


async def test_the_answer_of_the_model_is_edited_or_given() -> None:
    lm = FakeLM(block("x = 1"), answering("x"))
    seen: list[str] = []

    def choose(gate: Gate) -> tuple[str, dict[str, str]]:
        seen.append(gate.kind)
        if seen == ["call", "code"]:
            return "go", {"response": answering("'edited'")}
        return "go", {}

    live, _ = await stepped(lm, choose)
    assert live.result is not None
    assert live.result.answer == "edited"
    (call,) = [c for c in live.trace.turns[0].children if c.kind == "lm_call"]
    assert call.attrs["edited"] == {"response": block("x = 1")}
    unasked = FakeLM(answering("1"))
    live, _ = await stepped(unasked, only("call", ("run", {"response": answering("'mine'")})))
    assert live.result is not None
    assert live.result.answer == "mine"
    assert unasked.requests == []
    assert live.trace.path is not None
    assert await asyncio.to_thread(lambda: Trace.load(live.trace.path or "").replay().same)


async def test_what_the_model_is_told_is_edited() -> None:
    lm = FakeLM(answering("1"))
    live, met = await stepped(lm, only("call", ("run", {"prompt": "another question"})))
    assert lm.roots[0].messages[-1].content == "another question"
    (call,) = live.trace.find(kind="lm_call")
    assert call.attrs["edited"]["messages"][-1]["content"] == met[0].editable["prompt"]


async def test_a_block_is_skipped_and_the_model_is_told() -> None:
    lm = FakeLM(block("x = 1"), answering("'x' in globals()"))
    seen: list[Gate] = []

    def choose(gate: Gate) -> tuple[str, dict[str, str]]:
        seen.append(gate)
        return ("skip" if len(seen) == 2 else "go"), {}

    live, _ = await stepped(lm, choose)
    assert live.result is not None
    assert live.result.answer is False
    assert "The user skipped this block" in lm.roots[1].messages[-1].content
    assert [c.state for c in live.trace.turns[0].children if c.kind == "code"] == ["skipped"]


class Failing:
    """Fails for ``b`` until it is told to work."""

    def __init__(self) -> None:
        self.broken = True

    def __call__(self, prompt: str) -> str | LMError:
        if prompt == "b" and self.broken:
            return LMError("overloaded", type="http", status=400)
        return prompt.upper()


async def test_a_failed_slot_is_asked_again() -> None:
    leaf = Failing()

    def choose(gate: Gate) -> tuple[str, dict[str, str]]:
        leaf.broken = False
        return "retry", {}

    lm = FakeLM(block(CODE), answering("found"), leaf=leaf)
    live, met = await stepped(lm, choose, step=False, breaks=("error",))
    assert kinds(met) == ["slot"]
    assert live.result is not None
    assert live.result.answer == ["A", "B"]
    slot = live.trace.slots[1]
    assert slot.state == "ok"
    assert slot.attrs["edited"]["error"]["message"] == "overloaded"
    assert live.trace.tree.totals.in_flight == live.trace.tree.totals.waiting == 0


async def several_failed(points: tuple[str, ...]) -> tuple[LiveRun, asyncio.Future[Any]]:
    """A run that stands at three failed slots at once."""
    code = "found = llm_query_batched(['a', 'b', 'c'])"
    lm = FakeLM(block(code), answering("1"), leaf=lambda _: LMError("no", type="http", status=400))
    live = RLM(lm).prepare("c", "q", step=True, breaks=points)
    task = asyncio.ensure_future(live.go())
    while len(live.gates.waiting) < 3 and not task.done():
        for span, gate in list(live.gates.waiting.items()):
            if gate.kind != "slot":
                live.gates.decide(span, "go")
        await asyncio.sleep(0.005)
    return live, task


@pytest.mark.parametrize("action", ["run", "turn", "batch"])
async def test_going_on_from_one_gate_goes_on_from_all_that_are_passed(action: str) -> None:
    live, task = await several_failed(())
    live.gates.decide(min(live.gates.waiting), action)
    assert not live.gates.waiting
    while not task.done():
        for span in list(live.gates.waiting):
            live.gates.decide(span, "run")
        await asyncio.sleep(0.005)
    assert (await task).answer == 1


async def test_where_it_would_stop_again_it_still_stands() -> None:
    for points, action in (((), "error"), (("error",), "run")):
        live, task = await several_failed(points)
        live.gates.decide(min(live.gates.waiting), action)
        assert len(live.gates.waiting) == 2
        for span in list(live.gates.waiting):
            if span in live.gates.waiting:
                live.gates.decide(span, "run")
        assert (await task).answer == 1


async def test_a_failed_slot_is_asked_with_another_prompt_and_model() -> None:
    other = FakeLM(name="fake/other", leaf=lambda prompt: f"other {prompt}")
    lm = FakeLM(block(CODE), answering("found"), leaf=Failing())
    rlm = RLM(lm)
    rlm._given["fake/other"] = other
    live = rlm.prepare("c", "q", breaks=("error",))
    task = asyncio.ensure_future(live.go())
    while not live.gates.waiting and not task.done():
        await asyncio.sleep(0.005)
    (span,) = live.gates.waiting
    live.gates.decide(span, "retry", {"prompt": "new", "model": "fake/other"})
    result = await task
    assert result.answer == ["A", "other new"]
    slot = live.trace.slots[1]
    assert (slot.prompt, slot.attrs["model"]) == ("new", "fake/other")
    assert slot.attrs["edited"]["prompt"] == "b"


async def test_the_answer_of_a_failed_slot_is_given() -> None:
    lm = FakeLM(block(CODE), answering("found"), leaf=Failing())
    live, _ = await stepped(
        lm, only("slot", ("go", {"response": "by hand"})), step=False, breaks=("error",)
    )
    assert live.result is not None
    assert live.result.answer == ["A", "by hand"]
    slot = live.trace.slots[1]
    assert (slot.state, slot.response, slot.error) == ("ok", "by hand", None)
    assert live.trace.path is not None
    loaded = Trace.load(live.trace.path)
    assert loaded.slots[1].response == "by hand"
    assert (await asyncio.to_thread(loaded.replay)).same


@pytest.mark.parametrize(
    ("point", "expected"),
    [
        ("turn=2", ["call"]),
        ("'password' in prompt", ["batch"]),
        ("'print' in code", ["code"]),
        ("kind == 'batch' and turn == 1", ["batch"]),
        ("any(word in prompt for word in ('nothing', 'password'))", ["batch"]),
        ("prompt > 3", []),
    ],
)
async def test_breakpoints(point: str, expected: list[str]) -> None:
    code = "x = llm_query_batched(['the password', 'b'])\nprint(x)"
    lm = FakeLM(block(code), answering("x"))
    _, met = await stepped(lm, lambda gate: ("run", {}), step=False, breaks=(point,))
    assert kinds(met) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        *(
            (text, "write turn=3, error, or an expression")
            for text in ("turn=", "if x", "prompt =")
        ),
        ("'x' in promt", "there is no promt; there is: prompt, code"),
        ("__import__('os')", "there is no __import__"),
    ],
)
def test_a_breakpoint_that_cannot_be_read_says_what_can(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Break(text)


async def test_what_stood_there_first_is_kept_however_often_a_slot_is_asked() -> None:
    leaf = Failing()

    def choose(gate: Gate) -> tuple[str, dict[str, str]]:
        if gate.kind == "batch":
            return "error", {"prompts": '["a", "b"]'}
        again = gate.editable["prompt"] == "b2"
        leaf.broken = not again
        return "retry", {} if again else {"prompt": "b2"}

    def failing(prompt: str) -> str | LMError:
        return leaf("b") if prompt == "b2" else leaf(prompt)

    code = "found = llm_query_batched(['a', 'first'])\nprint(found)"
    lm = FakeLM(block(code), answering("found"), leaf=failing)
    live, _ = await stepped(lm, choose, step=False, breaks=("kind == 'batch'",))
    slot = live.trace.slots[1]
    assert (slot.prompt, slot.edited["prompt"], slot.state) == ("b2", "first", "ok")
    assert live.trace.path is not None
    assert await asyncio.to_thread(lambda: Trace.load(live.trace.path or "").replay().same)


async def test_code_and_answer_are_not_edited_at_once() -> None:
    live = RLM(FakeLM(block("x = 1"))).prepare("c", "q", breaks=("kind == 'code'",))
    edits = {"code": "x = 2", "response": "y"}
    await refused(live, lambda span: live.gates.decide(span, "go", edits), "not both")


async def test_children_are_stepped_too() -> None:
    lm = FakeLM(block("x = rlm_query('part')"), answering("context"), answering("x"))
    _, met = await stepped(lm)
    depths = [gate.about["depth"] for gate in met]
    assert depths == [0, 0, 1, 1, 0, 0]
    assert met[2].words == "turn 1 of a child: before the LM call"


async def test_it_stops_at_the_budget() -> None:
    code = "x = llm_query_batched(['a'] * 8)"
    _, met = await stepped(FakeLM(block(code), answering("1")), max_calls=11)
    assert kinds(met).count("budget") == 1


async def test_stopping_at_a_gate_ends_the_run_and_closes_all() -> None:
    live, _ = await stepped(FakeLM(answering("1")), lambda gate: ("stop", {}))
    assert live.result is not None
    assert (live.result.outcome, live.result.stopped_by) == ("stopped", "user")
    assert not [span for span in live.trace.find() if span.open]


async def test_a_cancelled_pause_leaves_nothing() -> None:
    live = RLM(FakeLM(answering("1"))).prepare("c", "q", step=True)
    task = asyncio.ensure_future(live.go())
    while not live.gates.waiting:
        await asyncio.sleep(0.005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not live.gates.waiting
    assert live.trace.root is not None
    assert live.trace.root.state == "cancelled"


async def refused(live: LiveRun, decide: Callable[[int], None], says: str) -> None:
    task = asyncio.ensure_future(live.go())
    while not live.gates.waiting:
        await asyncio.sleep(0.005)
    (span,) = live.gates.waiting
    with pytest.raises(UsageError, match=says):
        decide(span)
    assert span in live.gates.waiting, "nothing is lost"
    live.gates.decide(span, "stop")
    await task


async def test_what_is_not_possible_is_refused_and_the_run_still_stands() -> None:
    def prepare(point: str) -> LiveRun:
        return RLM(FakeLM(block(CODE), answering("1"))).prepare("c", "q", breaks=(point,))

    cases: list[tuple[str, Callable[[LiveRun, int], None], str]] = [
        ("turn=1", lambda live, span: live.gates.decide(span, "skip"), "skip is not possible"),
        ("turn=1", lambda live, span: live.gates.decide(span, "go", {"x": "1"}), "x cannot be"),
        ("turn=1", lambda live, span: live.gates.decide(span + 99, "go"), "not stand there"),
        (
            "kind == 'batch'",
            lambda live, span: live.gates.decide(span, "go", {"prompts": '["a"]'}),
            "these are 1 prompts, the code asks 2",
        ),
        (
            "kind == 'batch'",
            lambda live, span: live.gates.decide(span, "go", {"prompts": "["}),
            "no JSON list",
        ),
    ]
    for point, decide, says in cases:
        live = prepare(point)
        await refused(live, lambda span, live=live, decide=decide: decide(live, span), says)  # type: ignore[misc]


async def test_what_is_recorded_is_not_stepped_through_again() -> None:
    from rlm_notebook.forks import Edit
    from rlm_notebook.resume import prepare_fork

    lm = FakeLM(block(CODE), answering("found"))
    parent = (await RLM(lm).acompletion("c", "q")).trace
    again = FakeLM(answering("found[0]"))

    def make(settings: Any) -> RLM:
        return RLM(again)

    live = await prepare_fork(parent, make, parent.turns[1], Edit())
    live.gates.pause()
    task: Awaitable[Any] = asyncio.ensure_future(live.go())
    met = []
    while live.result is None:
        for span, gate in list(live.gates.waiting.items()):
            met.append(gate.kind)
            live.gates.decide(span, "go")
        await asyncio.sleep(0.005)
    assert (await task).answer == "A"
    assert met == ["call", "code"]

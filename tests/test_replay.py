"""A run again: the same to the letter, resumed where it stopped, forked at any place."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rlm_notebook import RLM, Result, Session, Trace
from rlm_notebook.errors import ContextError, LMError, RLMError, RunError, TraceError, UsageError
from rlm_notebook.forks import Edit
from rlm_notebook.lm.protocol import Request, Response
from rlm_notebook.resume import afork, prepare_fork, prepare_resume
from rlm_notebook.settings import Settings
from rlm_notebook.trace.jsonl import JsonlWriter
from tests.fakes import FakeLM, answering, block

CODE = """\
found = llm_query_batched([f"{i} {context[:5]}" for i in range(12)])
print(found)
print(llm_query("single"), llm_query("single"))
deep = rlm_query_batched(["left", "right"])
print(deep, rlm_query("alone"))
"""


class Scripted:
    """A root with three turns, children with one, leaves that count how often they are asked."""

    name = "fake/scripted"

    def __init__(self, before: Callable[[Request], Awaitable[None]] | None = None) -> None:
        self.asked: list[str] = []
        self._before = before

    async def complete(self, request: Request) -> Response:
        self.asked.append(request.messages[-1].content)
        if self._before is not None:
            await self._before(request)
        if request.purpose == "sub":
            return Response(f"<{request.messages[-1].content} {request.occurrence}>")
        if any("left" in m.content or "child" in m.content for m in request.messages[1:2]):
            return Response(answering("context.upper()"))
        if "10 characters" not in request.messages[1].content:
            return Response(answering("context.upper()"))
        turn = sum(message.role == "assistant" for message in request.messages)
        replies = (block(CODE), block("1 / 0"), answering("[found[3], deep]"))
        return Response(replies[turn])

    async def close(self) -> None:
        pass


ANSWER = ["<3 whole 0>", ["LEFT", "RIGHT"]]


def run(lm: Any, **settings: Any) -> Result:
    return RLM(lm, **settings).completion("whole text", "what?")


def maker(lm: Any, **more: Any) -> Callable[[Settings], RLM]:
    def make(settings: Settings) -> RLM:
        known = {name: getattr(settings, name) for name in ("max_depth", "timeout", "repl")}
        return RLM(lm, **{**known, **more})

    return make


async def resumed(path: Path, lm: Any, **changes: Any) -> Result:
    live = await prepare_resume(Trace.load(path), maker(lm), **changes)
    return await live.go()


async def fork(trace: Trace, place: Any, lm: Any, **edit: Any) -> Result:
    live = await prepare_fork(trace, maker(lm), place, Edit(**edit))
    return await live.go()


def path_of(result: Result) -> Path:
    assert result.trace.path is not None
    return result.trace.path


@pytest.mark.parametrize("repl", ["subprocess", "kernel"])
def test_a_replay_does_the_same_and_asks_nobody(repl: str) -> None:
    lm = Scripted()
    result = run(lm, repl=repl)
    assert result.answer == ANSWER
    asked = len(lm.asked)
    replay = Trace.load(path_of(result)).replay(repl=repl)
    assert replay.same
    assert replay
    assert replay.result.answer == ANSWER
    assert len(lm.asked) == asked
    shape = [(span.kind, span.state, span.response) for span in result.trace.find()]
    assert [(span.kind, span.state, span.response) for span in replay.result.trace.find()] == shape
    assert replay.result.trace.path is None
    assert "the same, 3 turns" in repr(replay)


def test_equal_prompts_get_their_answers_in_order() -> None:
    result = run(Scripted())
    singles = [s.response for s in result.trace.find(kind="lm_call", prompt="single")]
    assert singles == ["<single 0>", "<single 1>"]
    again = Trace.load(path_of(result)).replay().result.trace
    assert [s.response for s in again.find(kind="lm_call", prompt="single")] == singles


def changed(path: Path, old: str, new: str) -> Trace:
    """The trace with a text of it changed."""
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    return Trace.load(path)


def test_the_first_difference_is_named_with_a_diff() -> None:
    code = "import time\nprint('begin')\nprint(time.time())"
    result = run(FakeLM(block(code), answering("1")))
    replay = result.trace.replay()
    assert not replay
    assert replay.difference is not None
    assert str(replay.difference) == "turn 1, code 1: stdout differs"
    lines = replay.difference.diff.splitlines()
    assert lines[:2] == ["--- recorded", "+++ replayed"]
    assert " begin" in lines
    assert sum(line[0] in "+-" for line in lines[2:]) == 2


def test_a_call_that_was_not_made_and_one_that_is_left_over_are_named(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    code = (
        f"import os\nn = 3 if os.path.exists({str(mark)!r}) else 2\n"
        "x = [llm_query(f'<{i}>') for i in range(n)]"
    )
    result = run(FakeLM(block(code), answering("1")))
    mark.touch()
    more = result.trace.replay().difference
    assert more is not None
    assert (more.place, more.recorded, more.replayed) == (
        "turn 1, code 1, llm_query",
        None,
        "<2>",
    )
    fewer = run(FakeLM(block(code), answering("1")))
    mark.unlink()
    less = fewer.trace.replay().difference
    assert less is not None
    assert (less.recorded, less.replayed) == ("<2>", None)
    assert "is missing, which the recorded run has" in str(less)


def test_another_answer_in_the_file_is_found() -> None:
    result = run(Scripted())
    trace = changed(path_of(result), "<5 whole 0>", "<5 other 0>")
    difference = trace.replay().difference
    assert difference is not None
    assert difference.place == "turn 1, code 1"
    assert "-" in difference.diff


def test_addresses_of_objects_are_no_difference() -> None:
    assert run(FakeLM(block("print(object())"), answering("1"))).trace.replay().same


def test_failed_slots_fail_again_and_the_rest_is_the_same() -> None:
    def leaf(prompt: str) -> str | LMError:
        return LMError("no such model", type="http", status=404) if prompt == "3" else prompt

    code = "print(llm_query_batched([str(i) for i in range(40)]))"
    for rule in ("gather", "taskgroup"):
        result = run(FakeLM(block(code), answering("1"), leaf=leaf), failure_rule=rule)
        states = [slot.state for slot in result.trace.slots]
        assert "error" in states
        replay = Trace.load(path_of(result)).replay()
        assert replay.same, replay
        assert [slot.state for slot in replay.result.trace.slots] == states


def test_tools_answer_from_the_record() -> None:
    calls: list[int] = []

    def look_up(n: int) -> dict[str, Any]:
        """Look it up."""
        calls.append(n)
        if n == 2:
            raise KeyError("two")
        return {"n": n, "list": [1, None, 0.5]}

    code = "for n in (1, 2):\n    try:\n        print(look_up(n))\n    except KeyError as e:\n        print(e)"
    lm = FakeLM(block(code), answering("1"))
    result = RLM(lm, tools=[look_up]).completion("whole text", "q")
    assert calls == [1, 2]
    assert Trace.load(path_of(result)).replay().same
    assert calls == [1, 2]


def test_a_failed_run_and_a_stopped_one_replay_up_to_their_end() -> None:
    with pytest.raises(RunError) as raised:
        run(FakeLM(block("x = 1"), LMError("gone", type="http", status=500)), max_attempts=1)
    replay = raised.value.result.trace.replay()
    assert replay.same, replay
    assert replay.result.outcome == "error"
    limited = run(Scripted(), max_calls=5)
    assert limited.outcome == "stopped"
    assert limited.trace.replay().same
    endless = run(FakeLM(block("while True: pass")), timeout=1.0)
    assert endless.outcome == "stopped"
    assert endless.trace.replay().same


def test_a_context_that_was_not_kept_has_to_be_given() -> None:
    result = run(FakeLM(answering("context")), keep_context=0)
    with pytest.raises(ContextError, match="give it with context="):
        result.trace.replay()
    assert result.trace.replay(context="whole text").same
    kept = run(FakeLM(answering("context")))
    with pytest.raises(ContextError, match="not the context that the recorded run"):
        kept.trace.replay(context="another text")
    (file,) = (path_of(kept).parent / "contexts").iterdir()
    file.write_bytes(b"tchanged")
    with pytest.raises(ContextError, match="was changed"):
        kept.trace.replay()


@pytest.mark.parametrize(
    "context",
    ["text é", "", b"\0\xff", ["a", {"b": [1, 2.5, None, True]}], {"k": "v", "n": {"1": []}}],
)
def test_contexts_are_kept_as_they_are(context: Any) -> None:
    lm = FakeLM(answering("repr(context)"))
    result = RLM(lm).completion(context, "q")
    assert result.answer == repr(context)
    assert result.trace.replay().result.answer == repr(context)


def test_a_later_run_of_a_session_cannot_be_run_again() -> None:
    session = Session("s")
    try:
        lm = FakeLM(answering("context"))
        first = RLM(lm).completion("one", "q", session=session)
        second = RLM(lm).completion("two", "q", session=session)
        assert first.trace.replay().same
        with pytest.raises(UsageError, match="earlier questions of its session"):
            second.trace.replay()
    finally:
        session.close()


class Crash(Exception):
    pass


def cut(path: Path, lines: int, to: Path, rest: bytes = b'{"e":"end","t"') -> Path:
    """The file as a kill in mid-run leaves it."""
    whole = path.read_bytes().split(b"\n")
    to.write_bytes(b"\n".join(whole[:lines]) + b"\n" + rest)
    folder = to.parent / "contexts"
    folder.mkdir(exist_ok=True)
    for file in (path.parent / "contexts").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return to


def outline(trace: Trace) -> list[tuple[str, str]]:
    return sorted((span.place, str(span.response)) for span in trace.find())


async def test_a_file_that_is_cut_anywhere_resumes_to_the_right_answer(tmp_path: Path) -> None:
    lm = Scripted()
    result = await RLM(lm).acompletion("whole text", "what?")
    path = path_of(result)
    count = path.read_bytes().count(b"\n")
    first = next(
        number
        for number, line in enumerate(path.read_bytes().split(b"\n"), start=1)
        if b"context_digest" in line
    )
    places = random.Random(5).sample(range(first, count), 12)
    for place in [first, *places, count - 1]:
        part = cut(path, place, tmp_path / f"{place}.rlm.jsonl")
        before = Trace.load(part)
        again = Scripted()
        final = await resumed(part, again)
        assert final.answer == ANSWER, place
        loaded = Trace.load(part)
        assert not loaded.notes
        assert loaded.events == final.trace.events
        assert not [span for span in loaded.find() if span.open]
        answered = [s for s in before.find() if s.kind in ("lm_call", "slot") and s.state == "ok"]
        done = sum(not s.attrs.get("child") for s in answered)
        assert len(again.asked) <= len(lm.asked) - done, "recorded calls are not asked again"
        assert outline(loaded) == outline(result.trace)
        assert loaded.replay().same


async def test_a_run_that_was_stopped_goes_on(tmp_path: Path) -> None:
    async def slow(request: Request) -> None:
        if request.messages[-1].content.startswith("7 "):
            await asyncio.sleep(60)

    stopped = await RLM(Scripted(slow), timeout=1.5).acompletion("whole text", "what?")
    assert (stopped.outcome, stopped.stopped_by) == ("stopped", "timeout")
    assert [slot.state for slot in stopped.trace.slots].count("ok") == 11
    again = Scripted()
    final = await resumed(path_of(stopped), again, timeout=30.0)
    assert final.answer == ANSWER
    assert [text for text in again.asked if "whole" in text and text[0].isdigit()] == ["7 whole"]
    loaded = Trace.load(path_of(stopped))
    assert loaded.root is not None
    assert loaded.root.attrs["outcome"] == "answered"
    assert "stopped_by" not in loaded.root.attrs
    (reopened,) = [json.loads(line) for line in lines(loaded) if '"e":"reopen"' in line]
    assert reopened["attrs"]["settings"] == {"timeout": 30.0}
    assert loaded.tree.totals.in_flight == loaded.tree.totals.waiting == 0
    with pytest.raises(UsageError, match="nothing to resume; fork it"):
        await resumed(path_of(stopped), again)


def lines(trace: Trace) -> list[str]:
    assert trace.path is not None
    return trace.path.read_text(encoding="utf-8").splitlines()


async def test_a_provider_that_was_down_is_asked_again() -> None:
    with pytest.raises(RunError) as raised:
        await RLM(
            FakeLM(block("x = llm_query('a')"), LMError("down", type="http", status=503)),
            max_attempts=1,
        ).acompletion("whole text", "q")
    path = path_of(raised.value.result)
    lm = FakeLM(answering("x + context"))
    assert (await resumed(path, lm)).answer == "Awhole text"
    assert len(lm.requests) == 1


async def test_a_file_that_is_being_written_is_refused() -> None:
    async def hang(request: Request) -> None:
        await asyncio.sleep(60)

    stopped = await RLM(Scripted(hang), timeout=0.3).acompletion("whole text", "what?")
    writer = JsonlWriter(path_of(stopped), None)
    try:
        with pytest.raises(TraceError, match="is being written by another run"):
            await resumed(path_of(stopped), Scripted())
    finally:
        writer.close()
    assert (await resumed(path_of(stopped), Scripted(), timeout=None)).answer == ANSWER


async def test_a_trace_does_not_say_where_keys_go_and_code_runs() -> None:
    """A trace may come from anybody: what would be dangerous in it has to be said again."""
    key = "sk-canary-1234567890"
    providers = {"mine": {"base_url": "http://127.0.0.1:9/v1", "headers": {"x-key": key}}}
    parent = (
        await RLM(Scripted(), providers=providers, repl="kernel").acompletion("whole text", "what?")
    ).trace
    with pytest.raises(UsageError, match="if you trust it with yours"):
        await asyncio.to_thread(parent.replay)
    turn = parent.turns[1]

    async def forked(**changes: Any) -> Result:
        live = await prepare_fork(
            parent, lambda _: RLM(FakeLM(answering("7"))), turn, Edit(), **changes
        )
        return await live.go()

    with pytest.raises(UsageError, match="give --providers again"):
        await forked(repl="subprocess")
    parent.header.settings["base_url"] = "http://127.0.0.1:9/v1"
    with pytest.raises(UsageError, match="give --base-url again"):
        await forked(repl="subprocess", providers=providers)
    result = await forked(repl="subprocess", providers=providers, base_url=None)
    assert result.answer == 7
    assert key not in path_of(result).read_text(encoding="utf-8"), "nor does a change show a key"


async def test_a_fork_at_a_turn_asks_only_from_there_on() -> None:
    parent = (await RLM(Scripted()).acompletion("whole text", "what?")).trace
    lm = FakeLM(answering("[found[0], deep]"))
    result = await fork(Trace.load(path_of_trace(parent)), parent.turns[1], lm, model="fake/lm")
    assert result.answer == ["<0 whole 0>", ["LEFT", "RIGHT"]]
    assert len(lm.requests) == 1, "what was before is not asked again"
    assert len(result.turns) == 2
    header = Trace.load(path_of(result)).header
    assert header.parent["place"] == "turn 2"
    assert header.parent["run"] == parent.header.run != header.run
    assert header.settings["model"] == "fake/lm"
    latencies = [slot.latency for slot in result.trace.batches[0].slots]
    assert latencies == [slot.latency for slot in parent.batches[0].slots], "as they were"
    assert result.trace.replay().same


def path_of_trace(trace: Trace) -> Path:
    assert trace.path is not None
    return trace.path


async def test_a_fork_with_other_code_a_further_text_or_another_answer() -> None:
    parent = (await RLM(Scripted()).acompletion("whole text", "what?")).trace
    lm = FakeLM(answering("found"))
    coded = await fork(parent, parent.turns[0], lm, code="found = 'mine'")
    assert coded.answer == "mine"
    assert "found = 'mine'" in lm.roots[0].messages[-2].content, "the model sees it as its own"
    (call,) = [s for s in coded.turns[0].children if s.kind == "lm_call"]
    assert call.attrs["edited"] == {"response": block(CODE)}
    (code,) = [s for s in parent.turns[1].children if s.kind == "code"]
    block_only = await fork(parent, code, FakeLM(answering("z")), code="z = 2 / 1")
    assert block_only.answer == 2.0
    told = FakeLM(answering("'told'"))
    hinted = await fork(parent, parent.turns[1], told, prompt="Look at slot 3.")
    assert told.roots[0].messages[-1].content.endswith("\n\nLook at slot 3.")
    (asked,) = [s for s in hinted.turns[1].children if s.kind == "lm_call"]
    assert not asked.attrs["edited"]["messages"][-1]["content"].endswith("slot 3.")
    said = await fork(parent, parent.turns[2], FakeLM(), response=answering("'by hand'"))
    assert said.answer == "by hand"


async def test_a_fork_at_a_slot_asks_that_slot_alone() -> None:
    parent = (await RLM(Scripted()).acompletion("whole text", "what?")).trace
    slot = parent.batches[0].slots[3]
    lm = Scripted()
    result = await fork(parent, slot, lm, prompt="other")
    assert result.answer == ["<other 0>", ["LEFT", "RIGHT"]]
    found = next(s for s in result.trace.batches[0].slots if s.index == 3)
    assert (found.prompt, found.attrs["edited"]) == ("other", {"prompt": "3 whole"})
    given = await fork(parent, slot, Scripted(), response="given")
    assert given.answer == ["given", ["LEFT", "RIGHT"]]
    again = await fork(given.trace, given.turns[2], FakeLM(answering("found[3]")))
    assert again.answer == "given", "a fork of a fork"
    assert again.trace.header.parent["run"] == given.trace.header.run
    for each in (result, given, again):
        assert Trace.load(path_of(each)).replay().same


async def test_a_fork_in_a_child_goes_on_with_the_child() -> None:
    parent = (await RLM(Scripted()).acompletion("whole text", "what?")).trace
    child = next(s for s in parent.find(kind="run") if s.parent and s.parent.kind == "slot")
    result = await fork(
        parent, child.children[0], Scripted(), code="answer.update(content='new', ready=True)"
    )
    assert result.answer == ["<3 whole 0>", ["new", "RIGHT"]]


async def test_what_cannot_be_forked_says_so() -> None:
    parent = (await RLM(Scripted()).acompletion("whole text", "what?")).trace
    assert parent.root is not None
    for span, edit, says in (
        (parent.root, {}, "a run is forked at one of its turns"),
        (parent.batches[0], {"code": "1"}, "a batch has no code"),
        (parent.batches[0], {"prompt": "1"}, "a batch has no prompt"),
    ):
        with pytest.raises(RLMError, match=says):
            await fork(parent, span, Scripted(), **edit)


def test_a_trace_resumes_and_forks_itself_with_the_models_that_are_given(tmp_path: Path) -> None:
    whole = run(Scripted())
    lines = path_of(whole).read_bytes().split(b"\n")
    part = tmp_path / "part.rlm.jsonl"
    part.write_bytes(b"\n".join(lines[: len(lines) // 2]) + b"\n")
    lm = Scripted()
    result = Trace.load(part).resume(model=lm, context="whole text")
    assert result.answer == ANSWER
    assert 0 < len(lm.asked) < len(whole.trace.slots) + 8
    with pytest.raises(UsageError, match="nothing to resume; fork it"):
        Trace.load(part).resume(model=lm)
    forked = whole.trace.fork(turn=3, code="answer = {'content': 'other', 'ready': True}", model=lm)
    assert forked.answer == "other"
    assert forked.trace.header.parent["place"] == "turn 3"
    assert forked.trace.header.parent["edited"] == ["code", "model"]
    again = forked.trace.fork(turn=1, slot="1.3", response="mine", model=Scripted())
    assert again.answer == ["mine", ["LEFT", "RIGHT"]]
    assert again.trace.header.parent["run"] == forked.trace.header.run


async def test_a_slot_can_be_asked_of_a_model_object_of_ones_own() -> None:
    whole = await RLM(Scripted()).acompletion("whole text", "what?")
    other = FakeLM(name="fake/other", leaf=lambda prompt: f"other {prompt}")
    found = await afork(whole.trace, turn=1, slot="1.3", model=other, models=[Scripted()])
    assert found.answer == ["other 3 whole", ["LEFT", "RIGHT"]]
    assert other.subs == ["3 whole"]


def test_a_function_that_the_run_could_call_has_to_be_given() -> None:
    result = RLM(FakeLM(block("print(twice(4))"), answering("twice(5)")), tools=[twice]).completion(
        "x", "q"
    )
    lm = FakeLM(answering("twice(7)"))
    with pytest.raises(UsageError, match=r"the run could call twice: give .* tools="):
        result.trace.fork(turn=2, model=lm)
    assert result.trace.fork(turn=2, model=lm, tools=[twice]).answer == 14


def twice(n: int) -> int:
    """Double a number."""
    return 2 * n


@pytest.mark.parametrize(
    ("place", "edit", "says"),
    [
        ({}, {}, "say where to fork"),
        ({"turn": 1, "span": 3}, {}, "say where to fork"),
        ({"turn": 0}, {}, "turn 0: the turns of this run are 1 to 3"),
        ({"turn": 1, "slot": "0.1"}, {}, "give BATCH.SLOT"),
        ({"turn": 1, "slot": "1.99"}, {}, "give BATCH.SLOT"),
        ({"turn": 1, "slot": "1.1"}, {"code": "x"}, "has no code to change"),
        ({"turn": 1}, {"code": "x", "response": "y"}, "not both"),
        ({"span": 1}, {}, "a run is forked at one of its turns"),
    ],
)
def test_a_place_or_a_change_that_is_not_right_is_refused(
    place: dict[str, Any], edit: dict[str, Any], says: str
) -> None:
    trace = run(Scripted()).trace
    with pytest.raises(UsageError, match=says):
        trace.fork(**place, **edit)


def test_what_is_replayed_takes_no_time_of_the_fork() -> None:
    lm = FakeLM(block("import time; time.sleep(0.2)"), answering("1"))
    whole = run(lm)
    forked = whole.trace.fork(turn=2, model=FakeLM(answering("2")))
    assert forked.answer == 2
    reopened = next(e for e in forked.trace.events if type(e).__name__ == "SpansReopened")
    assert forked.trace.turns[1].submitted == reopened.t
    assert forked.trace.turns[0].duration == whole.trace.turns[0].duration

"""Batches, slots, single sub-calls and child runs."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from rlm_notebook import RLM, Result
from rlm_notebook.errors import LMError
from rlm_notebook.subcalls import SubcallGate
from tests.fakes import FakeLM, answering, block


def run(lm: FakeLM, context: Any = "c", **settings: Any) -> Result:
    return RLM(lm, **settings).completion(context, "q?")


def batch_then_answer(code: str) -> str:
    return answering(f"({code})")


def test_answers_come_in_the_order_of_the_prompts_whatever_order_they_end_in() -> None:
    random_seconds = random.Random(3)

    async def leaf(prompt: str) -> str:
        await asyncio.sleep(random_seconds.random() / 50)
        return f"<{prompt}>"

    lm = FakeLM(batch_then_answer("llm_query_batched([str(i) for i in range(50)])"), leaf=leaf)
    assert run(lm).answer == [f"<{i}>" for i in range(50)]


def test_a_failed_slot_never_aborts_its_batch_and_stands_in_its_place() -> None:
    def leaf(prompt: str) -> Any:
        if prompt == "2":
            raise LMError("server says no", type="http", status=500)
        if prompt == "4":
            raise ValueError("a bug\nof two lines")
        return prompt

    lm = FakeLM(batch_then_answer("llm_query_batched(list('123456'))"), leaf=leaf)
    result = run(lm)
    assert result.answer == [
        "1",
        "Error: server says no",
        "3",
        "Error: fake/lm raised ValueError: a bug",
        "5",
        "6",
    ]
    slots = result.trace.slots
    assert [slot.index for slot in slots] == list(range(6))
    assert [slot.state for slot in slots] == ["ok", "error", "ok", "error", "ok", "ok"]
    assert slots[1].error == {"type": "http", "message": "server says no", "status": 500}
    assert result.trace.tree.totals.errors == 2


def test_no_more_than_the_limit_are_in_flight() -> None:
    lm = FakeLM(batch_then_answer("llm_query_batched(list('abcdefghij'))"), seconds=0.02)
    result = run(lm, batch_max_concurrent=3)
    assert lm.most_at_work == 3
    assert result.trace.batches[0].attrs["limit"] == 3
    waits = [slot.queue_wait for slot in result.trace.slots]
    assert all(wait is not None for wait in waits)
    assert waits[-1] > waits[0]  # type: ignore[operator]


def test_five_identical_prompts_are_five_requests() -> None:
    lm = FakeLM(batch_then_answer("llm_query_batched(['same'] * 5)"))
    assert run(lm).answer == ["SAME"] * 5
    assert sorted(r.occurrence for r in lm.requests if r.purpose == "sub") == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("code", "answer"), [("[]", []), ("['a']", ["A"])])
def test_an_empty_batch_and_a_batch_of_one(code: str, answer: list[str]) -> None:
    assert run(FakeLM(batch_then_answer(f"llm_query_batched({code})"))).answer == answer


def test_a_prompt_that_is_no_str_is_an_error_of_its_slot() -> None:
    lm = FakeLM(batch_then_answer("llm_query_batched(['a', 3, None, 'b'])"))
    result = run(lm)
    assert result.answer == [
        "A",
        "Error: a prompt must be a str, not int",
        "Error: a prompt must be a str, not NoneType",
        "B",
    ]
    assert [slot.state for slot in result.trace.slots] == ["ok", "not_sent", "not_sent", "ok"]
    assert lm.subs == ["a", "b"]


def test_one_str_in_place_of_a_list_is_refused_in_the_code() -> None:
    lm = FakeLM(block("llm_query_batched('abc')"), answering("1"))
    run(lm)
    assert "takes a list of prompts" in lm.roots[1].messages[-1].content
    assert lm.subs == []


def test_no_content_and_empty_content_are_told_apart() -> None:
    answers = {"n": None, "e": "", "x": "x"}
    lm = FakeLM(batch_then_answer("llm_query_batched(['n', 'e', 'x'])"), leaf=answers.get)
    result = run(lm)
    assert [slot.state for slot in result.trace.slots] == ["null", "empty", "ok"]
    assert result.answer == ["Error: the model returned no content (stop)", "", "x"]


def test_a_slot_that_hangs_times_out_alone() -> None:
    async def leaf(prompt: str) -> str:
        await asyncio.sleep(60 if prompt == "hang" else 0)
        return prompt

    lm = FakeLM(batch_then_answer("llm_query_batched(['a', 'hang', 'b'])"), leaf=leaf)
    result = run(lm, call_timeout=0.3)
    assert result.answer == [
        "a",
        "Error: fake/lm gave no answer within 0.3 s: give it more time with call_timeout",
        "b",
    ]
    assert result.trace.slots[1].error == {
        "type": "timeout",
        "message": "fake/lm gave no answer within 0.3 s: give it more time with call_timeout",
    }


def test_with_the_taskgroup_rule_the_first_failure_cancels_the_rest() -> None:
    async def leaf(prompt: str) -> str:
        if prompt == "bad":
            raise LMError("no", type="http")
        await asyncio.sleep(60)
        return prompt

    lm = FakeLM(
        block("llm_query_batched(['a', 'bad', 'c', 'd'])"), answering("'went on'"), leaf=leaf
    )
    result = run(lm, failure_rule="taskgroup", batch_max_concurrent=2)
    assert result.answer == "went on"
    assert "slot 1 failed, the rest of the batch was cancelled: no" in (
        lm.roots[1].messages[-1].content
    )
    assert [s.state for s in result.trace.slots] == ["cancelled", "error", "not_sent", "not_sent"]


def test_sub_calls_work_from_threads_and_from_a_loop_of_the_codes_own() -> None:
    code = """
import asyncio
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(4) as pool:
    threaded = list(pool.map(llm_query, "abcd"))
async def two():
    return await asyncio.gather(*[asyncio.to_thread(llm_query, p) for p in "xy"])
looped = asyncio.run(two())
"""
    lm = FakeLM(block(code), answering("[threaded, looped]"), seconds=0.01)
    assert run(lm).answer == [["A", "B", "C", "D"], ["X", "Y"]]


def test_a_sub_call_from_a_forked_process_says_what_to_do_instead() -> None:
    code = """
import os
pid = os.fork()
if not pid:
    try:
        llm_query("x")
    except RuntimeError as error:
        print(str(error), flush=True)
    os._exit(0)
os.waitpid(pid, 0)
"""
    lm = FakeLM(block(code), answering("1"))
    run(lm)
    assert "works in the REPL's own process only" in lm.roots[1].messages[-1].content


def test_another_model_can_be_asked_and_an_unknown_one_is_an_error_of_the_call() -> None:
    lm, other = FakeLM(answering("1")), FakeLM(name="fake/other", leaf=lambda p: f"other {p}")
    lm._replies = [batch_then_answer("[llm_query('a'), llm_query('b', model='nope/x')]")]
    result = RLM(lm, sub_model=other).completion("c", "q")
    assert result.answer[0] == "other a"
    assert result.answer[1].startswith("Error: no provider 'nope'")


class Recursive(FakeLM):
    """A root that asks children, and children that answer about their context."""

    def __init__(self, root: str, child: str, **kwargs: Any) -> None:
        super().__init__(root, **kwargs)
        self._by_depth = [root, child]

    async def complete(self, request: Any) -> Any:
        if request.purpose != "sub":
            is_child = "Answer the request in the context." in request.messages[1].content
            self.requests.append(request)
            return self._response(self._by_depth[is_child])
        return await super().complete(request)


def test_a_child_run_has_its_own_repl_and_its_prompt_as_context() -> None:
    lm = Recursive(
        batch_then_answer("rlm_query_batched(['abc', 'de']) + [rlm_query('xyz')]"),
        answering("llm_query(context) + f' {__import__(\"os\").getpid()}'"),
    )
    result = run(lm)
    words = [answer.split() for answer in result.answer]
    assert [word for word, _ in words] == ["ABC", "DE", "XYZ"]
    assert len({pid for _, pid in words}) == 3
    children = [span for span in result.trace.find(kind="run") if span.attrs["depth"] == 1]
    assert [span.parent.kind for span in children if span.parent] == ["slot", "slot", "code"]
    assert {span.state for span in children} == {"ok"}
    assert not [slot for slot in result.trace.slots if slot.state != "ok"]


def test_at_the_depth_limit_rlm_query_is_llm_query_and_the_model_is_told() -> None:
    lm = FakeLM(batch_then_answer("rlm_query_batched(['a']) + [rlm_query('b')]"))
    result = run(lm, max_depth=1)
    assert result.answer == ["A", "B"]
    assert "here the same as the two above" in lm.roots[0].messages[0].content
    assert len(list(result.trace.find(kind="run"))) == 1


def test_a_child_without_an_answer_is_an_error_of_its_slot() -> None:
    lm = Recursive(batch_then_answer("rlm_query_batched(['a', 'b'])"), "")
    result = run(lm, max_iterations=1)
    assert result.answer == ["Error: the child RLM gave no answer"] * 2
    assert [slot.state for slot in result.trace.slots] == ["error", "error"]


def test_nested_children_never_deadlock_and_never_exceed_the_limit() -> None:
    class Nested(FakeLM):
        async def complete(self, request: Any) -> Any:
            if request.purpose == "sub":
                return await super().complete(request)
            size = request.messages[1].content.partition("a str of ")[2][:1]
            replies = {
                "4": batch_then_answer("rlm_query_batched(['mid'] * 2)"),
                "3": batch_then_answer("rlm_query_batched(['xx'] * 2)"),
                "2": answering("llm_query(context)"),
            }
            return self._response(replies[size])

    lm = Nested(seconds=0.02)
    result = run(lm, context="root", max_depth=3, max_concurrent_subcalls=1)
    assert result.answer == ['["XX", "XX"]'] * 2
    assert lm.most_at_work == 1


async def test_a_place_that_is_lent_is_taken_back_before_the_work_goes_on() -> None:
    gate = SubcallGate(1)
    order: list[str] = []

    async def child(name: str) -> None:
        async with gate.place():
            order.append(name)
            await asyncio.sleep(0)
            order.append(f"{name} done")

    async with gate.place() as place:
        async with place.lent():
            await asyncio.gather(child("a"), child("b"))
        other = asyncio.create_task(child("c"))
        await asyncio.sleep(0.01)
        order.append("parent")
    await other
    assert order == ["a", "a done", "b", "b done", "parent", "c", "c done"]

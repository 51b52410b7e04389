"""The limits of a run hold for its whole tree, exactly, and leave what there is."""

from __future__ import annotations

from typing import Any

import pytest

from rlm_notebook import RLM, Result, Trace
from rlm_notebook.errors import LMError
from rlm_notebook.lm.protocol import Response, Usage
from tests.fakes import FakeLM, answering, block

PARTIAL = "answer['content'] = 'so far'\n"


def run(lm: FakeLM, **settings: Any) -> Result:
    return RLM(lm, **settings).completion("c", "q")


def check_stopped(result: Result, word: str) -> None:
    assert result.outcome == "stopped"
    assert result.stopped_by is not None
    assert word in result.stopped_by
    assert word in result.summary()
    assert not any(span.open for span in result.trace.find())
    assert result.trace.path is not None
    loaded = Trace.load(result.trace.path)
    assert loaded.events == result.trace.events


def test_a_batch_stops_at_the_limit_of_calls_and_the_partial_answer_is_kept() -> None:
    lm = FakeLM(block(PARTIAL), block("llm_query_batched([str(i) for i in range(50)])"))
    result = run(lm, max_calls=12, batch_max_concurrent=4)
    check_stopped(result, "max_calls: 12 LM calls")
    assert len(lm.requests) == 12
    assert result.trace.tree.totals.calls == 12
    assert result.partial == "so far"
    assert {slot.state for slot in result.trace.slots} <= {"ok", "cancelled", "not_sent"}


def test_the_roots_own_call_is_counted_and_stopped_too() -> None:
    lm = FakeLM(block(PARTIAL))
    result = run(lm, max_calls=3)
    check_stopped(result, "max_calls")
    assert len(lm.requests) == 3
    assert result.partial == "so far"


def test_children_share_the_limit() -> None:
    class Recursive(FakeLM):
        async def complete(self, request: Any) -> Any:
            if request.purpose == "sub":
                return await super().complete(request)
            self.requests.append(request)
            child = "Answer the request" in request.messages[1].content
            code = "llm_query_batched(['x'] * 10)" if child else "rlm_query_batched(['c'] * 4)"
            return self._response(answering(f"len({code})"))

    lm = Recursive(seconds=0.005)
    check_stopped(run(lm, max_calls=20), "max_calls")
    assert len(lm.requests) == 20


def test_tokens_and_reported_cost_end_a_run() -> None:
    def leaf(prompt: str) -> Response:
        return Response("x", Usage(100, 10, 0.01))

    code = block("for i in range(100): llm_query(str(i))")
    check_stopped(run(FakeLM(code, leaf=leaf), max_tokens=500), "max_tokens")
    lm = FakeLM(code, leaf=leaf)
    check_stopped(run(lm, max_cost=0.05), "max_cost: $0.0500 of $0.0500")
    assert len(lm.subs) == 5


def test_errors_in_a_row_end_a_run_and_a_success_between_them_does_not() -> None:
    def leaf(prompt: str) -> str:
        if "bad" in prompt:
            raise LMError("no", type="protocol")
        return prompt

    bad = block("for i in range(100): llm_query('bad')")
    lm = FakeLM(bad, leaf=leaf)
    check_stopped(run(lm, max_errors=4), "max_errors: 4 errors in a row")
    assert len(lm.subs) == 4
    mixed = answering("[llm_query(p) for p in ['bad', 'bad', 'good', 'bad', 'bad']][2]")
    assert run(FakeLM(mixed, leaf=leaf), max_errors=3).answer == "good"


@pytest.mark.parametrize("name", ["max_calls", "max_tokens", "max_cost", "max_errors"])
def test_without_limits_nothing_is_limited(name: str) -> None:
    assert getattr(RLM(FakeLM("x")).settings, name) is None

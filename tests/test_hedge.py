"""Stragglers are asked a second time; the first answer wins, and both are in the trace."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from rlm_notebook import RLM, Result
from rlm_notebook.errors import LMError, UsageError
from rlm_notebook.hedge import FEWEST, Hedge
from rlm_notebook.settings import make_settings
from tests.fakes import FakeLM, answering


def run(leaf: Any, count: int, **settings: Any) -> tuple[Result, FakeLM]:
    lm = FakeLM(answering(f"llm_query_batched([str(i) for i in range({count})])"), leaf=leaf)
    return RLM(lm, **settings).completion("c", "q"), lm


class Slow:
    """Answers at once, but for the first request of some prompts."""

    def __init__(self, seconds: float, *prompts: str) -> None:
        self._seconds = seconds
        self._slow = prompts
        self.asked: Counter[str] = Counter()

    async def __call__(self, prompt: str) -> str:
        self.asked[prompt] += 1
        if prompt in self._slow and self.asked[prompt] == 1:
            await asyncio.sleep(self._seconds)
            return "late"
        return f"{prompt}, {self.asked[prompt]}"


def test_a_straggler_is_asked_again_and_the_first_answer_wins() -> None:
    leaf = Slow(20.0, "7")
    result, lm = run(leaf, 40, hedge="p95")
    assert [a for a in result.answer if a.endswith(", 2")] == ["7, 2"]
    assert lm.cancelled == 1
    slot = result.trace.slots[7]
    assert (slot.state, slot.response) == ("ok", "7, 2")
    first, second = slot.attempts
    assert first["cancelled"]
    assert second["hedge"]
    assert "error" not in second
    assert not slot.usage.complete  # the cancelled one may be paid for
    assert all(not s.attempts for s in result.trace.slots if s is not slot)
    assert (result.seconds or 0) < 10


def test_the_first_attempt_may_still_win() -> None:
    class Patient(Slow):
        async def __call__(self, prompt: str) -> str:
            if self.asked[prompt]:
                self.asked[prompt] += 1
                await asyncio.sleep(20)
            return await super().__call__(prompt)

    result, lm = run(Patient(0.3, "3"), 30, hedge="0.1")
    assert result.answer[3] == "late"
    assert lm.cancelled == 1
    first, second = result.trace.slots[3].attempts
    assert "cancelled" not in first
    assert second["hedge"]
    assert second["cancelled"]


def test_a_second_request_that_fails_leaves_the_first_one_alone() -> None:
    class Failing(Slow):
        async def __call__(self, prompt: str) -> str:
            if self.asked[prompt]:
                raise LMError("down", type="http", status=400)
            return await super().__call__(prompt)

    result, _ = run(Failing(0.3, "3"), 30, hedge="0.1")
    assert result.answer[3] == "late"
    assert [a.get("error", {}).get("status") for a in result.trace.slots[3].attempts] == [None, 400]


def test_where_both_fail_the_slot_fails_once() -> None:
    async def leaf(prompt: str) -> str:
        if prompt == "3":
            await asyncio.sleep(0.2)
            raise LMError("down", type="http", status=400)
        return prompt

    result, lm = run(leaf, 30, hedge="0.05")
    assert result.answer[3] == "Error: down"
    assert lm.subs.count("3") == 2
    assert len(result.trace.slots[3].attempts) == 2


def test_nothing_is_asked_twice_without_the_setting() -> None:
    leaf = Slow(0.2, "3")
    result, _ = run(leaf, 30)
    assert set(leaf.asked.values()) == {1}
    assert result.answer[3] == "late"


def test_a_percentile_is_known_after_some_answers_and_bounds_the_share() -> None:
    hedge = Hedge("p90", 30)
    for number in range(FEWEST - 1):
        hedge.ended(number)
    assert hedge.after() is None
    hedge.ended(FEWEST - 1)
    assert hedge.after() == 17
    for _ in range(3):  # 10% of 30
        hedge.take()
    assert hedge.after() is None


def test_seconds_hold_for_every_slot() -> None:
    hedge = Hedge("1.5", 2)
    assert hedge.after() == 1.5
    hedge.take()
    hedge.take()
    assert hedge.after() is None


@pytest.mark.parametrize("value", ["p95", "p99.9", "2", ".5", "0.5"])
def test_rules_that_are_right(value: str) -> None:
    assert make_settings(hedge=value).hedge == value


@pytest.mark.parametrize("value", ["95", "p0", "p100", "fast", "-1", "p"])
def test_rules_that_are_wrong_are_said(value: str) -> None:
    if value == "95":
        assert make_settings(hedge=value).hedge == "95"  # seconds
        return
    with pytest.raises(UsageError, match="--hedge"):
        make_settings(hedge=value)

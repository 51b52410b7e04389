"""One limit for all requests to a provider: shared, fair between runs, smaller after a 429."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rlm_notebook import RLM
from rlm_notebook.errors import LMError
from rlm_notebook.provider_limit import ProviderLimit, limit_of
from tests.fakes import FakeLM, answering


def too_many(after: float | None = None) -> LMError:
    return LMError("x", type="http", status=429, retry_after=after)


async def fail(limit: ProviderLimit, failure: LMError) -> None:
    async with limit.place(1):
        raise failure


async def test_no_more_than_the_limit_are_in_flight() -> None:
    limit, most = ProviderLimit(3), 0

    async def call() -> None:
        nonlocal most
        async with limit.place(1):
            most = max(most, limit.in_flight)
            await asyncio.sleep(0.001)

    await asyncio.gather(*[call() for _ in range(20)])
    assert most == 3
    assert limit.in_flight == 0


async def test_runs_take_turns_so_that_a_wide_batch_starves_nobody() -> None:
    limit, order = ProviderLimit(1), []

    async def call(run: int) -> None:
        async with limit.place(run):
            order.append(run)
            await asyncio.sleep(0)

    async with limit.place(0):
        wide = [asyncio.create_task(call(1)) for _ in range(10)]
        await asyncio.sleep(0)
        narrow = [asyncio.create_task(call(2)) for _ in range(2)]
        await asyncio.sleep(0)
    await asyncio.gather(*wide, *narrow)
    assert order[:4] == [1, 2, 1, 2]
    assert order[4:] == [1] * 8


async def test_a_429_halves_the_limit_once_a_wave_and_pauses_everybody() -> None:
    limit = ProviderLimit(16)
    loop = asyncio.get_running_loop()

    async def refused() -> None:
        async with limit.place(1):
            await asyncio.sleep(0.01)
            raise too_many(0.1)

    begin = loop.time()
    await asyncio.gather(*[refused() for _ in range(8)], return_exceptions=True)
    assert limit.allowed == 4  # half of what was in flight
    async with limit.place(2):
        assert loop.time() - begin >= 0.1
    assert limit.allowed == 5


async def test_the_limit_grows_back_to_what_was_set_and_no_further() -> None:
    limit = ProviderLimit(4)
    limit.allowed = 1.0
    for _ in range(40):
        async with limit.place(1):
            pass
    assert limit.allowed == 4


async def test_other_failures_do_not_touch_the_limit() -> None:
    limit = ProviderLimit(4)
    for failure in (LMError("x", type="http", status=500), LMError("x", type="quota", status=429)):
        with pytest.raises(LMError):
            await fail(limit, failure)
    assert limit.allowed == 4


async def test_a_cancelled_wait_gives_its_place_to_the_next() -> None:
    limit, done = ProviderLimit(1), []

    async def call(name: str) -> None:
        async with limit.place(1):
            done.append(name)

    async with limit.place(0):
        first, second = (asyncio.create_task(call(name)) for name in "ab")
        await asyncio.sleep(0)
        first.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    assert done == ["b"]
    assert limit.in_flight == 0


async def test_a_place_that_is_given_and_cancelled_at_once_is_not_lost() -> None:
    limit = ProviderLimit(1)

    async def call() -> None:
        async with limit.place(1):
            pass

    async with limit.place(0):
        task = asyncio.create_task(call())
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert limit.in_flight == 0
    await asyncio.wait_for(call(), 5)


def test_models_at_one_address_share_a_limit() -> None:
    class At(FakeLM):
        base_url = "http://127.0.0.1:1/v1"

    one, two = At(name="openai/a"), At(name="openai/b")
    assert limit_of(one, 8) is limit_of(two, 8)
    assert limit_of(FakeLM(name="x/a"), 8) is not limit_of(FakeLM(name="y/a"), 8)
    assert limit_of(one, 3).most == 3


def test_children_and_their_batches_together_stay_below_the_limit() -> None:
    class Recursive(FakeLM):
        async def complete(self, request: Any) -> Any:
            if request.purpose == "sub":
                return await super().complete(request)
            child = "Answer the request" in request.messages[1].content
            code = "llm_query_batched(['x'] * 16)" if child else "rlm_query_batched(['c'] * 4)"
            return self._response(answering(f"len({code})"))

    lm = Recursive(seconds=0.01)
    result = RLM(lm, provider_max_concurrent=5).completion("c", "q")
    assert result.answer == 4
    assert len(lm.subs) == 64
    assert lm.most_at_work <= 5
    assert all(slot.state == "ok" for slot in result.trace.slots)

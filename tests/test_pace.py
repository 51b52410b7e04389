"""Rates that are set and rates that are learned: 1,000 slots against servers that refuse, in
virtual time.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

import pytest

from rlm_notebook.errors import LMError
from rlm_notebook.lm.protocol import Message, Request, Usage
from rlm_notebook.lm.provider_settings import ProviderSettings
from rlm_notebook.pace import Bucket
from rlm_notebook.provider_limit import ProviderLimit
from rlm_notebook.retry import RetryPolicy
from tests import virtual_time

LEARNING = 3.0
"""Seconds that finding out the rate may cost."""


@dataclass
class Limited:
    """A server with a token bucket: 429 beyond."""

    per_second: float
    burst: float
    seconds: float = 0.05
    """Latency of an answer."""
    says: float | None = None
    """Retry-After."""
    most: int = 10_000
    """Requests at once."""
    level: float = field(init=False)
    at: float = 0.0
    at_work: int = 0
    refused: int = 0
    sent: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.level = self.burst

    async def answer(self) -> None:
        now = asyncio.get_running_loop().time()
        self.sent.append(now)
        self.level = min(self.burst, self.level + (now - self.at) * self.per_second)
        self.at = now
        if self.level < 1 or self.at_work >= self.most:
            self.refused += 1
            await asyncio.sleep(0.005)
            raise LMError("x", type="http", status=429, retry_after=self.says)
        self.level -= 1
        self.at_work += 1
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.at_work -= 1


@dataclass
class Outcome:
    seconds: float
    lost: int
    most_attempts: int


async def batch(limit: ProviderLimit, server: Limited, slots: int, lanes: int = 16) -> Outcome:
    """What the engine does with a batch: lanes, places, retries."""
    loop, dice = asyncio.get_running_loop(), random.Random(1)
    policy, todo = RetryPolicy(dice=dice.random), iter(range(slots))
    begin, lost, most = loop.time(), 0, 0

    async def slot() -> None:
        nonlocal lost, most
        for refused in range(1, 100):
            most = max(most, refused)
            try:
                async with limit.place(1):
                    await server.answer()
                return
            except LMError as error:
                wait = policy.wait(0, error, refused)
            if wait is None:
                lost += 1
                return
            await asyncio.sleep(wait)

    async def lane() -> None:
        for _ in todo:
            await slot()

    await asyncio.gather(*[lane() for _ in range(lanes)])
    return Outcome(loop.time() - begin, lost, most)


@pytest.mark.parametrize("per_second", [5.0, 20.0, 100.0])
@pytest.mark.parametrize("burst", [20.0, 100.0])
@pytest.mark.parametrize("says", [None, 1.0])
@pytest.mark.parametrize("latency", [0.005, 0.05, 0.4])
def test_a_rate_limited_server_is_used_up_to_its_limit_and_no_slot_is_lost(
    per_second: float, burst: float, says: float | None, latency: float
) -> None:
    server = Limited(per_second, burst, latency, says)
    outcome = virtual_time.run(batch(ProviderLimit(64), server, 1_000))
    bound = max((1_000 - burst) / per_second, 1_000 * latency / 16)
    assert outcome.lost == 0
    assert outcome.seconds <= 1.05 * bound + LEARNING
    assert server.refused <= 150  # refusals are rare: the rate is known, not tried out


@pytest.mark.parametrize("per_second", [5.0, 20.0, 100.0])
@pytest.mark.parametrize("says", [None, 1.0])
def test_a_server_that_allows_no_burst_is_used_nearly_up_to_its_limit(
    per_second: float, says: float | None
) -> None:
    server = Limited(per_second, 1.0, says=says)
    outcome = virtual_time.run(batch(ProviderLimit(64), server, 1_000))
    assert outcome.lost == 0
    assert outcome.seconds <= 1.15 * 1_000 / per_second + LEARNING


def test_a_server_that_allows_few_at_once_is_kept_busy() -> None:
    server = Limited(1e6, 1e6, seconds=0.5, most=4)
    outcome = virtual_time.run(batch(ProviderLimit(64), server, 400))
    assert outcome.lost == 0
    assert outcome.seconds <= 1.15 * 400 * 0.5 / 4 + LEARNING


def test_two_clients_share_a_servers_limit_without_losing_slots() -> None:
    server = Limited(20.0, 20.0)

    async def both() -> list[Outcome]:
        batches = [batch(ProviderLimit(64), server, 500) for _ in range(2)]
        return list(await asyncio.gather(*batches))

    one, other = virtual_time.run(both())
    assert (one.lost, other.lost) == (0, 0)
    assert max(one.seconds, other.seconds) <= 1.5 * 980 / 20 + LEARNING


def test_a_limit_that_is_lifted_is_found_out() -> None:
    limit, server = ProviderLimit(64), Limited(20.0, 20.0)

    async def lifted() -> float:
        await batch(limit, server, 400)
        server.per_second = server.burst = 1e6
        return (await batch(limit, server, 2_000)).seconds

    assert virtual_time.run(lifted()) <= 40  # 100 s at the old rate


def test_a_rate_is_forgotten_when_the_provider_has_long_been_left_alone() -> None:
    limit, server = ProviderLimit(64), Limited(20.0, 20.0)

    async def later() -> float | None:
        await batch(limit, server, 100)
        assert limit.pace.rate is not None
        await asyncio.sleep(61)
        await batch(limit, server, 1)
        return limit.pace.rate

    assert virtual_time.run(later()) is None


def test_requests_per_minute_are_kept_to() -> None:
    limit, server = ProviderLimit(64), Limited(1e6, 1e6)
    limit.set(64, ProviderSettings(requests_per_minute=120))
    outcome = virtual_time.run(batch(limit, server, 300))
    assert server.refused == 0
    times = server.sent
    assert all(after - before >= 60 for before, after in zip(times, times[122:], strict=False))
    assert outcome.seconds == pytest.approx(300 / 2, rel=0.02)


def test_tokens_per_minute_are_estimated_then_corrected() -> None:
    limit = ProviderLimit(64)
    limit.set(64, ProviderSettings(tokens_per_minute=60_000))
    request = Request((Message("user", "x" * 4_000),))  # 1,000 tokens, and some output

    async def ask(count: int, output: int) -> float:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        for _ in range(count):
            async with limit.place(1, request) as place:
                await asyncio.sleep(0.001)
                place.used(Usage(1_000, output))
        return loop.time() - begin

    async def both() -> tuple[float, float]:
        return await ask(100, 0), await ask(100, 1_000)

    short, long = virtual_time.run(both())
    assert short == pytest.approx(100, rel=0.05)  # 1,000 tokens/s
    assert long == pytest.approx(200, rel=0.05)


def test_a_request_above_the_whole_allowance_goes_and_is_paid_off_after() -> None:
    bucket = Bucket(10.0)
    assert bucket.ready_at(0.0, 100) == 0.0
    bucket.take(0.0, 100)
    assert bucket.ready_at(0.0) == pytest.approx(9.1)


def test_a_provider_that_refuses_everything_is_given_up() -> None:
    limit, server = ProviderLimit(64), Limited(0.0, 0.0)

    async def refused() -> bool:
        for _ in range(400):
            with pytest.raises(LMError):
                async with limit.place(1):
                    await server.answer()
            if limit.refuses_all:
                return True
        return False

    assert virtual_time.run(refused())
    assert len(server.sent) < 100

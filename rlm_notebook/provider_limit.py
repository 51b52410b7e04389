"""How many requests go to one provider: shared by all runs, batches and children.

Four children with sixteen calls each would otherwise be sixty-four requests at once. Turns are
taken between runs, so that a wide batch cannot starve another child. When the provider answers
429, the requests in flight are halved and the rate is fitted to what it lets through; both grow
back.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from typing import NamedTuple

from rlm_notebook.errors import LMError
from rlm_notebook.lm.protocol import LM, Request, Usage
from rlm_notebook.lm.provider_settings import ProviderSettings
from rlm_notebook.pace import Bucket, LearnedPace

PAUSE_SECONDS = 0.5
"""Pause after a first 429 that does not say how long."""
LONGEST_PAUSE = 60.0
"""However long a 429 asks to wait, after this many seconds one request finds out anew."""
SHORT_PAUSE = 2.0
"""A 429 that asks for no more holds up its own call only, once the rate is known."""
REFUSES_SECONDS = 90.0
"""A provider that has refused everything for so long..."""
REFUSES_COUNT = 8
"""... and so many times in a row is not asked any more by the calls that wait."""
OUTPUT_TOKENS = 300.0
"""First guess of the output of one call, for a limit on tokens per minute."""


class _Waiter(NamedTuple):
    turn: asyncio.Future[None]
    tokens: float


class ProviderLimit:
    """The requests to one provider. Used on the handler's loop only.

    Parameters
    ----------
    most
        Requests in flight at once, where the provider does not ask for less.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.allowed = float(most)
        """Requests in flight that are allowed now: halved on 429, grows back to ``most``."""
        self.in_flight = 0
        self.pace = LearnedPace()
        self._requests: Bucket | None = None
        self._tokens: Bucket | None = None
        self._output = OUTPUT_TOKENS
        self._waiting: OrderedDict[int, deque[_Waiter]] = OrderedDict()
        self._good = float(most)
        self._throttled_at = -1.0
        self._paused_until = 0.0
        self._refusals = 0
        self._answered_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def set(self, most: int, settings: ProviderSettings) -> None:
        """Take over what the latest run has set."""
        most = settings.max_concurrent or most
        if self.most != most:
            self.most, self.allowed, self._good = most, float(most), float(most)
        self._requests = _bucket(self._requests, settings.requests_per_minute)
        self._tokens = _bucket(self._tokens, settings.tokens_per_minute)

    def place(self, run: int, request: Request | None = None) -> _Place:
        """Wait for a turn of ``run``, and hold a place while the request is in flight."""
        tokens = 0.0
        if self._tokens is not None and request is not None:
            size = sum(len(message.content) for message in request.messages)
            tokens = size / 4 + self._output
        return _Place(self, run, tokens)

    @property
    def refuses_all(self) -> bool:
        """Whether the provider has refused everything for long, so that waiting has no use."""
        seconds = asyncio.get_running_loop().time() - self._answered_at
        return self._refusals >= REFUSES_COUNT and seconds >= REFUSES_SECONDS

    def leave(self, begun: float, error: BaseException | None) -> None:
        """Give a place back and learn from how its request ended."""
        if error is None:
            step = 1.0 if self.allowed < self._good else 1 / self.allowed
            self.allowed = min(float(self.most), self.allowed + step)
            self._refusals, self._answered_at = 0, asyncio.get_running_loop().time()
        elif isinstance(error, LMError) and error.status == 429 and error.type == "http":
            self._throttle(begun, error.retry_after)
        self.in_flight -= 1
        self._admit()

    def used(self, estimated: float, usage: Usage) -> None:
        """Correct what a request was thought to use, once its usage is known."""
        if self._tokens is None or usage.input_tokens is None or usage.output_tokens is None:
            return
        self._output += 0.1 * (usage.output_tokens - self._output)
        now = asyncio.get_running_loop().time()
        self._tokens.take(now, usage.input_tokens + usage.output_tokens - estimated)

    async def enter(self, run: int, tokens: float = 0.0) -> None:
        """Wait for a place; :meth:`leave` gives it back."""
        now = asyncio.get_running_loop().time()
        if not self._waiting and self._free() and now >= self._ready_at(now, tokens):
            self._go(now, tokens)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(run, deque()).append(_Waiter(turn, tokens))
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.in_flight -= 1  # the place was given in the same moment
                self._admit()
            raise

    def _free(self) -> bool:
        return self.in_flight < max(1, int(self.allowed))

    def _ready_at(self, now: float, tokens: float) -> float:
        ready = max(self._paused_until, self.pace.ready_at(now))
        if self._requests is not None:
            ready = max(ready, self._requests.ready_at(now))
        if self._tokens is not None:
            ready = max(ready, self._tokens.ready_at(now, tokens))
        return ready

    def _go(self, now: float, tokens: float) -> None:
        if self.in_flight == 0 and not self._refusals:
            self._answered_at = now  # from here on it is asked
        self.pace.sent(now, idle=self.in_flight == 0)
        self.in_flight += 1
        if self._requests is not None:
            self._requests.take(now)
        if self._tokens is not None:
            self._tokens.take(now, tokens)

    def _throttle(self, begun: float, retry_after: float | None) -> None:
        now = asyncio.get_running_loop().time()
        self._refusals += 1
        pause = retry_after or 0.0
        again = begun <= self._throttled_at
        first = self.pace.rate is None
        if not again:  # the requests of one wave count once
            self._throttled_at = now
            if not self.pace.measured:  # later on the rate is the finer means
                self._good = 0.9 * self.in_flight
                self.allowed = max(1.0, min(self.allowed, float(self.in_flight)) / 2)
        self.pace.refused(begun, now, again=again)
        if first:
            pause = pause or PAUSE_SECONDS
        elif pause <= SHORT_PAUSE:
            return
        self._paused_until = max(self._paused_until, now + min(pause, LONGEST_PAUSE))

    def _admit(self) -> None:
        """Give free places to the runs in turn; where it is too early, once it is time."""
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting and self._free():
            run, waiters = next(iter(self._waiting.items()))
            while waiters and waiters[0].turn.done():
                waiters.popleft()  # cancelled while it waited
            if not waiters:
                del self._waiting[run]
                continue
            now = loop.time()
            ready = self._ready_at(now, waiters[0].tokens)
            if ready > now:
                self._timer = loop.call_at(ready, self._admit)
                return
            waiter = waiters.popleft()
            if waiters:
                self._waiting.move_to_end(run)
            else:
                del self._waiting[run]
            self._go(now, waiter.tokens)
            waiter.turn.set_result(None)


class _Place:
    """A place in an ``async with``. (A generator would cost each slot some 10 us more.)"""

    __slots__ = ("_begun", "_limit", "_run", "_tokens")

    def __init__(self, limit: ProviderLimit, run: int, tokens: float) -> None:
        self._limit = limit
        self._run = run
        self._tokens = tokens
        self._begun = 0.0

    async def __aenter__(self) -> _Place:
        await self._limit.enter(self._run, self._tokens)
        self._begun = asyncio.get_running_loop().time()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._limit.leave(self._begun, error)

    def used(self, usage: Usage) -> None:
        """What the request used, as the provider reports it."""
        self._limit.used(self._tokens, usage)


_limits: dict[str, ProviderLimit] = {}
_DEFAULTS = ProviderSettings()


def limit_of(lm: LM, most: int) -> ProviderLimit:
    """The limit of the provider behind a model, one for the whole process.

    Models with the same address share it; what was set last holds for all.
    """
    address = getattr(lm, "base_url", None)
    key = address if isinstance(address, str) else lm.name.partition("/")[0]
    limit = _limits.get(key)
    if limit is None:
        limit = _limits[key] = ProviderLimit(most)
    settings = getattr(lm, "settings", None)
    limit.set(most, settings if isinstance(settings, ProviderSettings) else _DEFAULTS)
    return limit


def _bucket(bucket: Bucket | None, per_minute: float | None) -> Bucket | None:
    if per_minute is None:
        return None
    same = bucket is not None and bucket.per_second == per_minute / 60
    return bucket if same else Bucket(per_minute / 60)

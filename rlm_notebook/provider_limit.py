"""How many requests are in flight to one provider: shared by all runs, batches and children.

Four children with sixteen calls each would otherwise be sixty-four requests at once. Turns are
taken between runs, so that a wide batch cannot starve another child. When the provider answers
429, the limit is halved and nothing is sent until it may be; each success lets it grow back.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque

from rlm_notebook.errors import LMError
from rlm_notebook.lm.protocol import LM

PAUSE_SECONDS = 0.5
"""Pause after a 429 that does not say how long."""
LONGEST_PAUSE = 60.0
"""However long a 429 asks to wait, after this many seconds one request finds out anew."""


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
        self._waiting: OrderedDict[int, deque[asyncio.Future[None]]] = OrderedDict()
        self._paused_until = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def place(self, run: int) -> _Place:
        """Wait for a turn of ``run``, and hold a place while the request is in flight."""
        return _Place(self, run)

    def leave(self, begun: float, error: BaseException | None) -> None:
        """Give a place back and learn from how its request ended."""
        if error is None:
            self.allowed = min(float(self.most), self.allowed + 1 / self.allowed)
        elif isinstance(error, LMError) and error.status == 429 and error.type == "http":
            self._throttle(begun, error.retry_after)
        self.in_flight -= 1
        self._admit()

    async def enter(self, run: int) -> None:
        """Wait for a place; :meth:`leave` gives it back."""
        now = asyncio.get_running_loop().time()
        if not self._waiting and self._free() and now >= self._paused_until:
            self.in_flight += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(run, deque()).append(turn)
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

    def _throttle(self, begun: float, retry_after: float | None) -> None:
        now = asyncio.get_running_loop().time()
        if begun >= self._paused_until:  # the requests of one wave halve the limit once
            self.allowed = max(1.0, self.allowed / 2)
        pause = PAUSE_SECONDS if retry_after is None else retry_after
        self._paused_until = max(self._paused_until, now + min(pause, LONGEST_PAUSE))

    def _admit(self) -> None:
        """Give free places to the runs in turn; after a pause, when it is over."""
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting and loop.time() < self._paused_until:
            self._timer = loop.call_at(self._paused_until, self._admit)
            return
        while self._waiting and self._free():
            run, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[run] = turns
            if not turn.done():
                self.in_flight += 1
                turn.set_result(None)


class _Place:
    """A place in an ``async with``. (A generator would cost each slot some 10 us more.)"""

    __slots__ = ("_begun", "_limit", "_run")

    def __init__(self, limit: ProviderLimit, run: int) -> None:
        self._limit = limit
        self._run = run
        self._begun = 0.0

    async def __aenter__(self) -> None:
        await self._limit.enter(self._run)
        self._begun = asyncio.get_running_loop().time()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._limit.leave(self._begun, error)


_limits: dict[str, ProviderLimit] = {}


def limit_of(lm: LM, most: int) -> ProviderLimit:
    """The limit of the provider behind a model, one for the whole process.

    Models with the same address share it; the latest ``most`` holds for all.
    """
    address = getattr(lm, "base_url", None)
    key = address if isinstance(address, str) else lm.name.partition("/")[0]
    limit = _limits.setdefault(key, ProviderLimit(most))
    if limit.most != most:
        limit.most, limit.allowed = most, float(most)
    return limit

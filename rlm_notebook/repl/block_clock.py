"""The time that a block has had for itself: without what it waited for its sub-calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
LOOK_SECONDS = 0.5
"""How often it is looked whether a block has had its time."""


class BlockClock:
    """Counts one block at a time, on the handler's loop.

    Parameters
    ----------
    limit
        Seconds that a block may have for itself. None: no limit.
    """

    def __init__(self, limit: float | None) -> None:
        self.limit = limit
        self._waits = 0
        self._waited = 0.0
        self._waiting_since = 0.0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A sub-call is under way; several may be at once."""
        now = asyncio.get_running_loop().time
        if not self._waits:
            self._waiting_since = now()
        self._waits += 1
        try:
            yield
        finally:
            self._waits -= 1
            if not self._waits:
                self._waited += now() - self._waiting_since

    async def run(self, work: Awaitable[T], look: Callable[[], None] | None = None) -> T:
        """Wait for the work of a block; ``look`` is called now and then, and may raise.

        Raises
        ------
        TimeoutError
            The block has had its time. The work was cancelled.
        """
        loop = asyncio.get_running_loop()
        begun, self._waited = loop.time(), 0.0
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                wait = LOOK_SECONDS
                if self.limit is not None:
                    now = loop.time()
                    waiting = now - self._waiting_since if self._waits else 0.0
                    left = self.limit - (now - begun - self._waited - waiting)
                    if left <= 0:
                        raise TimeoutError
                    wait = min(wait, left)
                await asyncio.wait([task], timeout=wait)
                if look is not None and not task.done():
                    look()
        finally:
            task.cancel()
        return task.result()

    @property
    def message(self) -> str:
        """What the model is told of a block that was stopped."""
        return (
            f"the block was stopped after {self.limit:g} s of its own (waiting for "
            "sub-calls not counted): do less in one block, or look for an endless loop"
        )

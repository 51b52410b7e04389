"""A run that goes on while other cells are used."""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from rlm_notebook.errors import RunError
from rlm_notebook.handler import handler

if TYPE_CHECKING:
    from rlm_notebook.display import CellView
    from rlm_notebook.live import LiveRun
    from rlm_notebook.result import Result
    from rlm_notebook.trace.trace import Trace


class BackgroundRun:
    """A run that goes on while other cells are used. ``%rlm_stop`` or ``stop()`` ends it."""

    def __init__(
        self, live: LiveRun, shown: CellView, keep: Callable[[Result | None], None], number: int
    ) -> None:
        self.number = number
        self._live = live
        self._shown = shown
        self._keep = keep
        self._future = handler().submit(self._go())

    async def _go(self) -> None:
        try:
            with contextlib.suppress(RunError):  # the view and the result say why
                await self._live.go()
        finally:
            self._keep(self._live.result)
            self._shown.end()

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return not self._future.done()

    @property
    def result(self) -> Result | None:
        """The result; None while it runs."""
        return self._live.result

    @property
    def trace(self) -> Trace:
        """The trace, as far as it has come."""
        return self._live.trace

    def wait(self, timeout: float | None = None) -> Result | None:
        """Block until the run has ended, at most ``timeout`` seconds; return the result."""
        concurrent.futures.wait([self._future], timeout)
        return self.result

    def stop(self) -> None:
        """End the run and wait until it has cleaned up."""
        self._live.stop("user")
        self.wait(5)

    def __repr__(self) -> str:
        if self.running:
            return f"<run {self.number} goes on in the background; %rlm_stop {self.number} ends it>"
        return f"<run {self.number}: {self.result.summary() if self.result else 'failed'}>"

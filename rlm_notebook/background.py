"""A run that goes on while other cells are used."""

from __future__ import annotations

import concurrent.futures
import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from rlm_notebook.errors import RunError, UsageError
from rlm_notebook.handler import handler

if TYPE_CHECKING:
    from rlm_notebook.display import CellView
    from rlm_notebook.gates import Gate
    from rlm_notebook.live import LiveRun
    from rlm_notebook.result import Result
    from rlm_notebook.trace.trace import Trace

LINES = 20
"""Lines of a text that are shown where a run stands."""


class BackgroundRun:
    """A run that goes on while other cells are used. ``%rlm_stop`` or ``stop()`` ends it."""

    def __init__(
        self, live: LiveRun, shown: CellView, keep: Callable[[Result | None], None], number: int
    ) -> None:
        self.number = number
        self._live = live
        self._shown = shown
        self._keep = keep
        self._edits: dict[str, str] = {}
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

    def go_on(self, action: str = "go", timeout: float = 10.0) -> None:
        """Go on from where the run stands, with what was edited; wait until it stands again.

        Parameters
        ----------
        action
            go, turn, batch, error, run, skip, retry or stop.
        timeout
            Seconds to wait at most.

        Raises
        ------
        UsageError
            It does not stand still, or that is not possible there.
        """
        gates = self._live.gates
        span = self._gate().span
        gates.decide(span, action, self._edits)
        self._edits = {}
        if action != "run":
            self._until(lambda: bool(gates.waiting), timeout)

    def edit(self, name: str, text: str) -> None:
        """Edit what is shown where the run stands; it is used when the run goes on.

        Raises
        ------
        UsageError
            It does not stand still, or there is nothing of that name.
        """
        gate = self._gate()
        if name not in gate.editable:
            names = ", ".join(gate.editable) or "nothing"
            raise UsageError(f"{name} cannot be edited here; there is: {names}")
        self._edits[name] = text

    def where(self) -> str:
        """Where the run stands, with what can be edited there."""
        waiting = self._live.gates.waiting
        if not waiting:
            return repr(self)
        gate = waiting[min(waiting)]
        lines = [f"run {self.number} stands at {gate.words}"]
        for name, text in gate.editable.items():
            mark = " (edited)" if name in self._edits else ""
            shown = self._edits.get(name, text)
            if shown:
                lines += [f"{name}{mark}:", *(f"    {line}" for line in _short(shown))]
        lines.append(f"%rlm_step goes on; also: {', '.join(gate.actions[1:])}")
        return "\n".join(lines)

    def _gate(self) -> Gate:
        waiting = self._live.gates.waiting
        self._until(lambda: bool(waiting), 1.0)  # it may be on its way there
        if not waiting:
            raise UsageError(f"run {self.number} does not stand still; --step or --break make it")
        return waiting[min(waiting)]

    def _until(self, holds: Callable[[], bool], timeout: float) -> None:
        end = time.monotonic() + timeout
        while not holds() and self.running and time.monotonic() < end:
            time.sleep(0.01)

    def __repr__(self) -> str:
        if self.running:
            return f"<run {self.number} goes on in the background; %rlm_stop {self.number} ends it>"
        return f"<run {self.number}: {self.result.summary() if self.result else 'failed'}>"


def _short(text: str) -> list[str]:
    lines = text.splitlines()
    rest = len(lines) - LINES
    return lines if rest <= 0 else [f"… {rest:,} lines before", *lines[-LINES:]]

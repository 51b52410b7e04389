"""A recorded run as a film: the same view, at any time of the run."""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Any

from rlm_notebook.trace.trace import Trace
from rlm_notebook.view.forking import OnFork
from rlm_notebook.view.widget import LiveView


class FilmView(LiveView):
    """Shows a trace as it was at a time of its run; the browser plays, or asks for a time.

    It begins with the whole run. The tree at a time is the fold of the events up to it.
    """

    def __init__(self, trace: Trace, on_fork: OnFork | None = None) -> None:
        super().__init__(
            trace, now=self._time, on_stop=lambda: None, warnings=trace.notes, on_fork=on_fork
        )
        self._whole = trace
        self._times = [event.t for event in trace.events]
        self._position = len(self._times)
        self._at = self._length = trace.tree.time
        self._ended = True

    def seek(self, t: int) -> None:
        """Show the run as it was ``t`` ns after its beginning."""
        self._at = max(0, min(t, self._length))
        self._show(bisect_right(self._times, self._at))

    def step(self, by: int) -> None:
        """Show it so many events later, or earlier."""
        position = max(0, min(self._position + by, len(self._times)))
        self._at = self._times[position - 1] if position else 0
        self._show(position)

    def _show(self, position: int) -> None:
        whole, before = self._whole, self._position
        self._position = position
        if position == len(self._times):
            self._trace = whole
        elif before < position and self._trace is not whole:
            for event in whole.events[before:position]:
                self._trace.append(event)
                self.emit(event)
            with self._lock:
                while self._changed:
                    self._send("rows", self._take_changed())
                self._send("rows", [])  # the time has changed, if nothing else has
            return
        else:
            self._trace = Trace(whole.header, path=whole.path)
            for event in whole.events[:position]:
                self._trace.append(event)
        self._send_snapshot()

    def _time(self) -> int:
        return self._at

    def _send(self, kind: str, rows: list[bytes], **more: Any) -> None:
        film = {
            "t": self._at * 1e-6,
            "length": self._length * 1e-6,
            "position": self._position,
            "events": len(self._times),
        }
        super()._send(kind, rows, film=film, **more)

    def _receive(self, widget: object, content: Any, buffers: object) -> None:
        kind = content.get("type") if isinstance(content, dict) else None
        t = content.get("t") if kind == "seek" else None
        if isinstance(t, int | float) and math.isfinite(t):
            self.seek(round(t * 1e6))
        elif kind == "step" and isinstance(content.get("by"), int):
            self.step(content["by"])
        else:
            super()._receive(widget, content, buffers)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return self.mimebundle()

    def mimebundle(self) -> dict[str, Any]:
        """The static tree of the whole run, which the film takes the place of."""
        shown, self._trace = self._trace, self._whole
        try:
            return super().mimebundle()
        finally:
            self._trace = shown

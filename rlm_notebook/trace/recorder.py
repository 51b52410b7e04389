"""Where events come from: spans are started, updated and ended here, from any thread."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

from rlm_notebook.trace.events import (
    FORMAT_VERSION,
    Event,
    Header,
    SpanEnded,
    SpansReopened,
    SpanStarted,
    SpanText,
    SpanUpdated,
)
from rlm_notebook.trace.follow import Follower
from rlm_notebook.trace.trace import Trace
from rlm_notebook.trace.tree import Span, Tree


class Sink(Protocol):
    """Gets every event once, in order, from the thread that made it; must return at once."""

    def emit(self, event: Event) -> None:
        """Take one event. If it raises, the sink is dropped and the run goes on."""

    def close(self) -> None:
        """No event comes after this."""


class Recorder:
    """Records one run with all its child runs.

    Parameters
    ----------
    settings
        Goes into the header; must hold no secret.
    clock
        Monotonic time in ns. Injected, so that tests own the time.
    base
        A trace that is gone on with: spans that it has are not recorded again.
    follows
        The tree of a recorded run that this run is to repeat.
    """

    def __init__(
        self,
        *,
        engine: str = "rlm_notebook",
        settings: dict[str, Any] | None = None,
        packages: dict[str, str] | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC).astimezone(),
        base: Trace | None = None,
        follows: Tree | None = None,
    ) -> None:
        self._wall = wall
        header = Header(
            FORMAT_VERSION,
            self._wall_time(),
            engine,
            settings or {},
            packages or {},
            run=uuid.uuid4().hex[:12],
        )
        self.trace = Trace(header) if base is None else base
        self.follower: Follower | None = None
        """Knows what the recorded run had in the place of each span."""
        if base is not None:
            self.follower = Follower(base.tree)
        elif follows is not None:
            self.follower = Follower(follows, strict=True)
        self.warnings: list[str] = []
        """What went wrong beside the run, for instance a trace file that cannot be written."""
        self._clock = clock
        self._zero: int | None = None
        self._still = False
        """Whether the time of a run that goes on stands still, until something new happens."""
        self._lock = threading.Lock()
        self._next_id = max(self.trace.tree.spans, default=0) + 1
        self._sinks: list[Sink] = []

    def add_sink(self, sink: Sink, *, from_start: bool = True) -> None:
        """Send all events to ``sink``, those that were already recorded included."""
        with self._lock:
            for event in self.trace.events if from_start else ():
                sink.emit(event)
            self._sinks.append(sink)

    def drop_sink(self, sink: Sink, error: Exception) -> None:
        """Send nothing more to a sink that failed; the run goes on."""
        if sink in self._sinks:
            self._sinks.remove(sink)
            self.warn(f"{type(sink).__name__} was dropped, the run goes on: {error!r}")

    def now(self) -> int:
        """Time in ns since the trace began, which it does with its first span."""
        if self._still:
            return self.trace.tree.time
        return 0 if self._zero is None else self._clock() - self._zero

    def start(
        self,
        kind: str,
        parent: int | None,
        /,
        *,
        state: Literal["waiting", "running"] = "running",
        prompts: list[str] | None = None,
        **attrs: Any,
    ) -> int:
        """Start a span; return its id.

        Parameters
        ----------
        prompts
            Batches: what will be asked, by which a recorded batch is known again.
        """
        with self._lock:
            if self._zero is None:
                self._zero = self._clock()
                self.trace.header.started_at = self._wall_time()
            follower, twin = self.follower, None
            if follower is not None:
                twin = follower.find(parent, kind, attrs, prompts)
                if twin is not None and not follower.strict:
                    follower.pair(twin.id, twin)
                    return twin.id
            span_id = self._next_id
            self._next_id += 1
            if follower is not None and twin is not None:
                follower.pair(span_id, twin)
            self._emit(SpanStarted(self.now(), span_id, parent, kind, state, attrs))
        return span_id

    @property
    def strict(self) -> bool:
        """Whether this run has to do the same as a recorded one, to its end."""
        return self.follower is not None and self.follower.strict

    def recorded(self, span: int, /) -> Span | None:
        """What the recorded run had in the place of this span, if it had ended there."""
        twin = self.follower.twin(span) if self.follower is not None else None
        return None if twin is None or twin.open else twin

    def go_on(self, ids: list[int], settings: dict[str, Any]) -> None:
        """Open these spans of the base again. Its time stands still until something new happens:
        what is replayed until then takes no time of the run.
        """
        with self._lock:
            root = self.trace.root
            assert root is not None
            self._zero = self._clock()
            self._still = True
            attrs = {"at": self._wall_time(), **({"settings": settings} if settings else {})}
            self._emit(SpansReopened(self.now(), root.id, ids, attrs))
            self._still = True

    def running(self, span: int, /, **attrs: Any) -> None:
        """The span left its queue: its request is sent now."""
        with self._lock:
            self._emit(SpanUpdated(self.now(), span, attrs, "running"))

    def update(self, span: int, /, **attrs: Any) -> None:
        """Add attributes to an open span."""
        with self._lock:
            self._emit(SpanUpdated(self.now(), span, attrs))

    def edit(
        self, span: int, /, state: str | None = None, *, before: dict[str, Any], **attrs: Any
    ) -> None:
        """Change what a span holds for the user, also if it has ended.

        Parameters
        ----------
        before
            What stood there, by attribute. What stood there first is kept.
        """
        with self._lock:
            self._edit(span, state, before, attrs)

    def again(self, span: int, /, *, before: dict[str, Any], **attrs: Any) -> None:
        """A call that has failed is asked again, with other attributes."""
        with self._lock:
            root = self.trace.root
            assert root is not None
            self._emit(SpansReopened(self.now(), root.id, [span], {}))
            self._edit(span, None, before, attrs)

    def _edit(
        self, span: int, state: str | None, before: dict[str, Any], attrs: dict[str, Any]
    ) -> None:
        edited = {**before, **self.trace.tree.spans[span].edited}
        self._emit(SpanUpdated(self.now(), span, {**attrs, "edited": edited}, state))

    def knows(
        self, parent: int, kind: str, attrs: dict[str, Any], prompts: list[str] | None = None
    ) -> bool:
        """Whether the recorded run has the span that would be started in this way."""
        with self._lock:
            follower = self.follower
            return follower is not None and follower.knows(parent, kind, attrs, prompts)

    def text(self, span: int, text: str, /) -> None:
        """Add a piece to the response of an open span."""
        with self._lock:
            self._emit(SpanText(self.now(), span, {"text": text}))

    def end(self, span: int, state: str = "ok", /, **attrs: Any) -> None:
        """End a span. A second end of the same span changes nothing."""
        with self._lock:
            self._emit(SpanEnded(self.now(), span, state, attrs))

    def end_open(self, under: int, state: str, /) -> None:
        """End every open span below ``under`` (children first), but not ``under`` itself."""
        with self._lock:
            root = self.trace.tree.spans[under]
            spans = [span for span in root.walk() if span.open and span.id != under]
            for span in reversed(spans):
                last = "not_sent" if span.kind == "slot" and span.started is None else state
                self._emit(SpanEnded(self.now(), span.id, last, {}))

    def warn(self, message: str) -> None:
        """Note something that went wrong beside the run; the view and the result show it."""
        if message not in self.warnings:
            self.warnings.append(message)

    def close(self) -> None:
        """Close all sinks."""
        for sink in self._sinks:
            try:
                sink.close()
            except Exception as error:
                self.warn(f"{type(sink).__name__} did not close: {error}")
        self._sinks.clear()

    def _wall_time(self) -> str:
        return self._wall().isoformat(timespec="milliseconds")

    def _emit(self, event: Event) -> None:
        if self.trace.append(event) is None:
            return
        if self._still and (type(event) is not SpanUpdated or event.state is not None):
            self._zero, self._still = self._clock() - event.t, False
        for sink in list(self._sinks):
            try:
                sink.emit(event)
            except Exception as error:
                self.drop_sink(sink, error)

"""The fold: events in, a tree of spans and running totals out. Nothing else happens here.

The live view, the saved view, replay and the tests all read this one fold.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import msgspec

from rlm_notebook.lm.protocol import Usage
from rlm_notebook.trace.events import (
    END_STATES,
    Event,
    SpanEnded,
    SpansReopened,
    SpanStarted,
    SpanText,
    SpanUpdated,
)
from rlm_notebook.trace.jsonl import text_of

NS = 1e-9
CALL_KINDS = ("lm_call", "slot")
_NUMBER = (int, float)  # made once: this is asked a million times
_LARGEST = 1 << 62
"""Larger numbers in a file are not taken for counts and times."""
_DEEPEST = 60
_NUMBERED = ("turn", "code", "slot")
_OF_THE_END = (
    *("answer", "partial", "outcome", "stopped_by", "error", "usage", "response", "finish_reason"),
    *("attempts", "first_token", "stdout", "stderr", "traceback", "failed"),
)
"""Attributes that a span which goes on does not have yet."""


class Texts(Protocol):
    """Where the long texts of a loaded trace are read from."""

    def resolved(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """The attributes with every reference to a text replaced by the text."""


class Span(msgspec.Struct, eq=False):
    """One node of the call tree. Times are in ns since the trace began; properties in seconds."""

    id: int
    kind: str
    parent: Span | None
    submitted: int
    """When it was submitted."""
    state: str
    held: dict[str, Any]
    """Its attributes as they stand in the file: long texts may be references still."""
    index: int | None
    """Position among its siblings of the same kind, from 0, where it has one."""
    counts: bool
    """Whether it is an LM call. A slot of an rlm_query batch is a child run, not a call."""
    started: int | None = None
    """When it left its queue; equal to ``submitted`` for spans that never wait."""
    ended: int | None = None
    texts: Texts | None = None
    """Where the references in ``held`` lead to, until somebody looks at the attributes."""
    children: list[Span] = []

    @property
    def attrs(self) -> dict[str, Any]:
        """See the ``...Attrs`` classes in :mod:`rlm_notebook.trace.events`.

        Long texts of a loaded trace are read from its file when this is first looked at.
        """
        if self.texts is not None:
            self.held = self.texts.resolved(self.held)
            self.texts = None
        return self.held

    def __repr__(self) -> str:
        number = "" if self.index is None else f" {self.index}"
        wait, latency = self.queue_wait or 0.0, self.latency
        times = (
            "" if latency is None else f" {latency:.3f} s" + (f" after {wait:.3f} s" * (wait > 0))
        )
        error = f" {self.error.get('message')}" if self.error else ""
        return f"<{self.kind}{number} {self.state}{times}{error}>"

    @property
    def open(self) -> bool:
        """True while the span has not ended."""
        return self.ended is None and self.state not in END_STATES

    @property
    def queue_wait(self) -> float | None:
        """Seconds between submission and start; None if it never started."""
        return None if self.started is None else (self.started - self.submitted) * NS

    @property
    def latency(self) -> float | None:
        """Seconds from its own start to its own end; None if it has not both."""
        if self.started is None or self.ended is None:
            return None
        return (self.ended - self.started) * NS

    @property
    def duration(self) -> float | None:
        """Seconds from submission to end, queue wait included."""
        return None if self.ended is None else (self.ended - self.submitted) * NS

    @property
    def approximate_latency(self) -> float | None:
        """Batches: duration / number of prompts, in seconds.

        This is what the reference library (rlms 0.1.3) records as ``execution_time`` of every
        call of the batch. It is not a latency: it is here to show how far off it is.
        """
        if self.kind != "batch" or self.size <= 0 or self.duration is None:
            return None
        return self.duration / self.size

    @property
    def size(self) -> int:
        """Number of prompts of a batch; 0 if it has none, or if the file says no number."""
        return whole(self.held.get("size")) or 0

    @property
    def place(self) -> str:
        """Where it stands in its run: ``turn 2, code 1, llm_query_batched, slot 17``."""
        names: list[str] = []
        span: Span | None = self
        while span is not None:
            if len(names) > _DEEPEST:  # no run of ours is so deep
                names[-1] = "…"
                return ", ".join(reversed(names))
            number = (span.index or 0) + (span.kind != "slot")
            names.append(f"{span.kind} {number}" if span.kind in _NUMBERED else span.name)
            span = span.parent
        return ", ".join(reversed(names[:-1] if len(names) > 1 else names))

    @property
    def name(self) -> str:
        """Its function if it is a call of one, else its kind."""
        function = self.attrs.get("function")
        return function if isinstance(function, str) else self.kind.replace("lm_call", "LM call")

    @property
    def code(self) -> str | None:
        """Code of a ``code`` span; of a ``turn``, its blocks joined."""
        if self.kind == "turn":
            blocks = [child.code or "" for child in self.children if child.kind == "code"]
            return "\n\n".join(blocks) if blocks else None
        return self._text("code")

    @property
    def prompt(self) -> str | None:
        """Prompt of a slot or a single sub-call."""
        return self._text("prompt")

    @property
    def response(self) -> str | None:
        """Text of the response of a call; of a ``turn``, that of its LM call."""
        if self.kind == "turn":
            for child in self.children:
                if child.kind == "lm_call":
                    return child.response
        return self._text("response")

    def _text(self, name: str) -> str | None:
        value = self.attrs.get(name)
        return value if value is None else text_of(value)

    @property
    def edited(self) -> dict[str, Any]:
        """What stood in its attributes before the user edited them, by name."""
        edited = self.attrs.get("edited") if "edited" in self.held else None
        return edited if isinstance(edited, dict) else {}

    @property
    def error(self) -> dict[str, Any] | None:
        """``{"type", "message", "status"}`` if it failed."""
        error = self.attrs.get("error") if "error" in self.held else None
        return error if isinstance(error, dict) else None

    @property
    def attempts(self) -> list[dict[str, Any]]:
        """All requests of a call that was retried; [] if the first one was the only one."""
        attempts = self.attrs.get("attempts")
        return [each for each in attempts if _sound(each)] if isinstance(attempts, list) else []

    @property
    def back_off(self) -> float:
        """Seconds of a call's latency that were spent waiting between attempts."""
        return float(sum(attempt.get("wait") or 0 for attempt in self.attempts))

    @property
    def requeue_wait(self) -> float:
        """Seconds of a call's latency that its further attempts waited for a place."""
        waited = 0.0
        for before, after in pairwise(self.attempts):
            if not after.get("hedge") and not before.get("hedge"):
                waited += (after["started"] - before["ended"]) * NS - (before.get("wait") or 0.0)
        return max(0.0, waited)

    @property
    def time_to_first_token(self) -> float | None:
        """Streamed calls: seconds from the start of the (last) attempt to the first text."""
        first, started = whole(self.held.get("first_token")), self.started
        if first is None or started is None:
            return None
        if self.attempts:
            started = self.attempts[-1].get("started", started)
        return (first - started) * NS

    @property
    def tokens_per_second(self) -> float | None:
        """Streamed calls: output tokens per second from the first text to the end."""
        first, tokens = whole(self.held.get("first_token")), self.usage.output_tokens
        if first is None or self.ended is None or not tokens or self.ended <= first:
            return None
        return tokens / ((self.ended - first) * NS)

    @property
    def usage(self) -> Usage:
        """Tokens and cost of one call."""
        return usage_from(self.held.get("usage"))

    @property
    def slots(self) -> list[Span]:
        """The slots of a batch, by index."""
        return [child for child in self.children if child.kind == "slot"]

    def walk(self) -> Iterator[Span]:
        """This span and all below it, parents before children, in order of submission."""
        stack = [self]
        while stack:
            span = stack.pop()
            yield span
            stack.extend(reversed(span.children))


def whole(value: Any) -> int | None:
    """A whole number out of an event; None for anything else."""
    return value if type(value) is int and -_LARGEST < value < _LARGEST else None


def usage_from(value: Any) -> Usage:
    """Usage out of the attribute of an event; anything unusable counts as not reported."""
    if not isinstance(value, dict):
        return Usage(complete=False)
    get = value.get
    cost = get("cost")
    return Usage(
        whole(get("input_tokens")),
        whole(get("output_tokens")),
        float(cost) if isinstance(cost, _NUMBER) and -_LARGEST < cost < _LARGEST else None,
        bool(get("complete", True)),
        whole(get("cached_tokens")),
        bool(get("estimated", False)),
    )


@dataclass(slots=True)
class Totals:
    """Running totals over all LM calls of the tree (root calls, single sub-calls, slots)."""

    calls: int = 0
    """LM calls that were sent."""
    in_flight: int = 0
    waiting: int = 0
    errors: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = None
    usage_complete: bool = True
    """False if some call did not report its usage: the numbers are then a floor."""
    cost_estimated: bool = False
    """True if a part of the cost comes from a price list."""
    cached_tokens: int = 0

    def add(self, usage: Usage) -> None:
        """Count what one call reported."""
        self.input_tokens += usage.input_tokens or 0
        self.output_tokens += usage.output_tokens or 0
        self.cached_tokens += usage.cached_tokens or 0
        if usage.cost is not None:
            self.cost = (self.cost or 0.0) + usage.cost
            self.cost_estimated = self.cost_estimated or usage.estimated
        if not usage.complete or usage.input_tokens is None or usage.output_tokens is None:
            self.usage_complete = False

    @property
    def usage(self) -> Usage:
        """The token and cost part."""
        return Usage(
            self.input_tokens,
            self.output_tokens,
            self.cost,
            self.usage_complete,
            self.cached_tokens or None,
            self.cost_estimated,
        )


class Tree:
    """All spans so far. ``apply`` is the fold step; events may be interleaved, not reordered."""

    def __init__(self) -> None:
        self.spans: dict[int, Span] = {}
        self.roots: list[Span] = []
        self.totals = Totals()
        self.time = 0
        """Time of the latest event, ns."""

    def apply(self, event: Event) -> Span | None:
        """Take one event in; return the span it touched, or None if it changes nothing."""
        # type() is: isinstance takes five times as long for one of many records
        if event.t > self.time:
            self.time = event.t
        if type(event) is SpanStarted:
            return self._start(event)
        span = self.spans.get(event.id)
        if type(event) is SpansReopened:
            return self._reopen(event)
        if span is None:
            return None
        if type(event) is SpanUpdated and "edited" in event.attrs:
            return _edit(span, event)
        if span.ended is not None or span.state in END_STATES:
            return None  # the first end wins; what comes after a cancellation is noise
        if type(event) is SpanText:
            more = event.attrs.get("text") or ""
            span.held["response"] = f"{span.held.get('response') or ''}{more}"
            return span
        span.held.update(event.attrs)
        if type(event) is SpanEnded:
            self._end(span, event.state, event.t)
        elif event.state == "running" and span.started is None:
            span.started, span.state = event.t, "running"
            if span.counts:
                self.totals.waiting -= 1
                self._count_start()
        return span

    def _start(self, event: SpanStarted) -> Span | None:
        if event.id in self.spans:
            return None
        parent = self.spans.get(event.parent) if event.parent is not None else None
        held, kind, index = dict(event.attrs), event.kind, whole(event.attrs.get("index"))
        counts = kind in CALL_KINDS and not held.get("child")
        span = Span(event.id, kind, parent, event.t, event.state, held, index, counts)
        self.spans[event.id] = span
        siblings = parent.children if parent is not None else self.roots
        if index and kind == "slot" and siblings and index < (siblings[-1].index or 0):
            insort(siblings, span, key=_index)  # asked again, in a fork
        else:
            siblings.append(span)
        if event.state == "running":
            span.started = event.t
            if counts:
                self._count_start()
        elif counts:
            self.totals.waiting += 1
        return span

    def _count_start(self) -> None:
        self.totals.calls += 1
        self.totals.in_flight += 1

    def _end(self, span: Span, state: str, t: int) -> None:
        span.state, span.ended = state, t
        if not span.counts:
            return
        totals = self.totals
        if span.started is None:
            totals.waiting -= 1
        else:
            totals.in_flight -= 1
        if state == "error":
            totals.errors += 1
        if state in ("ok", "empty", "null"):
            totals.add(span.usage)

    def _reopen(self, event: SpansReopened) -> Span | None:
        spans = [self.spans[each] for each in event.ids if each in self.spans]
        for span in spans:
            self._discount(span)
            span.ended = None
            for name in _OF_THE_END:
                span.held.pop(name, None)
            if span.kind in CALL_KINDS:  # asked again: what it had until then is no answer
                span.state, span.submitted, span.started = "waiting", event.t, None
                self.totals.waiting += span.counts
            else:
                span.state = "waiting" if span.started is None else "running"
        return self.spans.get(event.id) if spans else None

    def _discount(self, span: Span) -> None:
        """An open call is open no more."""
        if span.open and span.counts:
            if span.started is None:
                self.totals.waiting -= 1
            else:
                self.totals.in_flight -= 1

    def close(self) -> None:
        """Mark every span that is still open as ``interrupted`` (the trace ends here)."""
        for span in self.spans.values():
            if span.open:
                self._discount(span)
                span.state = "interrupted"


def _edit(span: Span, event: SpanUpdated) -> Span:
    """What the user changed, also of a span that has ended."""
    if "response" in event.attrs:
        span.held.pop("error", None)
    span.held.update(event.attrs)
    if not span.open and event.state in END_STATES:
        span.state = event.state
    return span


def _index(span: Span) -> int:
    return span.index or 0


def _sound(attempt: Any) -> bool:
    """Whether the times of an attempt are numbers: a trace may come from a stranger."""
    if not isinstance(attempt, dict):
        return False
    wait = attempt.get("wait")
    times = [attempt.get("started", 0), attempt.get("ended", 0), 0 if wait is None else wait]
    return all(isinstance(each, _NUMBER) and -_LARGEST < each < _LARGEST for each in times)

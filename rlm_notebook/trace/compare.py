"""Two runs side by side: their spans aligned by place, and what differs."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rlm_notebook.trace.frame import as_frame
from rlm_notebook.trace.jsonl import text_of
from rlm_notebook.trace.trace import Trace
from rlm_notebook.trace.tree import Span

if TYPE_CHECKING:
    import pandas

TEXTS = ("code", "prompt", "response", "stdout", "stderr", "error", "answer", "model", "state")
"""What is compared of two spans that stand in the same place."""


@dataclass(frozen=True)
class Pair:
    """The spans of both runs in one place; None where a run has nothing there."""

    place: str
    kind: str
    a: Span | None
    b: Span | None
    differs: tuple[str, ...] = ()
    """Names out of :data:`TEXTS`; ``only in a`` or ``only in b`` if there is no other."""

    def texts(self, name: str) -> tuple[str, str]:
        """One of the texts, of both."""
        return text(self.a, name), text(self.b, name)


@dataclass(frozen=True)
class Comparison:
    """Two runs, aligned turn by turn and slot by slot. Shows itself side by side."""

    a: Trace
    b: Trace
    pairs: list[Pair] = field(repr=False)

    @property
    def differences(self) -> list[Pair]:
        """The places where something differs."""
        return [pair for pair in self.pairs if pair.differs]

    def to_frame(self) -> pandas.DataFrame:
        """One row a place: state, latency (s), cost (USD) and response of both, what differs."""
        return as_frame(
            {
                "place": pair.place,
                "kind": pair.kind,
                "differs": ", ".join(pair.differs),
                **{
                    f"{name}_{side}": value(span)
                    for name, value in _MEASURES.items()
                    for side, span in (("a", pair.a), ("b", pair.b))
                },
            }
            for pair in self.pairs
        )

    def __repr__(self) -> str:
        from rlm_notebook.view.compare import comparison_text

        return comparison_text(self)

    def _repr_html_(self) -> str:
        from rlm_notebook.view.compare import comparison_html

        return comparison_html(self)


_MEASURES: dict[str, Any] = {
    "state": lambda span: span.state if span is not None else None,
    "latency": lambda span: span.latency if span is not None else None,
    "cost": lambda span: span.usage.cost if span is not None else None,
    "response": lambda span: span.response if span is not None else None,
}


def compare(a: Trace, b: Trace) -> Comparison:
    """Align two runs: turns, blocks and slots by index, calls and batches in their order."""
    pairs: list[Pair] = []
    stack: list[tuple[Span | None, Span | None]] = [(a.root, b.root)]
    while stack:
        left, right = stack.pop()
        there = left or right
        if there is None:
            continue
        pairs.append(Pair(there.place, there.kind, left, right, _differs(left, right)))
        stack.extend(reversed(_aligned(left, right)))
    return Comparison(a, b, pairs)


def text(span: Span | None, name: str) -> str:
    """One of :data:`TEXTS` of a span; '' if it has none."""
    if span is None:
        return ""
    if name == "state":
        return span.state
    if name == "error":
        return str((span.error or {}).get("message") or "")
    if span.kind == "turn":
        return ""  # its blocks and its call have rows of their own
    return text_of(span.attrs.get(name))


def _differs(a: Span | None, b: Span | None) -> tuple[str, ...]:
    if a is None or b is None:
        return ("only in a",) if b is None else ("only in b",)
    return tuple(name for name in TEXTS if text(a, name) != text(b, name))


def _aligned(a: Span | None, b: Span | None) -> list[tuple[Span | None, Span | None]]:
    waiting: dict[Any, deque[Span]] = {}
    for span in b.children if b is not None else ():
        waiting.setdefault(_key(span), deque()).append(span)
    found: list[tuple[Span | None, Span | None]] = []
    for span in a.children if a is not None else ():
        others = waiting.get(_key(span))
        found.append((span, others.popleft() if others else None))
    found.extend((None, span) for others in waiting.values() for span in others)
    return found


def _key(span: Span) -> Any:
    indexed = span.kind in ("turn", "code", "slot")
    return span.kind, span.index if indexed else str(span.attrs.get("function"))

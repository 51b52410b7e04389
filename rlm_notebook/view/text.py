"""The tree as text, for a terminal and for front ends that show nothing else."""

from __future__ import annotations

from collections.abc import Iterator

from rlm_notebook.trace.trace import Trace
from rlm_notebook.trace.tree import Span
from rlm_notebook.view.excerpt import excerpt
from rlm_notebook.view.rows import label, one_line, row
from rlm_notebook.view.words import batch_words, state_words, times, totals

WIDTH = 100
HEAD, TAIL, ERRORS = 16, 4, 20
"""Slots of a large batch that are shown: from the beginning, from the end, failed ones besides."""
MOST_LINES = 400
_COLORS = {"error": "31", "interrupted": "31", "cancelled": "33", "running": "33", "ok": "32"}


def render_text(trace: Trace, *, color: bool = False) -> str:
    """The tree as lines of about 100 characters; errors in place, large batches cut.

    Parameters
    ----------
    color
        Colour the states with ANSI escapes.
    """
    lines = [totals(trace)]
    for number, line in enumerate(_lines(trace, color)):
        if number == MOST_LINES:
            lines.append("[... the tree goes on ...]")
            break
        lines.append(line)
    root = trace.root
    if root is not None and root.attrs.get("answer") is not None:
        lines.append(f"answer: {one_line(root.attrs['answer'], 4 * WIDTH)}")
    return "\n".join(lines)


def _lines(trace: Trace, color: bool) -> Iterator[str]:
    for root in trace.tree.roots:
        yield from _branch(root, "", "", color)


def _branch(span: Span, first: str, rest: str, color: bool) -> Iterator[str]:
    yield first + _line(span, WIDTH - len(first), color)
    children = excerpt(span.children, HEAD, TAIL, ERRORS)
    for number, child in enumerate(children, start=1):
        last = number == len(children)
        corner, below = ("└─ ", "   ") if last else ("├─ ", "│  ")
        if isinstance(child, int):
            yield f"{rest}{corner}[... {child:,} more ...]"
        else:
            yield from _branch(child, rest + corner, rest + below, color)


def _line(span: Span, width: int, color: bool) -> str:
    state = state_words(span)
    shown = row(span)
    detail = batch_words(span) if span.kind == "batch" else shown.error or shown.detail
    head = f"{state} {label(span)}"
    tail = times(span)
    room = max(12, width - len(head) - len(tail) - 4)
    if detail:
        head += f"  {one_line(detail, room)}"
    if color and span.state in _COLORS:
        head = f"\x1b[{_COLORS[span.state]}m{state}\x1b[0m{head[len(state) :]}"
    return f"{head}  {tail}" if tail else head

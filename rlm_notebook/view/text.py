"""The tree as text, for a terminal and for front ends that show nothing else."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence

from rlm_notebook.trace.trace import Trace
from rlm_notebook.trace.tree import Span
from rlm_notebook.view.excerpt import NOT_GOOD, excerpt
from rlm_notebook.view.rows import ERROR, label, one_line, origin, row
from rlm_notebook.view.words import batch_words, state_words, times, totals

WIDTH = 100
MOST_SLOTS = 12
"""A batch of more slots is abbreviated."""
FIRST, ERRORS = 4, 30
"""Of such a batch: slots from the beginning, and failed ones besides; and the slowest one."""
HEAD, TAIL = 60, 10
"""Children of other spans that are shown."""
MOST_LINES = 400
DEEPEST = 60
_COLORS = {"error": "31", "interrupted": "31", "cancelled": "33", "running": "33", "ok": "32"}
_DIM = "2"


def render_text(trace: Trace, *, color: bool = False) -> str:
    """The tree as lines of about 100 characters; errors in place, large batches cut.

    Parameters
    ----------
    color
        Colour the states with ANSI escapes. Those of model text never get through.
    """
    lines = [one_line(totals(trace), 3 * WIDTH)]
    lines += [origin(trace)] if origin(trace) else []
    lines += [f"note: {one_line(note, 3 * WIDTH)}" for note in trace.notes]
    for root in trace.tree.roots:
        for line in _branch(root, "", "", color):
            if len(lines) > MOST_LINES:
                lines.append("[... the tree goes on ...]")
                break
            lines.append(line)
    attrs = trace.root.attrs if trace.root is not None else {}
    for name, words in (("answer", "answer"), ("partial", "partial answer")):
        if attrs.get(name) is not None:
            lines.append(f"{words}: {one_line(attrs[name], 4 * WIDTH)}")
            break
    return "\n".join(lines)


def _branch(span: Span, first: str, rest: str, color: bool) -> Iterator[str]:
    more = _shown(span.children)
    lines = _lines(span, WIDTH - len(first), color)
    yield first + next(lines)
    for line in lines:  # what did not fit beside it stands below it
        yield f"{rest}{'│  ' if more else '   '}{line}"
    if len(rest) > 3 * DEEPEST:
        yield f"{rest}[... deeper levels ...]"
        return
    for number, child in enumerate(more, start=1):
        last = number == len(more)
        corner, below = ("└─ ", "   ") if last else ("├─ ", "│  ")
        if isinstance(child, Span):
            yield from _branch(child, rest + corner, rest + below, color)
        else:
            yield rest + corner + (_painted(child, _DIM) if color else child)


def _lines(span: Span, width: int, color: bool) -> Iterator[str]:
    """One line, and further ones for an error or a batch's numbers that do not fit."""
    state, shown, tail = one_line(state_words(span), 30), row(span), times(span)
    head = f"{state} {one_line(label(span), 50)}"
    room = max(12, width - len(head) - len(tail) - 4)
    detail, below = one_line(shown.error or shown.detail, ERROR), ""
    if span.kind == "batch" and not shown.error:
        detail = batch_words(span)
        if span.approximate_latency is not None:
            detail += " (not a latency)"
            if len(detail) > room:
                detail, _, below = detail.rpartition(" · ")
    elif shown.error and len(detail) > room:
        cut = len(textwrap.wrap(detail, room)[0])
        detail, below = detail[:cut], detail[cut:].strip()
    if detail:
        head += f"  {one_line(detail, room)}"
    if tail:
        head = f"{head}  {tail:>{max(0, width - len(head) - 2)}}"
    yield _painted(state, _COLORS.get(span.state, "")) + head[len(state) :] if color else head
    yield from textwrap.wrap(below, max(20, width - 5))


def _shown(children: Sequence[Span]) -> list[Span | str]:
    """The children to show; in place of those left out, how many they are and how they ended."""
    if len(children) <= MOST_SLOTS or children[0].kind != "slot":
        return [
            f"… {each:,} more" if isinstance(each, int) else each
            for each in excerpt(children, HEAD, TAIL, ERRORS)
        ]
    keep = set(range(FIRST))
    failed = [i for i, slot in enumerate(children) if slot.state in NOT_GOOD and i not in keep]
    keep.update(failed[:ERRORS])
    ended = [i for i, slot in enumerate(children) if slot.latency is not None]
    keep.update(sorted(ended, key=lambda i: children[i].latency or 0.0)[-1:])
    shown: list[Span | str] = []
    skipped: list[Span] = []
    for index, slot in enumerate(children):
        if index not in keep:
            skipped.append(slot)
            continue
        if skipped:
            shown.append(_left_out(skipped))
            skipped = []
        shown.append(slot)
    return [*shown, _left_out(skipped)] if skipped else shown


def _left_out(slots: Sequence[Span]) -> str:
    states = Counter(one_line(slot.state.replace("_", " "), 20) for slot in slots)
    if len(states) == 1:
        return f"… {len(slots):,} more {next(iter(states))}"
    parts = ", ".join(f"{number:,} {state}" for state, number in states.items())
    return f"… {len(slots):,} more: {parts}"


def _painted(text: str, code: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if code else text

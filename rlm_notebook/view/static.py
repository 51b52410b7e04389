"""The tree as static HTML: what a saved notebook shows without a kernel.

No script, no style sheet, no class: JupyterLab's sanitizer strips those from notebooks that are
not trusted, and keeps <details> and most inline styles. Colours are mid-tones that read on white
and on black.
"""

from __future__ import annotations

import html
import itertools
from collections.abc import Iterator

from rlm_notebook.trace.jsonl import clean
from rlm_notebook.trace.trace import Trace
from rlm_notebook.trace.tree import Span
from rlm_notebook.view.excerpt import excerpt
from rlm_notebook.view.rows import fields, label, one_line, row, text_of
from rlm_notebook.view.words import APPROXIMATE, batch_words, state_words, times, totals

TEXT = 1_500
"""Characters of each text."""
DOCUMENT = 120_000
"""Characters from which no more texts are written, only rows; at twice as many nothing more."""
ANSWER = 2_000
HEAD, TAIL, ERRORS = 40, 5, 200
"""Slots of a large batch that are shown: from the beginning, from the end, failed ones besides."""
OPEN_SLOTS = 20
LABEL = 205
"""Pixels of the label's column at the root."""

WAIT, RUN, BAD, LIVE, IDLE, MARK = (
    *("rgba(59,130,196,0.3)", "#3b82c4", "#d64545"),
    *("#e0932f", "#9aa0a6", "#a855c7"),
)
_STATE_COLORS = {
    "ok": "#3f9142",
    "error": BAD,
    "interrupted": BAD,
    "running": LIVE,
    "waiting": IDLE,
}
_GREY = "#808890"
_MONO = "font-family:monospace;font-size:12px"


def render_html(trace: Trace) -> str:
    """The tree as one piece of HTML. Model text is shown as text."""
    writer = _Writer(trace)
    body = "".join(writer.parts())
    return (
        '<div style="border:1px solid rgba(128,128,128,0.35);border-radius:4px;padding:6px 10px;'
        f'font-size:13px;line-height:1.5;max-width:100%;overflow:auto">{body}</div>'
    )


class _Writer:
    """Writes the rows, and keeps count of how much it has written."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._written = 0
        self._cut = False

    def parts(self) -> Iterator[str]:
        trace = self._trace
        yield f'<div style="font-weight:bold">{_escaped(totals(trace))}</div>'
        root = trace.root
        answer = None if root is None else root.attrs.get("answer", root.attrs.get("partial"))
        if answer is not None:
            text = _cut(text_of(answer), ANSWER)
            yield f'<div style="white-space:pre-wrap;overflow-wrap:anywhere;margin:4px 0">{_escaped(text)}</div>'
        for each in trace.tree.roots:
            yield from self._node(each)
        if any(batch.attrs.get("size") for batch in trace.batches):
            yield _legend()
        if self._cut:
            yield _note("The saved tree is cut here; the trace file has all of it.")

    def _node(self, span: Span, depth: int = 0) -> Iterator[str]:
        if self._written > 2 * DOCUMENT:
            self._cut = True
            return
        opened = " open" if _is_open(span) else ""
        # An error is shown whole; other rows stay on one line.
        wrap = "" if span.error else ";white-space:nowrap;overflow:hidden;text-overflow:ellipsis"
        piece = (
            f'<details{opened} style="margin-left:14px"><summary style="cursor:pointer{wrap}">'
            f"{self._row(span, depth)}</summary>"
        )
        self._written += len(piece)
        yield piece
        if span.children and fields(span):
            # Above children the texts stay folded as one, so that the tree reads as a whole.
            names = ", ".join(field.name for field in fields(span))
            yield f'<details style="margin-left:18px"><summary style="cursor:pointer;color:{_GREY}">'
            yield f"{_escaped(names)}</summary>"
            yield from self._texts(span)
            yield "</details>"
        else:
            yield from self._texts(span)
        for child in excerpt(span.children, HEAD, TAIL, ERRORS):
            if isinstance(child, int):
                yield _note(f"{child:,} more rows are left out here; the trace file has them.")
            else:
                yield from self._node(child, depth + 1)
        yield "</details>"

    def _row(self, span: Span, depth: int) -> str:
        shown = row(span)
        color = _STATE_COLORS.get(span.state, _GREY)
        weight = "bold" if span.kind in ("run", "turn") else "normal"
        error = shown.error if span.kind != "batch" else ""
        detail = batch_words(span) if span.kind == "batch" else error or shown.detail
        detail_color = BAD if error else _GREY
        # Fixed widths put the bars of all depths below each other.
        column = "display:inline-block;overflow:hidden;white-space:nowrap;vertical-align:middle"
        return (
            f'<span style="{column};width:{max(80, LABEL - 14 * depth)}px">'
            f'<span style="color:{color}">{_escaped(state_words(span))}</span> '
            f'<span style="font-weight:{weight}">{_escaped(label(span))}</span></span>'
            f"{self._bar(span)}"
            f'<span style="{column};width:155px;color:{_GREY}">{_escaped(times(span))}</span>'
            f'<span style="color:{detail_color};overflow-wrap:anywhere">{_escaped(one_line(detail, 90))}</span>'
        )

    def _bar(self, span: Span) -> str:
        batch = span.parent if span.kind == "slot" else None
        if batch is not None and batch.kind == "batch":
            begin, end = batch.submitted, batch.ended or self._trace.tree.time
        else:
            begin, end = 0, self._trace.tree.time
        length = max(1, end - begin)

        def at(time: float) -> float:
            return min(100.0, max(0.0, (time - begin) * 100 / length))

        stop = at(span.ended or self._trace.tree.time)
        start = at(span.started) if span.started is not None else stop
        approximate = batch.approximate_latency if batch is not None else None
        mark = None
        if approximate is not None and span.started is not None:
            mark = at(span.started + approximate * 1e9)
        color = {"error": BAD, "running": LIVE, "ok": RUN}.get(span.state, IDLE)
        pieces = _pieces(at(span.submitted), start, stop, mark, color)
        return (
            '<span style="display:inline-block;width:180px;height:10px;overflow:hidden;'
            "white-space:nowrap;font-size:0;line-height:10px;margin:0 8px;vertical-align:middle;"
            f'background-color:rgba(128,128,128,0.14)">{pieces}</span>'
        )

    def _texts(self, span: Span) -> Iterator[str]:
        for field in fields(span):
            if self._written > DOCUMENT:
                self._cut = True
                return
            text = _cut(field.text, TEXT)
            # A row's long texts stay folded, so that the tree can be read as a whole.
            piece = (
                f'<details style="margin-left:18px"><summary style="cursor:pointer;color:{_GREY}">'
                f"{_escaped(field.name)} ({len(field.text):,} characters)</summary>"
                f'<pre style="{_MONO};white-space:pre-wrap;overflow-wrap:anywhere;margin:2px 0 6px 0;'
                f'padding:4px 8px;background-color:rgba(128,128,128,0.12)">{_escaped(text)}</pre></details>'
            )
            self._written += len(piece)
            yield piece


def _pieces(begin: float, start: float, stop: float, mark: float | None, color: str) -> str:
    """The bar from left to right; all places in percent of its width."""
    points = sorted({0.0, begin, start, stop, *([mark] if mark is not None else [])})
    found = []
    for left, right in itertools.pairwise(points):
        if left == mark:
            found.append(_block("2px", MARK))
        middle = (left + right) / 2
        shade = WAIT if begin <= middle < start else color if start <= middle < stop else ""
        found.append(_block(f"{right - left:.2f}%", shade))
    if mark == points[-1]:
        found.append(_block("2px", MARK))
    if stop - start < 1 and start < 100:
        found.append(_block("2px", color))  # too short to be seen otherwise
    return "".join(found)


def _block(width: str, color: str) -> str:
    shade = f";background-color:{color}" if color else ""
    return f'<span style="display:inline-block;height:10px;width:{width}{shade}"></span>'


def _legend() -> str:
    def sample(color: str, width: str) -> str:
        return _block(width, color).replace("height:10px", "height:9px;margin:0 4px")

    return (
        f'<div style="font-size:11px;color:{_GREY};margin-top:6px">'
        f"{sample(WAIT, '16px')}waiting in the queue {sample(RUN, '16px')}own latency "
        f"{sample(MARK, '2px')}{_escaped(APPROXIMATE)}. Slots stand on the time axis of their batch, "
        "all other rows on that of the run.</div>"
    )


def _note(text: str) -> str:
    return f'<div style="margin-left:18px;color:{_GREY};font-style:italic">{_escaped(text)}</div>'


def _is_open(span: Span) -> bool:
    if span.kind in ("run", "turn"):
        return True
    return span.kind in ("code", "batch") and 0 < len(span.children) <= OPEN_SLOTS


def _cut(text: str, limit: int) -> str:
    return (
        text
        if len(text) <= limit
        else f"{text[:limit]}\n[... {len(text) - limit:,} more characters]"
    )


def _escaped(text: str) -> str:
    return html.escape(clean(text))

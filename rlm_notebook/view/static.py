"""The tree as static HTML: what a saved notebook shows without a kernel.

No script, no style sheet, no class: JupyterLab's sanitizer strips those from notebooks that are
not trusted, and keeps <details> and the inline styles of its allow-list (checked with 4.3, which
knows no ``flex`` property, and 4.6; neither knows ``overflow-wrap: anywhere`` or
``currentColor``). Colours are mid-tones that read on white and on black.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence

from rlm_notebook.trace.jsonl import clean, text_of
from rlm_notebook.trace.trace import Trace
from rlm_notebook.trace.tree import NS, Span
from rlm_notebook.view.excerpt import NOT_GOOD, excerpt
from rlm_notebook.view.rows import MS, Field, fields, label, one_line, origin, row
from rlm_notebook.view.rows import pieces as pieces_of
from rlm_notebook.view.words import APPROXIMATE, batch_words, seconds, state_words, totals

TEXT = 4_000
"""Characters of each text."""
TEXTS = 150_000
"""Bytes of the document from which no more texts are written, only rows."""
DOCUMENT = 390_000
"""Bytes of the document from which nothing more is written."""
ANSWER = 2_000
WHOLE = 60
"""Slots of a batch that are all shown; of larger ones:"""
HEAD, TAIL, ERRORS = 40, 5, 60
"""Slots from the beginning, from the end, and failed ones besides; more failed ones as a list."""
FULL_HEAD = 5
"""In place of ``HEAD`` once no more texts are written, so that later batches have their rows."""
OPEN_SLOTS = 20
DEEPEST = 60
INDENT = 12
"""Pixels of each level."""
LABEL = 230
"""Pixels of the label's column at the root."""
BAR = 25
"""Percent of the width that bars take."""

WAIT, RUN, BAD, LIVE, IDLE = "rgba(59,130,196,0.3)", "#3b82c4", "#d64545", "#e0932f", "#9aa0a6"
_BARS = {"ok": RUN, "empty": RUN, "null": RUN, "error": BAD, "running": LIVE}
_PARTS = {"failed": "rgba(214,69,69,0.75)", "pause": "rgba(154,160,166,0.9)", "hedge": LIVE}
_PART_WORDS = {"failed": "failed request", "pause": "back-off", "hedge": "second request"}
_STATES = {"ok": "#3f9142", "error": BAD, "interrupted": BAD, "null": BAD, "running": LIVE}
_GREY = "#808890"
_MARK = "opacity:0.8;border-left:2px solid"  # no colour: that of the text, on light and dark
_NUMBER = f"min-width:60px;margin-right:8px;text-align:right;color:{_GREY}"
_CUT = "overflow:hidden;text-overflow:ellipsis"


def render_html(trace: Trace) -> str:
    """The tree as one piece of HTML, at most about 400 KB. Model text is shown as text."""
    return _Writer(trace).document()


class _Writer:
    """Writes the rows, and keeps count of how much it has written."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._now = trace.tree.time
        self._written = 0
        self._left_out = False

    def document(self) -> str:
        root = self._trace.root
        tree = "".join(piece for each in self._trace.tree.roots for piece in self._node(each, 0))
        parts = [
            f'<div style="font-weight:bold">{_escaped(one_line(totals(self._trace), 300))}</div>'
        ]
        if origin(self._trace):
            parts.append(_note(origin(self._trace), 0))
        parts += [_note(one_line(note, 300), 0) for note in self._trace.notes]
        if self._left_out:
            words = "This saved tree leaves parts out, where it says so; the trace has all of it."
            parts.append(_note(words, 0))
        if root is not None:
            parts += [_answer(root), self._columns()]
        return (
            '<div style="border:1px solid rgba(128,128,128,0.35);border-radius:4px;'
            'padding:6px 10px;font-size:13px;line-height:20px;max-width:100%;overflow:auto">'
            f'{"".join(parts)}<div style="white-space:nowrap">{tree}</div></div>'
        )

    def _columns(self) -> str:
        axis = f"{_span('0')}{_span(seconds(self._now * NS), 'float:right')}"
        cells = (
            _span("", f"width:{LABEL}px;min-width:{LABEL}px"),
            f'<span style="{_bar_width(0)}">{axis}</span>',
            _span("waited", _NUMBER),
            _span("took", _NUMBER),
        )
        style = f"display:flex;color:{_GREY};font-size:11px;white-space:nowrap;margin-left:15px"
        return f'<div style="{style}">{"".join(cells)}</div>'

    def _take(self, piece: str) -> str:
        self._written += len(piece.encode())
        return piece

    def _node(self, span: Span, depth: int) -> Iterator[str]:
        if self._written > DOCUMENT - 4_000 or depth > DEEPEST:
            self._left_out = True
            return
        opened = " open" if _is_open(span) else ""
        indent = f' style="margin-left:{INDENT}px"' if depth else ""
        yield self._take(
            f'<details{opened}{indent}><summary style="cursor:pointer">'
            f"{self._row(span, depth)}</summary>"
        )
        yield from self._texts(span)
        if span.kind == "batch" and span.slots:
            yield self._take(self._legend(span))
        yield from self._children(span, depth + 1)
        yield "</details>"

    def _children(self, span: Span, depth: int) -> Iterator[str]:
        children = span.children
        if len(children) <= WHOLE and self._written < TEXTS:
            shown: Sequence[Span | int] = children
        else:
            head = HEAD if self._written < TEXTS else FULL_HEAD
            shown = excerpt(children, head, TAIL, ERRORS)
        for child in shown:
            if isinstance(child, Span):
                yield from self._node(child, depth)
            else:
                self._left_out = True
                yield self._take(_note(f"… {child:,} more are left out here", INDENT + 18))
        written = {child.id for child in shown if isinstance(child, Span)}
        failed = [c for c in children if c.state in NOT_GOOD and c.id not in written]
        if failed:
            yield from self._list(failed)

    def _list(self, failed: Sequence[Span]) -> Iterator[str]:
        """A short line for each failed slot that has no row."""
        lines: list[str] = []
        room = DOCUMENT - 2_000 - self._written
        for number, slot in enumerate(failed):
            line = _escaped(f"slot {slot.index}: {one_line(row(slot).error or slot.state, 60)}")
            room -= len(line.encode()) + 1
            if room < 0:
                lines.append(f"[… {len(failed) - number:,} more failed]")
                break
            lines.append(line)
        name = f"{len(failed):,} of those left out failed"
        yield self._take(
            f'<details style="margin-left:{INDENT}px"><summary style="cursor:pointer;color:{BAD}">'
            f"{name}</summary>{_pre(chr(10).join(lines))}</details>"
        )

    def _row(self, span: Span, depth: int) -> str:
        shown = row(span)
        batch, error = span.kind == "batch", shown.error
        # The approximate latency has its place in the legend.
        detail = error or (batch_words(span).split(" · approx")[0] if batch else shown.detail)
        # Fixed widths put the bars of all depths below each other.
        width = max(90, LABEL - INDENT * depth)
        state = _span(one_line(state_words(span), 30), f"color:{_STATES.get(span.state, _GREY)}")
        name = one_line(label(span), 60)
        strong = f"<b>{_escaped(name)}</b>" if span.kind in ("run", "turn") else _escaped(name)
        # Errors and batches are shown whole: below the row, where they have no room beside it.
        # (By inline blocks, not by flex-wrap, which the sanitizer of 4.3 drops.)
        whole = bool(error or batch)
        cell = "display:inline-block;vertical-align:top;white-space:nowrap;" if whole else ""
        last = "max-width:100%;overflow-wrap:break-word" if whole else _CUT
        last = f"{cell.replace('nowrap', 'normal')}{last};color:{BAD if error else _GREY}"
        waited, took = self._times(span)
        return (
            f'<span style="display:{"inline-block;white-space:normal" if whole else "inline-flex"};'
            'width:calc(100% - 18px);vertical-align:top">'
            f'<span style="{cell}width:{width}px;min-width:{width}px;{_CUT}">{state} {strong}</span>'
            f'<span style="{cell}{_bar_width(depth)};position:relative;height:10px;margin-top:5px;'
            f'background:rgba(128,128,128,0.14)">{self._bar(span)}</span>'
            f"{_span(waited, cell + _NUMBER)}{_span(took, cell + _NUMBER)}{_span(detail, last)}</span>"
        )

    def _times(self, span: Span) -> tuple[str, str]:
        """Queue wait and latency; of what goes on, that it is at least so long."""
        so_far = "≥ " if span.open else ""
        end = self._now if span.ended is None else span.ended
        if span.started is None:
            return so_far + seconds((end - span.submitted) * NS), ""
        wait = span.queue_wait or 0.0
        took = so_far + seconds((end - span.started) * NS)
        return seconds(wait) if wait >= 0.001 else "", took

    def _bar(self, span: Span) -> str:
        """Wait and latency to scale: slots on the axis of their batch, others on the run's."""
        batch = span.parent if span.kind == "slot" else None
        axis = batch if batch is not None and batch.kind == "batch" else None
        begin = axis.submitted if axis is not None else 0
        end = axis.ended if axis is not None and axis.ended is not None else self._now
        length = max(1, end - begin)

        def at(time: float) -> float:
            return min(99.0, max(0.0, (time - begin) * 100 / length))

        stop = min(end, span.ended if span.ended is not None else self._now)
        start = span.started if span.started is not None else stop
        pieces = ""
        if start > span.submitted:
            pieces += _piece(at(span.submitted), (start - span.submitted) * 100 / length, WAIT)
        if span.started is not None:
            pieces += _piece(at(start), (stop - start) * 100 / length, _BARS.get(span.state, IDLE))
            for part in sorted(pieces_of(span), key=lambda part: part.kind != "pause"):
                left, wide = at(part.begin / MS), (part.end - part.begin) / MS * 100 / length
                pieces += _piece(left, wide, _PARTS.get(part.kind, IDLE), part.kind == "hedge")
            if axis is not None and axis.approximate_latency is not None:
                left = at(span.started + axis.approximate_latency / NS)
                pieces += _piece(left, None, "")
        return pieces

    def _legend(self, batch: Span) -> str:
        box = "display:inline-block;width:14px;height:9px"
        parts = [
            f"{_span('', f'{box};background:{WAIT}')} waiting in the queue",
            f"{_span('', f'{box};background:{RUN}')} own latency",
        ]
        if any(slot.attempts for slot in batch.slots):
            parts += [
                f"{_span('', f'{box};background:{_PARTS[kind]}')} {words}"
                for kind, words in _PART_WORDS.items()
            ]
        if batch.approximate_latency is not None:
            mark = _span("", f"display:inline-block;height:11px;{_MARK}")
            words = f"{seconds(batch.approximate_latency)}, {APPROXIMATE}"
            parts.append(f"{mark} {_escaped(words)}")
        end = self._now if batch.ended is None else batch.ended
        axis = f"time axis of these slots: 0 to {seconds((end - batch.submitted) * NS)}"
        parts.insert(0, axis)
        return _note(" · ".join(parts), INDENT + 18, escaped=True)

    def _texts(self, span: Span) -> Iterator[str]:
        found = fields(span)
        if not found:
            return
        if self._written > TEXTS:
            self._left_out = True
            yield self._take(_note("[texts are left out here]", 18))
            return
        # Above children, and for a long conversation, texts are folded: the tree reads as a whole.
        aside = found if span.children else [f for f in found if f.name.startswith("message ")]
        if aside:
            names = ", ".join(field.name for field in aside[:8]) + (", …" if len(aside) > 8 else "")
            yield self._take(
                f'<details style="margin-left:{INDENT}px"><summary style="cursor:pointer;'
                f'color:{_GREY}">{_escaped(names)}</summary>'
            )
            yield from map(self._text, aside)
            yield "</details>"
        yield from (self._text(field) for field in found if field not in aside)

    def _text(self, field: Field) -> str:
        if self._written > TEXTS:
            self._left_out = True
            return self._take(_note(f"[{_escaped(field.name)} is left out here]", 18, escaped=True))
        many = f" ({len(field.text):,} characters)" if len(field.text) > TEXT else ""
        heading = _note(field.name + many, 18)
        return self._take(heading + _pre(_escaped(_cut(field.text, TEXT))))


def _answer(root: Span) -> str:
    answer = root.attrs.get("answer", root.attrs.get("partial"))
    if answer is None:
        return ""
    style = (
        "margin:4px 0;padding:2px 8px;border-left:3px solid rgba(128,128,128,0.5);"
        "max-height:300px;overflow:auto;white-space:pre-wrap;overflow-wrap:break-word"
    )
    return f'<div style="{style}">{_escaped(_cut(text_of(answer), ANSWER))}</div>'


def _piece(left: float, width: float | None, color: str, thin: bool = False) -> str:
    """A part of a bar, in percent of its width; without a width, the mark across it."""
    place = f"position:absolute;left:{left:.2f}%"
    if width is None:
        return _span("", f"{place};top:-2px;height:14px;{_MARK}")
    width = min(width, 100 - left)
    height = "top:7px;height:3px" if thin else "top:0;height:10px"
    style = f"{place};{height};width:{width:.2f}%;min-width:2px"
    return _span("", f"{style};background:{color}")


def _bar_width(depth: int) -> str:
    """The same width in pixels at each depth, though deeper rows are narrower."""
    width = f"calc({BAR}% + {BAR * INDENT * depth / 100:.0f}px)"
    return f"min-width:{width};margin-right:8px"


def _span(text: str, style: str = "") -> str:
    attribute = f' style="{style}"' if style else ""
    return f"<span{attribute}>{_escaped(text)}</span>"


def _pre(escaped: str) -> str:
    style = (
        "font-family:monospace;font-size:12px;line-height:17px;white-space:pre-wrap;"
        "overflow-wrap:break-word;margin:0 0 6px 18px;padding:4px 8px;max-height:320px;"
        "overflow:auto;background:rgba(128,128,128,0.12)"
    )
    return f'<pre style="{style}">{escaped}</pre>'


def _note(text: str, indent: int, *, escaped: bool = False) -> str:
    style = (
        f"margin-left:{indent}px;color:{_GREY};font-size:11px;line-height:16px;white-space:normal"
    )
    return f'<div style="{style}">{text if escaped else _escaped(text)}</div>'


def _is_open(span: Span) -> bool:
    if span.kind in ("run", "turn"):
        return True
    return span.kind in ("code", "batch") and 0 < len(span.children) <= OPEN_SLOTS


def _cut(text: str, limit: int) -> str:
    more = len(text) - limit
    return text if more <= 0 else f"{text[:limit]}\n[… {more:,} more characters]"


def _escaped(text: str) -> str:
    return html.escape(clean(text))

"""Tables about whole runs: two of them side by side, and the list of a folder's traces.

Static HTML of the kind that JupyterLab keeps in notebooks that are not trusted.
"""

from __future__ import annotations

import difflib
import html
from collections.abc import Iterable, Sequence

from rlm_notebook.trace.catalog import Catalog, Entry
from rlm_notebook.trace.compare import Comparison, Pair
from rlm_notebook.trace.trace import Trace
from rlm_notebook.trace.tree import Span
from rlm_notebook.view.rows import one_line
from rlm_notebook.view.words import OUTCOMES, seconds, totals

SHOWN = 100
"""Differences that are shown; the frame has all of them."""
LINES = 14
"""Lines of a diff."""
_SHORT = (0, 5, 6, 7)
"""Columns of the catalog that are not broken."""
_GREY = "color:#808890"
_CELL = "text-align:left;vertical-align:top;padding:3px 10px 3px 0"
_ADDED, _REMOVED = "color:#3f9142", "color:#d64545"


def comparison_text(found: Comparison) -> str:
    """The runs and what differs, a line a place."""
    lines = [f"a: {_run(found.a)}", f"b: {_run(found.b)}", _count(found)]
    for pair in found.differences[:SHOWN]:
        lines.append(f"  {pair.place}: {', '.join(pair.differs)}{_latencies(pair)}")
        lines += [f"      {line}" for name in _texts(pair) for line in _diff(pair, name)]
    return "\n".join([*lines, *_more(found)])


def comparison_html(found: Comparison) -> str:
    """The same as a table."""
    rows = []
    for pair in found.differences[:SHOWN]:
        texts = "".join(_diff_html(pair, name) for name in _texts(pair))
        times = [seconds(each.latency) if each is not None else "–" for each in (pair.a, pair.b)]
        costs = [_cost(each) for each in (pair.a, pair.b)]
        rows.append(
            [_escaped(pair.place), f"{_escaped(', '.join(pair.differs))}{texts}", *times, *costs]
        )
    head = f"<div><b>a</b> {_escaped(_run(found.a))}</div><div><b>b</b> {_escaped(_run(found.b))}</div>"
    table = _table(("place", "what differs", "time a", "time b", "cost a", "cost b"), rows)
    more = "".join(f"<div>{_escaped(line)}</div>" for line in _more(found))
    return _framed(f"{head}<div>{_escaped(_count(found))}</div>{table if rows else ''}{more}")


def catalog_text(found: Catalog) -> str:
    """A line a trace."""
    lines = [f"{len(found)} traces in {found.folder}"]
    for depth, entry in found.entries:
        cells = [each for each in _cells(entry) if each]
        lines.append("  " * (depth + 1) + " · ".join(cells))
    return "\n".join(lines)


def catalog_html(found: Catalog) -> str:
    """The same as a table."""
    rows = []
    for depth, entry in found.entries:
        cells = [_escaped(each) for each in _cells(entry)]
        cells = [_whole(cell) if number in _SHORT else cell for number, cell in enumerate(cells)]
        mark = f'<span style="{_GREY}">↳ </span>' if depth else ""
        cells[0] = f'<span style="padding-left:{14 * min(depth, 20)}px">{mark}{cells[0]}</span>'
        rows.append(cells)
    names = ("trace", "state", "question", "answer", "model", "calls", "cost", "time", "forked at")
    return _framed(
        f"<div>{len(found)} traces in {_escaped(str(found.folder))}</div>{_table(names, rows)}"
    )


def _cells(entry: Entry) -> list[str]:
    if entry.problem:
        return [entry.path.name, one_line(entry.problem, 120), *[""] * 7]
    state = OUTCOMES.get(entry.outcome, entry.state)
    return [
        entry.path.name,
        state,
        one_line(entry.question, 60),
        one_line(entry.answer, 60),
        one_line(entry.model, 40),
        f"{entry.calls:,} call{'' if entry.calls == 1 else 's'}",
        "" if entry.cost is None else f"${entry.cost:.4f}",
        seconds(entry.seconds),
        one_line(entry.place, 80),
    ]


def _run(trace: Trace) -> str:
    name = trace.path.name if trace.path is not None else "in memory"
    return one_line(f"{name}: {totals(trace)}", 300)


def _count(found: Comparison) -> str:
    count = len(found.differences)
    if not count:
        return f"the same in all {len(found.pairs):,} places (times apart)"
    return f"{count:,} of {len(found.pairs):,} places differ"


def _more(found: Comparison) -> list[str]:
    rest = len(found.differences) - SHOWN
    return [f"… {rest:,} more: .to_frame() has all of them"] if rest > 0 else []


def _texts(pair: Pair) -> list[str]:
    return [name for name in pair.differs if not name.startswith("only")]


def _diff(pair: Pair, name: str) -> list[str]:
    a, b = (text.splitlines() for text in pair.texts(name))
    lines = list(difflib.unified_diff(a, b, lineterm="", n=1))[2:]
    shown = [one_line(line, 160) if line.strip() else line for line in lines[:LINES]]
    rest = len(lines) - LINES
    return [*shown, f"… {rest:,} more lines"] if rest > 0 else shown


def _diff_html(pair: Pair, name: str) -> str:
    lines = []
    for line in _diff(pair, name):
        style = {"+": _ADDED, "-": _REMOVED}.get(line[:1], _GREY)
        lines.append(f'<span style="{style}">{_escaped(line)}</span>')
    return (
        '<div style="font-family:monospace;white-space:pre-wrap;word-break:break-all">'
        f"{'<br>'.join(lines)}</div>"
    )


def _latencies(pair: Pair) -> str:
    if pair.a is None or pair.b is None or pair.a.latency is None or pair.b.latency is None:
        return ""
    return f" ({seconds(pair.a.latency)} / {seconds(pair.b.latency)})"


def _cost(span: Span | None) -> str:
    cost = span.usage.cost if span is not None else None
    return "" if cost is None else f"${cost:.4f}"


def _whole(cell: str) -> str:
    return f'<span style="white-space:nowrap">{cell}</span>'


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f'<th style="{_CELL};{_GREY};font-weight:normal">{name}</th>' for name in names)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{cell}</td>' for cell in row) + "</tr>"
        for row in rows
    )
    return f'<table style="margin:6px 0 0 0"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _framed(content: str) -> str:
    return (
        '<div style="border:1px solid rgba(128,128,128,0.35);border-radius:4px;padding:6px 10px;'
        f'font-size:13px;line-height:20px;max-width:100%;overflow:auto">{content}</div>'
    )


def _escaped(text: str) -> str:
    return html.escape(text)

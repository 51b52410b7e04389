"""What a view shows of a span: one row, and its texts when it is opened. Pure functions."""

from __future__ import annotations

from typing import Any

import msgspec

from rlm_notebook.repl.output import shown
from rlm_notebook.trace.events import PAUSES
from rlm_notebook.trace.jsonl import clean, text_of
from rlm_notebook.trace.trace import Trace
from rlm_notebook.trace.tree import Span, whole

DETAIL = 160
"""Characters of a row's preview."""
TAIL = 44
"""Characters of a text that is being written, from its end."""
ERROR = 300
"""Characters of a row's error."""
MS = 1e-6


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """A part of a call's latency that is not the request that answered. Times in ms."""

    begin: float
    end: float
    kind: str
    """``failed``: a request that failed. ``pause``: back-off, and the wait for a place after it.
    ``hedge``: a second request beside the first."""


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """One row of the tree, small enough to be sent by the thousand. Times in ms since the start."""

    id: int
    parent: int | None
    kind: str
    state: str
    label: str
    """What it is: ``turn 2``, ``llm_query_batched``, ``slot 3``."""
    detail: str = ""
    """One line of what it holds: question, first line of code, prompt, answer."""
    error: str = ""
    submitted: float = 0.0
    started: float | None = None
    ended: float | None = None
    index: int | None = None
    size: int | None = None
    """Batches: number of prompts."""
    limit: int | None = None
    """Batches: how many may be in flight at once."""
    approximate: float | None = None
    """Batches: ms that the reference library would report as every slot's time."""
    tokens_in: int | None = None
    tokens_out: int | None = None
    model: str = ""
    outcome: str = ""
    pieces: list[Piece] = []
    """Calls that took more than one request."""
    first: float | None = None
    """Streamed calls: when the first text came."""
    chars: int | None = None
    """Open streamed calls: characters so far."""


class Summary(msgspec.Struct, frozen=True):
    """The header line. ``elapsed`` in ms."""

    state: str
    outcome: str
    stopped_by: str
    """Why it was stopped, if it was."""
    elapsed: float
    calls: int
    in_flight: int
    waiting: int
    errors: int
    input_tokens: int
    output_tokens: int
    cost: float | None
    """USD; None if nobody reported any."""
    cost_estimated: bool
    """True if a part of the cost comes from a price list."""
    usage_complete: bool
    """False if the tokens are a floor."""
    answer: str
    """One line."""
    warnings: list[str]
    origin: str
    """Of a fork: where it comes from."""


class Field(msgspec.Struct, frozen=True):
    """One named text of a span."""

    name: str
    text: str
    code: bool = False
    """Whether it is code or output, to be shown in fixed width."""


def row(span: Span) -> Row:
    """The row of a span as it stands now."""
    usage = span.usage
    approximate = span.approximate_latency
    return Row(
        id=span.id,
        parent=span.parent.id if span.parent is not None else None,
        kind=span.kind,
        state=span.state,
        label=label(span),
        detail=one_line(_detail(span), DETAIL),
        error=one_line(_error(span), ERROR),
        submitted=_ms(span.submitted),
        started=_ms(span.started) if span.started is not None else None,
        ended=_ms(span.ended) if span.ended is not None else None,
        index=span.index,
        size=span.size if "size" in span.attrs else None,
        limit=whole(span.attrs.get("limit")),
        approximate=round(approximate * 1e3, 3) if approximate is not None else None,
        tokens_in=usage.input_tokens,
        tokens_out=usage.output_tokens,
        model=one_line(span.attrs.get("model"), 80),
        outcome=str(span.attrs.get("outcome") or ""),
        pieces=pieces(span),
        first=_ms(first) if (first := whole(span.attrs.get("first_token"))) is not None else None,
        chars=len(response) if span.open and (response := _response(span)) else None,
    )


def pieces(span: Span) -> list[Piece]:
    """What a call's latency is made of besides the request that answered."""
    found: list[Piece] = []
    before: float | None = None
    for attempt in span.attempts:
        begin, end = attempt.get("started"), attempt.get("ended")
        if not isinstance(begin, int) or not isinstance(end, int):
            continue
        if attempt.get("hedge"):
            found.append(Piece(_ms(begin), _ms(end), "hedge"))
            continue
        if before is not None:
            found.append(Piece(before, _ms(begin), "pause"))
        if attempt.get("error"):
            found.append(Piece(_ms(begin), _ms(end), "failed"))
        before = _ms(end)
    return found


def summary(trace: Trace, now: int, warnings: list[str]) -> Summary:
    """The header line of a trace.

    Parameters
    ----------
    now
        ns since the trace began; the elapsed time of a run that goes on.
    """
    root, totals = trace.root, trace.tree.totals
    end = root.ended if root is not None and root.ended is not None else now
    return Summary(
        state=root.state if root is not None else "waiting",
        outcome=str(root.attrs.get("outcome") or "") if root is not None else "",
        stopped_by=one_line(root.attrs.get("stopped_by"), ERROR) if root is not None else "",
        elapsed=_ms(end),
        calls=totals.calls,
        in_flight=totals.in_flight,
        waiting=totals.waiting,
        errors=totals.errors,
        input_tokens=totals.input_tokens,
        output_tokens=totals.output_tokens,
        cost=totals.cost,
        cost_estimated=totals.cost_estimated,
        usage_complete=totals.usage_complete,
        answer=one_line(_answer(root), ERROR) if root is not None else "",
        warnings=[one_line(warning, ERROR) for warning in warnings],
        origin=origin(trace),
    )


def origin(trace: Trace) -> str:
    """Of a fork: of what, where, and what was changed there. One line; '' for other runs."""
    parent = trace.header.parent
    if not parent.get("place"):
        return ""
    edited = parent.get("edited")
    changed = (
        f"; {', '.join(map(str, edited))} changed" if edited and isinstance(edited, list) else ""
    )
    return one_line(
        f"fork of {parent.get('trace') or 'a run'} at {parent['place']}{changed}", ERROR
    )


def fields(span: Span) -> list[Field]:
    """All texts of a span, whole, in reading order."""
    attrs = span.attrs
    found: list[Field] = []

    def add(name: str, value: Any, *, code: bool = False) -> None:
        if value is not None and value != "":
            found.append(Field(name, clean(text_of(value)), code))

    add("error", _reason(span.error))
    add("latency", _split(span))
    add(
        "attempts",
        "\n".join(_attempt(n, each, span) for n, each in enumerate(span.attempts, start=1)),
    )
    add("note", attrs.get("note"))
    for name, value in attrs.items():
        if span.kind == "pause" and name.startswith("next_"):
            add(name.removeprefix("next_"), value, code=True)
    for name, value in span.edited.items():
        shown_value = _reason(value) if name == "error" else value
        add(f"{text_of(name)} before it was edited", shown_value, code=name == "code")
    add("arguments", attrs.get("arguments"), code=True)
    add("result", attrs.get("result"), code=True)
    add("question", attrs.get("question"))
    add("context", attrs.get("context"))
    add("code", attrs.get("code"), code=True)
    for stream in ("stdout", "stderr"):  # as a terminal shows it
        add(stream, shown(text_of(attrs.get(stream))), code=True)
    add("traceback", attrs.get("traceback"), code=True)
    add("variables", _variables(attrs), code=True)
    add("prompt", attrs.get("prompt"))
    messages = attrs.get("messages")
    if isinstance(messages, list):  # a long conversation: what it led to comes first
        add("response", attrs.get("response"))
        add("finish reason", attrs.get("finish_reason"))
        for number, message in enumerate(messages, start=1):
            if isinstance(message, dict):
                add(f"message {number} ({message.get('role')})", message.get("content"))
    if not isinstance(messages, list):
        add("response", attrs.get("response"))
        add("finish reason", attrs.get("finish_reason"))
    add("answer", attrs.get("answer"))
    add("partial answer", attrs.get("partial"))
    return found


def _variables(attrs: dict[str, Any]) -> str:
    """A line a variable, in columns; what the block has changed is said behind it."""
    found = attrs.get("variables")
    rows = [
        [text_of(each) for each in (*row, "", "", "", "")[:4]]
        for row in (found if isinstance(found, list) else [])
        if isinstance(row, list)
    ]
    changes = attrs.get("changes")
    marks: dict[str, str] = {}
    for what, names in changes.items() if isinstance(changes, dict) else ():
        if isinstance(names, list):
            marks.update((text_of(name), what) for name in names)
    for name, what in marks.items():
        if what == "gone":
            rows.append([name, "", "", ""])
    widths = [min(30, max((len(row[column]) for row in rows), default=0)) for column in range(3)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        mark = f"({marks[row[0]]})" if row[0] in marks else ""
        lines.append("  ".join(part for part in (*cells, row[3], mark) if part).rstrip())
    return "\n".join(lines)


def label(span: Span) -> str:
    """What a span is, in a word or two."""
    attrs = span.attrs
    number = (span.index or 0) + 1
    if span.kind == "run":
        return "run" if span.parent is None else "child run"
    if span.kind == "turn":
        return "final answer" if attrs.get("final") else f"turn {number}"
    if span.kind == "code":
        return "code" if number == 1 else f"code {number}"
    if span.kind == "pause":
        verb = "paused" if span.open else "pause"
        return f"{verb} {PAUSES.get(text_of(attrs.get('at')), '')}".strip()
    if span.kind == "slot":
        return f"slot {span.index}"
    if span.kind == "batch":
        return str(attrs.get("function") or "batch")
    return str(attrs.get("function") or "LM call")


def one_line(value: Any, limit: int) -> str:
    """The text on one line, at most ``limit`` characters, without control characters."""
    text = text_of(value)[: limit * 4]  # runs of blanks fold, so look at more than is shown
    text = "".join(c if c.isprintable() else " " for c in clean(" ".join(text.split())))
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _detail(span: Span) -> Any:
    attrs = span.attrs
    if span.kind == "run":
        return attrs.get("question")
    if span.kind == "turn":
        return attrs.get("note")
    if span.kind == "code":
        lines = (line.strip() for line in str(attrs.get("code") or "").splitlines())
        return next((line for line in lines if line and not line.startswith("#")), "")
    if span.kind == "tool":
        result = f" → {text_of(attrs['result'])}" if "result" in attrs else ""
        return f"({text_of(attrs.get('arguments'))}){result}"
    if span.kind == "pause":
        changed = attrs.get("changed")
        edited = f"edited {', '.join(map(text_of, changed))}" if isinstance(changed, list) else ""
        return edited if changed else attrs.get("action")
    if span.kind == "batch":
        return f"{attrs.get('size')} prompts, {attrs.get('limit')} at once"
    if span.open and span.attempts:
        last = span.attempts[-1]
        return f"attempt {len(span.attempts) + 1}, after {_reason(last.get('error'))}"
    if span.open and len(_response(span)) > TAIL:
        return f"… {_response(span)[-TAIL:]}"  # what is being written
    return attrs.get("response") or attrs.get("prompt")


def _response(span: Span) -> str:
    response = span.attrs.get("response")
    return response if isinstance(response, str) else ""


def _split(span: Span) -> str:
    """What the latency of a call with more than one request is made of."""
    if len(span.attempts) < 2 or span.latency is None or any(a.get("hedge") for a in span.attempts):
        return ""
    waits = span.back_off + span.requeue_wait
    parts = [f"{max(0.0, span.latency - waits):.3f} s in {len(span.attempts)} requests"]
    parts.append(f"{span.back_off:.3f} s back-off")
    if span.requeue_wait >= 0.001:
        parts.append(f"{span.requeue_wait:.3f} s in the queue again")
    return " + ".join(parts)


def _attempt(number: int, attempt: dict[str, Any], call: Span) -> str:
    seconds = (attempt.get("ended", 0) - attempt.get("started", 0)) * 1e-9
    wait = f", then waited {attempt['wait']:.2f} s" if attempt.get("wait") is not None else ""
    hedge = "sent beside a slow one, " if attempt.get("hedge") else ""
    end = "cancelled" if attempt.get("cancelled") else "succeeded"
    if attempt.get("cancelled") and call.state not in ("cancelled", "not_sent"):
        end += ": another one answered"
    return f"{number}. {hedge}{seconds:.3f} s: {_reason(attempt.get('error')) or end}{wait}"


def _reason(error: Any) -> str:
    if not isinstance(error, dict):
        return ""
    status = f" (HTTP {error['status']})" if error.get("status") else ""
    return f"{error.get('type')}: {error.get('message')}{status}"


def _error(span: Span) -> str:
    return _reason(span.error)


def _answer(root: Span) -> Any:
    answer = root.attrs.get("answer")
    return answer if answer is not None else root.attrs.get("partial")


def _ms(ns: int) -> float:
    return round(ns * MS, 3)

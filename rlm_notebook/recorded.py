"""What a trace has recorded, as the engine's own values. A trace may hold anything."""

from __future__ import annotations

from typing import Any

from rlm_notebook.errors import LMError
from rlm_notebook.repl.protocol import Execution
from rlm_notebook.trace.jsonl import text_of
from rlm_notebook.trace.tree import Span


def error_from(attrs: dict[str, Any]) -> LMError:
    """The error that a trace has kept."""
    status = attrs.get("status")
    message, kind = str(attrs.get("message") or "it failed"), str(attrs.get("type") or "error")
    return LMError(message, type=kind, status=status if isinstance(status, int) else None)


def recorded_execution(span: Span) -> Execution:
    """What a recorded block gave, as far as the trace tells it."""
    attrs = span.attrs
    order = attrs.get("order") if isinstance(attrs.get("order"), list) else None
    note = attrs.get("note")
    return Execution(
        stdout=str(attrs.get("stdout") or ""),
        stderr=str(attrs.get("stderr") or ""),
        error=span.error,
        traceback=str(attrs.get("traceback") or ""),
        order=[(each[0], each[1]) for each in order if _is_step(each)] if order else [],
        variables=attrs.get("variables") or [],
        changes=attrs.get("changes") or {},
        notes=[note] if isinstance(note, str) else [],
    )


def recorded_answer(span: Span) -> str:
    """What a child run that is in the trace had answered.

    Raises
    ------
    LMError
        It had failed.
    """
    if span.error is not None:
        raise error_from(span.error)
    return text_of(span.attrs.get("answer") if span.kind == "run" else span.response)


def _is_step(each: Any) -> bool:
    return (
        isinstance(each, list | tuple)
        and len(each) == 2
        and each[0] in ("stdout", "stderr")
        and isinstance(each[1], int)
    )

"""What can be changed where a run is forked, and the fork that is begun from a view."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from rlm_notebook.trace.tree import Span

if TYPE_CHECKING:
    from rlm_notebook.trace.trace import Trace

OnFork = Callable[["Trace", Span, dict[str, str]], Awaitable[str]]
"""Begins a fork of a trace at a span, with what was changed; says which run it is."""


def forkable(span: Span) -> dict[str, str] | None:
    """What can be changed at a fork there: code, response, prompt, model; None if it has no fork."""
    if span.parent is None:
        return None
    model = str(span.attrs.get("model") or "")
    if span.kind == "code":
        return {"code": span.code or ""}
    if span.kind in ("slot", "lm_call"):
        if span.prompt is None:
            return {"response": span.response or ""}
        return {"prompt": span.prompt, "response": span.response or "", "model": model}
    if span.kind != "turn":
        return None
    code = span.code
    texts = {} if code is None else {"code": code}
    above = span.parent.attrs.get("model")
    return {**texts, "prompt": "", "response": span.response or "", "model": str(above or "")}

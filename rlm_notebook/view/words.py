"""The words and numbers that the static and the text view share."""

from __future__ import annotations

from rlm_notebook.trace.trace import Trace
from rlm_notebook.trace.tree import Span
from rlm_notebook.view.rows import summary

SYMBOLS = {
    "waiting": "◌",
    "running": "▸",
    "ok": "✓",
    "empty": "∅",
    "null": "∅",
    "error": "✕",
    "cancelled": "⊘",
    "not_sent": "–",
    "skipped": "»",
    "interrupted": "⚡",
}
OUTCOMES = {
    "answered": "answered",
    "answered_unseen": "answered before the output was seen",
    "fallback": "answered after the turns ran out",
    "no_answer": "no answer",
    "stopped": "stopped",
    "error": "failed",
}
APPROXIMATE = (
    "approximate latency: batch duration / number of prompts, what other libraries report; "
    "it is no slot's latency"
)


def seconds(value: float | None) -> str:
    """A duration: ``0.4 ms``, ``340 ms``, ``8.12 s``, ``1:01 min``."""
    if value is None:
        return ""
    if value < 0.001:
        return f"{value * 1e3:.1f} ms"
    if value < 0.9995:
        return f"{value * 1e3:.0f} ms"
    if value < 59.95:
        return f"{value:.2f} s" if value < 9.995 else f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes}:{rest:02d} min"


def state_words(span: Span) -> str:
    """Symbol of the state, with its name where it is not plainly good."""
    symbol = SYMBOLS.get(span.state, "?")
    return symbol if span.state == "ok" else f"{symbol} {span.state.replace('_', ' ')}"


def times(span: Span) -> str:
    """Queue wait (from 1 ms on) and latency."""
    wait, latency = span.queue_wait, span.latency
    if latency is None:
        return ""
    if wait is None or wait < 0.001:
        return seconds(latency)
    return f"wait {seconds(wait)} · {seconds(latency)}"


def batch_words(span: Span) -> str:
    """Size, limit, failures and approximate latency of a batch."""
    size = span.size
    parts = [f"{size:,} prompt{'' if size == 1 else 's'}, {span.attrs.get('limit')} at once"]
    failed = sum(slot.state == "error" for slot in span.slots)
    if failed:
        parts.append(f"{failed:,} failed")
    if span.approximate_latency is not None:
        parts.append(f"approximate {seconds(span.approximate_latency)} each")
    return " · ".join(parts)


def totals(trace: Trace) -> str:
    """Outcome, duration, calls, errors, tokens and cost on one line."""
    now = trace.tree.time
    found = summary(trace, now, [])
    root = trace.root
    if root is None:
        return "the run has not begun"
    words = OUTCOMES.get(found.outcome, root.state)
    parts = [
        f"{SYMBOLS.get(root.state, '?')} {words}"
        + (f" ({found.stopped_by})" if found.stopped_by else ""),
        seconds(found.elapsed / 1e3),
        f"{found.calls:,} LM call{'' if found.calls == 1 else 's'}",
    ]
    if found.errors:
        parts.append(f"{found.errors:,} error{'' if found.errors == 1 else 's'}")
    floor = "" if found.usage_complete else "≥ "
    parts.append(f"{floor}{found.input_tokens + found.output_tokens:,} tokens")
    if found.cost:
        about = "≈ " if found.cost_estimated and not floor else ""
        parts.append(f"{floor}{about}${found.cost:.4f}")
    return " · ".join(parts)

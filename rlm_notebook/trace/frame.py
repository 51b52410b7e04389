"""Spans as rows of a pandas table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rlm_notebook.errors import UsageError

if TYPE_CHECKING:
    import pandas

    from rlm_notebook.trace.trace import Trace


def to_frame(trace: Trace) -> pandas.DataFrame:
    """One row a span. See :meth:`rlm_notebook.Trace.to_frame`."""
    rows = []
    for span in trace.find():
        usage, error = span.usage, span.error or {}
        rows.append(
            {
                "id": span.id,
                "parent": span.parent.id if span.parent is not None else None,
                "kind": span.kind,
                "place": span.place,
                "state": span.state,
                "index": span.index,
                "function": span.attrs.get("function"),
                "model": span.attrs.get("model"),
                "submitted": span.submitted * 1e-9,
                "queue_wait": span.queue_wait,
                "latency": span.latency,
                "approximate_latency": span.approximate_latency,
                "input_tokens": usage.input_tokens,
                "output_tokens": usage.output_tokens,
                "cost": usage.cost,
                "attempts": len(span.attempts) or None,
                "prompt": span.prompt,
                "response": span.response,
                "code": span.code,
                "stdout": span.attrs.get("stdout"),
                "stderr": span.attrs.get("stderr"),
                "error": error.get("message"),
            }
        )
    frame = as_frame(rows)
    whole = ("parent", "index", "input_tokens", "output_tokens", "attempts")
    return frame.astype({name: "Int64" for name in whole if name in frame.columns})


def as_frame(rows: Iterable[dict[str, Any]]) -> pandas.DataFrame:
    """The rows as a table.

    Raises
    ------
    UsageError
        pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise UsageError("this needs pandas: pip install pandas") from None
    return pandas.DataFrame(list(rows))

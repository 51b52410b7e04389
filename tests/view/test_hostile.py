"""A trace may come from a stranger: values of the wrong type never make a view raise."""

from __future__ import annotations

import typing
from typing import Any

import pytest

from rlm_notebook.trace.events import (
    Attempt,
    BatchAttrs,
    CallAttrs,
    CodeAttrs,
    ErrorInfo,
    RunAttrs,
    ToolAttrs,
    TurnAttrs,
    UsageAttrs,
)
from rlm_notebook.trace.recorder import Recorder
from rlm_notebook.trace.trace import Trace
from rlm_notebook.view.rows import fields, row, summary
from tests.view.sample import Clock

SCHEMAS: dict[str, Any] = {
    "run": RunAttrs,
    "turn": TurnAttrs,
    "lm_call": CallAttrs,
    "code": CodeAttrs,
    "batch": BatchAttrs,
    "slot": CallAttrs,
    "tool": ToolAttrs,
}
JUNK: list[Any] = [
    *(None, True, -1, 0, 7, 10**30, 1e308, "", "text \u202e\x1b[31m</script>", [], {}),
    *([1], [None], [[]], [["a"]], ["x", 3], {"a": 1}, {"new": "x"}, {"new": [3, None]}),
    [{"started": 1}],
    [{"started": "a", "ended": {}}, {"started": [], "wait": "x", "error": 3}],
    [{"started": 1, "ended": 2, "wait": 1e308, "error": {"status": []}}],
    {"type": [], "message": {}, "status": "x"},
    {"input_tokens": "x", "output_tokens": [], "cost": {}, "complete": "no"},
    [{"role": 3, "content": [1, {"type": "text"}]}, 7],
]


def looked_at(trace: Trace) -> None:
    """All that the views make of a trace."""
    for span in trace.tree.spans.values():
        row(span)
        fields(span)
        repr(span)
        _ = (span.code, span.prompt, span.response, span.tokens_per_second, span.usage)
        _ = (span.time_to_first_token, span.back_off, span.requeue_wait, span.approximate_latency)
    summary(trace, trace.tree.time, [])
    trace.to_text()
    trace.to_html()
    repr(trace)


def one(kind: str, attrs: dict[str, Any], *, ends: bool) -> Trace:
    clock = Clock()
    recorder = Recorder(clock=clock)
    run = recorder.start("run", None, **(attrs if kind == "run" else {}))
    span = run if kind == "run" else recorder.start(kind, run, **attrs)
    clock.forward(3)
    if ends:
        recorder.end(span, "ok", **attrs)
        recorder.end(run)
    return recorder.trace


@pytest.mark.parametrize("kind", [*SCHEMAS, "of a later version"])
def test_no_value_of_any_attribute_makes_a_view_raise(kind: str) -> None:
    schema = SCHEMAS.get(kind, CallAttrs)
    names = [*typing.get_type_hints(schema), "child", "arguments", "failed"]
    for junk in JUNK:
        for name in names:
            looked_at(one(kind, {name: junk}, ends=True))
        for ends in (True, False):
            looked_at(one(kind, dict.fromkeys(names, junk), ends=ends))


@pytest.mark.parametrize("schema", [Attempt, ErrorInfo, UsageAttrs])
def test_no_value_inside_of_an_attribute_makes_a_view_raise(schema: Any) -> None:
    for junk in JUNK:
        for name in typing.get_type_hints(schema):
            attempts = [{"started": 1, "ended": 2, "wait": 0.1, name: junk}] * 2
            attrs = {"attempts": attempts, "error": {name: junk}, "usage": {name: junk}}
            for ends in (True, False):
                looked_at(one("lm_call", attrs, ends=ends))

"""What all runs of one tree share, and the spans of runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from rlm_notebook.calls import Caller, error_attrs
from rlm_notebook.context import Context
from rlm_notebook.errors import LMError
from rlm_notebook.gates import Gates
from rlm_notebook.handler import Handler
from rlm_notebook.lm.protocol import LM
from rlm_notebook.repl.choice import make_repl
from rlm_notebook.repl.protocol import REPL, Limits
from rlm_notebook.sessions import Session
from rlm_notebook.settings import Settings
from rlm_notebook.subcalls import SubcallGate
from rlm_notebook.tools import Tool
from rlm_notebook.trace.recorder import Recorder

if TYPE_CHECKING:
    from rlm_notebook.forks import Edit


@dataclass(frozen=True)
class Shared:
    """What all runs of one tree share."""

    settings: Settings
    recorder: Recorder
    handler: Handler
    caller: Caller
    gate: SubcallGate
    lookup: Callable[[str | None], LM]
    """Sub-model by name; None is the default one."""
    loop: asyncio.AbstractEventLoop
    """The loop of the root run, on which async tools run."""
    gates: Gates
    tools: Mapping[str, Tool] = field(default_factory=dict)
    session: Session | None = None
    """Keeps the REPL of the root run."""
    edit_of: Callable[[int], Edit | None] = lambda _: None
    """What a fork changes in the call with that span."""
    make_repl: Callable[[str, Limits, bool], REPL] = make_repl
    """By the name of its kind, its limits, and whether it is that of a child."""


@dataclass
class Ending:
    """How a run ended."""

    answer: Any = None
    outcome: str = "no_answer"
    partial: Any = None


def start_run(
    shared: Shared,
    lm: LM,
    context: Context,
    question: str,
    depth: int = 0,
    parent: int | None = None,
    state: Literal["waiting", "running"] = "running",
    **attrs: Any,
) -> int:
    """Start the span of a run."""
    return shared.recorder.start(
        "run",
        parent,
        state=state,
        question=question,
        context=context.description,
        model=lm.name,
        depth=depth,
        repl=shared.settings.repl,
        **attrs,
    )


def end_run(
    recorder: Recorder,
    span: int,
    ending: Ending,
    state: str,
    error: LMError | None = None,
    **attrs: Any,
) -> None:
    """End the span of a run, and every span that is still open below it."""
    recorder.end_open(span, "cancelled")
    attrs |= {"outcome": ending.outcome, "answer": ending.answer}
    if ending.answer is None and ending.partial is not None:
        attrs["partial"] = ending.partial
    if error is not None:
        attrs["error"] = error_attrs(error)
    recorder.end(span, state, **attrs)

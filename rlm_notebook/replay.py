"""Run a recorded run again, to prove that it does the same.

This, resuming and forking are one mechanism: the engine runs as ever, and what the trace has
recorded is not asked again (see :mod:`rlm_notebook.trace.follow`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlm_notebook import kept
from rlm_notebook.context import taken
from rlm_notebook.errors import ContextError, LMError, RunError, TraceError, UsageError
from rlm_notebook.handler import blocking
from rlm_notebook.lm.protocol import LM, Request, Response
from rlm_notebook.settings import from_recorded
from rlm_notebook.tools import Tool, make_tools
from rlm_notebook.trace.follow import Difference, asked
from rlm_notebook.trace.trace import Trace
from rlm_notebook.trace.tree import Span

if TYPE_CHECKING:
    from rlm_notebook.forks import Edit
    from rlm_notebook.live import LiveRun
    from rlm_notebook.result import Result

MISSING: Any = ...
"""No context is given: the one that was kept is used."""
_NOWHERE: dict[str, Any] = {"base_url": None, "providers": {}}
"""Nobody is asked in a replay."""


@dataclass(frozen=True)
class Plan:
    """How a run follows a recorded one."""

    base: Trace | None = None
    """Gone on with: resumed or forked."""
    reopened: list[int] = field(default_factory=list)
    """Spans of the base that go on."""
    follows: Trace | None = None
    """Repeated, to see whether the run does the same."""
    append: bool = False
    """Whether events go into the file of the base."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Settings that differ from those of the base."""
    edit: Edit | None = None
    """What is changed in the call that stands in the place of ``edited``."""
    edited: Span | None = None

    def edit_of(self, call: Span) -> Edit | None:
        """What is changed in a call that is made now."""
        there = self.edited
        if there is None or there.parent is None:
            return None
        here = call.parent if there.kind == "turn" else call
        same = (
            here is not None
            and here.parent is not None
            and (here.kind, here.index, here.parent.id)
            == (there.kind, there.index, there.parent.id)
            and (there.kind == "turn" or asked(there) == call.prompt)
        )
        return self.edit if same else None


@dataclass(frozen=True)
class Replay:
    """What came of a replay. True if the run did the same as the recorded one."""

    difference: Difference | None
    """The first difference: its place, what it is, and ``.diff``."""
    result: Result = field(repr=False)
    """The replay's own result, with its own trace."""

    @property
    def same(self) -> bool:
        """Whether turns, code, outputs and answer are the same."""
        return self.difference is None

    def __bool__(self) -> bool:
        return self.same

    def __repr__(self) -> str:
        totals = self.result.trace.tree.totals
        done = f"{len(self.result.turns)} turns, {totals.calls} LM calls"
        if self.difference is None:
            return f"<Replay: the same, {done}, {self.result.seconds:.2f} s>"
        return f"<Replay: {self.difference}>\n{self.difference.diff}"


class RecordedLM:
    """Stands for a model whose answers are all recorded."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def complete(self, request: Request) -> Response:
        """Nothing is asked of it."""
        raise LMError(f"{self.name} is not asked in a replay", type="replay")

    async def close(self) -> None:
        """Nothing to release."""


async def areplay(
    trace: Trace,
    *,
    context: Any = MISSING,
    tools: Mapping[str, Any] | Iterable[Any] | None = None,
    path: str | Path | None = None,
    repl: str | None = None,
) -> Replay:
    """Run the engine again with the recorded answers, on the running loop.

    See :meth:`rlm_notebook.Trace.replay`.
    """
    root = recorded_root(trace)
    unlimited = dict.fromkeys(("timeout", "max_calls", "max_tokens", "max_cost"))
    chosen = {"repl": repl} if repl is not None else {}
    settings = from_recorded(trace.header.settings, **unlimited, **chosen, **_NOWHERE)
    lms: dict[str | None, LM] = {}

    def lookup(name: str | None) -> LM:
        name = name or settings.sub_model or settings.model
        return lms.setdefault(name, RecordedLM(name))

    from rlm_notebook.live import LiveRun

    live = LiveRun(
        RecordedLM(str(root.attrs.get("model") or settings.model)),
        await recorded_context(trace, context),
        str(root.attrs.get("question")),
        settings=settings,
        lookup=lookup,
        tools={**_recorded_tools(trace), **make_tools(tools)},
        trace=path,
        plan=Plan(follows=trace),
    )
    try:
        result = await live.go()
    except RunError as error:
        result = error.result
    return Replay(_ending(live, root, result), result)


def replay(trace: Trace, **options: Any) -> Replay:
    """The same as :func:`areplay`, from synchronous code."""
    return blocking(areplay(trace, **options), "await areplay()")


def recorded_root(trace: Trace) -> Span:
    """The root run.

    Raises
    ------
    TraceError, UsageError
        There is none; or it went on with a session, whose variables are not in the trace.
    """
    root = trace.root
    if root is None or root.kind != "run":
        raise TraceError("this trace holds no run: it ended before one began")
    if not str(trace.header.engine).startswith("rlm_notebook"):
        raise UsageError(f"this run was made by {trace.header.engine}, whose runs can only be seen")
    if trace.header.settings.get("session_runs"):
        raise UsageError(
            "this run used what earlier questions of its session had left in the REPL, which its "
            "trace does not hold: only the first run of a session can be run again"
        )
    return root


async def recorded_context(trace: Trace, given: Any) -> Any:
    """The context of a recorded run: the one that is given, or the one that was kept."""
    root = trace.root
    found = root.attrs.get("context_digest") if root is not None else None
    if given is MISSING:
        folder = trace.path.parent if trace.path is not None else Path()
        return await asyncio.to_thread(kept.kept, found, folder)
    value = await asyncio.to_thread(taken, given)
    if isinstance(found, str):
        try:
            same = await asyncio.to_thread(kept.digest, value.value) == found
        except (ValueError, TypeError, OverflowError, RecursionError):
            same = False
        if not same:
            raise ContextError("this is not the context that the recorded run was asked about")
    return value


def _ending(live: LiveRun, root: Span, result: Result) -> Difference | None:
    """A difference in how the runs ended."""
    follower = live.follower
    stopped = root.state in ("cancelled", "interrupted")
    if follower is None or (stopped and result.outcome == "stopped"):
        return None
    for turn in follower.left(result.trace.root.id) if result.trace.root is not None else ():
        follower.compare(turn.place, "a turn", turn.response, None)
    follower.compare("run", "outcome", root.attrs.get("outcome"), result.outcome)
    follower.compare("run", "answer", root.attrs.get("answer"), result.answer)
    if root.error is not None:
        follower.compare("run", "error", root.error.get("message"), result.error)
    return follower.difference


def _not_here(*args: Any, **kwargs: Any) -> Any:
    raise UsageError("its result was not recorded as plain data: give it with tools=...")


def _recorded_tools(trace: Trace) -> dict[str, Tool]:
    """What stands for the user's functions, whose results are recorded."""
    found = trace.header.settings.get("tools")
    tools = {}
    for name, each in found.items() if isinstance(found, dict) else ():
        each = each if isinstance(each, dict) else {}
        signature = str(each.get("signature") or f"{name}(...)")
        tools[name] = Tool(name, _not_here, signature, str(each.get("description") or ""))
    return tools

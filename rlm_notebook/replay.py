"""Run a recorded run again: to prove that it does the same, to resume it, to fork it.

All three are one mechanism: the engine runs as ever, and what the trace has recorded is not asked
again (see :mod:`rlm_notebook.trace.follow`).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rlm_notebook import kept
from rlm_notebook.context import taken
from rlm_notebook.errors import ContextError, LMError, RunError, TraceError, UsageError
from rlm_notebook.handler import blocking
from rlm_notebook.lm.protocol import LM, Request, Response
from rlm_notebook.settings import Settings, from_recorded
from rlm_notebook.tools import Tool, make_tools
from rlm_notebook.trace.events import Event, SpanEnded, SpansReopened, SpanText
from rlm_notebook.trace.follow import Difference, asked
from rlm_notebook.trace.trace import Trace
from rlm_notebook.trace.tree import Span

if TYPE_CHECKING:
    from rlm_notebook.live import LiveRun
    from rlm_notebook.result import Result
    from rlm_notebook.rlm import RLM

MISSING: Any = ...
"""No context is given: the one that was kept is used."""
_NOWHERE: dict[str, Any] = {"base_url": None, "providers": {}}
"""Nobody is asked in a replay."""
_WITHOUT_END = ("cancelled", "interrupted", "not_sent", "waiting", "running")


@dataclass(frozen=True)
class Edit:
    """What a fork changes at its place."""

    code: str | None = None
    """Turns and blocks: the code to run."""
    response: str | None = None
    """Turns and calls: the answer of the model."""
    prompt: str | None = None
    """Slots and single sub-calls: another prompt. Turns: a text that the model is told besides."""
    model: str | None = None
    """The model from there on; of a slot or a single sub-call: of it alone."""

    @property
    def names(self) -> list[str]:
        """What is changed."""
        return [name for name, value in vars(self).items() if value is not None]


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
    root = _root(trace)
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
        await _context(trace, context),
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


async def prepare_resume(
    trace: Trace, make: Callable[[Settings], RLM], *, context: Any = MISSING, **changes: Any
) -> LiveRun:
    """A run that goes on where the recorded one stopped, in the same file.

    Parameters
    ----------
    make
        From settings to the :class:`rlm_notebook.RLM` that asks.
    changes
        Settings that differ, for instance a larger ``timeout``.

    Raises
    ------
    UsageError
        The run has ended by itself.
    TraceError
        The file is being written by a run that goes on.
    """
    root = _root(trace)
    if root.state == "ok":
        outcome = root.attrs.get("outcome") or "ended"
        raise UsageError(f"this run has ended ({outcome}): there is nothing to resume; fork it")
    if trace.path is None:
        raise UsageError("this trace has no file: save it first, with trace.save(PATH)")
    rlm = make(from_recorded(trace.header.settings, **changes))
    plan = Plan(base=trace, reopened=_unfinished(root), append=True, changes=changes)
    found = await _context(trace, context)
    return rlm.prepare(found, str(root.attrs.get("question")), plan=plan)


async def prepare_fork(
    trace: Trace,
    make: Callable[[Settings], RLM],
    span: Span,
    edit: Edit,
    *,
    context: Any = MISSING,
    path: str | Path | None = None,
    **changes: Any,
) -> LiveRun:
    """A run with a trace of its own, that has done the same as the recorded one up to ``span``.

    Raises
    ------
    UsageError
        The span cannot be changed in this way.
    """
    root = _root(trace)
    single = span.kind in ("slot", "lm_call") and span.prompt is not None
    if edit.model is not None and not single:
        changes["model"] = edit.model
    base, reopened = forked(trace, span, edit)
    rlm = make(from_recorded(trace.header.settings, **changes))
    plan = Plan(base=base, reopened=reopened, changes=changes)
    if edit.prompt is not None or (single and edit.model is not None):
        plan = replace(plan, edit=edit, edited=span)
    found = await _context(trace, context)
    return rlm.prepare(found, str(root.attrs.get("question")), trace=path, plan=plan)


def forked(trace: Trace, span: Span, edit: Edit) -> tuple[Trace, list[int]]:
    """The trace without ``span`` and all that came after it; and which spans of it go on.

    An edited code or answer stands in it already, as the answer of the model.

    Raises
    ------
    UsageError
        The span cannot be changed in this way.
    """
    call, response = _edited_call(span, edit)
    if span.parent is None:
        raise UsageError("a run is forked at one of its turns, blocks or calls: name one")
    inner, below, keeps = span.parent, span, call is span
    if span.kind == "turn" and call is not None:
        inner, below, keeps = span, call, True
    path = list(_upwards(inner))
    dropped: set[int] = set()
    for above in path:
        position = above.children.index(below)
        for number, sibling in enumerate(above.children):
            if number == position:
                goes = not keeps
            else:
                later = number > position and above.kind != "batch"
                goes = later or sibling.state in _WITHOUT_END
            if goes:
                dropped.update(each.id for each in sibling.walk())
        below, keeps = above, True
    parent = {
        "trace": trace.path.name if trace.path is not None else None,
        "run": trace.header.run,
        "id": span.id,
        "place": span.place,
        "edited": edit.names,
    }
    header = msgspec.structs.replace(trace.header, run=uuid.uuid4().hex[:12], parent=parent)
    base, open_again = Trace(header), {each.id for each in path}
    for event in list(trace.events):
        if event.id not in dropped:
            kept_event = _as_forked(event, open_again, dropped, call, response)
            if kept_event is not None:
                base.append(kept_event)
    return base, [each.id for each in reversed(path)]


def _as_forked(
    event: Event, open_again: set[int], dropped: set[int], call: Span | None, response: str | None
) -> Event | None:
    if isinstance(event, SpansReopened):
        ids = [each for each in event.ids if each not in dropped]
        return msgspec.structs.replace(event, ids=ids)
    if event.id in open_again and isinstance(event, SpanEnded | SpanText):
        return None
    if call is not None and event.id == call.id:
        if isinstance(event, SpanText):
            return None
        if isinstance(event, SpanEnded):
            edited = {"response": call.response, **call.edited}
            attrs = {**event.attrs, "response": response, "edited": edited}
            attrs.pop("error", None)
            return msgspec.structs.replace(event, state="ok", attrs=attrs)
    return event


def _edited_call(span: Span, edit: Edit) -> tuple[Span | None, str | None]:
    """The call whose answer is edited, and its new answer."""
    if edit.code is None and edit.response is None:
        if edit.prompt is not None and span.kind not in ("turn", "slot", "lm_call"):
            raise UsageError(f"a {span.kind} has no prompt: fork at a turn or a call to change one")
        return None, None
    turn = next((each for each in _upwards(span) if each.kind == "turn"), None)
    calls = [each for each in turn.children if each.kind == "lm_call"] if turn is not None else []
    if edit.response is not None and span.kind in ("slot", "lm_call"):
        return span, edit.response
    if span.kind not in ("turn", "code") or not calls:
        what = "code" if edit.code is not None else "answer"
        raise UsageError(f"a {span.kind} has no {what} to change: fork at a turn or a block")
    if edit.response is not None:
        return calls[0], edit.response
    code, block = str(edit.code), f"```repl\n{edit.code}\n```"
    response = calls[0].response or ""
    if span.kind == "code" and span.code and span.code in response:
        return calls[0], response.replace(span.code, code, 1)
    return calls[0], block


def _upwards(span: Span) -> Iterator[Span]:
    above: Span | None = span
    while above is not None:
        yield above
        above = above.parent


def _unfinished(root: Span) -> list[int]:
    """The spans that go on when a run is resumed: those that had not come to an end of their own."""
    found: list[int] = []
    stack = [root]
    while stack:
        span = stack.pop()
        found.append(span.id)
        for child in span.children:
            failed = child.state == "error" and (
                child.kind == "turn" or (child.kind == "lm_call" and span.kind == "turn")
            )
            if child.kind != "pause" and (child.state in _WITHOUT_END or failed):
                stack.append(child)
    return found


def _root(trace: Trace) -> Span:
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


async def _context(trace: Trace, given: Any) -> Any:
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

"""Runs that go on with a recorded one: resumed in its file, or forked into one of their own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlm_notebook.errors import UsageError
from rlm_notebook.forks import WITHOUT_END, Edit, find_place, forked
from rlm_notebook.lm.protocol import LM
from rlm_notebook.replay import MISSING, Plan, recorded_context, recorded_root
from rlm_notebook.settings import Settings, fields, from_recorded
from rlm_notebook.tools import make_tools
from rlm_notebook.trace.trace import Trace
from rlm_notebook.trace.tree import Span

if TYPE_CHECKING:
    from rlm_notebook.live import LiveRun
    from rlm_notebook.result import Result
    from rlm_notebook.rlm import RLM


async def aresume(
    trace: Trace,
    *,
    model: str | LM | None = None,
    sub_model: str | LM | None = None,
    tools: Mapping[str, Any] | Iterable[Any] | None = None,
    context: Any = MISSING,
    **changes: Any,
) -> Result:
    """Go on with a run, on the running loop. See :meth:`rlm_notebook.Trace.resume`."""
    models, (root, sub) = models_by_name((model, sub_model))
    changes |= {k: v for k, v in (("model", root), ("sub_model", sub)) if v is not None}

    def make(settings: Settings) -> RLM:
        return rlm_like(trace, settings, models=models, tools=tools)

    return await _gone(await prepare_resume(trace, make, context=context, **changes))


async def afork(
    trace: Trace,
    *,
    turn: int | None = None,
    slot: str | None = None,
    span: int | None = None,
    code: str | None = None,
    response: str | None = None,
    prompt: str | None = None,
    model: str | LM | None = None,
    sub_model: str | LM | None = None,
    tools: Mapping[str, Any] | Iterable[Any] | None = None,
    context: Any = MISSING,
    path: str | Path | None = None,
    models: Iterable[LM] = (),
    **changes: Any,
) -> Result:
    """Fork a run, on the running loop. See :meth:`rlm_notebook.Trace.fork`."""
    found, (root, sub, *_) = models_by_name((model, sub_model, *models))
    if sub is not None:
        changes["sub_model"] = sub

    def make(settings: Settings) -> RLM:
        return rlm_like(trace, settings, models=found, tools=tools)

    place = find_place(trace, turn, slot, span)
    edit = Edit(code, response, prompt, root)
    live = await prepare_fork(trace, make, place, edit, context=context, path=path, **changes)
    return await _gone(live)


async def _gone(live: LiveRun) -> Result:
    result = await live.go()
    for warning in result.warnings:
        warnings.warn(warning, RuntimeWarning, stacklevel=3)
    return result


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
    root = recorded_root(trace)
    if root.state == "ok":
        outcome = root.attrs.get("outcome") or "ended"
        raise UsageError(f"this run has ended ({outcome}): there is nothing to resume; fork it")
    if trace.path is None:
        raise UsageError("this trace has no file: save it first, with trace.save(PATH)")
    rlm = make(from_recorded(trace.header.settings, **changes))
    plan = Plan(base=trace, reopened=_unfinished(root), append=True, changes=changes)
    found = await recorded_context(trace, context)
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
    root = recorded_root(trace)
    single = span.kind in ("slot", "lm_call") and span.prompt is not None
    if edit.model is not None and not single:
        changes["model"] = edit.model
    base, reopened = forked(trace, span, edit)
    rlm = make(from_recorded(trace.header.settings, **changes))
    plan = Plan(base=base, reopened=reopened, changes=changes)
    if edit.prompt is not None or (single and edit.model is not None):
        plan = replace(plan, edit=edit, edited=span)
    found = await recorded_context(trace, context)
    return rlm.prepare(found, str(root.attrs.get("question")), trace=path, plan=plan)


def rlm_like(
    trace: Trace,
    settings: Settings,
    *,
    models: Mapping[str, LM],
    tools: Mapping[str, Any] | Iterable[Any] | None = None,
) -> RLM:
    """What asks in the place of the recorded run's RLM.

    Parameters
    ----------
    models
        Model objects, by their names: those of the run may be among them.
    tools
        Functions of the user: all that the run could call.

    Raises
    ------
    UsageError
        A function is missing, or a setting is not right.
    """
    from rlm_notebook.rlm import RLM

    given = make_tools(tools)
    found = trace.header.settings.get("tools")
    missing = [name for name in found if name not in given] if isinstance(found, dict) else []
    if missing:
        raise UsageError(f"the run could call {missing[0]}: give that function, with tools=...")
    values: dict[str, Any] = {field.name: getattr(settings, field.name) for field in fields()}
    for name in ("model", "sub_model"):
        values[name] = models.get(values[name], values[name])
    return RLM(tools={name: tool.function for name, tool in given.items()}, models=models, **values)


def models_by_name(given: Iterable[Any]) -> tuple[dict[str, LM], list[str | None]]:
    """Model objects by their names, and the name of each that was given."""
    objects = [each for each in given if each is not None and not isinstance(each, str)]
    names = [each if each is None or isinstance(each, str) else each.name for each in given]
    return {each.name: each for each in objects}, names


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
            if child.kind != "pause" and (child.state in WITHOUT_END or failed):
                stack.append(child)
    return found

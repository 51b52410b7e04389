"""RLM: answer a question about a long context, from a notebook, a script or a thread."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlm_notebook.context import taken
from rlm_notebook.errors import UsageError
from rlm_notebook.handler import blocking, handler
from rlm_notebook.live import LiveRun
from rlm_notebook.lm.protocol import LM
from rlm_notebook.result import Result
from rlm_notebook.sessions import Session
from rlm_notebook.settings import Settings, make_settings, provider_settings
from rlm_notebook.tools import make_tools

if TYPE_CHECKING:
    from rlm_notebook.replay import Plan

_BUILTIN = "builtin/"


class RLM:
    """A root model with a REPL, that answers questions about contexts.

    Parameters
    ----------
    model
        ``provider/model``, or any object with the :class:`~rlm_notebook.lm.protocol.LM` protocol.
        The default, ``builtin/extractive``, needs no key and no network.
    sub_model
        The same for sub-calls; default: the root model.
    tools
        Functions of yours that the model's code may call, or functions by name. They run in this
        process: sync ones in a thread, async ones on the loop of the run. Arguments are plain
        data; they return plain data or a table.
    models
        Model objects besides, by the names under which a fork or a retried call may ask them.
    **settings
        See :class:`rlm_notebook.settings.Settings`: ``max_depth``, ``max_iterations``,
        ``batch_max_concurrent``, ``max_concurrent_subcalls``, ``timeout`` (seconds)...

    Raises
    ------
    UsageError
        A setting is not right.
    ModelError
        No such provider or model, or its key is missing.

    Examples
    --------
    >>> RLM().completion(text, "Which module defines ChainMap?").answer
    >>> await RLM("openai/gpt-5", max_depth=3).acompletion(text, question)
    """

    def __init__(
        self,
        model: str | LM | None = None,
        *,
        sub_model: str | LM | None = None,
        tools: Mapping[str, Any] | Iterable[Any] | None = None,
        models: Mapping[str, LM] | None = None,
        **settings: Any,
    ) -> None:
        self.tools = make_tools(tools)
        for name, given in (("model", model), ("sub_model", sub_model)):
            if given is not None:
                settings[name] = given if isinstance(given, str) else given.name
        self.settings: Settings = make_settings(**settings)
        self._given: dict[str, LM] = dict(models or {})
        for given in (model, sub_model):
            if given is not None and not isinstance(given, str):
                self._given[given.name] = given
        self._lms: dict[str, LM] = {}
        lms = (self._lookup(self.settings.model), self._lookup(None))
        if self.settings.simulate and not any(lm.name.startswith(_BUILTIN) for lm in lms):
            raise UsageError(
                f"simulate works with {_BUILTIN} models only, not with {lms[0].name}: leave it out"
            )

    def completion(
        self,
        context: Any,
        question: str,
        *,
        trace: str | Path | None = None,
        session: Session | None = None,
    ) -> Result:
        """Answer ``question`` about ``context``; blocks until there is an answer.

        Works in scripts, in threads, and where an event loop is running already (there the run
        goes on the handler thread). The parameters are those of :meth:`acompletion`.
        """
        work = self.acompletion(context, question, trace=trace, session=session)
        return blocking(work, "await acompletion()")

    async def acompletion(
        self,
        context: Any,
        question: str,
        *,
        trace: str | Path | None = None,
        session: Session | None = None,
    ) -> Result:
        """Answer ``question`` about ``context`` on the running loop.

        Parameters
        ----------
        context
            A str, a list (of str, of chat messages), a dict of plain data, bytes, the path of a
            file, a table of pandas, polars or pyarrow, or a numpy array.
        question
            What to find out.
        trace
            Where to write the trace; default: a new file in ``settings.trace_dir``.
        session
            Keeps the REPL, with its variables, for the next run.

        Returns
        -------
        Result
            Also when there is no answer: see ``result.outcome``.

        Raises
        ------
        UsageError, ContextError
            The question is empty, or the context is of a kind that cannot be used.
        RunError
            The run failed, for instance because the root model cannot be reached; its
            ``result`` holds the trace.
        """
        context = await asyncio.to_thread(taken, context)
        result = await self.prepare(context, question, trace=trace, session=session).go()
        for warning in result.warnings:
            warnings.warn(warning, RuntimeWarning, stacklevel=2)
        return result

    def prepare(
        self,
        context: Any,
        question: str,
        *,
        trace: str | Path | None = None,
        session: Session | None = None,
        plan: Plan | None = None,
        step: bool = False,
        breaks: Sequence[str] = (),
    ) -> LiveRun:
        """A run that can be watched and stopped: ``await run.go()`` starts it.

        Parameters
        ----------
        plan
            The recorded run that it goes on with, see :mod:`rlm_notebook.replay`.
        step, breaks
            Whether it stops at every gate, and breakpoints (``turn=3``, ``error``, ``"'x' in
            prompt"``); see ``live.gates`` and :mod:`rlm_notebook.gates`.
        """
        return LiveRun(
            self._lookup(self.settings.model),
            context,
            question,
            settings=self.settings,
            lookup=self._lookup,
            trace=trace,
            tools=self.tools,
            session=session,
            plan=plan,
            step=step,
            breaks=breaks,
        )

    def _lookup(self, name: str | None) -> LM:
        name = name or self.settings.sub_model or self.settings.model
        if name in self._given:
            handler().on_close(self._given[name], self._given[name].close)
            return self._given[name]
        if name not in self._lms:
            from rlm_notebook.lm.lookup import get_lm

            simulate = self.settings.simulate if name.startswith(_BUILTIN) else None
            self._lms[name] = lm = get_lm(
                name,
                base_url=self.settings.base_url,
                simulate=simulate,
                timeout=self.settings.call_timeout,
                settings=provider_settings(self.settings, name),
            )
            handler().on_close(lm, lm.close)
        return self._lms[name]

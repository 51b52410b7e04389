"""One run from its start to its result: it is recorded, shown, and can be stopped."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import msgspec

from rlm_notebook.calls import Caller
from rlm_notebook.context import Context, taken
from rlm_notebook.errors import (
    LMError,
    RLMError,
    RunError,
    TraceError,
    TraceExistsError,
    UsageError,
)
from rlm_notebook.gates import Break, Gates
from rlm_notebook.handler import handler
from rlm_notebook.kept import keep
from rlm_notebook.limits import RunLimits
from rlm_notebook.lm.protocol import LM
from rlm_notebook.repl.choice import check_repl
from rlm_notebook.result import Outcome, Result
from rlm_notebook.retry import RetryPolicy
from rlm_notebook.runs import Ending, Shared, end_run, start_run
from rlm_notebook.sessions import Session
from rlm_notebook.settings import Settings, recorded
from rlm_notebook.subcalls import SubcallGate
from rlm_notebook.tools import Tool
from rlm_notebook.trace.follow import Follower
from rlm_notebook.trace.jsonl import SUFFIX, JsonlWriter, clean
from rlm_notebook.trace.recorder import Recorder, Sink
from rlm_notebook.trace.trace import Trace
from rlm_notebook.turns import Run

if TYPE_CHECKING:
    from rlm_notebook.forks import Edit
    from rlm_notebook.replay import Plan

TICK_SECONDS = 0.05
"""How often the loop of a run wakes at the least, so that an interrupt is noticed."""
FLUSH_SECONDS = 1 / 15
"""How often a view may send."""


class View(Sink, Protocol):
    """A sink that shows the run while it goes on."""

    def flush(self) -> None:
        """Send what has changed. Called up to 15 times a second, from the handler thread."""


class LiveRun:
    """One run.

    Parameters
    ----------
    lookup
        LM by ``provider/model``; None is the default sub-model.
    tools
        The user's own functions in the REPL, by name.
    session
        Keeps the REPL for the next run.
    plan
        The recorded run that this one repeats or goes on with.
    step, breaks
        Whether it stops at every gate, and breakpoints; see :mod:`rlm_notebook.gates`.
    trace
        File to write; default: a new one in ``settings.trace_dir``. An existing file is never
        overwritten: the name gets a number.

    Raises
    ------
    UsageError, ContextError
        The question is empty, or the context is of a kind that cannot be used.
    """

    def __init__(
        self,
        lm: LM,
        context: Any,
        question: str,
        *,
        settings: Settings,
        lookup: Callable[[str | None], LM],
        trace: str | Path | None = None,
        tools: Mapping[str, Tool] | None = None,
        session: Session | None = None,
        plan: Plan | None = None,
        step: bool = False,
        breaks: Sequence[str] = (),
    ) -> None:
        self.question = clean(question.strip())
        if not self.question:
            raise UsageError("there is no question: write one")
        check_repl(settings.repl, settings.auto_batch)
        points = tuple(Break(text) for text in breaks)
        self._context: Context = taken(context)
        if session is not None:
            session.check_free()
            session.check_kind(settings.repl)
        self._lm = lm
        self.settings = settings
        """What it runs with."""
        self._lookup = lookup
        self._tools = tools or {}
        self._session = session
        self._handler = handler()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Result] | None = None
        self._stopped_by: str | None = None
        self.result: Result | None = None
        """Set when the run has ended, however it ended."""
        self._plan = plan
        base = plan.base if plan is not None else None
        described = {
            **recorded(settings),
            "tools": {
                name: {"signature": tool.signature, "description": tool.description}
                for name, tool in self._tools.items()
            },
            "session": session.name if session is not None else None,
            "session_runs": len(session.history) if session is not None else 0,
        }
        self._recorder = Recorder(
            engine=f"rlm_notebook {_version('rlm-notebook')}",
            settings=described,
            packages=_packages(),
            base=base,
            follows=plan.follows.tree if plan is not None and plan.follows is not None else None,
        )
        self.gates = Gates(
            self._recorder,
            step=step,
            breaks=points,
            on_stop=self.stop,
            on_pause=self._stand_still,
        )
        """Where the run stops for its user."""
        self._deadline: asyncio.Timeout | None = None
        self._left: float | None = None
        if plan is not None and plan.append:
            assert base is not None
            assert base.path is not None
            writer = JsonlWriter(base.path, None, on_error=self._recorder.warn)
            self._recorder.add_sink(writer, from_start=False)
        elif plan is None or plan.follows is None or trace is not None:
            if base is not None:
                base.header.settings = described
            self._write_to(_trace_path(trace, settings.trace_dir))
        self._view: View | None = None

    @property
    def trace(self) -> Trace:
        """The trace, as far as it has come."""
        return self._recorder.trace

    @property
    def warnings(self) -> list[str]:
        """What went wrong beside the run so far."""
        return self._recorder.warnings

    @property
    def repl(self) -> str:
        """Which REPL it has."""
        return self.settings.repl

    @property
    def follower(self) -> Follower | None:
        """Knows the recorded run that this one repeats."""
        return self._recorder.follower

    def now(self) -> int:
        """ns since the run began."""
        return self._recorder.now()

    def show_in(self, view: View) -> None:
        """Keep ``view`` up to date while the run goes on. Call before :meth:`go`."""
        self._view = view
        self._recorder.add_sink(view)

    def stop(self, by: str = "user") -> None:
        """End the run, from any thread; its result then has ``outcome="stopped"``."""
        if self._stopped_by is None:
            self._stopped_by = by
            if self._loop is not None and self._task is not None:
                with contextlib.suppress(RuntimeError):  # the loop is closed: the run has ended
                    self._loop.call_soon_threadsafe(self._task.cancel)

    async def go(self) -> Result:
        """Run to the end, on the running loop. Call once.

        Raises
        ------
        RunError
            The run failed; its ``result`` holds what there is.
        asyncio.CancelledError
            It was cancelled from outside, for instance by an interrupt. It has cleaned up, and
            ``self.result`` is set.
        """
        if self._session is not None:
            try:
                self._session.take()
            except UsageError:
                self._recorder.close()
                raise
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._run())
        ticker = asyncio.create_task(_tick())
        pump = self._handler.submit(self._pump()) if self._view is not None else None
        try:
            self.result = await asyncio.shield(self._task)
        except asyncio.CancelledError:
            self.stop("interrupt")
            while not self._task.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([self._task])
            self.result = self._task.result()
            raise
        finally:
            ticker.cancel()
            if self._session is not None:
                answer = self.result.answer if self.result is not None else None
                self._session.give_back(self.question, answer)
            if pump is not None:
                pump.cancel()
            self._recorder.close()
        if self.result.outcome == "error":
            raise RunError(self.result.error or "the run failed", self.result)
        return self.result

    async def _run(self) -> Result:
        """The run itself. Returns a result whatever happens, a cancellation included."""
        recorder = self._recorder
        shared = Shared(
            self.settings,
            recorder,
            self._handler,
            Caller(
                recorder,
                self.settings.call_timeout,
                RetryPolicy(attempts=self.settings.max_attempts),
                self.settings.provider_max_concurrent,
                RunLimits.of(self.settings),
                self.stop,
            ),
            SubcallGate(self.settings.max_concurrent_subcalls),
            self._lookup,
            asyncio.get_running_loop(),
            self.gates,
            self._tools,
            self._session,
            edit_of=self._edit_of,
        )
        if self._plan is not None and self._plan.base is not None:
            told = recorded(self.settings)
            recorder.go_on(self._plan.reopened, {name: told[name] for name in self._plan.changes})
        span = start_run(shared, self._lm, self._context, self.question)
        keeping = asyncio.create_task(asyncio.to_thread(self._keep_context, span))
        run = Run(shared, self._lm, context=self._context, question=self.question, span=span)
        state = "ok"
        failure: LMError | None = None
        try:
            async with asyncio.timeout(self.settings.timeout) as self._deadline:
                if self._stopped_by is not None:
                    raise asyncio.CancelledError  # stopped before it began
                ending = await run.go()
        except asyncio.CancelledError:
            self._stopped_by = self._stopped_by or "interrupt"
            state, ending = "cancelled", replace(run.ending, outcome="stopped")
        except TimeoutError:
            self._stopped_by = "timeout"
            state, ending = "cancelled", replace(run.ending, outcome="stopped")
        except RLMError as error:
            failure = error if isinstance(error, LMError) else LMError(str(error), type="repl")
            state, ending = "error", replace(run.ending, outcome="error")
            if failure.type == "limit":  # the root's own call was the one too many
                state, ending = "cancelled", replace(run.ending, outcome="stopped")
                failure = None
        except Exception as error:  # a fault of ours: the trace is kept, the error is shown
            failure = LMError(f"internal error: {error!r}", type=type(error).__name__)
            end_run(recorder, span, replace(run.ending, outcome="error"), "error", failure)
            raise
        while not keeping.done():
            with contextlib.suppress(asyncio.CancelledError):  # the result is made whatever happens
                await asyncio.wait([keeping])
        usage = msgspec.to_builtins(recorder.trace.usage)
        stopped = {"stopped_by": self._stopped_by} if ending.outcome == "stopped" else {}
        end_run(recorder, span, ending, state, failure, usage=usage, **stopped)
        return self._result(ending, failure)

    def _stand_still(self, still: bool) -> None:
        """The time in which the run stands still for its user does not count. From any thread."""
        loop = self._loop
        if loop is None or self.settings.timeout is None:
            return

        def change() -> None:
            deadline = self._deadline
            if deadline is None or deadline.expired():
                return
            when = deadline.when()
            with contextlib.suppress(RuntimeError):  # it is over already
                if still and when is not None:
                    self._left = when - loop.time()
                    deadline.reschedule(None)
                elif not still and when is None and self._left is not None:
                    deadline.reschedule(loop.time() + self._left)

        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(change)

    def _edit_of(self, call: int) -> Edit | None:
        return self._plan.edit_of(self.trace.tree.spans[call]) if self._plan is not None else None

    def _keep_context(self, span: int) -> None:
        path, most = self.trace.path, self.settings.keep_context
        plan = self._plan
        if path is None or not most or (plan is not None and (plan.append or plan.follows)):
            return
        found = keep(self._context.value, path.parent, most)
        if found is not None:
            self._recorder.update(span, context_digest=found)

    def _result(self, ending: Ending, failure: LMError | None) -> Result:
        return Result(
            answer=ending.answer,
            outcome=cast(Outcome, ending.outcome),
            trace=self.trace,
            partial=ending.partial if ending.answer is None else None,
            stopped_by=self._stopped_by if ending.outcome == "stopped" else None,
            error=str(failure) if failure is not None else None,
            warnings=self._recorder.warnings,
        )

    async def _pump(self) -> None:
        """Let the view send, on the handler thread: also while the kernel's thread is busy."""
        assert self._view is not None
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            try:
                self._view.flush()
            except Exception as error:
                self._recorder.drop_sink(self._view, error)
                return

    def _write_to(self, path: Path) -> None:
        recorder = self._recorder
        for candidate in _numbered(path):
            try:
                writer = JsonlWriter(candidate, recorder.trace.header, on_error=recorder.warn)
            except TraceExistsError:
                continue  # also if another run has made it in this moment
            except TraceError as error:
                recorder.warn(f"{error}; the run goes on without a file")
                return
            recorder.trace.path = candidate
            recorder.add_sink(writer)
            return


async def _tick() -> None:
    while True:
        await asyncio.sleep(TICK_SECONDS)


def _trace_path(given: str | Path | None, folder: str) -> Path:
    if given is not None:
        return Path(given).expanduser()
    name = datetime.now().strftime("%Y-%m-%d-%H%M%S")
    return Path(folder).expanduser() / f"{name}{SUFFIX}"


def _numbered(path: Path) -> Iterator[Path]:
    """The path, then the same with -2, -3... before its endings."""
    stem, dot, endings = path.name.partition(".")
    yield path
    for number in itertools.count(2):
        yield path.with_name(f"{stem}-{number}{dot}{endings}")


def _packages() -> dict[str, str]:
    names = ("rlm-notebook", "ipykernel", "ipython", "ipywidgets", "anywidget", "httpx", "aiohttp")
    return {"python": platform.python_version(), **{name: _version(name) for name in names}}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"

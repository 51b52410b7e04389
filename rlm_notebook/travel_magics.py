"""The magics of time travel: resume, fork, replay, step, list and compare runs."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_magic, magics_class

from rlm_notebook import settings
from rlm_notebook.cells import run_here
from rlm_notebook.context import find_context, taken
from rlm_notebook.errors import UsageError
from rlm_notebook.options import given_settings, setting_options, split_line
from rlm_notebook.parsers import (
    check_name,
    edit_parser,
    fork_parser,
    replay_parser,
    resume_parser,
    step_parser,
)
from rlm_notebook.settings import OF_THE_USER

if TYPE_CHECKING:
    from rlm_notebook.background import BackgroundRun
    from rlm_notebook.display import Cell
    from rlm_notebook.magics import RLMMagics
    from rlm_notebook.rlm import RLM
    from rlm_notebook.settings import Settings
    from rlm_notebook.trace.trace import Trace
    from rlm_notebook.trace.tree import Span
    from rlm_notebook.view.forking import OnFork


@magics_class
class TravelMagics(Magics):
    """The magics of time travel; runs begin and show themselves as those of ``main``."""

    shell: InteractiveShell

    def __init__(self, shell: InteractiveShell, main: RLMMagics) -> None:
        super().__init__(shell)
        self._main = main

    @line_magic
    def rlm_resume(self, line: str) -> Any:
        """Filled with the parser's help below."""
        return run_here(self.run_line("rlm_resume", line))

    @line_magic
    def rlm_fork(self, line: str) -> Any:
        """Filled with the parser's help below."""
        return run_here(self.run_line("rlm_fork", line))

    async def run_line(self, name: str, line: str) -> Any:
        """``%rlm_resume`` and ``%rlm_fork``, on the running loop.

        Raises
        ------
        RLMError
            One line that says what to do.
        RLMInterrupt
            The kernel was interrupted.
        """
        from rlm_notebook import resume
        from rlm_notebook.forks import Edit, find_place
        from rlm_notebook.gates import Break
        from rlm_notebook.replay import MISSING

        forks = name == "rlm_fork"
        parser = fork_parser() if forks else resume_parser()
        setting_options(parser)
        given = self._main.parsed(parser, line)
        check_name(given.out)
        trace = self._trace(given.run)
        changes = {**self._own(), **given_settings(given)}
        context: Any = MISSING
        if given.context is not None:
            find = find_context(given.context, self.shell.user_ns)
            context = await asyncio.to_thread(lambda: taken(find()).value)
        make = partial(self._rlm_like, trace)
        if not forks:
            live = await resume.prepare_resume(trace, make, context=context, **changes)
        else:
            model = changes.pop("model", None)
            code, response, prompt = map(self._text, (given.code, given.response, given.prompt))
            edit = Edit(code, response, prompt, model)
            place = find_place(trace, given.turn, given.slot, given.span)
            live = await resume.prepare_fork(
                trace, make, place, edit, context=context, path=given.trace, **changes
            )
        for point in given.breaks:
            live.gates.add(Break(point))
        if given.step:
            live.gates.pause()
        self._main.tell_trusted(live.repl)
        return await self._main.begin(live, given)

    def forker(self, cell: Cell, own: Settings | None = None) -> OnFork:
        """Begins the forks that are asked for in a view which stands below ``cell``.

        Parameters
        ----------
        own
            Settings of the run that is shown, if it was begun here.
        """

        async def fork(shown: Trace, span: Span, edits: dict[str, str]) -> str:
            from rlm_notebook.forks import Edit
            from rlm_notebook.resume import prepare_fork

            path = shown.path
            trace = shown if path is None else await asyncio.to_thread(type(shown).load, path)
            if own is not None:
                chosen = {name: getattr(own, name) for name in (*OF_THE_USER, "repl")}
            else:
                chosen = self._own()
            live = await prepare_fork(
                trace,
                partial(self._rlm_like, trace),
                trace.span(span.id),
                Edit(**{name: edits.get(name) for name in vars(Edit())}),
                **chosen,
            )
            run = self._main.begin_behind(live, cell)
            return f"run {run.number} begins below, in {live.trace.path or 'no file'}"

        return fork

    def _own(self) -> dict[str, Any]:
        """What a trace does not decide, as the user has set it for this notebook."""
        return {name: v for name, v in self._main.defaults().items() if name in OF_THE_USER}

    def _rlm_like(self, trace: Trace, chosen: Settings) -> RLM:
        """An RLM with the settings of a recorded run, its models and its functions."""
        from rlm_notebook.resume import rlm_like

        names = trace.header.settings.get("tools") or ()
        tools = self._main.tools(",".join(map(str, names)))
        return rlm_like(trace, chosen, models=self._main.models(), tools=tools)

    def _text(self, given: str | None) -> str | None:
        """A text of the line, or that of the variable which it names."""
        value = self.shell.user_ns.get(given)
        return value if isinstance(value, str) else given

    def _trace(self, name: str) -> Trace:
        """A trace by its file, or by a variable that holds it or its result."""
        from rlm_notebook.result import Result
        from rlm_notebook.trace.trace import Trace

        value = self.shell.user_ns.get(name)
        if isinstance(value, Result):
            value = value.trace
        if isinstance(value, Trace):
            return Trace.load(value.path) if value.path is not None else value
        return Trace.load(Path(name).expanduser())

    @line_magic
    def rlm_replay(self, line: str) -> Any:
        """Filled with the parser's help below."""
        given = self._main.parsed(replay_parser(), line)
        trace = self._trace(given.run)
        if given.check:
            return trace.replay()
        try:
            from rlm_notebook.view.film import FilmView
        except ImportError:  # no ipywidgets
            return trace
        cell = self._main.views.here()
        film = FilmView(trace, self.forker(cell))
        self._main.views.add(film, cell)
        return film

    @line_magic
    def rlm_step(self, line: str) -> None:
        """Go on from where a background run stands: ``%rlm_step [go|turn|batch|error|run|skip|
        retry|stop] [--run N]``; then wait until it stands again, and say where.
        """
        given = self._main.parsed(step_parser(), line)
        self._go_on(self._stepped(given.run), given.action)

    @line_magic
    def rlm_continue(self, line: str) -> None:
        """Let a background run go on to its next breakpoint or its end: ``%rlm_continue [--run N]``."""
        given = self._main.parsed(step_parser(), f"run {line}")
        self._go_on(self._stepped(given.run), "run")

    @line_magic
    def rlm_edit(self, line: str) -> None:
        """Edit what a background run shows where it stands: ``%rlm_edit code "x = 1"``, or the name
        of a variable that holds the text. It is used when the run goes on.
        """
        given = self._main.parsed(edit_parser(), line)
        run = self._stepped(given.run)
        run.edit(given.what, self._text(" ".join(given.text)) or "")
        print(run.where())

    def _go_on(self, run: BackgroundRun, action: str) -> None:
        run.go_on(action)
        print(run.where())

    def _stepped(self, number: int | None) -> BackgroundRun:
        """A background run that goes on: the one with that number, or the newest."""
        running = {n: run for n, run in self._main.background.items() if run.running}
        found = running.get(number) if number is not None else None
        if number is None and running:
            found = running[max(running)]
        if found is None:
            raise UsageError(
                "no such run goes on in the background: begin one with %%rlm --background --step"
            )
        return found

    @line_magic
    def rlm_traces(self, line: str) -> Any:
        """List the traces of a folder with their forks: ``%rlm_traces [FOLDER]``."""
        from rlm_notebook.trace.catalog import catalog

        words = split_line(line)
        chosen = settings.make_settings(**self._main.defaults())
        return catalog(words[0] if words else chosen.trace_dir)

    @line_magic
    def rlm_compare(self, line: str) -> Any:
        """Two runs side by side: ``%rlm_compare a b``, each a file or a variable."""
        words = split_line(line)
        if len(words) != 2:
            raise UsageError("%rlm_compare: give two runs, each a file or a variable")
        a, b = (self._trace(word) for word in words)
        return a.compare(b)


TravelMagics.rlm_resume.__doc__ = resume_parser().format_help()
TravelMagics.rlm_fork.__doc__ = fork_parser().format_help()
TravelMagics.rlm_replay.__doc__ = replay_parser().format_help()

"""The magics of time travel: resume, fork, replay, step, list and compare runs."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_magic, magics_class

from rlm_notebook import settings
from rlm_notebook.cells import run_here
from rlm_notebook.context import find_context, taken
from rlm_notebook.errors import UsageError
from rlm_notebook.lm.protocol import LM
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
    from rlm_notebook.magics import RLMMagics
    from rlm_notebook.rlm import RLM
    from rlm_notebook.settings import Settings
    from rlm_notebook.trace.trace import Trace
    from rlm_notebook.trace.tree import Span


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
        from rlm_notebook import replay
        from rlm_notebook.gates import Break

        forks = name == "rlm_fork"
        parser = fork_parser() if forks else resume_parser()
        setting_options(parser)
        given = self._main.parsed(parser, line)
        check_name(given.out)
        trace = self._trace(given.run)
        # What a trace does not decide is what the user has set for this notebook.
        own = {name: value for name, value in self._main.defaults().items() if name in OF_THE_USER}
        changes = {**own, **given_settings(given)}
        context: Any = replay.MISSING
        if given.context is not None:
            find = find_context(given.context, self.shell.user_ns)
            context = await asyncio.to_thread(lambda: taken(find()).value)

        def make(chosen: Settings) -> RLM:
            return self._rlm_like(trace, chosen)

        if not forks:
            live = await replay.prepare_resume(trace, make, context=context, **changes)
        else:
            model = changes.pop("model", None)
            code, response, prompt = map(self._text, (given.code, given.response, given.prompt))
            edit = replay.Edit(code, response, prompt, model)
            place = self._place(trace, given)
            live = await replay.prepare_fork(
                trace, make, place, edit, context=context, path=given.trace, **changes
            )
        for point in given.breaks:
            live.gates.add(Break(point))
        if given.step:
            live.gates.pause()
        self._main.tell_trusted(live.repl)
        return await self._main.begin(live, given)

    def _place(self, trace: Trace, given: argparse.Namespace) -> Span:
        """The span that ``--turn``, ``--slot`` or ``--span`` names."""
        if sum(each is not None for each in (given.turn, given.span)) != 1:
            raise UsageError("%rlm_fork: say where, with --turn N (and --slot B.S) or --span ID")
        if given.span is not None:
            return trace.span(given.span)
        if not 1 <= given.turn <= len(trace.turns):
            raise UsageError(
                f"--turn {given.turn}: the turns of this run are 1 to {len(trace.turns)}"
            )
        turn: Span = trace.turns[given.turn - 1]
        if given.slot is None:
            return turn
        batches = [each for each in turn.walk() if each.kind == "batch"]
        batch, _, slot = given.slot.rpartition(".")
        try:
            slots = batches[int(batch or 1) - 1].slots
            found: Span = next(each for each in slots if each.index == int(slot))
            return found
        except (ValueError, IndexError, StopIteration):
            raise UsageError(
                f"--slot {given.slot}: turn {given.turn} has {len(batches)} batches; give BATCH.SLOT, "
                "batches from 1 and slots from 0, for instance 1.17"
            ) from None

    def _rlm_like(self, trace: Trace, chosen: Settings) -> RLM:
        """An RLM with the settings of a recorded run, its models and its functions."""
        from rlm_notebook.rlm import RLM

        values = {field.name: getattr(chosen, field.name) for field in settings.fields()}
        namespace = self.shell.user_ns
        objects = {each.name: each for each in namespace.values() if isinstance(each, LM)}
        for name in ("model", "sub_model"):
            found = namespace.get(values[name])
            values[name] = (
                found if isinstance(found, LM) else objects.get(values[name], values[name])
            )
        names = trace.header.settings.get("tools") or ()
        return RLM(tools=self._main.tools(",".join(map(str, names))), **values)

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
        return trace.view()

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

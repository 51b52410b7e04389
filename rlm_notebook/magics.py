"""``%%rlm`` and the line magics: parse, call, display. No engine logic here."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class
from traitlets import Any as AnyTrait
from traitlets.config import Configurable

from rlm_notebook import settings
from rlm_notebook.cells import REGISTERED, run_here, sigint_cancels, transform_cell
from rlm_notebook.context import opened, read_files, taken
from rlm_notebook.errors import ContextError, UsageError
from rlm_notebook.gates import Break
from rlm_notebook.lm.protocol import LM
from rlm_notebook.options import OptionParser, given_settings, split_line
from rlm_notebook.parsers import (
    cell_parser,
    check_name,
    config_parser,
    edit_parser,
    fork_parser,
    replay_parser,
    resume_parser,
    step_parser,
)

if TYPE_CHECKING:
    from rlm_notebook.background import BackgroundRun
    from rlm_notebook.display import CellView, CellViews
    from rlm_notebook.live import LiveRun
    from rlm_notebook.result import Result
    from rlm_notebook.rlm import RLM
    from rlm_notebook.sessions import Session
    from rlm_notebook.settings import Settings
    from rlm_notebook.trace.trace import Trace
    from rlm_notebook.trace.tree import Span


class RLMInterrupt(KeyboardInterrupt):
    """The run was interrupted. It has cleaned up; its trace is kept."""

    def _render_traceback_(self) -> list[str]:
        return [f"\x1b[31mKeyboardInterrupt\x1b[39m: {self}"]


RLMSettings = type(
    "RLMSettings",
    (Configurable,),
    {
        "__doc__": "Defaults of %%rlm, for IPython config files: ``c.RLMSettings.model = ...``.",
        "__module__": __name__,
        **{
            field.name: AnyTrait(field.default, help=field.help).tag(config=True)
            for field in settings.fields()
        },
    },
)


@magics_class
class RLMMagics(Magics):
    """The magics of this package."""

    shell: InteractiveShell

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self._configured = RLMSettings(parent=shell)
        self._set: dict[str, Any] = {}
        self._sessions: dict[str, Session] = {}
        self._background: dict[int, BackgroundRun] = {}
        self._views: CellViews | None = None
        self._hinted = False
        self._told = False

    @cell_magic
    def rlm(self, line: str, cell: str) -> Any:
        """Filled with the parser's help below."""
        # Only a call from synchronous code comes here: a cell awaits run_cell (see transform_cell).
        return run_here(self.run_cell(line, cell))

    async def run_cell(self, line: str, cell: str) -> Any:
        """Run a ``%%rlm`` cell on the running loop.

        Raises
        ------
        RLMError
            One line that says what to do.
        RLMInterrupt
            The kernel was interrupted.
        """
        given = self._parsed(cell_parser(), line)
        if not cell.strip():
            raise UsageError("%%rlm: the cell has no question: write one below the first line")
        check_name(given.out)
        if given.context is None:
            raise UsageError(
                "%%rlm: give the context with --context: a variable, an expression, a file or a glob"
            )
        from rlm_notebook.rlm import RLM

        tools = self._tools(given.tools)
        rlm = RLM(tools=tools, **self._with_models({**self._defaults(), **given_settings(given)}))
        find = find_context(given.context, self.shell.user_ns)
        context = await asyncio.to_thread(lambda: taken(find()))
        self._tell_trusted(rlm.settings.repl)
        live = rlm.prepare(
            context,
            cell,
            trace=given.trace,
            session=self._session(given.session),
            step=given.step,
            breaks=given.breaks,
        )
        return await self._begin(live, given)

    async def _begin(self, live: LiveRun, given: argparse.Namespace) -> Any:
        """Show a run and let it go, before the cell's end or behind it."""
        self._hint_old_kernel(given.background)
        shown = self._cell_views().show(live)
        keep = self._keeper(given.out)
        if given.background:
            from rlm_notebook.background import BackgroundRun

            run = BackgroundRun(live, shown, keep, len(self._background) + 1)
            self._background[run.number] = run
            return run
        return await self._foreground(live, shown, keep)

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

        forks = name == "rlm_fork"
        given = self._parsed(fork_parser() if forks else resume_parser(), line)
        check_name(given.out)
        trace = self._trace(given.run)
        changes = given_settings(given)
        context: Any = replay.MISSING
        if given.context is not None:
            find = find_context(given.context, self.shell.user_ns)
            context = await asyncio.to_thread(lambda: taken(find()).value)

        def make(chosen: Settings) -> RLM:
            return self._rlm_like(trace, chosen, changes)

        if not forks:
            live = await replay.prepare_resume(trace, make, context=context, **changes)
        else:
            model = changes.pop("model", None)
            edit = replay.Edit(given.code, given.response, given.prompt, model)
            place = self._place(trace, given)
            live = await replay.prepare_fork(
                trace, make, place, edit, context=context, path=given.trace, **changes
            )
        for point in given.breaks:
            live.gates.add(Break(point))
        if given.step:
            live.gates.pause()
        self._tell_trusted(live.repl)
        return await self._begin(live, given)

    def _place(self, trace: Trace, given: argparse.Namespace) -> Span:
        """The span that ``--turn``, ``--slot`` or ``--span`` names."""
        if sum(each is not None for each in (given.turn, given.span)) != 1:
            raise UsageError("%rlm_fork: say where, with --turn N (and --slot B.S) or --span ID")
        if given.span is not None:
            return trace.span(given.span)
        if not 1 <= given.turn <= len(trace.turns):
            raise UsageError(f"--turn {given.turn}: this run has {len(trace.turns)} turns")
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

    def _rlm_like(self, trace: Trace, chosen: Settings, changes: dict[str, Any]) -> RLM:
        """An RLM with the settings of a recorded run, its models and its functions."""
        from rlm_notebook.rlm import RLM

        values = {field.name: getattr(chosen, field.name) for field in settings.fields()}
        if "providers" not in changes:  # what is secret in them is not in the trace
            values["providers"] = {**values["providers"], **self._defaults().get("providers", {})}
        namespace = self.shell.user_ns
        objects = {each.name: each for each in namespace.values() if isinstance(each, LM)}
        for name in ("model", "sub_model"):
            if values[name] in namespace or values[name] in objects:
                found = namespace.get(values[name])
                values[name] = found if isinstance(found, LM) else objects.get(values[name])
        names = trace.header.settings.get("tools") or ()
        return RLM(tools=self._tools(",".join(map(str, names))), **values)

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
        given = self._parsed(replay_parser(), line)
        trace = self._trace(given.run)
        if given.check:
            return trace.replay()
        return trace.view()

    @line_magic
    def rlm_step(self, line: str) -> None:
        """Go on from where a background run stands: ``%rlm_step [go|turn|batch|error|run|skip|
        retry|stop] [--run N]``; then wait until it stands again, and say where.
        """
        given = self._parsed(step_parser(), line)
        self._go_on(self._stepped(given.run), given.action)

    @line_magic
    def rlm_continue(self, line: str) -> None:
        """Let a background run go on to its next breakpoint or its end: ``%rlm_continue [--run N]``."""
        given = self._parsed(step_parser(), f"run {line}")
        self._go_on(self._stepped(given.run), "run")

    @line_magic
    def rlm_edit(self, line: str) -> None:
        """Edit what a background run shows where it stands: ``%rlm_edit code "x = 1"``, or the name
        of a variable that holds the text. It is used when the run goes on.
        """
        given = self._parsed(edit_parser(), line)
        run = self._stepped(given.run)
        text = " ".join(given.text)
        value = self.shell.user_ns.get(text)
        run.edit(given.what, value if isinstance(value, str) else text)
        print(run.where())

    def _go_on(self, run: BackgroundRun, action: str) -> None:
        run.go_on(action)
        print(run.where())

    def _stepped(self, number: int | None) -> BackgroundRun:
        """A background run that goes on: the one with that number, or the newest."""
        running = {n: run for n, run in self._background.items() if run.running}
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
        chosen = settings.make_settings(**self._defaults())
        return catalog(words[0] if words else chosen.trace_dir)

    @line_magic
    def rlm_compare(self, line: str) -> Any:
        """Two runs side by side: ``%rlm_compare a b``, each a file or a variable."""
        words = split_line(line)
        if len(words) != 2:
            raise UsageError("%rlm_compare: give two runs, each a file or a variable")
        a, b = (self._trace(word) for word in words)
        return a.compare(b)

    async def _foreground(
        self, live: LiveRun, shown: CellView, keep: Callable[[Result | None], None]
    ) -> Result:
        try:
            with sigint_cancels(self._cell_views().in_kernel):
                return await live.go()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()
            where = live.trace.path or "in memory"
            raise RLMInterrupt(f"the run was stopped; its trace is kept ({where})") from None
        finally:
            keep(live.result)
            shown.end()
            for warning in live.warnings:
                print(f"rlm_notebook: {warning}")

    @line_magic
    def rlm_config(self, line: str) -> None:
        """Show the settings, or set them for this session: ``%rlm_config --model openai/gpt-5``."""
        given = self._parsed(config_parser(), line)
        if given.reset:
            self._set.clear()
        self._set.update(given_settings(given))
        values = settings.recorded(settings.make_settings(**self._defaults()))
        for field in settings.fields():
            value = "none" if values[field.name] in (None, {}) else str(values[field.name])
            print(f"{field.option:<28}{value:<24}{field.help}")

    @line_magic
    def rlm_stop(self, line: str) -> None:
        """Stop background runs: ``%rlm_stop`` all, ``%rlm_stop 2`` the one with that number."""
        running = {n: run for n, run in self._background.items() if run.running}
        wanted = line.split()
        unknown = [word for word in wanted if not word.isdigit() or int(word) not in running]
        if unknown:
            numbers = ", ".join(map(str, running)) or "none"
            raise UsageError(f"%rlm_stop: no run {unknown[0]} is going on; running: {numbers}")
        if not running:
            print("no background run is going on")
        for number in [int(word) for word in wanted] or list(running):
            running[number].stop()
            print(f"stopped run {number}")

    def _parsed(self, parser: OptionParser, line: str) -> argparse.Namespace:
        """The options of a line; ``--providers`` may name a variable that holds a dict."""
        given = parser.parse_args(split_line(line))
        value = self.shell.user_ns.get(getattr(given, "providers", None))
        if isinstance(value, dict):
            given.providers = value
        return given

    def _defaults(self) -> dict[str, Any]:
        """Config file, then environment, then ``%rlm_config``: the later one wins."""
        configured = {
            name: getattr(self._configured, name)
            for name in self._configured.trait_values()
            if name in self._configured.config.get("RLMSettings", {})
        }
        return {**configured, **settings.from_environment(), **self._set}

    def _with_models(self, chosen: dict[str, Any]) -> dict[str, Any]:
        """Models that are named by a variable of the user, replaced by the variable's value."""
        for name in ("model", "sub_model"):
            value = self.shell.user_ns.get(chosen.get(name))
            if isinstance(value, LM):
                chosen[name] = value
        return chosen

    def _session(self, name: str | None) -> Session | None:
        if name is None:
            return None
        from rlm_notebook.sessions import Session

        return self._sessions.setdefault(name, Session(name))

    @line_magic
    def rlm_sessions(self, line: str) -> None:
        """List the sessions; ``%rlm_sessions --close NAME``, or ``--close`` alone for all."""
        words = line.split()
        if words and words[0] != "--close":
            raise UsageError(f"%rlm_sessions: unknown option {words[0]}; there is: --close [NAME]")
        unknown = [name for name in words[1:] if name not in self._sessions]
        if unknown:
            names = ", ".join(self._sessions) or "none"
            raise UsageError(f"%rlm_sessions: no session {unknown[0]}; there are: {names}")
        if words:
            for name in words[1:] or list(self._sessions):
                self._sessions.pop(name).close()
                print(f"closed {name}")
            return
        for session in self._sessions.values():
            variables = ", ".join(variable[0] for variable in session.variables) or "no variables"
            print(f"{session.name}: {len(session.history)} answers; {variables}")
        if not self._sessions:
            print("there is no session: %%rlm --session NAME begins one")

    def _tools(self, names: str | None) -> dict[str, Any]:
        wanted = [name.strip() for name in (names or "").split(",") if name.strip()]
        missing = [name for name in wanted if name not in self.shell.user_ns]
        if missing:
            raise UsageError(f"--tools: no function {missing[0]}: define it first")
        return {name: self.shell.user_ns[name] for name in wanted}

    def _cell_views(self) -> CellViews:
        if self._views is None:
            from rlm_notebook.display import CellViews

            self._views = CellViews(self.shell)
        return self._views

    def _keeper(self, name: str | None) -> Callable[[Result | None], None]:
        """What puts the result into the variable named by ``--out``."""

        def keep(result: Result | None) -> None:
            if name is not None:
                self.shell.user_ns[name] = result

        return keep

    def _tell_trusted(self, repl: str) -> None:
        if repl == "kernel" and not self._told:
            from rlm_notebook.repl.kernel import NOTICE

            self._told = True
            print(f"rlm_notebook: {NOTICE}")

    def _hint_old_kernel(self, background: bool) -> None:
        if background or self._hinted or not self._cell_views().in_kernel:
            return
        version = metadata.version("ipykernel")
        if tuple(map(int, version.split(".")[:2])) < (7, 4):
            self._hinted = True
            print(
                f"ipykernel {version} delivers clicks only after the cell has ended: "
                "upgrade to 7.4, or use --background"
            )


RLMMagics.rlm.__doc__ = cell_parser().format_help()
RLMMagics.rlm_resume.__doc__ = resume_parser().format_help()
RLMMagics.rlm_fork.__doc__ = fork_parser().format_help()
RLMMagics.rlm_replay.__doc__ = replay_parser().format_help()


def find_context(expression: str, namespace: dict[str, Any]) -> Callable[[], Any]:
    """The value of an expression of the user's namespace, or the text of a file or a glob.

    Several names, as in ``a,b``, are a dict of their values.

    Returns
    -------
    Callable
        Gives the context; no code of the user runs in it, so any thread may call it. It raises
        ContextError if the expression is neither.
    """
    try:
        value = eval(compile(expression, "--context", "eval"), namespace)
    except (SyntaxError, NameError, ValueError):
        return lambda: read_files(expression)
    except Exception as error:
        message = f"--context {expression}: {type(error).__name__}: {error}"

        def file() -> Any:
            try:
                return read_files(expression)
            except ContextError:
                raise ContextError(message) from None

        return file
    if isinstance(value, tuple) and "," in expression:
        names = [each.strip() for each in expression.strip("() ").split(",") if each.strip()]
        if all(map(str.isidentifier, names)) and len(names) == len(value):
            return lambda: {name: opened(each) for name, each in zip(names, value, strict=True)}
    return lambda: opened(value)


def load(shell: InteractiveShell) -> None:
    """Register the magics; a second time changes nothing."""
    if REGISTERED not in shell.magics_manager.registry:
        shell.register_magics(RLMMagics)
    if transform_cell not in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.append(transform_cell)


def unload(shell: InteractiveShell) -> None:
    """Take the magics back."""
    if transform_cell in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.remove(transform_cell)
    shell.magics_manager.registry.pop(REGISTERED, None)
    for kind, names in RLMMagics.magics.items():
        for name in names:
            shell.magics_manager.magics[kind].pop(name, None)

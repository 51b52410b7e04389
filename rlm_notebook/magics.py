"""``%%rlm`` and the line magics: parse, call, display. No engine logic here."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from importlib import metadata
from typing import TYPE_CHECKING, Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class
from traitlets import Any as AnyTrait
from traitlets.config import Configurable

from rlm_notebook import settings
from rlm_notebook.cells import REGISTERED, run_here, sigint_cancels, transform_cell
from rlm_notebook.context import find_context, taken
from rlm_notebook.errors import UsageError
from rlm_notebook.lm.protocol import LM
from rlm_notebook.options import OptionParser, given_settings, split_line
from rlm_notebook.parsers import cell_parser, check_name, config_parser
from rlm_notebook.travel_magics import TravelMagics

if TYPE_CHECKING:
    from rlm_notebook.background import BackgroundRun
    from rlm_notebook.display import Cell, CellView, CellViews
    from rlm_notebook.live import LiveRun
    from rlm_notebook.result import Result
    from rlm_notebook.sessions import Session


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
        self.background: dict[int, BackgroundRun] = {}
        self._views: CellViews | None = None
        self.travel = TravelMagics(shell, self)
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
        given = self.parsed(cell_parser(), line)
        if not cell.strip():
            raise UsageError("%%rlm: the cell has no question: write one below the first line")
        check_name(given.out)
        if given.context is None:
            raise UsageError(
                "%%rlm: give the context with --context: a variable, an expression, a file or a glob"
            )
        from rlm_notebook.rlm import RLM

        tools = self.tools(given.tools)
        chosen = self._with_models({**self.defaults(), **given_settings(given)})
        rlm = RLM(tools=tools, models=self.models(), **chosen)
        find = find_context(given.context, self.shell.user_ns)
        context = await asyncio.to_thread(lambda: taken(find()))
        self.tell_trusted(rlm.settings.repl)
        live = rlm.prepare(
            context,
            cell,
            trace=given.trace,
            session=self._session(given.session),
            step=given.step,
            breaks=given.breaks,
        )
        return await self.begin(live, given)

    async def begin(self, live: LiveRun, given: argparse.Namespace) -> Any:
        """Show a run and let it go, before the cell's end or behind it."""
        self._hint_old_kernel(given.background)
        if given.background:
            return self.begin_behind(live, self.views.here(), given.out)
        shown = self._show(live, self.views.here())
        return await self._foreground(live, shown, self._keeper(given.out))

    def begin_behind(self, live: LiveRun, cell: Cell, out: str | None = None) -> BackgroundRun:
        """Show a run under a cell and let it go on in the background."""
        from rlm_notebook.background import BackgroundRun

        number = len(self.background) + 1
        run = BackgroundRun(live, self._show(live, cell), self._keeper(out), number)
        self.background[number] = run
        return run

    def _show(self, live: LiveRun, cell: Cell) -> CellView:
        return self.views.show(live, cell, self.travel.forker(cell, live.settings))

    async def _foreground(
        self, live: LiveRun, shown: CellView, keep: Callable[[Result | None], None]
    ) -> Result:
        try:
            with sigint_cancels(self.views.in_kernel):
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
        given = self.parsed(config_parser(), line)
        if given.reset:
            self._set.clear()
        self._set.update(given_settings(given))
        values = settings.recorded(settings.make_settings(**self.defaults()))
        for field in settings.fields():
            value = "none" if values[field.name] in (None, {}) else str(values[field.name])
            print(f"{field.option:<28}{value:<24}{field.help}")

    @line_magic
    def rlm_stop(self, line: str) -> None:
        """Stop background runs: ``%rlm_stop`` all, ``%rlm_stop 2`` the one with that number."""
        running = {n: run for n, run in self.background.items() if run.running}
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

    def parsed(self, parser: OptionParser, line: str) -> argparse.Namespace:
        """The options of a line; ``--providers`` may name a variable that holds a dict."""
        given = parser.parse_args(split_line(line))
        value = self.shell.user_ns.get(getattr(given, "providers", None))
        if isinstance(value, dict):
            given.providers = value
        return given

    def defaults(self) -> dict[str, Any]:
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

    def models(self) -> dict[str, LM]:
        """The user's model objects, by their own names and by those of their variables."""
        found = {
            name: each
            for name, each in self.shell.user_ns.items()
            if hasattr(type(each), "complete") and isinstance(each, LM)  # no other object is asked
        }
        return {**{each.name: each for each in found.values()}, **found}

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

    def tools(self, names: str | None) -> dict[str, Any]:
        """The user's functions of these names, with commas between."""
        wanted = [name.strip() for name in (names or "").split(",") if name.strip()]
        missing = [name for name in wanted if name not in self.shell.user_ns]
        if missing:
            raise UsageError(f"--tools: no function {missing[0]}: define it first")
        return {name: self.shell.user_ns[name] for name in wanted}

    @property
    def views(self) -> CellViews:
        """The views of the runs."""
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

    def tell_trusted(self, repl: str) -> None:
        """Say once that code in the kernel REPL is trusted."""
        if repl == "kernel" and not self._told:
            from rlm_notebook.repl.kernel import NOTICE

            self._told = True
            print(f"rlm_notebook: {NOTICE}")

    def _hint_old_kernel(self, background: bool) -> None:
        if background or self._hinted or not self.views.in_kernel:
            return
        version = metadata.version("ipykernel")
        if tuple(map(int, version.split(".")[:2])) < (7, 4):
            self._hinted = True
            print(
                f"ipykernel {version} delivers clicks only after the cell has ended: "
                "upgrade to 7.4, or use --background"
            )


RLMMagics.rlm.__doc__ = cell_parser().format_help()


def load(shell: InteractiveShell) -> None:
    """Register the magics; a second time changes nothing."""
    if REGISTERED not in shell.magics_manager.registry:
        main = RLMMagics(shell)
        shell.register_magics(main, main.travel)
    if transform_cell not in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.append(transform_cell)


def unload(shell: InteractiveShell) -> None:
    """Take the magics back."""
    if transform_cell in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.remove(transform_cell)
    for each in (RLMMagics, TravelMagics):
        shell.magics_manager.registry.pop(each.__name__, None)
        for kind, names in each.magics.items():
            for name in names:
                shell.magics_manager.magics[kind].pop(name, None)

"""What a run puts under its cell: the live tree while it runs, the static tree for later."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from rlm_notebook.live import LiveRun
    from rlm_notebook.view.forking import OnFork
    from rlm_notebook.view.widget import LiveView


class Forgettable(Protocol):
    """A view that can be taken off the kernel."""

    def forget(self) -> None:
        """The saved tree stays."""


@dataclass(frozen=True)
class Cell:
    """A cell of the notebook, as it was run once."""

    parent: dict[str, Any]
    """The message that ran it: what is shown in its name stands below it."""

    @property
    def id(self) -> str | None:
        """Its name in the notebook, the same each time it runs; None in other front ends."""
        found = (self.parent.get("metadata") or {}).get("cellId")
        return found if isinstance(found, str) else None

    @property
    def run(self) -> Any:
        """The name of this one time."""
        return (self.parent.get("header") or {}).get("msg_id")


@dataclass
class _Shown:
    run: Any
    views: list[Forgettable] = field(default_factory=list)


class CellViews:
    """Makes the view of each run of a notebook; a cell that runs again closes its older views."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self._by_cell: dict[str, _Shown] = {}

    @property
    def in_kernel(self) -> bool:
        """Whether there is a front end that can show more than text."""
        return getattr(self._shell, "kernel", None) is not None

    def here(self) -> Cell:
        """The cell that runs now."""
        kernel = getattr(self._shell, "kernel", None)
        return Cell((kernel.get_parent("shell") or {}) if kernel is not None else {})

    def show(self, live: LiveRun, cell: Cell, on_fork: OnFork | None = None) -> CellView:
        """Show a run that is about to start, under a cell."""
        with self._as_if_from(cell):
            view = CellView(live, self.in_kernel, on_fork)
        self.add(view, cell)
        return view

    def add(self, view: Forgettable, cell: Cell) -> None:
        """Have a view of a cell forgotten when the cell runs again."""
        if cell.id is None:
            return
        shown = self._by_cell.get(cell.id)
        if shown is None or shown.run != cell.run:
            for older in shown.views if shown is not None else ():
                older.forget()
            shown = self._by_cell[cell.id] = _Shown(cell.run)
        shown.views.append(view)

    @contextlib.contextmanager
    def _as_if_from(self, cell: Cell) -> Iterator[None]:
        """What is shown meanwhile stands below the cell, also if that has ended long ago."""
        if cell.run == self.here().run:
            yield
            return
        publisher: Any = self._shell.display_pub
        before = publisher.parent_header
        publisher.set_parent(cell.parent)
        try:
            yield
        finally:
            publisher.set_parent({"header": before})


class CellView:
    """The output of one run. Without widgets it is the static tree, shown when the run ends."""

    def __init__(self, live: LiveRun, in_kernel: bool, on_fork: OnFork | None) -> None:
        self._live = live
        self._view: LiveView | None = None
        self._handle: Any = None
        if not in_kernel:
            return
        from IPython.display import display

        try:
            from rlm_notebook.view.widget import LiveView

            self._view = LiveView(
                live.trace,
                now=live.now,
                on_stop=live.stop,
                warnings=live.warnings,
                gates=live.gates,
                on_fork=on_fork,
            )
            live.show_in(self._view)
        except ImportError:
            pass  # no ipywidgets: the static tree, at the end
        self._handle = display(self._bundle(), raw=True, display_id=True)

    def end(self) -> None:
        """Leave the tree as it ended: what a saved notebook shows."""
        if self._handle is not None:
            self._handle.update(self._bundle(), raw=True)
        else:
            print(self._live.trace.to_text(color=sys.stdout.isatty()))

    def forget(self) -> None:
        """The cell runs again: take the older view off the kernel."""
        if self._view is not None:
            self._view.forget()

    def _bundle(self) -> dict[str, Any]:
        if self._view is not None:
            return self._view.mimebundle()
        return {"text/html": self._live.trace.to_html(), "text/plain": self._live.trace.to_text()}

"""What a run puts under its cell: the live tree while it runs, the static tree for later."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from rlm_notebook.live import LiveRun
    from rlm_notebook.view.widget import LiveView


class CellViews:
    """Makes the view of each run of a notebook; a cell that runs again closes its older view."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self._by_cell: dict[str, CellView] = {}

    @property
    def in_kernel(self) -> bool:
        """Whether there is a front end that can show more than text."""
        return getattr(self._shell, "kernel", None) is not None

    def show(self, live: LiveRun) -> CellView:
        """Show a run that is about to start, under the cell that runs now."""
        cell = self._cell_id()
        older = self._by_cell.pop(cell, None) if cell else None
        if older is not None:
            older.forget()
        view = CellView(live, self.in_kernel)
        if cell:
            self._by_cell[cell] = view
        return view

    def _cell_id(self) -> str | None:
        kernel = getattr(self._shell, "kernel", None)
        if kernel is None:
            return None
        parent = kernel.get_parent("shell") or {}
        cell = (parent.get("metadata") or {}).get("cellId")
        return cell if isinstance(cell, str) else None


class CellView:
    """The output of one run. Without widgets it is the static tree, shown when the run ends."""

    def __init__(self, live: LiveRun, in_kernel: bool) -> None:
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

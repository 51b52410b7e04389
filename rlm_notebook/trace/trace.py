"""A trace: the header, the events, and the tree they fold into; live or loaded from a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlm_notebook.errors import TraceError, UsageError
from rlm_notebook.lm.protocol import Usage
from rlm_notebook.trace.events import Event, Header
from rlm_notebook.trace.tree import Span, Tree

if TYPE_CHECKING:
    import pandas

    from rlm_notebook.lm.protocol import LM
    from rlm_notebook.replay import Replay
    from rlm_notebook.result import Result
    from rlm_notebook.trace.compare import Comparison
    from rlm_notebook.trace.reading import StoredEvents


class Trace:
    """What happened in one run and in all its child runs.

    ``trace.turns[2].code``, ``trace.batches[0].slots[17].error``, ``trace.find(kind="slot",
    state="error")``. In a notebook it shows itself as a tree.
    """

    def __init__(
        self,
        header: Header,
        *,
        path: Path | None = None,
        events: StoredEvents | None = None,
    ) -> None:
        self.header = header
        self.path = path
        """The file it is written to or was loaded from."""
        self.events: list[Event] | StoredEvents = [] if events is None else events
        """All that happened, in order."""
        self.tree = Tree()
        self.notes: list[str] = []
        """What was found wrong while reading, one line each."""

    def append(self, event: Event) -> Span | None:
        """Take one event; events that change nothing are not kept."""
        span = self.tree.apply(event)
        if span is not None:
            self.events.append(event)
        return span

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Read a ``.rlm.jsonl`` file, also one that was cut or damaged.

        Raises
        ------
        TraceError
            The file cannot be read, is no trace, or is of a newer format.
        """
        from rlm_notebook.trace.reading import load

        return load(path)

    def save(self, path: str | Path) -> Path:
        """Write the whole trace to a new file.

        Raises
        ------
        TraceError
            The file exists or cannot be written.
        """
        from rlm_notebook.trace.jsonl import JsonlWriter

        failures: list[str] = []
        writer = JsonlWriter(Path(path), self.header, on_error=failures.append)
        for event in self.events[:]:
            writer.emit(event)
        writer.close()
        if failures:
            raise TraceError(failures[0])
        return writer.path

    @property
    def root(self) -> Span | None:
        """The span of the root run."""
        return self.tree.roots[0] if self.tree.roots else None

    @property
    def turns(self) -> list[Span]:
        """The turns of the root run."""
        return [s for s in self.root.children if s.kind == "turn"] if self.root else []

    @property
    def batches(self) -> list[Span]:
        """All batches, child runs included, in order of submission."""
        return list(self.find(kind="batch"))

    @property
    def slots(self) -> list[Span]:
        """All slots of all batches, in order of submission."""
        return list(self.find(kind="slot"))

    @property
    def usage(self) -> Usage:
        """Tokens and cost of all calls."""
        return self.tree.totals.usage

    @property
    def seconds(self) -> float:
        """Duration of the root run, or the time of the latest event."""
        root = self.root
        return (root.duration if root else None) or self.tree.time * 1e-9

    def find(self, **criteria: Any) -> Iterator[Span]:
        """Spans by ``kind``, ``state`` or any attribute, for instance ``model="openai/gpt-5"``.

        ``error=True`` finds what failed, ``error=False`` what did not.
        """
        for root in self.tree.roots:
            for span in root.walk():
                if all(_matches(span, name, wanted) for name, wanted in criteria.items()):
                    yield span

    def __repr__(self) -> str:
        state = self.root.state if self.root else "empty"
        totals = self.tree.totals
        return (
            f"<Trace {state}: {len(self.turns)} turns, {totals.calls} LM calls, "
            f"{totals.errors} errors, {self.seconds:.2f} s, {len(self.tree.spans)} spans>"
        )

    def span(self, number: int) -> Span:
        """The span with that id.

        Raises
        ------
        UsageError
            There is none.
        """
        try:
            return self.tree.spans[number]
        except KeyError:
            raise UsageError(f"this trace has no span {number}") from None

    def variables(self, turn: int) -> dict[str, dict[str, str]]:
        """The variables of the root's REPL after a turn: type, size and short value, by name.

        Parameters
        ----------
        turn
            From 1, as in the view. A turn without code has those of the turn before it.
        """
        if not 1 <= turn <= len(self.turns):
            raise UsageError(f"there is no turn {turn}: this run has {len(self.turns)}")
        blocks = [
            child
            for each in self.turns[:turn]
            for child in each.children
            if child.kind == "code" and isinstance(child.attrs.get("variables"), list)
        ]
        rows = blocks[-1].attrs["variables"] if blocks else []
        found = [[str(cell) for cell in row] for row in rows if isinstance(row, list) and row]
        names = ("type", "size", "value")
        return {row[0]: dict(zip(names, row[1:], strict=False)) for row in found}

    def to_frame(self) -> pandas.DataFrame:
        """One row a span: kind, place, state, times (s), usage, texts, error.

        Raises
        ------
        UsageError
            pandas is not installed.
        """
        from rlm_notebook.trace.frame import to_frame

        return to_frame(self)

    def compare(self, other: Trace) -> Comparison:
        """This run (a) and another one (b), aligned by turn and slot; ``.to_frame()``."""
        from rlm_notebook.trace.compare import compare

        return compare(self, other)

    def view(self) -> Any:
        """The run as a film: played, or looked at at any time. Without widgets, the trace itself."""
        try:
            from rlm_notebook.view.film import FilmView

            return FilmView(self)
        except ImportError:
            return self

    def replay(
        self,
        *,
        context: Any = ...,
        tools: Any = None,
        path: str | Path | None = None,
        repl: str | None = None,
    ) -> Replay:
        """Run the engine again with the recorded answers: no network, no keys, no cost.

        The recorded code runs again, in a REPL of the same kind: of a trace from a stranger, look
        at the code first, or use ``repl="monty"``.

        Parameters
        ----------
        context
            What the run was asked about; default: what was kept beside the trace.
        tools
            Functions of yours whose results were no plain data.
        path
            File for the replay's own trace; default: none.
        repl
            Another kind of REPL. ``kernel`` has to be given if the run had it: its code then runs
            in your own namespace.

        Returns
        -------
        Replay
            True if turns, code, outputs and answer are the same; else ``.difference`` is the
            first one, and ``.difference.diff`` shows it. A run that was stopped is the same if it
            is up to there.

        Raises
        ------
        ContextError
            The context was not kept, or is another one.
        UsageError
            It cannot be run again, or only if ``repl`` is given.
        """
        from rlm_notebook.replay import replay

        return replay(self, context=context, tools=tools, path=path, repl=repl)

    def resume(
        self,
        *,
        model: str | LM | None = None,
        sub_model: str | LM | None = None,
        tools: Any = None,
        context: Any = ...,
        **changes: Any,
    ) -> Result:
        """Go on with a run that was stopped, crashed or failed, in the same file.

        What is recorded is not asked again; calls that were in flight are. In async code:
        ``await rlm_notebook.resume.aresume(trace, ...)``, with the same parameters.

        Parameters
        ----------
        model, sub_model
            If others are to be asked from now on; or the run's own model objects.
        tools
            Functions of yours that the run could call.
        context
            What the run was asked about; default: what was kept beside the trace.
        **changes
            Settings that differ, for instance ``timeout=None``.

        Raises
        ------
        UsageError
            The run has ended by itself; or something is missing, which it names.
        ContextError
            The context was not kept, or is another one.
        TraceError
            The file is being written by a run that goes on.
        RunError
            The run failed again.
        """
        from rlm_notebook.handler import blocking
        from rlm_notebook.resume import aresume

        work = aresume(
            self, model=model, sub_model=sub_model, tools=tools, context=context, **changes
        )
        return blocking(work, "await aresume()")

    def fork(
        self,
        *,
        turn: int | None = None,
        slot: str | None = None,
        span: int | None = None,
        code: str | None = None,
        response: str | None = None,
        prompt: str | None = None,
        model: str | LM | None = None,
        **options: Any,
    ) -> Result:
        """A run of its own that does the same up to a place, and is live from there on.

        ``trace.fork(turn=3, code="print(len(context))")``. In async code:
        ``await rlm_notebook.resume.afork(trace, ...)``, with the same parameters.

        Parameters
        ----------
        turn, slot, span
            The place: a turn, from 1, and perhaps a slot of it (``"1.17"``: batch from 1, slot
            from 0); or any span, by its id.
        code, response
            What stands for the code of the turn or block, or for the answer of the model there.
        prompt
            A text that the model is told besides; of a slot or a single sub-call: its prompt.
        model
            Who is asked from there on; of a slot or a single sub-call: of it alone.
        **options
            ``sub_model``, ``tools``, ``context`` as in :meth:`resume`; ``path`` of the new
            trace; and settings that differ.

        Raises
        ------
        UsageError, ContextError, RunError
            As in :meth:`resume`; or nothing can be changed in this way there.
        """
        from rlm_notebook.handler import blocking
        from rlm_notebook.resume import afork

        place: dict[str, Any] = {"turn": turn, "slot": slot, "span": span}
        edit: dict[str, Any] = {
            "code": code,
            "response": response,
            "prompt": prompt,
            "model": model,
        }
        return blocking(afork(self, **place, **edit, **options), "await afork()")

    def to_text(self, *, color: bool = False) -> str:
        """The tree as text, as a terminal shows it."""
        from rlm_notebook.view.text import render_text

        return render_text(self, color=color)

    def to_html(self) -> str:
        """The tree as static HTML, as a saved notebook shows it."""
        from rlm_notebook.view.static import render_html

        return render_html(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self.to_html(), "text/plain": self.to_text()}


def _matches(span: Span, name: str, wanted: Any) -> bool:
    if name == "error" and isinstance(wanted, bool):
        return (span.error is not None or span.state == "error") is wanted
    if name in ("kind", "state", "id"):
        return bool(getattr(span, name) == wanted)
    return bool(span.attrs.get(name) == wanted)

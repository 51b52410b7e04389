"""The traces of a folder, with their families: which run was forked from which."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rlm_notebook.errors import TraceError
from rlm_notebook.trace.frame import as_frame
from rlm_notebook.trace.jsonl import SUFFIX
from rlm_notebook.trace.reading import load

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Entry:
    """One trace file."""

    path: Path
    run: str
    parent: str
    """Name of the run that it was forked from; '' if it is no fork."""
    place: str
    """Where it was forked."""
    started_at: str
    question: str
    model: str
    answer: str
    state: str
    outcome: str
    calls: int
    cost: float | None
    """USD."""
    seconds: float
    problem: str = ""
    """Why it cannot be read."""


@dataclass(frozen=True)
class Catalog:
    """The traces of a folder, the newest first, forks below their parents."""

    folder: Path
    entries: list[tuple[int, Entry]] = field(repr=False)
    """Depth in the family tree, from 0, and the trace."""

    def __len__(self) -> int:
        return len(self.entries)

    def to_frame(self) -> pandas.DataFrame:
        """One row a trace."""
        return as_frame({"depth": depth, **vars(entry)} for depth, entry in self.entries)

    def __repr__(self) -> str:
        from rlm_notebook.view.compare import catalog_text

        return catalog_text(self)

    def _repr_html_(self) -> str:
        from rlm_notebook.view.compare import catalog_html

        return catalog_html(self)


def catalog(folder: str | Path) -> Catalog:
    """The traces of a folder and of the folders in it.

    Raises
    ------
    TraceError
        There is no such folder.
    """
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise TraceError(f"there is no folder {folder}: give the one with your traces")
    found = [_entry(path) for path in folder.rglob(f"*{SUFFIX}") if path.is_file()]
    found.sort(key=lambda entry: (entry.started_at, entry.path.name), reverse=True)
    runs = {entry.run for entry in found if entry.run}
    below: dict[str, list[Entry]] = {}
    for entry in found:
        below.setdefault(entry.parent if entry.parent in runs else "", []).append(entry)
    entries: list[tuple[int, Entry]] = []
    stack = [(0, entry) for entry in reversed(below.get("", []))]
    seen: set[Path] = set()
    while stack:
        depth, entry = stack.pop()
        if entry.path in seen:  # two files of one run, or a file that names itself its parent
            continue
        seen.add(entry.path)
        entries.append((depth, entry))
        if entry.run:
            stack.extend((depth + 1, each) for each in reversed(below.get(entry.run, [])))
    entries.extend((0, entry) for entry in found if entry.path not in seen)
    return Catalog(folder, entries)


def _entry(path: Path) -> Entry:
    try:
        trace = load(path)
    except TraceError as error:
        return Entry(path, "", "", "", "", "", "", "", "unreadable", "", 0, None, 0.0, str(error))
    root, header = trace.root, trace.header
    attrs = root.attrs if root is not None else {}
    answer = attrs.get("answer")
    return Entry(
        path,
        header.run,
        str(header.parent.get("run") or ""),
        str(header.parent.get("place") or ""),
        header.started_at,
        str(attrs.get("question") or ""),
        str(attrs.get("model") or ""),
        "" if answer is None else str(answer),
        root.state if root is not None else "empty",
        str(attrs.get("outcome") or ""),
        trace.tree.totals.calls,
        trace.tree.totals.cost,
        trace.seconds,
    )

"""Which span of a recorded run stands in the place of a span of the run that repeats it.

A place is a position in the tree: the turn with that index, the slot with that index, the k-th
sub-call of a block with the same prompt. Equal prompts are samples of their own.
"""

from __future__ import annotations

import difflib
import re
from collections import deque
from dataclasses import dataclass
from typing import Any

from rlm_notebook.trace.jsonl import text_of
from rlm_notebook.trace.tree import Span, Tree

Key = tuple[Any, ...]
_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,16}\b")


@dataclass(frozen=True)
class Difference:
    """The first thing that a replay did in another way than the recorded run."""

    place: str
    """Where: ``turn 2, code 1``."""
    what: str
    """What of it: ``stdout``, ``message 3``, ``a call``."""
    recorded: str | None
    """As the recorded run had it; None if it had nothing there."""
    replayed: str | None

    @property
    def diff(self) -> str:
        """Line by line: ``-`` the recorded run, ``+`` the replay."""
        before, after = (self.recorded or "").splitlines(), (self.replayed or "").splitlines()
        lines = difflib.unified_diff(before, after, "recorded", "replayed", lineterm="", n=2)
        return "\n".join(lines)

    def __str__(self) -> str:
        if self.recorded is None:
            return f"{self.place}: {self.what} that the recorded run does not have"
        if self.replayed is None:
            return f"{self.place}: {self.what} is missing, which the recorded run has"
        return f"{self.place}: {self.what} differs"


class Follower:
    """Pairs the spans of a run with those of the recorded one.

    Parameters
    ----------
    strict
        Whether the run has to do the same to the end, so that every difference counts. If not,
        it goes on live where the recorded one ends.
    """

    def __init__(self, recorded: Tree, *, strict: bool = False) -> None:
        self.strict = strict
        self.difference: Difference | None = None
        """The first one that was found."""
        self._recorded = recorded
        self._twins: dict[int, Span] = {}
        self._left: dict[int | None, dict[Key, deque[Span]]] = {}
        """By the recorded parent: its children that have not been met yet, by what they are."""

    def find(
        self, parent: int | None, kind: str, attrs: dict[str, Any], prompts: list[str] | None
    ) -> Span | None:
        """The recorded span of a span that starts now; it is not found a second time."""
        above = self._twins.get(parent) if parent is not None else None
        if parent is not None and above is None:
            return None
        found = self._children(above).get(_key(kind, attrs))
        if not found:
            return None
        if prompts is None:
            return found.popleft()
        for position, span in enumerate(found):
            if all(_is_at(slot, prompts) for slot in span.slots):
                del found[position]
                return span
        return None

    def knows(
        self, parent: int, kind: str, attrs: dict[str, Any], prompts: list[str] | None
    ) -> bool:
        """Whether :meth:`find` would find one; it can be found still."""
        found = self.find(parent, kind, attrs, prompts)
        if found is not None:
            above = self._twins.get(parent)
            self._children(above)[_key(kind, attrs)].appendleft(found)
        return found is not None

    def edited(self, live: int, name: str) -> Any:
        """The attribute of the recorded span, if the user has edited it; else None."""
        twin = self._twins.get(live)
        return twin.attrs.get(name) if twin is not None and name in twin.edited else None

    def pair(self, live: int, twin: Span) -> None:
        """``live`` is the id of the span in whose place ``twin`` stands."""
        self._twins[live] = twin

    def twin(self, live: int) -> Span | None:
        """The recorded span of a span, also one that was still open."""
        return self._twins.get(live)

    def left(self, live: int) -> list[Span]:
        """Recorded children of a span that have not been met."""
        twin = self._twins.get(live)
        if twin is None:
            return []
        found = [span for same in self._children(twin).values() for span in same]
        return [span for span in found if span.kind != "pause"]

    def compare(self, place: str, what: str, recorded: Any, replayed: Any) -> bool:
        """Note a difference, if there is one and it is the first; True if both are the same.

        Addresses of objects in memory are no difference.
        """
        if recorded == replayed:
            return True
        before, after = (
            None if value is None else text_of(value) for value in (recorded, replayed)
        )
        if before is not None and after is not None and _same(before, after):
            return True
        if self.difference is None:
            self.difference = Difference(place, what, before, after)
        return False

    def _children(self, above: Span | None) -> dict[Key, deque[Span]]:
        number = above.id if above is not None else None
        if number not in self._left:
            self._left[number] = {}
            children = self._recorded.roots if above is None else above.children
            for span in list(children):
                key = _key(span.kind, {**span.attrs, "prompt": asked(span)})
                self._left[number].setdefault(key, deque()).append(span)
        return self._left[number]


def _key(kind: str, attrs: dict[str, Any]) -> Key:
    if kind in ("turn", "code", "slot"):
        return kind, _plain(attrs.get("index")), bool(attrs.get("final"))
    if kind == "batch":
        return kind, _plain(attrs.get("function")), _plain(attrs.get("size"))
    if kind == "tool":
        return kind, _plain(attrs.get("function")), _plain(attrs.get("arguments"))
    if kind == "lm_call":
        return kind, _plain(attrs.get("function")), _plain(attrs.get("prompt"))
    return kind, _plain(attrs.get("prompt"))


def _same(before: str, after: str) -> bool:
    return _ADDRESS.sub("0x", before) == _ADDRESS.sub("0x", after)


def _is_at(slot: Span, prompts: list[str]) -> bool:
    index = slot.index
    return index is not None and 0 <= index < len(prompts) and asked(slot) == prompts[index]


def _plain(value: Any) -> Any:
    """Something that can be a part of a key, whatever stands in the file."""
    return value if isinstance(value, str | int | None) else repr(value)


def asked(span: Span) -> Any:
    """The prompt as the code asked it, before the user edited it."""
    return span.edited.get("prompt", span.attrs.get("prompt"))

"""What a block printed: kept up to a cap, and shown as a terminal would show it.

The trace keeps the output as it was printed; the model is shown it without colours and redrawn
lines.
"""

from __future__ import annotations

import re
import threading
from collections import deque

OUTPUT_CAP = 4 * 1024 * 1024
"""Characters of stdout, and of stderr, that are kept of one block: head and tail."""
MOST_SWITCHES = 10_000
"""How often the code may go from stdout to stderr and back until the order is no longer kept."""

_ANSI = re.compile(
    r"\x1b(?:"
    r"\[[0-?]*[ -/]*[@-~]"  # colours, cursor movements
    r"|\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # titles, links
    r"|[PX^_][^\x1b]*(?:\x1b\\)?"  # strings for the terminal
    r"|[ -/]*[0-~])"
)
_BACKSPACE = re.compile(r"[^\n\x08]\x08")
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def shown(text: str) -> str:
    """The text as it stands in the end: of a progress bar, only its last state."""
    if text.isprintable():
        return text
    text = _ANSI.sub("", text).replace("\r\n", "\n")
    if "\r" in text:
        text = "\n".join(map(_redrawn, text.split("\n")))
    while "\x08" in text and (erased := _BACKSPACE.sub("", text)) != text:
        text = erased
    return _CONTROLS.sub("", text)


def _redrawn(line: str) -> str:
    """A line whose beginning was written over, some times."""
    seen = ""
    for part in line.split("\r"):
        seen = part + seen[len(part) :]
    return seen.rstrip() if "\r" in line else seen


class Kept:
    """What a block prints, kept in memory up to a cap. May be written to from any thread.

    See :class:`rlm_notebook.repl.interpreter.Capture`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.begin()

    def begin(self) -> None:
        """A block begins."""
        with self._lock:
            self._streams = {"stdout": _Ends(), "stderr": _Ends()}
            self._order: list[tuple[str, int]] = []

    def write(self, stream: str, text: str) -> None:
        """``stream`` is stdout or stderr."""
        if not text:
            return
        with self._lock:
            self._streams[stream].add(text)
            if self._order and self._order[-1][0] == stream:
                text_before = self._order.pop()[1]
                self._order.append((stream, text_before + len(text)))
            elif len(self._order) < MOST_SWITCHES:
                self._order.append((stream, len(text)))

    def end(self) -> tuple[str, str, list[tuple[str, int]]]:
        """A block has ended."""
        with self._lock:
            out, err = self._streams["stdout"], self._streams["stderr"]
            whole = not (out.lost or err.lost) and len(self._order) < MOST_SWITCHES
            order = self._order if whole and out.size and err.size else []
            return out.text(), err.text(), order


class _Ends:
    """A text of which head and tail are kept, in characters."""

    def __init__(self) -> None:
        self.size = 0
        self._head: list[str] = []
        self._in_head = 0
        self._tail: deque[str] = deque()
        self._in_tail = 0

    def add(self, text: str) -> None:
        self.size += len(text)
        room = OUTPUT_CAP * 3 // 4 - self._in_head
        if room > 0:
            self._head.append(text[:room])
            self._in_head += len(self._head[-1])
            text = text[room:]
        if text:
            self._tail.append(text[-(OUTPUT_CAP // 4) :])
            self._in_tail += len(self._tail[-1])
            while self._in_tail - len(self._tail[0]) >= OUTPUT_CAP // 4:
                self._in_tail -= len(self._tail.popleft())

    @property
    def lost(self) -> int:
        """Characters that were not kept."""
        return max(0, self.size - OUTPUT_CAP)

    def text(self) -> str:
        tail = "".join(self._tail)
        if self.lost:
            mark = f"\n[... {self.lost:,} characters of output were not kept ...]\n"
            tail = mark + tail[-(OUTPUT_CAP // 4) :]
        return "".join(self._head) + tail

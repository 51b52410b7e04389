"""What a terminal would show of what a program printed: colours and redrawn lines taken out.

The trace keeps the output as it was printed; the model is shown this.
"""

from __future__ import annotations

import re

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

"""Code blocks and final answers out of the text of a root model. Pure functions."""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from dataclasses import dataclass, field

LANGUAGES = frozenset(("repl", "python", "py"))
"""Marks of blocks that are run, in any case."""

_OPEN = re.compile(r"^(?P<indent>[ \t]*)(?P<fence>`{3,}|~{3,})[ \t]*(?P<language>[\w+-]*)[ \t]*$")
_FINAL = re.compile(r"^[ \t]*(?P<name>FINAL|FINAL_VAR)\(", re.MULTILINE)
_MOST_CLOSERS = 64
"""How many lines of ``` inside one block are tried as its end."""


@dataclass(frozen=True)
class Final:
    """A final answer given as text: ``FINAL(text)`` or ``FINAL_VAR(name)``."""

    text: str
    is_variable: bool = False


@dataclass(frozen=True)
class Reply:
    """What a reply of the root model contains."""

    blocks: list[str] = field(default_factory=list)
    """Code to run, in order."""
    final: Final | None = None
    cut: bool = False
    """True if the last block was cut at the reply's length limit; it is not among the blocks."""
    other: int = 0
    """Fenced blocks that are not marked as code to run."""


def parse_reply(text: str, finish_reason: str | None = None) -> Reply:
    """Find the blocks to run and a final answer.

    What stands in ``<think>`` is not looked at. A block that is never closed is run only if the
    reply ended by itself (``finish_reason="stop"``) and the code is whole.
    """
    lines = without_thinking(text.removeprefix("\ufeff").replace("\r\n", "\n")).split("\n")
    blocks: list[str] = []
    prose: list[str] = []
    cut = False
    other = 0
    at = 0
    while at < len(lines):
        opening = _OPEN.match(lines[at])
        if opening is None:
            prose.append(lines[at])
            at += 1
            continue
        code, end = _block(lines, at, opening["indent"], opening["fence"])
        runs = opening["language"].lower() in LANGUAGES
        if end is None:
            end = len(lines)
            if runs and finish_reason == "stop" and parses(code):
                blocks.append(code)
            elif runs:
                cut = True
        elif runs:
            if code.strip():
                blocks.append(code)
        else:
            other += 1
        at = end + 1
    return Reply(blocks, _final("\n".join(prose)), cut, other)


def without_thinking(text: str) -> str:
    """The text without its ``<think>`` part; thinking that never ends takes all the rest."""
    kept: list[str] = []
    head, opened, rest = text.partition("<think>")
    if not opened and (bare := re.search(r"^\s*</think>|</think>\s*$", text, re.MULTILINE)):
        return text[bare.end() :]  # some servers swallow the opening tag
    while opened:
        kept.append(head)
        _, closed, rest = rest.partition("</think>")
        if not closed:
            return "".join(kept)
        head, opened, rest = rest.partition("<think>")
    return "".join(kept) + head + rest


def parses(code: str) -> bool:
    """Whether the code is whole, valid Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _block(lines: list[str], start: int, indent: str, fence: str) -> tuple[str, int | None]:
    """The code of the block that opens at ``start``, and the line of its end (None: no end).

    A fence line inside a string of the code is not the end: the end is the first fence line
    at which the code is whole. If there is none, it is the first fence line, and the syntax
    error goes back to the model.
    """
    closer = re.compile(rf"^[ \t]*{re.escape(fence[0])}{{{len(fence)},}}[ \t]*$")
    first: int | None = None
    tried = 0
    for at in range(start + 1, len(lines)):
        if closer.match(lines[at]) is None:
            continue
        if first is None:
            first = at
        code = _dedented(lines[start + 1 : at], indent)
        tried += 1
        if parses(code):
            return code, at
        if tried == _MOST_CLOSERS:
            break
    end = first if first is not None else len(lines)
    return _dedented(lines[start + 1 : end], indent), first


def _dedented(lines: list[str], indent: str) -> str:
    code = "\n".join(line.removeprefix(indent) for line in lines)
    if code[:1] in (" ", "\t") and not parses(code):
        return textwrap.dedent(code)
    return code


def _final(prose: str) -> Final | None:
    found = _FINAL.search(prose)
    if found is None:
        return None
    rest = prose[found.end() :]
    whole = rest.rstrip()
    inner = whole[:-1] if whole.endswith(")") else _balanced(rest)
    if found["name"] == "FINAL_VAR":
        return Final(inner.strip().strip("\"'"), is_variable=True)
    return Final(inner)


def _balanced(text: str) -> str:
    """The text up to the parenthesis that closes the one before it; all of it if none does."""
    depth = 1
    for found in re.finditer(r"[()]", text):
        depth += 1 if found[0] == "(" else -1
        if depth == 0:
            return text[: found.start()]
    return text

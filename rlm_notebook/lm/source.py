"""What Python source says about a name: where it is defined, what it returns, its defaults.

Regular expressions, not a parser: the text may be a piece of a file, cut anywhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rlm_notebook.lm.questions import Question

_DEFAULT = (
    r"(?:\s*:[^=,\n]{1,80})?\s*=\s*"
    r"(\"[^\"]*\"|'[^']*'|\([^()]*\)|\[[^\[\]]*\]|\{[^{}]*\}|[^,()\n]+(?:\([^()]*\))?)"
)
_SIGNATURE = 3_000
"""Characters in which the end of a signature is looked for."""


@dataclass(frozen=True)
class Definition:
    """A definition that answers a question."""

    position: int
    line: str
    """The line it begins with."""
    answer: str | None
    """None: the place is the answer."""
    score: float


def find_definition(question: Question, text: str) -> Definition | None:
    """The definition that a question about a Python name asks for, or None."""
    assert question.subject is not None
    name = re.escape(question.subject)
    words = {"class": "class", "def": "(?:async )?def"}
    word = words.get(question.subject_is, "(?:class|(?:async )?def)")
    patterns = [(rf"^([ \t]*){word} {name}\b[^\n]*", 1.0)]
    if not question.subject_is:
        patterns.append((rf"^(){name}(?:: [^=\n]+)? = [^\n]*", 0.9))
    for pattern, score in patterns:
        matches = list(re.finditer(pattern, text, re.MULTILINE))
        if matches:
            # a definition at the top level before one inside a class or a function
            best = min(matches, key=lambda match: len(match[1]))
            line = best[0].strip()
            score -= 0.05 * bool(best[1])
            if question.kind == "definition":
                return Definition(best.start(), line, None, score)
            answer = _about(question, text, best)
            return Definition(best.start(), line, answer, score) if answer else None
    return None


def _about(question: Question, text: str, head: re.Match[str]) -> str | None:
    if question.kind == "returns":
        return _returned(text, head)
    if question.kind == "base":
        bases = re.search(r"\(([^)]*)\)", head[0])
        return bases[1] if bases else None
    if question.kind == "default" and question.parameter:
        signature = text[head.start() : _end_of_signature(text, head.start())]
        found = re.search(rf"\b{re.escape(question.parameter)}\b{_DEFAULT}", signature)
        return found[1].strip() if found else None
    return None


def _returned(text: str, head: re.Match[str]) -> str | None:
    """What the ``return`` statements of a function give."""
    outside = re.compile(rf"^[ \t]{{0,{len(head[1])}}}(?=[^\s)#])", re.MULTILINE)
    end = outside.search(text, head.end())
    body = text[head.end() : end.start() if end else len(text)]
    found = re.findall(r"^[ \t]+return\b[ \t]*([^\n]*)", body, re.MULTILINE)
    distinct = dict.fromkeys(value.strip() or "None" for value in found)
    return " or ".join(distinct) if distinct else None


def _end_of_signature(text: str, start: int) -> int:
    depth = 0
    for found in re.compile(r"[()]").finditer(text, start, start + _SIGNATURE):
        depth += 1 if found[0] == "(" else -1
        if depth == 0:
            return found.end()
    return start + _SIGNATURE

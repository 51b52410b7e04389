"""Read a question without a language model: what is asked for, and which words matter."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["where", "definition", "value", "number", "count", "date", "person", "passage"]

STOPWORDS = frozenset(
    [
        "a",
        "about",
        "according",
        "all",
        "an",
        "and",
        "answer",
        "any",
        "are",
        "as",
        "at",
        "be",
        "been",
        "by",
        "can",
        "called",
        "context",
        "could",
        "define",
        "defined",
        "defines",
        "did",
        "do",
        "does",
        "documents",
        "file",
        "find",
        "for",
        "from",
        "function",
        "class",
        "method",
        "exception",
        "constant",
        "variable",
        "give",
        "given",
        "has",
        "have",
        "how",
        "i",
        "if",
        "in",
        "into",
        "is",
        "it",
        "its",
        "line",
        "list",
        "many",
        "me",
        "mentioned",
        "mentions",
        "module",
        "much",
        "name",
        "named",
        "need",
        "not",
        "number",
        "of",
        "on",
        "one",
        "only",
        "or",
        "out",
        "over",
        "please",
        "question",
        "return",
        "returns",
        "section",
        "should",
        "show",
        "tell",
        "text",
        "than",
        "that",
        "the",
        "their",
        "them",
        "there",
        "these",
        "they",
        "this",
        "to",
        "under",
        "use",
        "used",
        "user",
        "value",
        "was",
        "we",
        "were",
        "what",
        "when",
        "where",
        "which",
        "who",
        "whom",
        "whose",
        "why",
        "will",
        "with",
        "would",
        "you",
        "your",
        "recursively",
        "each",
        "every",
        "part",
        "parts",
        "default",
        "parameter",
        "argument",
        "chapter",
        "document",
        "message",
        "entry",
        "page",
        "note",
    ]
)
WORD = re.compile(r"[A-Za-z_][\w.]*\w|\d[\d.,:-]*\d|\w")
_QUOTED = re.compile(r"[\"'`“‘]([^\"'`”’]{2,80})[\"'`”’]")
_PLACE = (
    r"(?:module|file|script|section|chapter|document|message|entry|page|note|part|item|log|key)"
)


@dataclass(frozen=True)
class Question:
    """What is asked for, and the words to look for."""

    text: str
    kind: Kind = "passage"
    terms: dict[str, float] = field(default_factory=dict)
    """Word or phrase in lower case -> weight."""
    defined: str | None = None
    """The Python name whose definition is sought."""
    defined_as: str = ""
    """class or def, where the question says which."""

    @property
    def key(self) -> str | None:
        """The weightiest name or quotation: a text without it holds no answer."""
        heavy = [term for term, weight in self.terms.items() if weight >= 4]
        return max(heavy, key=lambda term: self.terms[term]) if heavy else None


def read_question(text: str) -> Question:
    """Tell what a question asks for and which words matter."""
    text = " ".join(text.split())
    if "?" in text:
        text = text[: text.index("?") + 1]  # what follows is an instruction
    lower = text.lower()
    terms: dict[str, float] = {}
    for phrase in _QUOTED.findall(text):
        terms[phrase.strip().lower()] = 5.0
    for number, word in enumerate(WORD.findall(text)):
        plain = word.lower()
        if plain in STOPWORDS or (len(plain) < 3 and not plain.isdigit()):
            continue
        terms.setdefault(plain, _weight(word, first=number == 0))
    defined, defined_as = _definition(text)
    return Question(text, _kind(lower, defined), terms, defined, defined_as)


def _weight(word: str, *, first: bool) -> float:
    if "_" in word or "." in word.strip(".") or re.search(r"[a-z][A-Z]", word):
        return 4.0
    if any(character.isdigit() for character in word):
        return 3.0
    if word[:1].isupper() and not first:
        return 2.0
    return 1.0


def _kind(lower: str, defined: str | None) -> Kind:
    asks_place = re.search(rf"\b(?:which|what|name of the) {_PLACE}s?\b|^where\b", lower)
    if defined is not None and (asks_place or re.search(r"\bdefin", lower)):
        return "definition"
    if re.search(r"how many (?:times|lines|occurrences)|how often|\bcount\b", lower):
        return "count"
    if "how many" in lower or "how much" in lower:
        return "number"
    if re.match(r"(?:when|since when|(?:on |in )?(?:what|which) (?:date|year|day|month))\b", lower):
        return "date"
    if re.match(r"who(?:se|m)?\b", lower):
        return "person"
    if asks_place:
        return "where"
    if re.search(
        r"\bwhat(?:'s| is| was| are| were)?\b|\bvalue of\b|\bwhich\b|^give\b|^name\b", lower
    ):
        return "value"
    return "passage"


def _definition(text: str) -> tuple[str | None, str]:
    """The Python name whose definition a question asks for, and class or def."""
    if not re.search(r"\bdefin|\bimplement|\bdeclar|^where is\b|^what does\b", text, re.IGNORECASE):
        return None, ""
    named = re.search(
        r"\b(class|exception|function|method|constant|variable)s? (?:called |named )?"
        r"[`'\"]?([A-Za-z_]\w*)[`'\"]?",
        text,
        re.IGNORECASE,
    )
    if named and named[2].lower() not in STOPWORDS:
        kinds = {"class": "class", "exception": "class", "function": "def", "method": "def"}
        return named[2], kinds.get(named[1].lower(), "")
    for word in re.findall(r"[A-Za-z_]\w+", text)[1:]:
        if "_" in word or re.search(r"[a-z][A-Z]", word):
            return word, ""
    return None, ""

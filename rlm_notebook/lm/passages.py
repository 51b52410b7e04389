"""Find the passage of a text that answers a question, without a language model.

Pure functions: question words are weighed, lines are scored by the words around them, and the
value, name, date or number is cut out of the best line by simple rules.
"""

from __future__ import annotations

import re
from bisect import bisect_right
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
EVIDENCE = 300
"""Characters of the quoted passage."""
_WORD = re.compile(r"[A-Za-z_][\w.]*\w|\d[\d.,:-]*\d|\w")
_QUOTED = re.compile(r"[\"'`“‘]([^\"'`”’]{2,80})[\"'`”’]")
_PLACE = (
    r"(?:module|file|script|section|chapter|document|message|entry|page|note|part|item|log|key)"
)
_HEADING = re.compile(
    r"^(?:=== (.{1,200}?) ===|(?:#|//)? ?(?:[Ff]ile|[Mm]odule|[Dd]ocument): ?(.{1,200})|"
    r"#{1,6} (.{1,120})|((?:Chapter|Section|Part|Note|Item|Page|Entry) [\w.]{1,12}))",
    re.MULTILINE,
)
_OWN_HEADING = re.compile(r"^=== (.{1,200}?) ===$", re.MULTILINE)
_DATE = re.compile(
    r"\b\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2})?)?\b|\b\d{1,2}[./]\d{1,2}[./]\d{2,4}\b|"
    r"\b(?:\d{1,2} )?(?:January|February|March|April|May|June|July|August|September|October|"
    r"November|December)(?: \d{1,2})?,? ?(?:\d{4})?\b|\b(?:1[5-9]|20)\d{2}\b"
)
_NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?%?(?![\w])")
_PERSON = re.compile(
    r"\b[A-Z][\w'-]+(?: (?:[A-Z]\.|[A-Z][\w'-]+|de|von|van))+\b|\b[A-Z][a-z'-]{2,}\b"
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


@dataclass(frozen=True)
class Found:
    """An answer with the passage it rests on."""

    answer: str
    evidence: str
    score: float
    """0 to 1: how much of the question's weight stands around the passage."""


def read_question(text: str) -> Question:
    """Tell what a question asks for and which words matter."""
    text = " ".join(text.split())
    if "?" in text:
        text = text[: text.index("?") + 1]  # what follows is an instruction
    lower = text.lower()
    terms: dict[str, float] = {}
    for phrase in _QUOTED.findall(text):
        terms[phrase.strip().lower()] = 5.0
    for number, word in enumerate(_WORD.findall(text)):
        plain = word.lower()
        if plain in STOPWORDS or (len(plain) < 3 and not plain.isdigit()):
            continue
        terms.setdefault(plain, _weight(word, first=number == 0))
    defined, defined_as = _definition(text)
    return Question(text, _kind(lower, defined), terms, defined, defined_as)


def find(question: Question, text: str) -> Found | None:
    """The best answer in a text, or None if the text holds none."""
    if question.kind == "count":
        return _count(question, text)
    if question.defined is not None:
        found = _find_definition(question, text)
        if found is not None or question.kind == "definition":
            return found
    starts = [0, *(match.end() for match in re.finditer("\n", text))]
    scores = _line_scores(question, text, starts)
    if not scores:
        return None
    total = sum(question.terms.values())
    best = max(scores, key=lambda line: (scores[line], -line))
    score = min(1.0, scores[best] / total)
    if score < 0.5 or (question.key and question.key not in text.lower()):
        return None
    line = _line(text, starts, best)
    sentence = _sentence(question, line)
    answer = _extract(question, sentence, text, starts[best])
    where = _heading(text, starts[best])
    return Found(answer, _quoted(sentence, where), round(score, 3))


def central_sentences(text: str, count: int = 3) -> list[str]:
    """The sentences whose words occur most often in the text, in their order."""
    sentences = [s.strip() for s in re.split(r"(?<=[.!?])\s+|\n{2,}", text[:200_000]) if s.strip()]
    frequency: dict[str, int] = {}
    for word in _WORD.findall(text[:200_000].lower()):
        if word not in STOPWORDS and len(word) > 3:
            frequency[word] = frequency.get(word, 0) + 1

    def weight(sentence: str) -> float:
        words = set(_WORD.findall(sentence.lower()))
        return sum(frequency.get(word, 0) for word in words) / (8 + len(words))

    ranked = sorted(range(len(sentences)), key=lambda i: (-weight(sentences[i]), i))[:count]
    return [" ".join(sentences[i].split())[:EVIDENCE] for i in sorted(ranked)]


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


def _find_definition(question: Question, text: str) -> Found | None:
    assert question.defined is not None
    name = re.escape(question.defined)
    patterns = [(rf"^[ \t]*(?:class|(?:async )?def) {name}\b[^\n]*", 1.0)]
    if question.defined_as:
        keyword = "class" if question.defined_as == "class" else "(?:async )?def"
        patterns = [(rf"^[ \t]*{keyword} {name}\b[^\n]*", 1.0)]
    else:
        patterns.append((rf"^{name}(?:: [^=\n]+)? = [^\n]*", 0.9))
    for pattern, score in patterns:
        matches = list(re.finditer(pattern, text, re.MULTILINE))
        if matches:
            # a definition at the top level before one inside a class or a function
            best = min(matches, key=lambda m: len(m[0]) - len(m[0].lstrip()))
            nested = best[0][:1] in (" ", "\t")
            where = _heading(text, best.start())
            evidence = _quoted(best[0].strip(), where)
            return Found(where or best[0].strip(), evidence, score - 0.05 * nested)
    return None


def _count(question: Question, text: str) -> Found | None:
    term = question.key or max(question.terms, key=lambda t: question.terms[t], default="")
    body = _OWN_HEADING.sub("", text)
    number = len(re.findall(rf"(?<!\w){re.escape(term)}(?!\w)", body, re.IGNORECASE)) if term else 0
    if not number:
        return None
    return Found(str(number), f"{term!r} occurs {number} times", 1.0)


def _line_scores(question: Question, text: str, starts: list[int]) -> dict[int, float]:
    """Line -> weight of the question's words in it, with half of what its neighbours add."""
    lines: dict[int, dict[str, float]] = {}
    for term, weight in question.terms.items():
        stem = re.escape(term[:-1] if len(term) > 4 and term.endswith("s") else term)
        for number, match in enumerate(re.finditer(rf"(?<!\w){stem}", text, re.IGNORECASE)):
            if number > 5_000:
                break  # a word that stands everywhere tells nothing
            line = bisect_right(starts, match.start()) - 1
            lines.setdefault(line, {})[term] = weight
    scores: dict[int, float] = {}
    for line, own in lines.items():
        score = sum(own.values())
        for near in (line - 1, line + 1):
            score += sum(w / 2 for t, w in lines.get(near, {}).items() if t not in own)
        scores[line] = score
    return scores


def _line(text: str, starts: list[int], number: int) -> str:
    end = starts[number + 1] - 1 if number + 1 < len(starts) else len(text)
    return text[starts[number] : end].strip()


def _sentence(question: Question, line: str) -> str:
    """Of a long line, the sentence with most of the question's words."""
    if len(line) <= EVIDENCE:
        return line
    sentences = re.split(r"(?<=[.!?;])\s+", line)

    def weight(sentence: str) -> float:
        lower = sentence.lower()
        return sum(weight for term, weight in question.terms.items() if term in lower)

    return max(sentences, key=weight)


def _extract(question: Question, sentence: str, text: str, position: int) -> str:
    """The part of the sentence that the kind of question asks for; else the sentence."""
    if question.kind in ("where", "definition"):
        return _heading(text, position) or sentence[:EVIDENCE]
    pattern = {"date": _DATE, "number": _NUMBER}.get(question.kind)
    if pattern is not None:
        return _nearest(question, sentence, pattern) or sentence[:EVIDENCE]
    if question.kind == "person":
        names = [m[0] for m in _PERSON.finditer(sentence) if m[0].lower() not in question.terms]
        names = [name for name in names if name.lower() not in STOPWORDS]
        return max(names, key=len) if names else sentence[:EVIDENCE]
    if question.kind == "value":
        return _value(question, sentence) or sentence[:EVIDENCE]
    return sentence[:EVIDENCE]


def _value(question: Question, sentence: str) -> str | None:
    """What stands after ``is``, ``=`` or ``:`` behind a word of the question."""
    names = sorted(question.terms, key=lambda term: sentence.lower().find(term), reverse=True)
    for name in names:
        assigned = re.search(
            rf"(?<!\w){re.escape(name)}[\"']?\s*(?:=|:|->)\s*([\"'][^\"']*[\"']|[^,;)\]}}\s]+)",
            sentence,
            re.IGNORECASE,
        )
        if assigned:
            return assigned[1].strip("\"'").rstrip(".")
    ends = [m.end() for term in question.terms for m in _iter(term, sentence)]
    for end in sorted(ends, reverse=True):
        said = re.match(
            r"[^.]{0,60}?(?:\b(?:is|was|are|were|equals|reads|named|called)\b|[=:])\s*"
            r"(.+?)(?:[.;]\s|[.;]?$|, (?:and|but|which|who)\b)",
            sentence[end:],
        )
        if said:
            return said[1].strip().strip("\"'`")
    return None


def _nearest(question: Question, sentence: str, pattern: re.Pattern[str]) -> str | None:
    """The match of a pattern nearest to the question's words, itself no word of the question."""
    places = [m.start() for term in question.terms for m in _iter(term, sentence)] or [0]
    found = [m for m in pattern.finditer(sentence) if m[0].strip().lower() not in question.terms]
    if not found:
        return None
    best = min(found, key=lambda m: min(abs(m.start() - place) for place in places))
    return best[0].strip().rstrip(",")


def _iter(term: str, sentence: str) -> list[re.Match[str]]:
    return list(re.finditer(re.escape(term), sentence, re.IGNORECASE))


def _heading(text: str, position: int) -> str:
    """The nearest heading at or before a position, as a name; '' if there is none."""
    end = text.find("\n", position)
    pattern = _OWN_HEADING if text.startswith("=== ") else _HEADING  # then ``# x`` is a comment
    found = list(pattern.finditer(text, 0, len(text) if end < 0 else end))
    if not found:
        return ""
    return next(group for group in found[-1].groups() if group).strip().rstrip(":")


def _quoted(sentence: str, where: str) -> str:
    cut = sentence if len(sentence) <= EVIDENCE else sentence[: EVIDENCE - 1] + "…"
    return f"{cut} [{where}]" if where else cut

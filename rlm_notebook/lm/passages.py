"""Find the passage of a text that answers a question, without a language model.

Pure functions: lines are scored by the question's words around them, and the value, name, date or
number is cut out of the best line by simple rules.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass

from rlm_notebook.lm.questions import STOPWORDS, WORD, Question

EVIDENCE = 300
"""Characters of the quoted passage."""
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
class Found:
    """An answer with the passage it rests on."""

    answer: str
    evidence: str
    score: float
    """0 to 1: how much of the question's weight stands around the passage."""


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
    for word in WORD.findall(text[:200_000].lower()):
        if word not in STOPWORDS and len(word) > 3:
            frequency[word] = frequency.get(word, 0) + 1

    def weight(sentence: str) -> float:
        words = set(WORD.findall(sentence.lower()))
        return sum(frequency.get(word, 0) for word in words) / (8 + len(words))

    ranked = sorted(range(len(sentences)), key=lambda i: (-weight(sentences[i]), i))[:count]
    return [" ".join(sentences[i].split())[:EVIDENCE] for i in sorted(ranked)]


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

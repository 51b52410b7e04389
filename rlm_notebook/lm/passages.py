"""Find the passage of a text that answers a question, without a language model.

Pure functions: units of a text (lines, sentences) are scored by the weight of the question's
words in and around them; what is asked for is then cut out of the best one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rlm_notebook.lm.questions import FUNCTION_WORDS, WEAK, WORD, Question, pattern_of
from rlm_notebook.lm.sections import Sections, cells, separator, without_headings
from rlm_notebook.lm.source import find_definition
from rlm_notebook.lm.values import AROUND, DATE, NUMBER, assigned, cut_out, sentence_of

EVIDENCE = 300
"""Characters of the quoted passage."""
LEAST = 0.5
"""Share of the question's weight below which a passage is no answer."""
LEAST_FOR_PERSON = 0.6
"""The same where a person is asked for: some name stands near almost any word."""
UNNAMED = 0.7
"""What is left of a score where the thing is found, but not the property, date, number or person
that is asked for."""
UNCUT = 0.9
"""What is left of a score where the whole passage has to stand for the answer: it may be one that
was cut off at the end of a piece, and the next piece has it whole."""
UNDEFINED = 0.6
"""What is left of a score where a question about a Python name meets a text without its
definition."""
COMMON = 5_000
"""Occurrences of a word that are looked at: one that stands everywhere tells nothing."""
_SUMMARISED = 200_000


@dataclass(frozen=True)
class Found:
    """An answer with the passage it rests on."""

    answer: str
    evidence: str
    score: float
    """0 to 1: how much of the question's weight stands around the passage."""


def find(question: Question, text: str) -> Found | None:
    """The best answer in a text, or None if the text holds none."""
    sections = Sections(text)
    if question.kind == "count":
        return _count(question, text)
    if question.subject is not None:
        defined = find_definition(question, text)
        if defined is not None:
            where = sections.heading(defined.position)
            answer = defined.answer or where or defined.line
            return Found(_cut(answer), _quoted(defined.line, where), round(defined.score, 3))
        if question.subject_is and question.kind == "definition":
            return None
    if question.key and not pattern_of(question.key).search(text):
        return None
    ranked = _ranked(question, sections)
    if ranked is None:
        return None
    best, weight = ranked
    score = min(1.0, weight / question.total)
    if question.subject is not None:
        score *= UNDEFINED
    return _found(question, sections, best, score) if score >= LEAST else None


def _found(question: Question, sections: Sections, best: int, score: float) -> Found | None:
    """Cut the answer out of the best unit; None if that shows that it holds none."""
    unit = sections.unit(best)
    sentence = sentence_of(question, unit)
    where = sections.heading(sections.starts[best])
    if question.kind == "section" and where:
        return Found(where, _quoted(sentence, where), round(score, 3))
    answer = _cell(question, sections, best)
    if question.attribute and answer is None and not _named(question, sections, best, unit):
        score *= UNNAMED
    if answer is None and sections.is_heading(best) and best + 1 < len(sections.starts):
        # what is asked for stands under its name
        start = sections.starts[best + 1]
        answer = assigned(question, sections.text[start : start + AROUND], unmatched_in=unit)
        unit = sentence = sections.unit(best + 1)
    elif answer is None:
        answer = _near(question, sections, best, unit)
    answer = answer or cut_out(question, sentence) or cut_out(question, unit)
    if answer is None and question.kind in ("date", "number", "person"):
        score *= UNNAMED
    least = LEAST_FOR_PERSON if question.kind == "person" else LEAST
    if score < least:
        return None
    if answer is None and question.kind != "passage":
        score = max(LEAST, score * UNCUT)
    return Found(_cut(answer or sentence), _quoted(sentence, where), round(score, 3))


def central_sentences(text: str, count: int = 3) -> list[str]:
    """The sentences whose words occur most often in the text, in their order."""
    text = without_headings(text[:_SUMMARISED])
    split = re.split(r"(?<=[.!?])\s+|\n{2,}", text)
    sentences = list(dict.fromkeys(" ".join(s.split()) for s in split if s.strip()))
    words = [
        {w for w in WORD.findall(s.lower()) if len(w) > 3 and w not in FUNCTION_WORDS}
        for s in sentences
    ]
    frequency: dict[str, int] = {}
    for own in words:
        for word in own:
            frequency[word] = frequency.get(word, 0) + 1

    def weight(number: int) -> float:
        own = words[number]
        return sum(frequency[word] for word in own) / (8 + len(own))

    best = sorted(range(len(sentences)), key=lambda number: (-weight(number), number))[:count]
    return [_cut(sentences[number]) for number in sorted(best)]


def _count(question: Question, text: str) -> Found | None:
    """Lines, or occurrences of the weightiest word, as the question asks."""
    body = without_headings(text)
    strong = [term for term, weight in question.terms.items() if weight > WEAK]
    if re.search(r"\blines\b", question.text, re.IGNORECASE):
        lines = [line for line in body.split("\n") if line.strip()]
        patterns = [pattern_of(term) for term in strong]
        number = sum(all(pattern.search(line) for pattern in patterns) for line in lines)
        what = f"lines with {', '.join(map(repr, strong))}" if strong else "lines"
        return Found(str(number), f"{number} {what}", 1.0) if number else None
    term = question.key or max(strong, key=lambda term: question.terms[term], default=None)
    if term is None:
        return None
    number = sum(1 for _ in re.finditer(rf"(?<!\w){re.escape(term)}(?!\w)", body, re.IGNORECASE))
    return Found(str(number), f"{term!r} occurs {number} times", 1.0) if number else None


def _ranked(question: Question, sections: Sections) -> tuple[int, float] | None:
    """The best unit and its weight: the question's words in it, half of what its neighbours,
    its heading or the header of its table add."""
    units: dict[int, set[str]] = {}
    often: dict[str, int] = {}
    for term in question.terms:
        for match in pattern_of(term).finditer(sections.text):
            units.setdefault(sections.unit_at(match.start()), set()).add(term)
            often[term] = often.get(term, 0) + 1
            if often[term] >= COMMON:
                break
    terms = question.terms
    weights: dict[int, float] = {}
    for number, own in units.items():
        near = (units.get(number - 1, set()) | units.get(number + 1, set())) - own
        weights[number] = sum(terms[t] for t in own) + sum(terms[t] for t in near) / 2

    def rare(number: int) -> float:  # of equal units, the one with the rarer words
        return sum(terms[term] / often[term] for term in units[number])

    ranked = sorted(weights, key=lambda number: (-weights[number], -rare(number), number))[:30]
    headers = {number: sections.header(number) for number in ranked}
    for number, header in headers.items():
        above = sections.heading(sections.starts[number])
        near = units.get(-1 if header is None else header, set())
        near = near | {term for term in terms if above and pattern_of(term).search(above)}
        if header is None:
            near |= units.get(number - 1, set()) | units.get(number + 1, set())
        near -= units[number]
        weights[number] = sum(terms[t] for t in units[number]) + sum(terms[t] for t in near) / 2
    rows = [number for number in ranked if number not in headers.values()]
    typed = {"date": DATE, "number": NUMBER}.get(question.kind)

    def rank(number: int) -> tuple[float, float, int]:
        fits = bool(typed and typed.search(sections.unit(number)))
        return weights[number] + fits / 4, rare(number), -number

    best = max(rows or ranked, key=rank, default=None)
    return None if best is None else (best, weights[best])


def _cell(question: Question, sections: Sections, number: int) -> str | None:
    """The cell of a row under the column that the question names."""
    header = sections.header(number)
    split = separator(sections.unit(number))
    if header is None or split is None or question.kind == "section":
        return None
    names = cells(sections.unit(header), split[0])
    row = cells(sections.unit(number), split[0])
    focus = question.focus
    for term in [*([focus] if focus else []), *question.terms]:
        for name, cell in zip(names, row, strict=False):
            if pattern_of(term).search(name) and cell.lower() not in question.terms:
                return cell
    return None


def _named(question: Question, sections: Sections, number: int, unit: str) -> bool:
    """Whether the property that is asked for is named around a unit."""
    start = sections.starts[number]
    around = sections.text[max(0, start - AROUND) : start + len(unit) + AROUND]
    return question.focus is not None and pattern_of(question.focus).search(around) is not None


def _near(question: Question, sections: Sections, number: int, unit: str) -> str | None:
    """A value whose name stands some lines away, as in JSON or in a long signature."""
    if question.kind not in ("value", "number", "date", "person", "place"):
        return None
    focus = question.focus
    if focus is None or pattern_of(focus).search(unit):
        return None
    start = sections.starts[number]
    after = sections.text[start : start + len(unit) + AROUND]
    before = sections.text[max(0, start - AROUND) : start]
    return assigned(question, after, unmatched_in=unit) or assigned(
        question, before, unmatched_in=unit
    )


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= EVIDENCE else text[: EVIDENCE - 1] + "…"


def _quoted(sentence: str, where: str) -> str:
    return f"{_cut(sentence)} [{where}]" if where else _cut(sentence)

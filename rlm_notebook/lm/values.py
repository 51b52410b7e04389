"""Cut the value, name, date, number or place out of a passage, by simple rules."""

from __future__ import annotations

import re

from rlm_notebook.lm.questions import FUNCTION_WORDS, WEAK, Question, pattern_of

DATE = re.compile(
    r"\b\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2})?)?\b|\b\d{1,2}[./]\d{1,2}[./]\d{2,4}\b|"
    r"\b(?:\d{1,2} )?(?:January|February|March|April|May|June|July|August|September|October|"
    r"November|December)(?: \d{1,2})?,? ?(?:\d{4})?\b|"
    r"\b(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day\b|\b(?:1[5-9]|20)\d{2}\b|\b\d{1,2}:\d{2}\b"
)
NUMBER = re.compile(
    r"(?<![\w.:-])[$€£]?-?\d[\d,]*(?:\.\d+)?(?:%|(?![\w:-]))|"
    r"\b(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve)\b",
    re.IGNORECASE,
)
_COUNTED = "two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
MEASURE = re.compile(
    rf"(?:(?<![\w.:-])[$€£]?-?\d[\d,]*(?:\.\d+)?|\b(?:{_COUNTED})\b)(?:%| ?[^\W\d_]+\b)?"
)
_TYPED = {
    "ip": re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b"),
    "email": re.compile(r"[\w.+-]+@[\w-]+\.[\w.-]*\w"),
    "url": re.compile(r"\bhttps?://[^\s\"'<>)\]]+"),
}
"""What some words of a question look like in a text."""
_NAME = re.compile(
    r"\b[A-Z][\w'’-]*(?: (?:[A-Z]\.|[A-Z][\w'’-]+|de|von|van|der))+|\b[A-Z][a-z'’-]{2,}\b"
)
_BY = re.compile(
    r"\bby ((?:the |a |an )?(?:[\w'’-]+ ){0,3}?[\w'’-]+)(?=[.,;]|\s(?:in|on|at|and)\b|$)"
)
_SPEAKER = re.compile(r"^(?:\[[^\]]*\]\s*|[\d:./T -]+\s)?([^\W\d][\w .-]{0,29}):\s")
_ROLE = re.compile(r"^(?:user|assistant|system): ")
_OPENERS = re.compile(
    r"(?:Yesterday|Today|Tomorrow|Later|Then|Now|Soon|Once|Meanwhile|Finally|However|Also|But|And|"
    r"Only|Our|His|Her|My|No|"
    + "|".join(word.capitalize() for word in sorted(FUNCTION_WORDS) if len(word) > 1)
    + r")\b,? ?"
)
_PLACE = re.compile(
    r"\b(?:in|at|on|under|behind|near|inside|beneath|above|below|between|beside|next to|from|to|"
    r"into|within|outside)\s(?:[^,.;!?\n]|\.(?=\d))+?(?=\s(?:by|when|while|because|after|before|since|until|"
    r"and|but|where)\b|[,;!?]|\.(?!\d)|$)"
)
_TITLES = r"(?<!\bDr\.)(?<!\bMr\.)(?<!\bMs\.)(?<!\bSt\.)(?<!\bNo\.)(?<!\bMrs\.)(?<!\bProf\.)"
_SENTENCE_END = re.compile(rf"(?<=[.!?])[\"')]?{_TITLES}\s+(?=[^a-z])")
_SAID = re.compile(
    r"[^.!?]{0,60}?(?:\b(?:is|was|are|were|equals|reads|named|called)\b|[=:](?=\s))\s*"
    r"(.+?)(?:[.;]\s|[.;]?$|, (?:and|but|which|who)\b)"
)
AROUND = 400
"""Characters within which a name and its value belong together."""
_BY_WHOM = re.compile(r" by (.+?)(?:[.;,]\s|[.;]?$| (?:in|on|at) (?=\d))")
_CODES = frozenset(["code", "id", "key", "number", "password", "pin", "port", "token", "version"])


def sentence_of(question: Question, unit: str) -> str:
    """The sentence of a unit with most of the question's words."""
    focus = pattern_of(question.focus) if question.focus else None

    def weight(sentence: str) -> float:  # of equal ones, the one with the word asked about
        return _matched(question, sentence) + 0.1 * bool(focus and focus.search(sentence))

    return max(_SENTENCE_END.split(unit), key=weight)


def cut_out(question: Question, sentence: str) -> str | None:
    """The part of a sentence that the kind of question asks for; None if it is not there."""
    if question.kind == "date":
        return _nearest(question, sentence, DATE)
    if question.kind == "number":
        return _number(question, sentence)
    if question.kind == "person":
        return _person(question, sentence)
    if question.kind == "place":
        return _place(question, sentence)
    if question.kind in ("value", "section", "default"):
        for word, pattern in _TYPED.items():
            if word in question.terms and (found := pattern.search(sentence)):
                return found[0]
        sentence = _ROLE.sub("", sentence)
        return (
            assigned(question, sentence)
            or _labelled(question, sentence)
            or _said(question, sentence)
        )
    reason = (
        re.search(r"\b(?:because|due to|since)\b.+", sentence)
        if "why" in question.text.lower()
        else None
    )
    return reason[0] if reason else None


def assigned(question: Question, text: str, *, unmatched_in: str = "") -> str | None:
    """What stands after ``=`` or ``:`` behind a word of the question, the asked-for word first.

    With ``unmatched_in``, only words that do not occur there count: the passage was found by the
    others.
    """
    for term in _asked_first(question):
        pattern = pattern_of(term)
        if unmatched_in and pattern.search(unmatched_in):
            continue
        other = max(
            (t for t in question.terms if t != term), key=question.terms.__getitem__, default=""
        )
        anchors = [match.end() for match in pattern_of(other).finditer(text)] if other else []
        best: tuple[int, str] | None = None
        for found in re.finditer(
            rf"(?P<start>^[ \t\-*\"']*)?(?P<name>{pattern.pattern})[\"'`)\]*]*"
            r"(?:\s*:\s*[\w.\[\]| ]{1,40}=(?!=)|\s*(?::=|->|=>|=(?!=)|:(?![:/])))[ \t]*(?=(?P<rest>[^\n]{1,400}))",
            text,
            re.IGNORECASE | re.MULTILINE,
        ):
            value = _first_value(found["rest"], whole=found["start"] is not None)
            if value and value.lower() not in question.terms:
                gap = min((_gap(text, at, found.start("name")) for at in anchors), default=0)
                best = min(best or (gap, value), (gap, value), key=lambda pair: pair[0])
        if best:
            return best[1]
    return None


def _gap(text: str, one: int, other: int) -> int:
    """The distance of two places; a brace between them says that they belong to two objects."""
    between = text[min(one, other) : max(one, other)]
    return len(between) + AROUND * len(re.findall(r"[{}]", between))


def _first_value(rest: str, *, whole: bool) -> str:
    """The value at the start of the rest of a line; all of it where the line is ``name: value``."""
    quoted = re.match(r"\"([^\"]*)\"|'([^']*)'", rest)
    if quoted:
        return quoted[1] or quoted[2] or ""
    if whole:
        rest = re.split(r"\s+#|,\s+[\w\"']+\s*[:=]|[;|]|(?<=[^\d])\.\s", rest)[0]
    else:
        rest = re.split(r"[,;)\]}\s]", rest)[0]
    return rest.strip().rstrip(",.").strip("\"'` {")


def _labelled(question: Question, sentence: str) -> str | None:
    """``w2`` for "which worker": a name with a digit right behind the asked-for word."""
    if question.focus is None or not re.search(r"\bwhich\b", question.text, re.IGNORECASE):
        return None
    found = re.search(
        rf"{pattern_of(question.focus).pattern} (?=\S*\d)([\w.-]+)", sentence, re.IGNORECASE
    )
    return found[1] if found and found[1].lower() not in question.terms else None


def _said(question: Question, sentence: str) -> str | None:
    """What stands behind ``is`` or ``was``, after the last word of the question it can follow."""
    for end in sorted({m.end() for m in _matches(question, sentence)}, reverse=True):
        said = _BY_WHOM.match(sentence, end) or _SAID.match(sentence, end)
        if said is None:
            continue
        value = said[1].strip().strip("\"'`")
        known = [m for m in _matches(question, value) if m.start() == 0]
        moved = (
            re.match(r" (?:by|in|at|on|to|with|as) ", value[known[0].end() :]) if known else None
        )
        if known and moved:  # "hosted by Lyon"
            value = value[known[0].end() + moved.end() :]
            value = re.split(r" (?:in|on|at) (?=\d)", value)[0]
        first = value.split()[0] if value.split() else ""
        if question.focus in _CODES and any(c.isdigit() for c in first):
            return first.rstrip(",;")
        if value and value.lower() not in question.terms:
            return value
    return None


def _number(question: Question, sentence: str) -> str | None:
    pattern = MEASURE if question.measure else NUMBER
    focus = question.focus
    near = list(pattern_of(focus).finditer(sentence)) if focus and not question.measure else []
    for place in near:  # "420 beds" before "beds: 420" before any other number
        before = re.search(rf"({NUMBER.pattern})\W+(?:\w+\W+)?$", sentence[: place.start()], re.I)
        if before:
            return before[1]
    if near and (value := assigned(question, sentence)):
        return value
    return _nearest(question, sentence, pattern)


def _person(question: Question, sentence: str) -> str | None:
    speaker = _SPEAKER.match(sentence)
    body = sentence[speaker.end() :] if speaker else sentence
    if speaker and re.search(r"\b(?:I|my|I'm|we)\b", body):
        return speaker[1]
    if not speaker and (value := assigned(question, sentence)):
        return value
    by = _BY.search(body)
    if by and not DATE.search(by[1]):
        named = _NAME.search(by[1])
        return named[0] if named else by[1]
    found = []
    for match in _NAME.finditer(body):
        name = _OPENERS.sub("", match[0])
        lower = name.lower()
        if (
            not name
            or DATE.fullmatch(name)
            or any(pattern_of(t).fullmatch(lower) for t in question.terms)
        ):
            continue
        opens = match.start() == 0 and " " not in match[0] and match[0].lower().endswith("ly")
        places = [m.start() for m in _matches(question, body)] or [0]
        distance = min(abs(match.end() - place) for place in places)
        in_place = body[: match.start()].endswith((" in ", " at ", "from ", " on "))
        found.append((opens or in_place, " " not in name, distance, match.start(), name))
    return min(found)[-1] if found else None


def _place(question: Question, sentence: str) -> str | None:
    if value := assigned(question, sentence):
        return value
    ends = [match.end() for match in _matches(question, sentence)]
    for match in _PLACE.finditer(sentence, max(ends, default=0)):
        return match[0]
    found = [m[0] for m in _PLACE.finditer(sentence) if _matched(question, m[0]) == 0]
    return found[-1] if found else None


def _nearest(question: Question, sentence: str, pattern: re.Pattern[str]) -> str | None:
    """The match of a pattern nearest to the question's words, itself no word of the question."""
    places = [m.start() for m in _matches(question, sentence)] or [0]
    found = [m for m in pattern.finditer(sentence) if m[0].strip().lower() not in question.terms]
    if not found:
        return None
    bare = [question.measure and not m[0][-1].isalpha() for m in found]  # without a unit
    gaps = [min(abs(m.start() - place) for place in places) for m in found]
    best = found[min(range(len(found)), key=lambda number: (bare[number], gaps[number]))]
    return best[0].strip().rstrip(",")


def _asked_first(question: Question) -> list[str]:
    order = sorted(question.terms, key=lambda term: question.terms[term] <= WEAK)
    focus = question.focus
    return [focus, *(term for term in order if term != focus)] if focus else order


def _matched(question: Question, text: str) -> float:
    return sum(weight for t, weight in question.terms.items() if pattern_of(t).search(text))


def _matches(question: Question, text: str) -> list[re.Match[str]]:
    return [match for term in question.terms for match in pattern_of(term).finditer(text)]

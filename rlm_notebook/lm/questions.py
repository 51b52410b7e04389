"""Read a question without a language model: what kind of answer it wants, which words weigh."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

Kind = Literal[
    "section",
    "place",
    "definition",
    "returns",
    "base",
    "default",
    "value",
    "number",
    "count",
    "date",
    "person",
    "passage",
]

FUNCTION_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a about according all am an and answer any are as at be been by can could did do does each "
        "every find for from give given go has have he how i if in into is it its many me much my need no "
        "not of on one only or our out over per please question recursively s she should show so tell than that the "
        "their them there these they this to under up us use used vs was we were what when where which who "
        "whom whose why will with would you your",
    )
)
"""Words that say nothing about the subject."""
WEAK_WORDS = frozenset(
    re.findall(
        r"\w+",
        "argument base called chapter city class color colour company constant contain contains "
        "context country default define "
        "defined defines document documents entry exception file function import imported imports "
        "line lines list mention mentioned mentions message method module name named note number "
        "occur occurs page parameter part parts person place return returns section temperature text times town user value "
        "variable",
    )
)
"""Words that name the form of the answer more often than its subject: they break ties only."""
WEAK = 0.3
HEAVY = 4.0
"""From this weight on a word is a name or a quotation."""
WORD = re.compile(r"[A-Za-z]+-\d[\w-]*|[^\W\d][\w.]*\w|\d[\d.,:-]*\d|\w")
_QUOTED = re.compile(r"(?<!\w)[\"'`“‘]([^\"'`“”‘’]{1,80})[\"'`”’](?!\w)")
_SECTION = r"(?:module|file|script|section|chapter|document|message|entry|page|note|part|item|log|key|article|paragraph|heading)"
_DEFINED = r"\bdefin|\bimplement|\bdeclar"
_MEASURE = "long|far|tall|old|big|large|heavy|fast|deep|high|wide|expensive"
_DEFAULT_OF = re.compile(
    r"\bdefault(?: value)? (?:of|for) (?:the )?(?:parameter |argument )?[`'\"]?(\w+)[`'\"]?"
    r"(?: parameter| argument)? (?:of|in|for) (?:the )?(?:function |method )?[`'\"]?([A-Za-z_][\w.]*\w)",
    re.IGNORECASE,
)
_OPENING = re.compile(
    r"\b(?:how (?:many|much)|what(?:['’]s| is| was| are| were)?|which|value of)\b(.*)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Question:
    """What is asked for, and the words to look for."""

    text: str
    kind: Kind = "passage"
    terms: dict[str, float] = field(default_factory=dict)
    """Word or phrase in lower case -> weight, in the order of the question."""
    subject: str | None = None
    """The Python name whose definition holds the answer."""
    subject_is: str = ""
    """class or def, where the question says which."""
    parameter: str | None = None
    """The parameter whose default value is sought."""
    measure: bool = False
    """A number with its unit is wanted (how long, how old)."""

    @property
    def total(self) -> float:
        """The weight that a perfect match reaches; weak words come on top."""
        strong = [weight for weight in self.terms.values() if weight > WEAK]
        return sum(strong or self.terms.values())

    @property
    def key(self) -> str | None:
        """The weightiest name or quotation: a text without it holds no answer."""
        heavy = [term for term, weight in self.terms.items() if weight >= HEAVY]
        return max(heavy, key=lambda term: self.terms[term]) if heavy else None

    @property
    def attribute(self) -> bool:
        """Whether a named property of a thing is asked for: "the phone number of Karin"."""
        asked = re.search(
            r"\bwhat(?: is| was| are|['’]s) the (.+?) (?:of|for)\b", self.text, re.IGNORECASE
        )
        focus = self.focus
        return bool(
            asked and focus and self.terms[focus] > WEAK and pattern_of(focus).search(asked[1])
        )

    @property
    def focus(self) -> str | None:
        """The word asked about: "port" in "what is the port of the server?"."""
        category = re.search(r"\b(?:which|what) (\w+)", self.text.lower())
        if category and category[1] in self.terms:
            return category[1]
        opening = _OPENING.search(self.text)
        rest = opening[1].lower() if opening else self.text.lower()
        placed = [(rest.find(term), term) for term in self.terms if pattern_of(term).search(rest)]
        strong = [(at, term) for at, term in placed if self.terms[term] > WEAK]
        return min(strong or placed, default=(0, None))[1]


def read_question(text: str) -> Question:
    """Tell what a question asks for and which words matter."""
    text = " ".join(text.split())
    if "?" in text:
        text = text[: text.index("?") + 1]  # what follows is an instruction
    subject, subject_is = _subject(text)
    kind = _kind(text.lower(), subject)
    parameter = None
    default = _DEFAULT_OF.search(text)
    if default:
        kind, parameter = "default", default[1]
        subject, subject_is = default[2].rpartition(".")[2], "def"
    terms = _terms(text)
    if subject:
        terms[subject.lower()] = max(HEAVY, terms.get(subject.lower(), 0.0))
    measure = re.search(rf"\bhow (?:much|{_MEASURE})\b", text, re.IGNORECASE) is not None
    return Question(text, kind, terms, subject, subject_is, parameter, measure)


@lru_cache(maxsize=512)
def pattern_of(term: str) -> re.Pattern[str]:
    """A pattern for a word in its forms (open, opens, opened), or for a name or number as it is.

    A word is also found inside a snake_case name: "timeout" in ``worker_timeout``.
    """
    if not term.isalpha():
        exact = r"\s+".join(re.escape(word) for word in term.split())
        before = r"(?<![\w.,])" if term[0].isdigit() else r"(?<!\w)"
        return re.compile(rf"{before}{exact}(?!\w)", re.IGNORECASE)
    if len(term) < 4:
        return re.compile(rf"(?<![^\W_]){term}s?(?![^\W_])", re.IGNORECASE)
    stem = re.escape(_stem(term))
    return re.compile(rf"(?<![^\W_]){stem}[^\W\d_]{{0,3}}(?![^\W_])", re.IGNORECASE)


def _stem(word: str) -> str:
    for ending in ("ing", "ed", "es", "s", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= 4 and not word.endswith("ss"):
            stem = word[: -len(ending)]
            doubled = stem[-1] == stem[-2] and stem[-1] not in "ls"
            return stem[:-1] if doubled and ending in ("ing", "ed") else stem
    return word


def _terms(text: str) -> dict[str, float]:
    terms: dict[str, float] = {}
    for phrase in _QUOTED.findall(text):
        terms[" ".join(phrase.split()).lower().removesuffix("()")] = 5.0
    bare = _QUOTED.sub(" ", text)
    every: dict[str, float] = {}
    for number, word in enumerate(WORD.findall(bare)):
        plain = word.lower()
        every.setdefault(plain, WEAK)
        if plain in FUNCTION_WORDS or (len(plain) == 1 and word.islower()):
            continue
        weak = plain in WEAK_WORDS and word[:1].islower()
        terms.setdefault(plain, WEAK if weak else _weight(word, first=number == 0))
    return terms or every


def _weight(word: str, *, first: bool) -> float:
    if "_" in word or "." in word.strip(".") or re.search(r"[a-z][A-Z]", word):
        return HEAVY
    if any(character.isdigit() for character in word):
        return 3.0
    if word[:1].isupper() and not first:
        return 2.0
    return 1.0


def _kind(lower: str, subject: str | None) -> Kind:
    asks_section = re.search(rf"\b(?:which|what|name of the) {_SECTION}s?\b", lower)
    if subject is not None:
        if re.search(r"^what does\b.*\breturns?\b", lower):
            return "returns"
        if re.search(r"\bbase class|\bsuperclass|\binherit|\bsubclass of what", lower):
            return "base"
        named = "_" in subject or re.search(r"[a-z][A-Z]", subject)
        if re.search(_DEFINED, lower) or (lower.startswith("where is") and named):
            return "definition"
    if re.search(
        r"\bhow many (?:\S+ ){0,2}(?:times|lines|occurrences)\b|\bhow often\b|^count\b|"
        r"\bcount (?:the|how|all)\b",
        lower,
    ):
        return "count"
    if re.search(rf"\bhow (?:many|much|{_MEASURE})\b", lower):
        return "number"
    if re.search(r"\bwhen\b|\b(?:what|which) (?:date|year|day|month|time)\b", lower):
        return "date"
    if re.search(r"\bwho(?:se|m)?\b", lower):
        return "person"
    if asks_section or re.match(r"where\b.*\b(?:mention|describ|document|discuss|import)", lower):
        return "section"
    if re.match(r"where\b", lower):
        return "place"
    if re.search(r"\bwhat\b|\bwhat['’]s\b|\bvalue of\b|\bwhich\b|^give\b|^name\b|^find\b", lower):
        return "value"
    return "passage"


def _subject(text: str) -> tuple[str | None, str]:
    """The Python name whose definition a question is about, and class or def."""
    asks = rf"{_DEFINED}|^where is\b|^what does\b.*\breturn|\bbase class|\bsuperclass|\binherit"
    if not re.search(asks, text, re.IGNORECASE):
        return None, ""
    named = re.search(
        r"\b(class|exception|function|method|constant|variable)s? (?:called |named |of )?"
        r"[`'\"]?([A-Za-z_]\w*)",
        text,
        re.IGNORECASE,
    )
    if named and named[2].lower() not in FUNCTION_WORDS | WEAK_WORDS:
        kinds = {"class": "class", "exception": "class", "function": "def", "method": "def"}
        return named[2], kinds.get(named[1].lower(), "")
    called = re.search(r"\b([A-Za-z_]\w*)\(\)|[`'\"]([A-Za-z_]\w*)[`'\"]", text)
    if called:
        return called[1] or called[2], ""
    for word in re.findall(r"[A-Za-z_]\w+", text)[1:]:
        if "_" in word or re.search(r"[a-z][A-Z]", word):
            return word, ""
    return None, ""

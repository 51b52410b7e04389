"""The leaf cuts values, names, dates and numbers out of texts of many kinds."""

from __future__ import annotations

import random
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlm_notebook.lm.passages import central_sentences, find
from rlm_notebook.lm.questions import read_question

CSV = "name,age,city\nBob,42,Oslo\nEva,37,Rome\nDan,51,Bern\n"
TSV = "station\tcountry\televation_m\nBrocken\tGermany\t1141\nSonnblick\tAustria\t3106\n"
MARKDOWN = (
    "| product | price | stock |\n|---|---|---|\n| bread | 3.20 | 14 |\n| milk | 1.10 | 0 |\n"
)
JSON = """\
{"users": [
  {
    "name": "Bob",
    "age": 42,
    "city": "Oslo"
  },
  {
    "name": "Eva",
    "age": 37,
    "city": "Rome"
  }
]}"""
JSON_LINES = '{"name": "Bob", "age": 42}\n{"name": "Eva", "age": 37}'
MINIFIED = ",".join(f'{{"id":{i},"sku":"S-{1000 + i}","price":{i * 3 + 1}}}' for i in range(3000))
MINIFIED_OTHERWISE = ",".join(f'{{"price":{n * 3 + 1},"sku":"S-{n}"}}' for n in range(60))
YAML = """\
services:
  web:
    image: nginx:1.25
  db:
    image: postgres:16
    password: s3cr3t-Pa55
    retries: 4
"""
INI = """\
[server]
worker_timeout = 30
max_connections=100
name = The long road
[db]
host: db1.local
port: 5432
"""
LOG = """\
2026-03-01 10:00:01 INFO worker w1 started pid=170
2026-03-01 10:00:02 INFO worker w2 started pid=17
2026-03-01 10:05:09 ERROR worker w2 timeout after 30 s request_id=ab12
2026-03-01 10:06:00 ERROR worker w1 failed: disk full
2026-03-01 10:07:00 WARNING worker w1 retry 3 of 5
"""
ACCESS = """\
10.0.0.7 - - [12/Mar/2024:10:00:00] "GET /index.html HTTP/1.1" 200 512
10.0.0.9 - - [12/Mar/2024:10:00:03] "POST /login HTTP/1.1" 403 87
10.0.0.7 - - [12/Mar/2024:10:00:09] "GET /logo.png HTTP/1.1" 404 0
"""
CHAT = """\
user: hello, my name is Lena Fischer
assistant: Hi Lena!
bob: I fixed the build at noon
alice: the deploy is on Friday
"""
MAIL = """\
From: karin@example.org
Subject: Outage of the billing system
Date: 2024-05-06

The outage began at 03:12 and lasted 47 minutes. It was caused by an expired certificate.
The certificate has been renewed. Invoice INV-20991 was sent twice.
"""
MINUTES = """\
1. Budget: the board approved 1.2 million euros for the new laboratory.
2. Tom will order the centrifuge by 2 April.
3. The supplier of the centrifuge is Hettich GmbH.
4. Next meeting takes place in room 4.17 on 28 March 2024.
"""
LAW = """\
Section 12. Any tenant may end the lease with a notice of three months.
Section 13. The deposit shall not exceed two monthly rents. It is returned within 30 days.
Section 14. Pets are allowed unless the landlord objects in writing.
"""
STORY = """\
Chapter 1
Marten left the village before dawn. He carried a lantern and a letter sealed with green wax.
Chapter 2
At the inn he met an old sailor named Corvin, who told him about the drowned lighthouse.
The sailor asked for three silver coins. Marten paid with his father's watch.
Chapter 3
The lighthouse stood on a reef called the Wolf's Teeth. Its keeper, Ysolde, had gone blind.
"""
PROSE = (
    "The silver key was hidden under the third step by the old butler. Dr. Helena Marsh founded "
    "the clinic in 1987. Yesterday Bob repaired the pump. The bridge is 420 m long and has 3 "
    "arches. The keeper's lamp and Bob's boat are red. The fair was hosted by Lyon in 1894. The "
    "author of the report is Jane O'Neill. The vault is old. Its combination is 7-21-9. "
    "Photosynthesis is the process by which plants turn light into sugar."
)
SOURCE = '''\
=== a/cache.py ===
import os

MAX_ITEMS = 512

class LruCache(BaseCache):
    """A cache."""
    def lookup(self, key: str, default: int = 7, *, ttl=None) -> int:
        if key not in self.data:
            return default
        return self.data[key]

def build_cache(
    size: int = 128,
    folder="/tmp/x",
):
    return LruCache(size)
=== b.py ===
from a.cache import LruCache
x = LruCache(3)
'''


def answer(question: str, text: str) -> str | None:
    found = find(read_question(question), text)
    return found.answer if found else None


@pytest.mark.parametrize(
    ("question", "text", "expected"),
    [
        ("What is the age of Eva?", CSV, "37"),
        ("Which city does Dan live in?", CSV, "Bern"),
        ("What is the elevation of Sonnblick?", TSV, "3106"),
        ("What is the price of bread?", MARKDOWN, "3.20"),
        ("What is the age of Eva?", JSON, "37"),
        ("In which city does Eva live?", JSON, "Rome"),
        ("What is the age of Bob?", JSON_LINES, "42"),
        ("What is the price of sku S-2500?", MINIFIED, "4501"),
        ("What is the price of sku S-25?", MINIFIED_OTHERWISE, "76"),
        ("What is the image of the db service?", YAML, "postgres:16"),
        ("What is the password of the db?", YAML, "s3cr3t-Pa55"),
        ("How many retries does the db have?", YAML, "4"),
        ("What is the worker timeout?", INI, "30"),
        ("What is the name of the server?", INI, "The long road"),
        ("On which port does the db listen?", INI, "5432"),
        ("Which worker has pid 17?", LOG, "w2"),
        ("What is the pid of worker w2?", LOG, "17"),
        ("When did worker w1 fail?", LOG, "2026-03-01 10:06:00"),
        ("What is the request_id of the timeout?", LOG, "ab12"),
        ("Which IP got a 403?", ACCESS, "10.0.0.9"),
        ("What is the name of the user?", CHAT, "Lena Fischer"),
        ("Who fixed the build?", CHAT, "bob"),
        ("When is the deploy?", CHAT, "Friday"),
        ("What caused the outage?", MAIL, "an expired certificate"),
        ("How long did the outage last?", MAIL, "47 minutes"),
        ("Which invoice was sent twice?", MAIL, "INV-20991"),
        ("What is the subject of the mail?", MAIL, "Outage of the billing system"),
        ("When did the outage begin?", MAIL, "03:12"),
        ("Who will order the centrifuge?", MINUTES, "Tom"),
        ("What is the supplier of the centrifuge?", MINUTES, "Hettich GmbH"),
        ("When will the centrifuge be ordered?", MINUTES, "2 April"),
        ("When does the next meeting take place?", MINUTES, "28 March 2024"),
        ("Which section is about the deposit?", LAW, "Section 13"),
        ("How long is the notice to end the lease?", LAW, "three months"),
        ("In which chapter does Marten meet the sailor?", STORY, "Chapter 2"),
        ("Who is the keeper of the lighthouse?", STORY, "Ysolde"),
        ("How many silver coins did the sailor ask for?", STORY, "three"),
        ("What is the reef called?", STORY, "the Wolf's Teeth"),
        ("Where is the silver key hidden?", PROSE, "under the third step"),
        ("Who hid the silver key?", PROSE, "the old butler"),
        ("Who founded the clinic?", PROSE, "Helena Marsh"),
        ("Who repaired the pump?", PROSE, "Bob"),
        ("Who was planning the fair?", "Ada Berg will plan the fair.", "Ada Berg"),
        ("Who is the author of the report?", PROSE, "Jane O'Neill"),
        ("Which city hosted the fair?", PROSE, "Lyon"),
        ("How long is the bridge?", PROSE, "420 m"),
        ("How many arches does the bridge have?", PROSE, "3"),
        ("What colour are the keeper's lamp and Bob's boat?", PROSE, "red"),
        ("What is the combination of the vault?", PROSE, "7-21-9"),
        (
            "What is photosynthesis?",
            PROSE,
            "the process by which plants turn light into sugar",
        ),
    ],
)
def test_the_value_that_is_asked_for_is_cut_out(question: str, text: str, expected: str) -> None:
    assert answer(question, text) == expected


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("Which file defines LruCache?", "a/cache.py"),
        ("Where is build_cache defined?", "a/cache.py"),
        ("Which module imports LruCache?", "b.py"),
        ("What is the base class of LruCache?", "BaseCache"),
        ("What does the method lookup return?", "default or self.data[key]"),
        ("What does build_cache return?", "LruCache(size)"),
        ("What is the default value of size in build_cache?", "128"),
        ("What is the default of the `default` parameter of lookup?", "7"),
        ("What is the default value of the folder parameter of build_cache?", '"/tmp/x"'),
        ("What is the value of MAX_ITEMS?", "512"),
    ],
)
def test_python_source_is_read(question: str, expected: str) -> None:
    assert answer(question, SOURCE) == expected


def test_a_definition_at_the_top_level_comes_before_a_method() -> None:
    method = "=== a.py ===\nclass A:\n    def load(self):\n        return 1\n"
    function = "=== b.py ===\ndef load():\n    return 2\n"
    question = read_question("Where is the function load defined?")
    both, one = find(question, method + function), find(question, method)
    assert both is not None
    assert one is not None
    assert (both.answer, one.answer) == ("b.py", "a.py")
    assert both.score > one.score


def test_a_definition_outweighs_a_call() -> None:
    question = read_question("What is the default value of size in load_all?")
    called = find(question, "all = load_all(size=9)")
    defined = find(question, "class A:\n    def load_all(self, *, size=3):\n        pass\n")
    assert called is not None
    assert defined is not None
    assert defined.answer == "3"
    assert defined.score > called.score


@pytest.mark.parametrize(
    ("question", "text", "expected"),
    [
        ("How many ERROR lines are there?", LOG, "2"),
        ("How many lines mention w1?", LOG, "3"),
        ("How many times does '10.0.0.7' occur?", ACCESS, "2"),
        ("How many times does 'alpha' occur?", "alpha beta alpha\nalphabet alpha.", "3"),
        ("How many lines are there?", "a\nb\n\nc\n", "3"),
    ],
)
def test_lines_and_occurrences_are_counted(question: str, text: str, expected: str) -> None:
    assert answer(question, text) == expected


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("What is the capital of France?", PROSE),
        ("Who painted the ceiling of the chapel?", PROSE),
        ("Who sent the mail?", MAIL),
        ("What is the phone number of Karin?", MAIL),
        ("What is the IBAN of the landlord?", LAW),
        (
            "What is in the red green blue white black pink boxes of 'Ysidor'?",
            "Toys are in the red green blue white black pink boxes.",
        ),
        ("What is the age of Zoe?", CSV),
        ("Which module defines the class Missing?", SOURCE),
        ("Which module defines the function LruCache?", SOURCE),
        ("How many times does 'omega' occur?", LOG),
        ("What is job 17?", "job 170 and job 1751 and job 2.17"),
        ("", PROSE),
        ("What is the code?", ""),
    ],
)
def test_a_text_without_the_answer_gives_none(question: str, text: str) -> None:
    assert answer(question, text) is None


def test_the_evidence_is_short_and_names_its_section() -> None:
    long = "The code of the vault is 4711, " + "and so on and so on, " * 40
    found = find(read_question("What is the code of the vault?"), f"=== cellar ===\n{long}\n")
    assert found is not None
    assert found.answer == "4711"
    assert found.evidence.endswith(" [cellar]")
    assert len(found.evidence) <= 300 + len(" [cellar]")


def test_more_words_of_the_question_make_a_higher_score() -> None:
    question = read_question("What is the access code of the northern vault?")
    scores = [
        find(question, text)
        for text in (
            "The access code of the vault is 1.",
            "The access code of the northern vault is 2.",
        )
    ]
    assert scores[0] is not None
    assert scores[1] is not None
    assert scores[0].score < scores[1].score == 1.0


WORDS = ["harbour", "weather", "quiet", "remembered", "keeper", "ships", "morning", "lantern"]


@settings(max_examples=80, deadline=None)
@given(
    thing=st.sampled_from(["vault", "reactor", "archive", "greenhouse", "observatory"]),
    code=st.from_regex(r"[A-Z0-9]{4,10}", fullmatch=True),
    name=st.from_regex(r"[A-Z][b-z]{4,8} [A-Z][a-z]{4,8}", fullmatch=True),
    depth=st.floats(0, 1),
    seed=st.integers(0, 10_000),
    form=st.sampled_from(
        [
            ("The entry code of the {thing} is {code}.", "What is the entry code of the {thing}?"),
            ("{thing}_port = {code}", "What is the port of the {thing}?"),
            ('{{"{thing}": {{"token": "{code}"}}}}', "What is the token of the {thing}?"),
            ("The {thing} was opened by {name} that year.", "Who opened the {thing}?"),
            ("In spring {name} opened the {thing}.", "Who opened the {thing}?"),
        ]
    ),
)
def test_a_needle_is_found_at_any_depth(
    thing: str, code: str, name: str, depth: float, seed: int, form: tuple[str, str]
) -> None:
    dice = random.Random(seed)
    lines = [" ".join(dice.choices(WORDS, k=12)) + "." for _ in range(300)]
    lines.insert(round(depth * 300), form[0].format(thing=thing, code=code, name=name))
    found = answer(form[1].format(thing=thing), "\n".join(lines))
    assert found == (name if "{name}" in form[0] else code)


@pytest.mark.timeout(30)  # measured 0.5 s for all; a quadratic rule would take minutes
@pytest.mark.parametrize(
    "text",
    [
        "age " * 25_000,
        "a" * 100_000,
        "age=" * 25_000,
        'age: "\n' * 12_000,
        "age" + " " * 100_000,
        "\n" * 100_000,
        "Age City " * 11_000,
        "age 1,1,1,1," * 8_000,
        "def age(x):\n" + "  y = 1\n" * 10_000 + "  return 5\n",
        "name,age\n" + "P1,2\n" * 15_000,
        "(" * 100_000,
    ],
    ids=range(11),
)
def test_odd_texts_take_no_odd_time(text: str) -> None:
    for question in (
        "What is the age of P777?",
        "Who lives in City5?",
        "How many age are there?",
        "When did the age change?",
        "Where is age?",
        "What does the function age return?",
        "What is the default value of x in age?",
        "How many lines mention age?",
    ):
        find(read_question(question), text)
    central_sentences(text)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=80), st.text(st.sampled_from(string.printable + "äé中=:|,"), max_size=400))
def test_no_text_and_no_question_breaks_it(question: str, text: str) -> None:
    first = find(read_question(question), text)
    assert first == find(read_question(question), text)
    if first is not None:
        assert 0.5 <= first.score <= 1.0
        assert "\n" not in first.answer + first.evidence

"""The embedded model finds answers in texts that it has not seen, as root and as leaf."""

from __future__ import annotations

import random
import string
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlm_notebook import RLM, Result
from rlm_notebook.lm.extractive import ExtractiveLM, final_reply, leaf_reply, root_reply
from rlm_notebook.lm.passages import find
from rlm_notebook.lm.protocol import Message, Request
from rlm_notebook.lm.questions import read_question
from rlm_notebook.prompts import first_message, output_message, system_prompt
from tests.fakes import FakeLM

FILLER = (
    "The weather was mild and the harbour was quiet. Ships came and went. "
    "Nobody remembered the old stories any more, and the keeper slept. "
)


def answer(question: str, text: str) -> str:
    found = find(read_question(question), text)
    return found.answer if found else "NOT FOUND"


@pytest.mark.parametrize(
    ("question", "text", "expected"),
    [
        (
            "What is the access code of the vault?",
            "The access code of the vault is 48213.",
            "48213",
        ),
        ("What is the timeout of the worker?", "port = 80\nworker timeout = 30\n", "30"),
        ("What is the value of 'retries'?", '{"retries": 7, "delay": 2}', "7"),
        (
            "When was the bridge opened?",
            "It rained. The bridge was opened on 12 May 1931 by the mayor. Then came the war.",
            "12 May 1931",
        ),
        (
            "When did job 17 fail?",
            "2026-03-01 10:00 job 16 ok\n2026-03-02 11:30 job 17 did fail",
            "2026-03-02",
        ),
        (
            "Who signed the contract?",
            "The contract was signed by Maria Jensen in Oslo.",
            "Maria Jensen",
        ),
        (
            "How many beds does the hospital have?",
            "The hospital has 420 beds and 3 kitchens.",
            "420",
        ),
        ("How many times does 'alpha' occur?", "alpha beta alpha\nalphabet alpha.", "3"),
        (
            "Which section mentions the password?",
            "# Users\nall about users\n# Secrets\nthe password is in the safe\n# End\n",
            "Secrets",
        ),
        (
            "Where is the function parse_header defined?",
            "=== mail/parse.py ===\nimport re\ndef parse_header(x):\n    pass\n=== b.py ===\nparse_header(1)",
            "mail/parse.py",
        ),
        ("What is the capital of France?", FILLER * 20, "NOT FOUND"),
        ("Which module defines the class Missing?", "=== a.py ===\nclass Other: pass", "NOT FOUND"),
    ],
)
def test_the_value_name_date_or_number_is_cut_out(question: str, text: str, expected: str) -> None:
    assert expected in answer(question, text)
    if expected == "NOT FOUND":
        assert answer(question, text) == expected


@settings(max_examples=60, deadline=None)
@given(
    thing=st.sampled_from(["vault", "reactor", "archive", "greenhouse", "observatory"]),
    code=st.text(string.ascii_uppercase + string.digits, min_size=4, max_size=10),
    depth=st.floats(0, 1),
    seed=st.integers(0, 10_000),
)
def test_a_needle_is_found_at_any_depth(thing: str, code: str, depth: float, seed: int) -> None:
    lines = [FILLER.split(". ")[random.Random(seed + i).randrange(4)] for i in range(300)]
    lines.insert(round(depth * 300), f"The entry code of the {thing} is {code}.")
    assert answer(f"What is the entry code of the {thing}?", "\n".join(lines)) == code


def test_a_prompt_of_somebody_else_gets_a_natural_answer() -> None:
    text = "The access code of the vault is 48213.\nNothing else matters."
    for prompt in (
        f"What is the access code of the vault?\n\n{text}",
        f"{text}\n\nWhat is the access code of the vault?",
        f"Read this.\nQuestion: What is the access code of the vault?\n{text}",
    ):
        assert leaf_reply((Message("user", prompt),)).startswith("48213\nEvidence: ")
    assert leaf_reply((Message("user", "What is love?\nBaby."),)).startswith("NOT FOUND")
    assert leaf_reply((Message("user", ""),))


def test_a_summary_is_extracted_and_says_so() -> None:
    reply = leaf_reply((Message("user", f"Summarize this text.\n{FILLER * 3}"),))
    assert reply.startswith("Extracted, not written:\n")


def solve(context: Any, question: str, **options: Any) -> Result:
    return RLM(**options).completion(context, question)


NOTES = [f"Note {n}: nothing to report." for n in range(500)]
NOTES[321] = "Note 321: the access code of the vault is 48213."


@pytest.mark.parametrize(
    "context",
    [
        NOTES,
        "\n".join(NOTES),
        {f"day {number}": note for number, note in enumerate(NOTES)},
        [{"role": "user", "content": note} for note in NOTES],
        NOTES[321],
    ],
    ids=["list", "str", "dict", "messages", "short"],
)
def test_the_root_solves_every_kind_of_context(context: Any) -> None:
    result = solve(context, "What is the access code of the vault?")
    assert str(result).startswith("48213\nEvidence: ")
    assert result.outcome == "answered"
    assert "not a language model" in (result.turns[0].response or "")


@pytest.mark.parametrize("context", ["", [], {}, " \n"])
def test_an_empty_context_has_no_answer_and_no_crash(context: Any) -> None:
    result = solve(context, "What is the access code of the vault?")
    assert str(result) == "No passage of the context answers this."


def test_child_runs_are_used_when_the_question_asks_for_them() -> None:
    result = solve("\n".join(NOTES), "What is the access code of the vault? Work recursively.")
    assert str(result).startswith("48213")
    children = [run for run in result.trace.find(kind="run") if run.attrs["depth"] == 1]
    assert children
    assert all(run.state == "ok" for run in children)


def test_failed_slots_are_asked_once_more() -> None:
    result = solve(
        {f"day {n}": FILLER * 200 for n in range(40)} | {"day x": NOTES[321]},
        "What is the access code of the vault?",
        simulate="errors=0.3 seed=4",
    )
    assert str(result).startswith("48213")
    assert result.trace.tree.totals.errors > 0
    assert any("Step retry" in (turn.response or "") for turn in result.turns)


def test_it_gives_up_honestly_when_everything_fails() -> None:
    result = solve("\n".join(NOTES), "What is the access code?", simulate="errors=1 seed=1")
    assert str(result) == "No passage of the context answers this. (1 pieces could not be read.)"


def test_a_broken_step_is_done_again_and_then_given_up() -> None:
    messages = [system_prompt(can_recurse=False), first_message("What is x?", "a str", 9)]

    def step(output: str) -> str:
        reply = root_reply(tuple(messages))
        messages.append(Message("assistant", reply))
        messages.append(output_message([output], 1, 9))
        return reply

    assert "Step look" in step("str")
    assert "Step ask" in step("Traceback (most recent call last):\nNameError")
    assert "Step ask" in step("Traceback (most recent call last):\nNameError")
    assert "Step answer" in step("")


def test_the_final_request_is_answered_from_what_was_seen() -> None:
    seen = Message("user", "3 candidates\nbest: ANSWER: 48213\n\n1 turns are left.")
    assert final_reply((seen, Message("user", "Answer now"))) == "48213"
    assert final_reply((Message("user", "Answer now"),)).startswith("No passage")


async def test_the_same_request_has_the_same_answer_and_a_whole_usage() -> None:
    request = Request((Message("user", "What is the code?\nthe code is 5" + FILLER * 300),))
    first, second = [await ExtractiveLM().complete(request) for _ in range(2)]
    assert first == second
    assert first.usage.complete
    assert first.usage.cost == 0.0


@pytest.fixture(scope="module")
def library() -> dict[str, str]:
    folder = Path(sysconfig.get_path("stdlib"))
    skipped = {"site-packages", "test", "tests", "idlelib", "lib2to3", "encodings"}
    return {
        path.relative_to(folder).as_posix(): path.read_text("utf-8", errors="replace")
        for path in sorted(folder.rglob("*.py"))
        if not skipped.intersection(path.relative_to(folder).parts)
    }


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("Which module defines the class ChainMap?", "collections/__init__.py"),
        ("Which module defines the function get_close_matches?", "difflib.py"),
        (
            "In which module is the exception BrokenProcessPool defined?",
            "concurrent/futures/process.py",
        ),
        ("What is the default value of the cutoff parameter of get_close_matches?", "0.6"),
    ],
)
def test_questions_about_millions_of_characters_of_source_are_answered_right(
    library: dict[str, str], question: str, expected: str
) -> None:
    assert sum(map(len, library.values())) > 3_000_000
    assert str(solve(library, question)).split("\n")[0] == expected


def test_another_root_can_use_it_as_its_leaf() -> None:
    root = FakeLM(
        '```repl\nanswer["content"] = llm_query("What is the code of the vault?\\n" + context)\n'
        'answer["ready"] = True\n```'
    )
    result = RLM(root, sub_model="builtin/extractive").completion("\n".join(NOTES), "q")
    assert str(result).startswith("48213")

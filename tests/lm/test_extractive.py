"""The embedded model finds answers in texts that it has not seen, as root and as leaf."""

from __future__ import annotations

import contextlib
import io
import re
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlm_notebook import RLM, Result
from rlm_notebook.context import describe
from rlm_notebook.lm import extractive_code
from rlm_notebook.lm.extractive import ExtractiveLM, final_reply, leaf_reply, root_reply
from rlm_notebook.lm.protocol import Message, Request
from rlm_notebook.prompts import (
    CHILD_QUESTION,
    block_output,
    first_message,
    output_message,
    system_prompt,
)
from tests.fakes import FakeLM

FILLER = (
    "The weather was mild and the harbour was quiet. Ships came and went. "
    "Nobody remembered the old stories any more, and the keeper slept. "
)


def test_a_prompt_of_somebody_else_gets_a_natural_answer() -> None:
    text = "The access code of the vault is 48213.\nNothing else matters."
    for prompt in (
        f"What is the access code of the vault?\n\n{text}",
        f"{text}\n\nWhat is the access code of the vault?",
        f"Read this.\nQuestion: What is the access code of the vault?\n{text}",
        f"What is the access code of the vault?\n\nQ: Who slept?\nA: The keeper.\n\n\n\n\n{text}",
    ):
        assert leaf_reply((Message("user", prompt),)).startswith("48213\nEvidence: ")
    assert leaf_reply((Message("user", "What is love?\nBaby."),)).startswith("NOT FOUND")
    assert leaf_reply((Message("user", ""),))


def test_a_summary_is_extracted_and_says_so() -> None:
    reply = leaf_reply((Message("user", f"Summarize this text.\n{FILLER * 3}"),))
    assert reply.startswith("Extracted, not written:\n")


class Run:
    """A run of the root in a REPL that is a dict, with the leaf behind its functions."""

    def __init__(
        self,
        context: Any,
        question: str,
        *,
        leaf: Callable[[str], str] | None = None,
        turns: int = 12,
        recursion: bool = False,
        forget_after: int | None = None,
    ) -> None:
        self.prompts: list[str] = []
        self.batches: list[int] = []
        self.children: list[Run] = []
        self.steps: list[str] = []
        self.outputs: list[str] = []
        self.answer: dict[str, Any] = {"content": None, "ready": False}
        self._leaf = leaf or (lambda prompt: leaf_reply((Message("user", prompt),)))
        messages = [
            system_prompt(can_recurse=recursion),
            first_message(question, describe(context), turns),
        ]
        names = self._names(context)
        for turn in range(1, turns + 1):
            reply = root_reply(tuple(messages))
            self.steps.append(re.findall(r"^Step (\w+)", reply, re.MULTILINE)[0])
            (block,) = re.findall(r"```repl\n(.*?)\n```$", reply, re.DOTALL)
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                try:
                    exec(block, names)
                except Exception:
                    print(traceback.format_exc())
            self.outputs.append(printed.getvalue())
            if self.answer["ready"]:
                break
            if turn == forget_after:
                names = self._names(context)
            output = block_output(1, 1, printed.getvalue())
            messages += [Message("assistant", reply), output_message([output], turn, turns)]
        else:
            self.answer["content"] = final_reply(tuple(messages))

    def _names(self, context: Any) -> dict[str, Any]:
        return {
            "context": context,
            "answer": self.answer,
            "llm_query": self._ask,
            "llm_query_batched": self._batch,
            "rlm_query_batched": self._batch_of_children,
        }

    def _ask(self, prompt: str) -> str:
        self.prompts.append(prompt)
        return self._leaf(prompt)

    def _batch(self, prompts: list[str]) -> list[str]:
        self.batches.append(len(prompts))
        return [self._ask(prompt) for prompt in prompts]

    def _batch_of_children(self, prompts: list[str]) -> list[str]:
        self.batches.append(len(prompts))
        children = [Run(prompt, CHILD_QUESTION) for prompt in prompts]
        self.children += children
        return [str(child.answer["content"]) for child in children]

    @property
    def text(self) -> str:
        return str(self.answer["content"])


VAULT = "What is the access code of the vault?"


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
    assert str(result) == "No answer: every call failed (1)."


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


def test_it_looks_then_asks_then_compares_then_answers() -> None:
    run = Run({f"day {n}": FILLER * 100 for n in range(200)} | {"day x": NOTES[321]}, VAULT)
    assert run.steps == ["look", "ask", "join", "answer"]
    assert run.text == f"48213\nEvidence: {NOTES[321]} [day x]"
    assert max(map(len, run.prompts)) <= 100_000
    assert max(run.batches) <= 20


@pytest.mark.parametrize("items", [700, 1400, 2000])
def test_a_context_of_medium_size_is_one_full_batch(items: int) -> None:
    notes = [f"Note {n}: nothing to report. " + "x" * 800 for n in range(items)]
    assert Run(notes, VAULT).batches == [20]
    assert Run("\n".join(notes), VAULT).batches == [20]


def test_a_small_text_is_asked_about_in_one_plain_call() -> None:
    run = Run("\n".join(NOTES), VAULT)
    assert run.text.startswith("48213")
    assert len(run.prompts) == 1
    assert run.batches == []


def test_millions_of_characters_are_a_few_batches_of_large_prompts() -> None:
    lines = [FILLER] * 15_000
    lines[9_876] = "The access code of the vault is 48213."
    run = Run("\n".join(lines), VAULT)
    assert run.text.startswith("48213")
    assert run.batches == [20, 2]


def test_a_passage_on_the_edge_of_two_pieces_is_found_whole() -> None:
    for shift in range(0, 60, 5):  # pieces end at 20,000, 40,000 and 60,000
        text = "x" * (60_000 - shift) + " The access code of the vault is 48213. " + "y" * 66_000
        assert Run(text, VAULT).text.startswith("48213")


def test_a_huge_context_is_narrowed_down_by_a_search_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extractive_code, "MOST_PIECES", 10)
    lines = [FILLER] * 15_000
    lines[9_876] = "The access code of the vault is 48213."
    run = Run("\n".join(lines), VAULT)
    assert run.text.startswith("48213")
    assert len(run.prompts) == 10
    assert "narrowed down by a search for ['access', 'code', 'vault']: 10 of 22" in run.outputs[1]


def test_the_column_names_of_a_table_stand_above_each_of_its_pieces() -> None:
    rows = [f"person{n},{n % 90},town{n % 77}" for n in range(9_000)]
    run = Run("name,age,city\n" + "\n".join(rows), "What is the age of person8888?")
    assert len(run.prompts) > 5
    assert run.text.startswith(f"{8_888 % 90}\n")


@pytest.mark.parametrize("separator", ["\n", " "])
def test_counts_of_all_pieces_are_added_up_and_nothing_is_counted_twice(separator: str) -> None:
    words = [("zebra" if n % 37 == 0 else "horse") for n in range(40_000)]
    run = Run(separator.join(words), "How many times does 'zebra' occur?")
    assert len(run.prompts) > 5
    assert run.text.split("\n")[0] == str(words.count("zebra"))


def test_a_summary_of_many_pieces_is_summarised_again() -> None:
    run = Run([f"Topic {n}. {FILLER * 30}" for n in range(100)], "Summarize the notes.")
    assert run.text.startswith("Extracted, not written:\n")
    assert len(run.text.split("\n")) <= 4


def fails(times: int) -> Callable[[str], str]:
    """A leaf that fails the first times it gets a prompt."""
    seen: dict[str, int] = {}

    def leaf(prompt: str) -> str:
        seen[prompt] = seen.get(prompt, 0) + 1
        return "Error: busy" if seen[prompt] <= times else leaf_reply((Message("user", prompt),))

    return leaf


def test_what_failed_is_asked_again_and_only_that() -> None:
    context = {f"day {n}": FILLER * 100 for n in range(60)} | {"day x": NOTES[321]}
    whole = Run(context, VAULT)
    run = Run(context, VAULT, leaf=fails(1))
    assert run.steps == ["look", "ask", "retry", "join", "answer"]
    assert run.text == whole.text
    assert sorted(run.prompts) == sorted(whole.prompts * 2)


def test_what_could_not_be_read_is_told_with_the_answer() -> None:
    context = {f"day {n}": FILLER * 400 for n in range(9)} | {"day x": NOTES[321]}

    def leaf(prompt: str) -> str:
        return leaf_reply((Message("user", prompt),)) if "day x" in prompt else "Error: down"

    run = Run(context, VAULT, leaf=leaf)
    assert run.text.startswith("48213")
    assert re.search(r"\(\d+ of \d+ pieces could not be read\.\)$", run.text)
    assert run.steps.count("retry") == 3


def test_a_count_of_nothing_that_was_read_is_no_count() -> None:
    run = Run("a b c", "How many times does 'a' occur?", leaf=lambda prompt: "Error: down")
    assert run.text == "No answer: every call failed (1)."


def test_no_turn_is_spent_on_asking_again_when_few_are_left() -> None:
    context = {f"day {n}": FILLER * 400 for n in range(9)} | {"day x": NOTES[321]}
    run = Run(context, VAULT, leaf=fails(1), turns=4)
    assert run.steps == ["look", "ask", "join", "answer"]


def test_when_turns_run_out_the_best_that_was_seen_is_the_answer() -> None:
    assert Run(NOTES, VAULT, turns=2).text == "48213"
    assert Run(NOTES, VAULT, turns=1).text == extractive_code.NOTHING


@pytest.mark.parametrize("turn", [2, 3])
def test_variables_that_are_gone_are_made_again(turn: int) -> None:
    run = Run(NOTES, VAULT, forget_after=turn)
    assert run.text.startswith("48213")
    assert run.steps.count("ask") == 2


def test_a_new_repl_process_makes_it_ask_again() -> None:
    messages = [system_prompt(can_recurse=False), first_message(VAULT, "a str", 9)]
    for output in ("str of length 9", "9 answers, 0 failed", "stopped. The REPL is a new process"):
        messages += [
            Message("assistant", root_reply(tuple(messages))),
            output_message([output], 1, 9),
        ]
    assert "Step ask" in root_reply(tuple(messages))


def test_a_traceback_in_the_context_is_not_taken_for_a_broken_step() -> None:
    log = ["Traceback (most recent call last):\n  KeyError: 'vault'"] * 400
    log[200] = "Traceback (most recent call last): the access code of the vault is 48213"
    run = Run(log, VAULT)
    assert run.text.startswith("48213")
    assert run.steps == ["look", "ask", "join", "answer"]


def test_children_get_large_pieces_and_keep_the_names_of_their_sections() -> None:
    files = {f"m{n}.py": FILLER * 100 for n in range(60)}
    files["deep/cache.py"] = FILLER * 700 + "\nclass Cache:\n    pass\n" + FILLER * 500
    run = Run(files, "Which module defines the class Cache? Work recursively.", recursion=True)
    assert run.text.startswith("deep/cache.py\n")
    assert len(run.children) > 5
    assert {child.steps[0] for child in run.children} == {"look"}
    assert max(len(child.prompts) for child in run.children) > 1
    assert "recursively" not in run.children[0].prompts[0].split("\n")[0]


def test_without_workers_it_does_not_recurse() -> None:
    run = Run(NOTES, f"{VAULT} Work recursively.", recursion=False)
    assert run.children == []
    assert run.text.startswith("48213")


@pytest.mark.parametrize(
    "prompt",
    [
        f"{VAULT}\n\n" + "\n".join(NOTES),
        "\n".join(NOTES) + f"\n\n{VAULT}",
        "Work on this.\nQuestion: " + VAULT + "\n" + "\n".join(NOTES),
    ],
    ids=["before", "after", "marked"],
)
def test_a_child_finds_the_question_in_a_prompt_of_another_root(prompt: str) -> None:
    assert "ANSWER: 48213" in Run(prompt, CHILD_QUESTION).text


def test_a_question_of_several_lines_and_quotes_survives_the_way_through_code() -> None:
    question = "In the \"notes\" of the 'guard',\nwhat is the access code\\of the {vault}?"
    run = Run(NOTES, question)
    assert all(question in prompt for prompt in run.prompts)
    assert run.text.startswith("48213")


def test_the_final_request_is_answered_from_what_was_seen() -> None:
    seen = Message("user", "3 candidates\nbest: ANSWER: 48213\n\nThis is your last turn.")
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


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("Which file defines the function nlargest?", "heapq.py"),
        ("Where is the class ThreadPoolExecutor defined?", "concurrent/futures/thread.py"),
        ("What is the base class of ChainMap?", "_collections_abc.MutableMapping"),
        ("What is the default value of indent in json.dumps?", "None"),
        ("What is the value of HTTPS_PORT?", "443"),
        ("Which module mentions the Ratcliff algorithm?", "difflib.py"),
        ("Which module defines the class Zebra?", extractive_code.NOTHING),
    ],
)
def test_many_kinds_of_questions_about_source_are_answered_right(
    library: dict[str, str], question: str, expected: str
) -> None:
    assert Run(library, question).text.split("\n")[0] == expected


def test_lines_of_millions_of_characters_are_counted_right(library: dict[str, str]) -> None:
    lines = sum(
        re.search(r"(?<![a-z0-9])deque(?:[a-z]{0,3})(?![a-z0-9])", line, re.IGNORECASE) is not None
        for text in library.values()
        for line in text.split("\n")
    )
    run = Run(library, "How many lines mention 'deque'?")
    assert run.text.split("\n")[0] == str(lines)


def test_another_root_can_use_it_as_its_leaf() -> None:
    root = FakeLM(
        '```repl\nanswer["content"] = llm_query("What is the code of the vault?\\n" + context)\n'
        'answer["ready"] = True\n```'
    )
    result = RLM(root, sub_model="builtin/extractive").completion("\n".join(NOTES), "q")
    assert str(result).startswith("48213")


def test_a_leaf_of_another_model_answers_in_its_own_words() -> None:
    leaf = FakeLM(leaf=lambda _: "The code is 48213,\nas the text says.", name="other/leaf")
    result = RLM(sub_model=leaf).completion(
        ["The code of the vault is 48213."], "What is the code?"
    )
    assert result.answer == "The code is 48213,\nas the text says."

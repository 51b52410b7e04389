"""The turn loop, from a question to a result, with a fake LM and real REPL processes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rlm_notebook import RLM, Result, Trace
from rlm_notebook.errors import ContextError, LMError, ModelError, RunError, UsageError
from rlm_notebook.lm.protocol import Response
from tests.fakes import FakeLM, answering, block


def run(lm: FakeLM, context: Any = "the context", question: str = "q?", **settings: Any) -> Result:
    return RLM(lm, **settings).completion(context, question)


def last_message(lm: FakeLM) -> str:
    return lm.roots[-1].messages[-1].content


def test_code_runs_its_output_goes_back_and_the_answer_is_returned() -> None:
    lm = FakeLM(block("print(len(context))"), answering("context[:3]"))
    result = run(lm)
    assert result.answer == "the"
    assert result.outcome == "answered"
    assert "REPL output:\n11" in last_message(lm)
    assert [turn.index for turn in result.turns] == [0, 1]
    assert result.usage.input_tokens == 6
    assert str(result) == "the"


def test_the_model_is_told_the_functions_the_ceilings_and_the_structure_but_no_content() -> None:
    lm = FakeLM(answering("1"))
    run(lm, context="a secret text")
    system, first = (message.content for message in lm.roots[0].messages)
    for word in ("llm_query_batched", "rlm_query", "SHOW_VARS", 'answer["ready"]', "100,000", "20"):
        assert word in system
    assert "a str of 13 characters" in first
    assert "secret" not in system + first


def test_variables_stay_from_turn_to_turn_and_reserved_names_are_restored() -> None:
    lm = FakeLM(
        block("x = 1\nllm_query = None\ndel context"),
        answering("[x, context, llm_query('a')]"),
    )
    result = run(lm)
    assert result.answer == [1, "the context", "A"]
    assert "`llm_query` is reserved: it was restored" in lm.roots[1].messages[-1].content


def test_a_syntax_error_and_a_traceback_go_back_to_the_model() -> None:
    lm = FakeLM(block("x = ("), block("def f():\n    return 1 / 0\nf()"), answering("'ok'"))
    result = run(lm)
    assert result.answer == "ok"
    assert "SyntaxError" in lm.roots[1].messages[-1].content
    feedback = lm.roots[2].messages[-1].content
    assert "ZeroDivisionError" in feedback
    assert "return 1 / 0" in feedback
    assert "worker.py" not in feedback
    states = [span.state for span in result.trace.find(kind="code")]
    assert states == ["error", "error", "ok"]


def test_long_output_is_cut_with_a_visible_mark_for_the_model_only() -> None:
    lm = FakeLM(block("print('a' * 30_000, 'end')"), answering("1"))
    result = run(lm)
    assert "cut here" in last_message(lm)
    assert len(last_message(lm)) < 20_500
    assert last_message(lm).rstrip().split("\n")[0] == "REPL output:"
    code = next(result.trace.find(kind="code"))
    assert len(code.attrs["stdout"]) == 30_005


@pytest.mark.parametrize("reply", ["", None, "   ", "<think>only thinking</think>"])
def test_an_empty_reply_is_kept_and_asked_again(reply: str | None) -> None:
    lm = FakeLM(reply, answering("2"))
    result = run(lm)
    assert result.answer == 2
    assert "Your reply was empty" in last_message(lm)
    assert result.turns[0].attrs["note"]
    first = next(result.trace.find(kind="lm_call"))
    assert first.state in ("empty", "null", "ok")
    assert first.attrs["finish_reason"] == "stop"


def test_a_model_that_never_writes_code_is_asked_for_its_answer_in_the_end() -> None:
    lm = FakeLM("I think", "I still think", "It is 42.")
    result = run(lm, max_iterations=2)
    assert (result.answer, result.outcome) == ("It is 42.", "fallback")
    assert "There was no code block" in lm.roots[1].messages[-1].content
    assert lm.roots[2].purpose == "final"
    assert result.turns[-1].attrs["final"] is True


def test_turns_that_run_out_without_any_answer_are_never_a_success() -> None:
    lm = FakeLM(block("answer['content'] = 'half'"), "")
    result = run(lm, max_iterations=1)
    assert (result.answer, result.partial, result.outcome) == (None, "half", "no_answer")
    assert "no answer" in result.summary()


def test_a_block_after_the_answer_is_skipped_and_says_so() -> None:
    lm = FakeLM(answering("1") + "\n" + block("1 / 0"))
    result = run(lm)
    assert result.outcome == "answered"
    first, second = result.trace.find(kind="code")
    assert (first.state, second.state) == ("ok", "skipped")


def test_an_answer_from_a_block_whose_reply_had_unseen_output_is_flagged() -> None:
    lm = FakeLM(block("x = 1") + "\nIt prints 1.\n" + answering("x"))
    assert run(lm).outcome == "answered_unseen"


def test_final_text_beside_code_is_not_accepted_before_the_output_is_seen() -> None:
    lm = FakeLM(block("print(6 * 7)") + "\nFINAL(41)", "FINAL(42)")
    result = run(lm)
    assert (result.answer, result.outcome) == ("42", "answered")
    assert "it was not accepted" in last_message(lm)


def test_final_text_before_anything_was_run_is_flagged() -> None:
    assert run(FakeLM("FINAL(a guess)")).outcome == "answered_unseen"


def test_final_var_gives_the_value_and_a_missing_one_is_named() -> None:
    lm = FakeLM(block("x = {'a': (1, 2)}"), "FINAL_VAR(y)", "FINAL_VAR(x)")
    result = run(lm)
    assert result.answer == {"a": [1, 2]}
    assert "no variable 'y'" in last_message(lm)


@pytest.mark.parametrize(
    ("expression", "answer"),
    [
        ("'f(x) (and (more))'", "f(x) (and (more))"),
        ("{'a': [1, None]}", {"a": [1, None]}),
        ("42", 42),
        ("{1, 2}", "{1, 2}"),
        ("'x' * 5_000_000", "x" * 5_000_000),
    ],
)
def test_an_answer_is_returned_unchanged(expression: str, answer: Any) -> None:
    result = run(FakeLM(answering(expression)))
    assert result.answer == answer
    shown = result._repr_mimebundle_()
    assert all(len(text) < 100_000 for text in shown.values())


def test_ready_without_content_is_not_an_answer() -> None:
    lm = FakeLM(block("answer['ready'] = True"), answering("1"))
    assert run(lm).answer == 1
    assert "set the content first" in last_message(lm)


def test_a_rebound_answer_counts_if_it_is_a_dict() -> None:
    assert run(FakeLM(block("answer = {'content': 'x', 'ready': True}"))).answer == "x"


def test_code_that_prints_what_looks_like_an_event_forges_nothing() -> None:
    lm = FakeLM(
        block('print(\'{"op": "done", "ready": true, "content": "text"}\')'), answering("'real'")
    )
    result = run(lm)
    assert result.answer == "real"
    assert len(result.turns) == 2


def test_a_cut_reply_does_not_run_and_the_model_is_told() -> None:
    cut = Response("```repl\nprint('ran')\nx =", finish_reason="length")
    lm = FakeLM(cut, answering("1"))
    result = run(lm)
    assert result.turns[0].code is None
    assert "cut at its length limit" in last_message(lm)


def test_a_root_model_that_fails_ends_the_run_with_one_line_and_a_whole_trace() -> None:
    lm = FakeLM(block("x = 1"), LMError("the server says no", type="http", status=401))
    with pytest.raises(RunError, match="the server says no") as caught:
        run(lm)
    result = caught.value.result
    assert result.outcome == "error"
    assert result.trace.path is not None
    loaded = Trace.load(result.trace.path)
    assert loaded.root is not None
    assert loaded.root.state == "error"
    assert loaded.root.error == {"type": "http", "message": "the server says no", "status": 401}
    assert not any(span.open for span in loaded.find())


def test_a_timeout_ends_the_run_and_keeps_the_partial_answer() -> None:
    lm = FakeLM(block("answer['content'] = 'half'"), block("while True: pass"))
    result = run(lm, timeout=0.8)
    assert (result.outcome, result.stopped_by) == ("stopped", "timeout")
    assert result.partial == "half"
    assert result.seconds < 5
    assert not any(span.open for span in result.trace.find())


def test_a_repl_that_dies_is_replaced_and_its_variables_come_back() -> None:
    lm = FakeLM(
        block("found = llm_query('a')"),
        block("import ctypes\nctypes.string_at(0)"),
        answering("[context, found]"),
    )
    result = run(lm)
    assert result.answer == ["the context", "A"]
    assert lm.subs == ["a"], "the answer was asked for once"
    told = lm.roots[2].messages[-1].content
    assert "ended by SIGSEGV" in told
    note = (
        "The REPL is a new process. Variables came back: the earlier block was run again, "
        "with the recorded answers."
    )
    assert note in told
    killed = list(result.trace.find(kind="code"))[1]
    assert killed.attrs["note"] == note
    assert killed.attrs["variables"] == [["found", "str", "1 character", "'A'"]]


def test_lone_surrogates_in_context_prompt_and_reply_do_not_stop_the_run() -> None:
    lm = FakeLM(
        block("print(context)\nprint(llm_query('a\\ud800b'))") + "\n\udfff",
        answering("context"),
        leaf=lambda prompt: f"{prompt}\ud800",
    )
    result = run(lm, context="x\ud800y")
    assert result.answer == "x\ufffdy"
    assert lm.subs == ["a\ufffdb"]
    assert result.trace.path is not None
    assert Trace.load(result.trace.path).root is not None


def test_bad_input_is_refused_before_anything_starts() -> None:
    with pytest.raises(UsageError, match="no question"):
        run(FakeLM("x"), question="  ")
    with pytest.raises(ContextError, match="supported"):
        run(FakeLM("x"), context=object())
    with pytest.raises(ModelError):
        RLM("nonsense/model")
    with pytest.raises(UsageError, match="no setting 'depth'"):
        RLM(depth=3)


def test_a_trace_that_cannot_be_written_is_a_warning_and_the_run_goes_on() -> None:
    with pytest.warns(RuntimeWarning, match="goes on without a file"):
        result = RLM(FakeLM(answering("1"))).completion("c", "q", trace="/proc/nope/x.rlm.jsonl")
    assert result.answer == 1
    assert result.trace.path is None


def test_a_trace_path_that_exists_gets_a_number() -> None:
    rlm = RLM(FakeLM(answering("1")))
    paths = [rlm.completion("c", "q", trace="t.rlm.jsonl").trace.path for _ in range(3)]
    assert [path.name for path in paths if path] == [
        "t.rlm.jsonl",
        "t-2.rlm.jsonl",
        "t-3.rlm.jsonl",
    ]


def test_a_result_shows_its_text_as_text() -> None:
    result = run(FakeLM(answering("'<img src=x onerror=alert(1)>'")))
    assert "<img" not in result._repr_mimebundle_()["text/html"]


def test_runs_that_begin_in_the_same_moment_have_traces_of_their_own() -> None:
    rlm = RLM(FakeLM(answering("context")))
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda number: rlm.completion(str(number), "q"), range(16)))
    assert [result.answer for result in results] == [str(number) for number in range(16)]
    paths = {result.trace.path for result in results}
    assert len(paths) == 16
    assert all(path is not None and Trace.load(path).root is not None for path in paths)

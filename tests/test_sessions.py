"""A REPL that is kept between runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import psutil
import pytest

from rlm_notebook import RLM, Session
from rlm_notebook.errors import UsageError
from tests.fakes import FakeLM, answering, block


@pytest.fixture
def session() -> Iterator[Session]:
    made = Session("notes")
    yield made
    made.close()


def ask(session: Session, *replies: str, context: str = "text", **settings: object) -> tuple:  # type: ignore[type-arg]
    lm = FakeLM(*replies)
    return RLM(lm, **settings).completion(context, "what?", session=session), lm


def test_variables_imports_contexts_and_history_stay(session: Session) -> None:
    first, _ = ask(session, block("import math\nfound = 7"), answering("'one'"), context="first")
    second, lm = ask(
        session,
        answering("[found, math.pi > 3, context, context_0, context_1, history]"),
        context="second",
    )
    history = [{"question": "what?", "answer": "one"}]
    assert first.answer == "one"
    assert second.answer == [7, True, "second", "first", "second", history]
    told = lm.roots[0].messages[1].content
    assert "`context_0`: a str of 5 characters in 1 line" in told
    assert "your variables: found (int)" in told
    assert "first" not in told.replace("first question", "")
    assert second.trace.header.settings["session"] == "notes"
    assert repr(session) == "<Session notes: 2 answers, 1 variables>"


def test_the_answer_of_the_last_run_is_no_answer_of_the_next(session: Session) -> None:
    ask(session, answering("'old'"))
    result, _ = ask(session, block("print(answer)"), answering("'new'"))
    assert result.answer == "new"
    assert "{'content': None, 'ready': False}" in next(
        span.attrs["stdout"] for span in result.trace.find(kind="code")
    )


def test_sub_calls_and_tools_are_those_of_the_run(session: Session) -> None:
    ask(session, answering("llm_query('a')"))
    lm = FakeLM(answering("[llm_query('b'), double(2)]"))
    result = RLM(lm, tools={"double": lambda n: 2 * n}).completion("c", "q", session=session)
    assert result.answer == ["B", 4]
    assert len(list(result.trace.find(function="llm_query"))) == 1


def test_a_process_that_dies_is_replaced_with_all_contexts(session: Session) -> None:
    ask(session, answering("1"), context="first")
    result, _ = ask(
        session,
        block("import os; os._exit(1)"),
        answering("[context_0, context]"),
        context="second",
    )
    assert result.answer == ["first", "second"]


async def test_a_run_that_is_stopped_in_a_block_ends_the_process(session: Session) -> None:
    rlm = RLM(FakeLM(block("kept = 1"), block("while True: pass")))
    live = rlm.prepare("c", "q", session=session)
    task = asyncio.create_task(live.go())
    while len(list(live.trace.find(kind="code"))) < 2:
        await asyncio.sleep(0.01)
    with pytest.raises(UsageError, match="session notes is in use by another run"):
        rlm.prepare("c", "q", session=session)
    live.stop()
    assert (await task).outcome == "stopped"
    result = await RLM(FakeLM(answering("'kept' in globals()"))).acompletion(
        "c", "q", session=session
    )
    assert result.answer is False


def test_its_end_leaves_no_process() -> None:
    before = set(psutil.Process().children())
    session = Session()
    ask(session, answering("1"))
    (worker,) = set(psutil.Process().children()) - before
    session.close()
    assert not worker.is_running()
    again, _ = ask(session, answering("[context, len(history)]"))
    assert again.answer == ["text", 1]
    session.close()


def test_children_have_repls_of_their_own(session: Session) -> None:
    class Recursive(FakeLM):
        async def complete(self, request: object) -> object:  # type: ignore[override]
            child = "Answer the request" in request.messages[1].content  # type: ignore[attr-defined]
            code = "'mine' in globals()" if child else "rlm_query('child')"
            return self._response(answering(code))

    ask(session, block("mine = 1"), answering("1"))
    result = RLM(Recursive()).completion("c", "q", session=session)
    assert result.answer == "false"

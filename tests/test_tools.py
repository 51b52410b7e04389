"""The user's own functions in the REPL."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from rlm_notebook import RLM, Result, Trace
from rlm_notebook.errors import UsageError
from rlm_notebook.tools import make_tools
from tests.fakes import FakeLM, answering, block


def fetch_page(url: str, *, retries: int = 2) -> str:
    """The text of a page,
    as a str.

    A second paragraph.
    """
    if url == "nowhere":
        raise ValueError(f"no page\n{url}")
    return f"{url} x {retries}"


def run(code: str, *tools: Callable[..., Any], **settings: Any) -> tuple[Result, FakeLM]:
    lm = FakeLM(answering(code), answering("'second turn'"))
    return RLM(lm, tools=tools, **settings).completion("c", "q"), lm


def test_a_function_is_called_with_its_arguments_and_is_a_span_of_the_trace() -> None:
    result, lm = run("fetch_page('a', retries=3)", fetch_page)
    assert result.answer == "a x 3"
    system = lm.roots[0].messages[0].content
    assert (
        "- `fetch_page(url: str, *, retries: int = 2) -> str`: The text of a page, as a str."
        in (system)
    )
    assert "second paragraph" not in system
    assert result.trace.path is not None
    (span,) = Trace.load(result.trace.path).find(kind="tool")
    assert span.parent is not None
    assert span.parent.kind == "code"
    assert span.attrs == {
        "function": "fetch_page",
        "arguments": "'a', retries=3",
        "result": "a x 3",
        "value": "a x 3",
    }
    assert "fetch_page" in result.trace.to_text()


def test_it_runs_in_the_users_process_off_the_loops_thread() -> None:
    seen: list[tuple[int, str]] = []

    def where() -> None:
        seen.append((os.getpid(), threading.current_thread().name))

    result, _ = run("where()", where)
    assert result.outcome == "answered" or result.answer == "second turn"
    assert seen[0][0] == os.getpid()
    assert seen[0][1] not in ("MainThread", "rlm-handler")


async def test_an_async_function_runs_on_the_loop_of_the_run() -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    async def later(value: int) -> int:
        await asyncio.sleep(0.01)
        loops.append(asyncio.get_running_loop())
        return value + 1

    result = await RLM(FakeLM(answering("later(1)")), tools=[later]).acompletion("c", "q")
    assert result.answer == 2
    assert loops == [asyncio.get_running_loop()]


def test_an_error_is_an_exception_of_the_same_name_and_the_run_goes_on() -> None:
    code = "try:\n    fetch_page('nowhere')\nexcept ValueError as e:\n    print('caught', e)"
    lm = FakeLM(block(code), block("fetch_page()"), answering("'done'"))
    result = RLM(lm, tools=[fetch_page]).completion("c", "q")
    assert result.answer == "done"
    assert "caught no page nowhere" in lm.roots[1].messages[-1].content
    assert "TypeError: fetch_page() missing 1 required" in lm.roots[2].messages[-1].content
    first, second = result.trace.find(kind="tool")
    assert first.error == {"type": "ValueError", "message": "no page nowhere"}
    assert second.state == "error"


class OwnError(Exception):
    pass


@pytest.mark.parametrize(
    "raised", [OwnError("own"), UnicodeDecodeError("utf-8", b"x", 0, 1, "bad")]
)
def test_an_error_that_the_repl_does_not_know_is_a_runtime_error(raised: Exception) -> None:
    def broken() -> None:
        raise raised

    lm = FakeLM(block("broken()"), answering("1"))
    RLM(lm, tools=[broken]).completion("c", "q")
    assert f"RuntimeError: {type(raised).__name__}: " in lm.roots[1].messages[-1].content


@pytest.mark.parametrize("value", ["text", 1, None, True, 2.5, ["a", {"b": 1}], b"x", (1, 2)])
def test_plain_data_comes_back_as_it_is(value: Any) -> None:
    def give() -> Any:
        return value

    result, _ = run("repr(give())", give)
    assert result.answer == repr(value)


def test_a_table_comes_back_as_a_table() -> None:
    def table(rows: int) -> pd.DataFrame:
        return pd.DataFrame({"a": range(rows)})

    result, _ = run("int(table(5)['a'].sum())", table)
    assert result.answer == 10


def test_what_the_repl_cannot_get_or_send_is_said() -> None:
    lm = FakeLM(block("give()"), block("fetch_page(object())"), answering("1"))
    RLM(lm, tools={"give": lambda: object(), "fetch_page": fetch_page}).completion("c", "q")
    assert "TypeError: give returned what the REPL cannot get" in lm.roots[1].messages[-1].content
    assert "TypeError: fetch_page takes plain data" in lm.roots[2].messages[-1].content


def test_threads_of_the_code_call_at_once() -> None:
    together = threading.Barrier(4, timeout=10)

    def meet(number: int) -> int:
        together.wait()
        return number

    code = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(4) as pool:\n    found = list(pool.map(meet, range(4)))\n"
        'answer["content"] = found\nanswer["ready"] = True'
    )
    result = RLM(FakeLM(block(code)), tools=[meet]).completion("c", "q")
    assert result.answer == [0, 1, 2, 3]


def test_children_have_the_functions_too_and_names_are_restored() -> None:
    class Recursive(FakeLM):
        async def complete(self, request: Any) -> Any:
            child = "Answer the request" in request.messages[1].content
            code = "double(len(context))" if child else "rlm_query('child')"
            return self._response(answering(code))

    assert RLM(Recursive(), tools={"double": lambda n: 2 * n}).completion("c", "q").answer == "10"
    lm = FakeLM(block("fetch_page = None"), answering("fetch_page('a')"))
    assert RLM(lm, tools=[fetch_page]).completion("c", "q").answer == "a x 2"


def test_waiting_for_a_function_is_no_time_of_the_block() -> None:
    async def slow() -> str:
        await asyncio.sleep(0.8)
        return "slept"

    result, _ = run("slow()", slow, block_timeout=0.4)
    assert result.answer == "slept"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"llm_query": len}, "llm_query is a name of the REPL itself"),
        ({"a b": len}, "'a b' is no name"),
        ([3], "3 is not a function"),
        ([lambda: 1], "'<lambda>' is no name for a function: give a dict"),
    ],
)
def test_what_cannot_be_a_tool_is_said(given: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        make_tools(given)

"""Loops of independent sub-calls as one batch: what is batched, what is left alone and why."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from rlm_notebook import RLM
from rlm_notebook.repl.protocol import REPL, Call, Limits
from rlm_notebook.settings import Settings
from tests.fakes import FakeLM, answering
from tests.repl.kinds import PYTHON, started

BATCHING = Limits(20.0, 4.0, auto_batch=True)


class Calls:
    """Answers in capital letters and keeps what was asked."""

    def __init__(self) -> None:
        self.made: list[Call] = []

    async def __call__(self, call: Call) -> list[str]:
        self.made.append(call)
        await asyncio.sleep(0)
        return [prompt.upper() for prompt in call.prompts]

    @property
    def shapes(self) -> list[tuple[str, int]]:
        return [(call.function, len(call.prompts)) for call in self.made]


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture(params=PYTHON)
async def repl(request: pytest.FixtureRequest, calls: Calls) -> AsyncIterator[REPL]:
    async with started(request.param, ["a", "b", "c"], calls, limits=BATCHING) as made:
        yield made


BATCHED = [
    "out = [llm_query(f'<{c}>') for c in context]",
    "out = []\nfor c in context:\n    out.append(llm_query(f'<{c}>'))",
    "out = []\nfor c in context:\n    p = f'<{c}>'\n    a = llm_query(p)\n    out.append(a)",
    "def f(c):\n    return f'<{c}>'\nout = [llm_query(f(c)) for c in context]",
    "out = list({c: llm_query(f'<{c}>') for c in context}.values())",
]


@pytest.mark.parametrize("code", BATCHED)
async def test_an_independent_loop_is_one_batch(repl: REPL, calls: Calls, code: str) -> None:
    done = await repl.execute(f"{code}\nprint(out)")
    assert (done.stdout, done.error) == ("['<A>', '<B>', '<C>']\n", None)
    assert [len(call.prompts) for call in calls.made] == [3]
    assert len(done.notes) == 1
    assert "batch" in done.notes[0]


LEFT_ALONE = [
    "a = ''\nfor c in context:\n    a = llm_query(a + c)",
    "seen = []\nfor c in context:\n    seen.append(llm_query(c + str(len(seen))))",
    "import random\nout = [llm_query(c + str(random.random() > 2)) for c in context]",
    "def f(c):\n    print(c)\n    return c\nout = [llm_query(f(c)) for c in context]",
    "out = []\nfor c in context:\n    if out:\n        break\n    out.append(llm_query(c))",
]


@pytest.mark.parametrize("code", LEFT_ALONE)
async def test_what_may_depend_is_left_alone_and_the_reason_is_said(
    repl: REPL, calls: Calls, code: str
) -> None:
    done = await repl.execute(code)
    assert done.error is None
    assert {size for _, size in calls.shapes} == {1}
    assert len(done.notes) == 1
    assert "line" in done.notes[0]


async def test_the_order_of_effects_stays(repl: REPL, calls: Calls) -> None:
    code = "for c in context:\n    print('ask', c)\n    print(llm_query(c))"
    done = await repl.execute(code)
    assert done.stdout == "ask a\nA\nask b\nB\nask c\nC\n"


@pytest.mark.parametrize(
    "code",
    [
        "out = []\nfor c in ['1', '2', 'x', '3']:\n    out.append(int(llm_query(c)) + 1)",
        "out = []\nfor c in ['1', '2', 'x', '3']:\n    a = llm_query(c)\n    out.append(int(a) + 1)",
    ],
)
async def test_a_failure_is_at_the_same_place(code: str) -> None:
    said = []
    for batching in (True, False):
        calls = Calls()
        async with started("subprocess", "c", calls, limits=Limits(20.0, 4.0, batching)) as repl:
            done = await repl.execute(code)
            left = (await repl.execute("print(out, c)")).stdout
        assert done.error is not None
        said.append((done.error, done.traceback, left))
        assert [size for _, size in calls.shapes] == ([4] if batching else [1, 1, 1])
    assert said[0] == said[1]
    assert said[0][2] == "[2, 3] x\n"
    assert "line " in said[0][1]


async def test_a_prompt_that_fails_leaves_the_answers_before_it(calls: Calls) -> None:
    code = "out = []\nfor c in ['a', 'b', 3, 'd']:\n    out.append(llm_query('<' + c + '>'))"
    async with started("subprocess", "c", calls, limits=BATCHING) as repl:
        done = await repl.execute(code)
        assert done.error is not None
        assert done.error["type"] == "TypeError"
        assert (await repl.execute("print(out, c)")).stdout == "['<A>', '<B>'] 3\n"
    assert "<d>" not in [prompt for call in calls.made for prompt in call.prompts]


async def test_without_the_option_nothing_is_changed(calls: Calls) -> None:
    async with started("subprocess", ["a", "b"], calls) as repl:
        done = await repl.execute("[llm_query(c) for c in context]")
    assert (done.stdout, done.notes) == ("['A', 'B']\n", [])
    assert calls.shapes == [("llm_query", 1)] * 2


def test_sixteen_calls_of_a_loop_are_at_work_at_once() -> None:
    lm = FakeLM(answering("[llm_query(str(i)) for i in range(16)]"), seconds=0.05)
    result = RLM(lm, auto_batch=True).completion("c", "q")
    (batch,) = result.trace.find(kind="batch")
    assert batch.attrs["size"] == 16
    assert lm.most_at_work == 16
    (code,) = result.trace.find(kind="code")
    assert "for i in range(16)" in code.attrs["code"], "the trace has the code as it was written"
    assert "batch" in code.attrs["note"]
    assert Settings().auto_batch is False

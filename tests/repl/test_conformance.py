"""What each REPL has to do, whatever it is made of."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlm_notebook import RLM, Session
from rlm_notebook.errors import REPLError
from rlm_notebook.repl.protocol import REPL, Call, Limits, SubcallError, ToolCall, ToolError
from tests.fakes import FakeLM, answering, block
from tests.repl.kinds import KINDS, PYTHON, started


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def clean_namespace() -> Iterator[None]:
    """The kernel REPL assigns in the program's namespace: take that back."""
    namespace = vars(sys.modules["__main__"])
    before = dict(namespace)
    yield
    for name in namespace.keys() - before.keys():
        del namespace[name]
    namespace.update(before)


@pytest.fixture
async def repl(kind: str) -> AsyncIterator[REPL]:
    async with started(kind) as made:
        yield made


async def goes_on(repl: REPL) -> None:
    done = await repl.execute("print(context, llm_query('a'))")
    assert (done.stdout, done.error) == ("the context A\n", None)


async def test_it_has_its_name(repl: REPL, kind: str) -> None:
    assert repl.name == kind


async def test_output_and_the_last_value_come_back(repl: REPL) -> None:
    done = await repl.execute("print('out')\n6 * 7")
    assert (done.stdout, done.stderr, done.error) == ("out\n42\n", "", None)
    assert (await repl.execute("x = 3")).stdout == ""
    assert (await repl.execute("None")).stdout == ""
    assert (await repl.execute("'a' + \"'\"")).stdout == '"a\'"\n'


async def test_stdout_and_stderr_are_apart_and_their_order_is_known(repl: REPL) -> None:
    code = (
        "import sys\nprint('one')\nprint('two')\nprint('three ä', file=sys.stderr)\n"
        "print('four')\nprint('five', file=sys.stderr)"
    )
    done = await repl.execute(code)
    assert (done.stdout, done.stderr) == ("one\ntwo\nfour\n", "three ä\nfive\n")
    assert "".join(done.outputs) == "one\ntwo\nthree ä\nfour\nfive\n"
    assert done.order == [("stdout", 8), ("stderr", 8), ("stdout", 5), ("stderr", 5)]
    alone = await repl.execute("print('x')")
    assert (alone.order, alone.outputs) == ([], ["x\n", ""])


async def test_a_secret_in_the_environment_leaves_the_order_of_output_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary-canary")
    code = "import sys\nprint('a', file=sys.stderr)\nprint('b')\nprint('c', file=sys.stderr)"
    async with started("kernel") as repl:
        assert (await repl.execute(code)).outputs == ["a\n", "b\n", "c\n"]


async def test_variables_and_functions_stay(repl: REPL) -> None:
    await repl.execute("x = 5\ndef double(n):\n    return 2 * n")
    assert (await repl.execute("print(double(x))")).stdout == "10\n"


async def test_the_context_is_what_was_given(kind: str) -> None:
    for context in ("text", ["a", "b"], {"k": [1, 2.5, None, True]}, b"bytes", [{"role": "user"}]):
        async with started(kind, context) as repl:
            done = await repl.execute("print(context)")
            assert done.stdout == f"{context}\n"


async def test_a_context_beyond_ascii_arrives_whole(kind: str) -> None:
    context = {"a": "größe " * 1_000, "b": "漢字", "c": "plain"}
    async with started(kind, context) as repl:
        done = await repl.execute("print([len(v) for v in context.values()], context['b'])")
        assert done.stdout == "[6000, 2, 5] 漢字\n"


async def test_sub_calls_are_answered(kind: str) -> None:
    calls: list[Call] = []

    async def answer(call: Call) -> list[str]:
        calls.append(call)
        await asyncio.sleep(0)
        return [f"<{prompt}>" for prompt in call.prompts]

    async with started(kind, on_call=answer) as repl:
        done = await repl.execute(
            "print(llm_query('a'), llm_query_batched(['b', 'c'], model='m'))\n"
            "print(rlm_query('d', 'm'), rlm_query_batched(prompts=['e']))\n"
            "print([llm_query(p) for p in 'fg'])"
        )
    assert done.error is None
    assert done.stdout == "<a> ['<b>', '<c>']\n<d> ['<e>']\n['<f>', '<g>']\n"
    assert [(call.function, call.prompts, call.model) for call in calls] == [
        ("llm_query", ["a"], None),
        ("llm_query_batched", ["b", "c"], "m"),
        ("rlm_query", ["d"], "m"),
        ("rlm_query_batched", ["e"], None),
        ("llm_query", ["f"], None),
        ("llm_query", ["g"], None),
    ]


async def test_prompts_that_are_no_str_are_named(kind: str) -> None:
    calls: list[Call] = []

    async def answer(call: Call) -> list[str]:
        calls.append(call)
        return ["" for _ in call.prompts]

    async with started(kind, on_call=answer) as repl:
        await repl.execute("llm_query_batched(['a', 3, None])")
        done = await repl.execute("llm_query_batched('abc')")
        bad_model = await repl.execute("llm_query('a', model=3)")
    assert (calls[0].prompts, calls[0].invalid) == (["a", "", ""], {1: "int", 2: "NoneType"})
    assert done.error == {
        "type": "TypeError",
        "message": "llm_query_batched takes a list of prompts, not one str",
    }
    assert bad_model.error is not None
    assert "not int" in bad_model.error["message"]


async def test_a_refused_sub_call_is_raised_where_it_was_made(kind: str) -> None:
    async def refuse(call: Call) -> list[str]:
        raise SubcallError("slot 3 failed")

    async with started(kind, on_call=refuse) as repl:
        done = await repl.execute(
            "try:\n    llm_query('a')\nexcept RuntimeError as error:\n    print('caught', error)\n"
            "llm_query('b')"
        )
    assert done.stdout == "caught slot 3 failed\n"
    assert done.error == {"type": "RuntimeError", "message": "slot 3 failed"}


async def test_tools_are_functions(kind: str) -> None:
    async def use(call: ToolCall) -> Any:
        if call.name == "bad":
            raise ToolError("KeyError", "no such page")
        return {"args": call.args, "kwargs": call.kwargs}

    async with started(kind, tools=("fetch", "bad"), on_tool=use) as repl:
        done = await repl.execute("print(fetch('u', depth=2))")
        assert done.stdout == "{'args': ['u'], 'kwargs': {'depth': 2}}\n"
        assert done.variables == []
        failed = await repl.execute("bad()")
        assert failed.error is not None
        assert failed.error["type"] == "KeyError"
        caught = await repl.execute("try:\n    bad()\nexcept KeyError:\n    print('caught')")
        assert caught.stdout == "caught\n"
        restored = await repl.execute("fetch = None")
        assert restored.notes == ["`fetch` is reserved: it was restored"]
        assert (await repl.execute("print(fetch(1))")).error is None


async def test_an_error_is_said_with_the_traceback_of_the_code_alone(repl: REPL) -> None:
    await repl.execute("def divide(n):\n    return 1 / n")
    done = await repl.execute("x = 1\ndivide(0)")
    assert done.error == {"type": "ZeroDivisionError", "message": "division by zero"}
    assert 'File "<block 2>", line 2' in done.traceback
    assert 'File "<block 1>", line 2' in done.traceback
    assert "return 1 / n" in done.traceback
    assert "rlm_notebook" not in done.traceback
    assert done.traceback.count("File ") == 2
    assert (await repl.execute("x")).stdout == "1\n"


@pytest.mark.parametrize(
    ("code", "error", "says"),
    [
        ("x = (", "SyntaxError", ""),
        ("%timeit 1", "SyntaxError", "plain Python, without %magics"),
        ("!ls", "SyntaxError", "plain Python, without %magics and !commands"),
        ("missing", "NameError", "missing"),
        ("raise ValueError('bad')", "ValueError", "bad"),
        ("def f(): return f()\nf()", "RecursionError", "recursion"),
        ("input('name? ')", "", ""),
        ("open('/nowhere/at/all')", "", ""),
    ],
)
async def test_bad_code_is_an_error_and_variables_stay(
    repl: REPL, code: str, error: str, says: str
) -> None:
    await repl.execute("kept = 7")
    done = await repl.execute(code)
    assert done.error is not None
    assert done.error["type"] == (error or done.error["type"])
    assert says in done.error["message"]
    assert "\n" not in done.error["message"]
    assert (await repl.execute("kept")).stdout == "7\n"
    await goes_on(repl)


@pytest.mark.parametrize(
    "code", ["quit()", "exit()", "raise SystemExit", "import sys\nsys.exit(2)"]
)
async def test_leaving_is_no_end(repl: REPL, code: str) -> None:
    await repl.execute("kept = 7")
    done = await repl.execute(code)
    assert done.error is not None
    assert (await repl.execute("kept")).stdout == "7\n"


async def test_the_answer_is_looked_at_after_each_block(repl: REPL) -> None:
    done = await repl.execute("answer['content'] = 'half'")
    assert (done.content, done.ready) == ("half", False)
    done = await repl.execute("answer['content'] = {'a': [1, None]}\nanswer['ready'] = True")
    assert (done.content, done.ready) == ({"a": [1, None]}, True)
    done = await repl.execute("answer = {'content': 'new', 'ready': True}")
    assert (done.content, done.ready, done.notes) == ("new", True, [])


@pytest.mark.parametrize(
    ("code", "content"),
    [
        ("FINAL('done')", "done"),
        ("x = 3\nFINAL_VAR('x')", 3),
        ("x = [1]\nFINAL_VAR(x)", [1]),
        ("FINAL(7)", 7),
    ],
)
async def test_the_older_ways_to_answer(repl: REPL, code: str, content: object) -> None:
    done = await repl.execute(code)
    assert (done.error, done.content, done.ready) == (None, content, True)


async def test_answers_of_any_kind_come_out_as_plain_data(repl: REPL) -> None:
    for expression, content in [
        ("0.5", 0.5),
        ("(1, 2)", [1, 2]),
        ("True", True),
        ("b'x'", "b'x'"),
        ("{1: 2}", {"1": 2}),
        ("None", None),
    ]:
        done = await repl.execute(f"answer['content'] = {expression}")
        assert done.content == content
        assert type(done.content) is type(content)
    nested = "x = []\nfor _ in range(100_000):\n    x = [x]\nanswer['content'] = x"
    done = await repl.execute(nested)
    assert isinstance(done.content, str)
    await repl.execute("answer['content'] = x = None")
    await goes_on(repl)


async def test_variables_have_type_size_value_and_changes(repl: REPL) -> None:
    done = await repl.execute(
        "n = 7\ntext = 'abc'\nlong = 'ab' * 500\nsome = ['x', 2, [3], 4]\nnothing = None\n_h = 1"
    )
    rows = {row[0]: row[1:] for row in done.variables}
    assert rows["n"] == ["int", "", "7"]
    assert rows["text"] == ["str", "3 characters", "'abc'"]
    assert rows["long"][:2] == ["str", "1,000 characters"]
    assert rows["long"][2].startswith("'abab")
    assert len(rows["long"][2]) < 70
    assert rows["some"][:2] == ["list", "4 items"]
    assert rows["nothing"][0] == "NoneType"
    assert "_h" not in rows
    assert done.changes == {"new": ["n", "text", "long", "some", "nothing"]}
    assert (await repl.execute("print(n)")).changes == {}
    done = await repl.execute("n = 8\nsome.append(5)\nmore = 1")
    assert done.changes == {"new": ["more"], "changed": ["n", "some"]}


async def test_show_vars_lists_the_variables(repl: REPL) -> None:
    assert (await repl.execute("print(SHOW_VARS())")).stdout == "none\n"
    done = await repl.execute("total = 12\nprint(SHOW_VARS())")
    assert done.stdout == "total: int 12\n"


async def test_reserved_names_are_restored(repl: REPL) -> None:
    done = await repl.execute("context = 1\nllm_query = None\nprint = None\nanswer = 3\nFINAL = 0")
    assert done.error is None
    assert sorted(done.notes) == sorted(
        [
            "`context` is reserved: it was restored",
            "`answer` is reserved: it was restored",
            "`llm_query` is reserved: it was restored",
            "`FINAL` is reserved: it was restored",
            "`print` is the function to show something with: it was restored",
        ]
    )
    await goes_on(repl)
    assert (await repl.execute("FINAL('x')")).content == "x"


@pytest.mark.parametrize(
    "code",
    ["\ufeffx = 1\r\nprint(x)\r\n", "if True:\n\tprint(1)", "größe = 1\nprint(größe)"],
)
async def test_odd_but_right_code_runs(repl: REPL, code: str) -> None:
    assert (await repl.execute(code)).stdout == "1\n"


async def test_awaiting_at_the_top_works(repl: REPL) -> None:
    done = await repl.execute("async def five():\n    return 5\nx = await five()\nx")
    assert (done.stdout, done.error) == ("5\n", None)


async def test_output_beyond_the_cap_keeps_head_and_tail(repl: REPL) -> None:
    code = "print('begin')\nfor _ in range(100):\n    print('x' * 100_000)\nprint('the end')"
    done = await repl.execute(code)
    assert len(done.stdout) < 5_000_000
    assert done.stdout.startswith("begin\n")
    assert "of output were not kept" in done.stdout
    assert done.stdout.endswith("the end\n")
    await goes_on(repl)


async def test_an_endless_loop_is_stopped_and_variables_are_there_again(kind: str) -> None:
    answers = iter("abc")

    async def answer(call: Call) -> list[str]:
        return [next(answers)]

    async with started(kind, on_call=answer, limits=Limits(0.5)) as repl:
        await repl.execute("kept = llm_query('q')")
        await repl.execute("more = kept + llm_query('q')")
        begun = time.monotonic()
        done = await repl.execute("lost = 1\nwhile True:\n    pass")
        assert time.monotonic() - begun < 10
        assert done.error is not None
        assert done.error["type"] == "BlockTimeout"
        assert "stopped after 0.5 s of its own" in done.error["message"]
        again = await repl.execute("print(kept, more, context)")
        assert again.stdout == "a ab the context\n"
        assert next(answers) == "c", "no call was made a second time"


async def test_waiting_for_sub_calls_is_no_time_of_the_block(kind: str) -> None:
    async def slow(call: Call) -> list[str]:
        await asyncio.sleep(0.4)
        return call.prompts

    async with started(kind, on_call=slow, limits=Limits(0.6)) as repl:
        done = await repl.execute("print([llm_query(str(i)) for i in range(3)])")
        assert (done.stdout, done.error) == ("['0', '1', '2']\n", None)


async def test_a_cancelled_block_ends_its_sub_calls(kind: str) -> None:
    reached, ended = asyncio.Event(), asyncio.Event()

    async def hang(call: Call) -> list[str]:
        reached.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return []

    async with started(kind, on_call=hang) as repl:
        task = asyncio.create_task(repl.execute("llm_query('a')"))
        await asyncio.wait_for(reached.wait(), 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await repl.close()
        await asyncio.wait_for(ended.wait(), 5)


async def test_closing_under_a_block_ends_it_for_good(kind: str) -> None:
    reached = asyncio.Event()

    async def hang(call: Call) -> list[str]:
        reached.set()
        await asyncio.sleep(60)
        return []

    async with started(kind, on_call=hang) as repl:
        task = asyncio.create_task(repl.execute("llm_query('a')"))
        await asyncio.wait_for(reached.wait(), 10)
        await repl.close()
        done = await asyncio.wait_for(task, 10)
        assert done.error is not None


async def test_two_at_once_do_not_mix_outputs_or_folders(kind: str) -> None:
    here = Path.cwd()
    code = (
        "for i in range(200):\n    print('{n}')\n    if i % 20 == 0:\n        llm_query('x')\n"
        "import os\nprint(os.getcwd() != '')"
    )
    async with started(kind) as one, started(kind) as two:
        done = await asyncio.gather(
            *[repl.execute(code.format(n=n)) for n, repl in ((1, one), (2, two))]
        )
        for number, execution in enumerate(done, start=1):
            assert execution.error is None
            assert execution.stdout == f"{number}\n" * 200 + "True\n"
        await one.execute("import os\nos.chdir('/')")
        assert Path.cwd() == here
        assert (await two.execute("import os\nprint(os.getcwd())")).stdout != "/\n" or (
            kind == "monty"  # it has no folders but its own /
        )


async def test_the_value_of_a_variable(repl: REPL) -> None:
    await repl.execute("x = {'a': 1}\nnothing = None")
    assert await repl.variable("x") == {"a": 1}
    assert await repl.variable("nothing") is None
    assert await repl.variable("missing") is None
    assert await repl.variable("no name") is None


async def test_closing_twice_and_before_the_start_is_right(kind: str) -> None:
    async with started(kind) as repl:
        await repl.close()


@pytest.mark.parametrize("kind", ["subprocess", "monty"])
async def test_no_key_of_the_environment_can_be_read(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary-canary")
    async with started(kind) as repl:
        done = await repl.execute("import os\nprint(os.environ)")
        assert "canary" not in done.stdout + done.traceback
        done = await repl.execute("print(open('/proc/self/environ').read())")
        assert "canary" not in done.stdout + done.traceback


async def test_keys_of_the_environment_do_not_get_out_of_the_kernel_repl(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary-canary")
    async with started("kernel") as repl:
        done = await repl.execute(
            "import os\nkey = os.environ['OPENAI_API_KEY']\nprint(key)\nanswer['content'] = [key]\n"
            "raise ValueError(key)"
        )
    assert "canary" not in repr(done)
    assert done.stdout == "<OPENAI_API_KEY>\n"
    assert done.content == ["<OPENAI_API_KEY>"]


@pytest.mark.parametrize("kind", PYTHON)
async def test_imports_and_threads_of_python(kind: str) -> None:
    async with started(kind) as repl:
        code = (
            "import math, threading\nt = threading.Thread(target=math.sqrt, args=(4,))\nt.start()"
        )
        assert (await repl.execute(code)).error is None
        code = "import sys\nsys.stdout.buffer.write(b'\\xff\\n')\nsys.stdout.write('ok\\n')\nNone"
        assert (await repl.execute(code)).stdout == "\ufffd\nok\n"
        code = "import asyncio\nasync def f():\n    return 7\nprint(asyncio.run(f()))"
        assert (await repl.execute(code)).stdout == "7\n"
        code = (
            "from concurrent.futures import ThreadPoolExecutor\n"
            "with ThreadPoolExecutor() as pool:\n    print(list(pool.map(llm_query, 'ab')))"
        )
        assert (await repl.execute(code)).stdout == "['A', 'B']\n"


def test_a_run_with_children_says_which_repl_it_had(kind: str) -> None:
    lm = FakeLM(
        block("found = rlm_query('part')\nprint(found)"),
        answering("context.upper()"),
        answering("found"),
    )
    result = RLM(lm, repl=kind).completion("whole", "what?")
    assert result.answer == "PART"
    runs = list(result.trace.find(kind="run"))
    assert [run.attrs["repl"] for run in runs] == [kind, kind]
    assert result.trace.header.settings["repl"] == kind


def test_a_session_keeps_variables_and_contexts(kind: str) -> None:
    session = Session("s")
    try:
        RLM(FakeLM(block("found = 7"), answering("'one'")), repl=kind).completion(
            "first", "what?", session=session
        )
        lm = FakeLM(answering("[found, context, context_0, context_1, history[0]['answer']]"))
        result = RLM(lm, repl=kind).completion("second", "what?", session=session)
        assert result.answer == [7, "second", "first", "second", "one"]
        other = "monty" if kind != "monty" else "subprocess"
        with pytest.raises(Exception, match=f"session s has a {kind} REPL, not {other}"):
            RLM(lm, repl=other).completion("third", "what?", session=session)
    finally:
        session.close()


def test_nothing_is_left_of_a_run(kind: str) -> None:
    import threading

    before = {thread.name for thread in threading.enumerate()}
    out = sys.stdout
    RLM(FakeLM(answering("1")), repl=kind).completion("c", "q")
    deadline = time.monotonic() + 5
    while any("repl" in t.name for t in threading.enumerate()) and time.monotonic() < deadline:
        time.sleep(0.01)
    left = {thread.name for thread in threading.enumerate()} - before
    assert not {name for name in left if "repl" in name}
    assert sys.stdout is out
    assert os.getcwd() == str(Path.cwd())


def test_monty_that_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic_monty", None)
    with pytest.raises(Exception, match=r"pip install 'rlm-notebook\[sandbox\]'"):
        RLM(FakeLM(answering("1")), repl="monty").completion("c", "q")
    with pytest.raises(Exception, match="docker"):
        RLM(FakeLM(answering("1")), repl="docker")


async def test_the_sandbox_refuses_what_is_no_plain_value() -> None:
    import numpy as np

    for value in (np.zeros(3), {"table": np.zeros(3)}):
        with pytest.raises(REPLError, match=r"plain values only.*--repl subprocess"):
            async with started("monty", value):
                pass


async def test_the_sandbox_takes_a_text_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlm_notebook.repl import monty

    monkeypatch.setattr(monty, "_FRAME", 1_000)
    text = "".join(f"{n} é " for n in range(3_000))
    async with started("monty", text) as repl:
        done = await repl.execute("print(context)")
    assert done.stdout == f"{text}\n"


@pytest.mark.parametrize(
    ("code", "renewed"),
    [
        ("x = 'a' * 300_000_000", False),
        ("x = []\nwhile True:\n    x.append('a' * 10_000 + str(len(x)))", True),  # none is left
    ],
)
async def test_the_memory_of_the_sandbox_has_a_limit(code: str, renewed: bool) -> None:
    async with started("monty", limits=Limits(20.0, 0.1)) as repl:
        await repl.execute("kept = 7")
        done = await repl.execute(code)
        assert done.error is not None
        assert (done.error["type"], bool(done.notes)) == ("MemoryError", renewed)
        assert "memory limit exceeded" in done.error["message"]
        assert (await repl.execute("kept")).stdout == "7\n"
        await goes_on(repl)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import time\nx = llm_query(str(time.monotonic()))", "made other calls"),
        ("import time\nif 'a' in globals():\n    pass\nx = llm_query(str(time.time()))", "made"),
    ],
)
async def test_variables_that_cannot_come_back_are_said_to_be_lost(code: str, why: str) -> None:
    async with started("subprocess", limits=Limits(0.5)) as repl:
        await repl.execute("first = 1")
        await repl.execute(code)
        done = await repl.execute("while True: pass")
        assert "Variables of earlier blocks are lost: block 2 of them" in done.notes[0]
        assert why in done.notes[0]
        lost = await repl.execute("x")
        assert lost.error is not None
        assert lost.error["type"] == "NameError"
        await goes_on(repl)


async def test_a_block_that_does_not_end_when_run_again_is_said(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    mark.touch()
    async with started("subprocess", limits=Limits(0.5)) as repl:
        await repl.execute(f"import os\nwhile not os.path.exists({str(mark)!r}):\n    pass")
        mark.unlink()
        done = await repl.execute("while True: pass")
        assert "lost: block 1 of them did not end when it was run again" in done.notes[0]
        await goes_on(repl)


@pytest.mark.parametrize("context", ["text", "list"])
def test_a_large_context_has_no_second_copy_and_lets_the_loop_run(context: str) -> None:
    code = """
import asyncio, resource, sys, time
from rlm_notebook.repl.protocol import Limits
from rlm_notebook.repl.subprocess import SubprocessREPL

def mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

async def main(kind):
    whole = 'é' * 60_000_000  # 120 MB as Python holds it, 120 MB as UTF-8
    value = whole if kind == 'text' else [f'{i} ' + 'é' * 60_000 for i in range(1_000)]
    gap, last = 0.0, time.monotonic()
    async def tick():
        nonlocal gap, last
        while True:
            await asyncio.sleep(0.005)
            gap, last = max(gap, time.monotonic() - last), time.monotonic()
    repl = SubprocessREPL(Limits(60, 4))
    before, ticking = mib(), asyncio.create_task(tick())
    async def none(call): return []
    await repl.start(value, none)
    done = await repl.execute('print(len(context))')
    await repl.close()
    print(done.stdout.strip(), round(mib() - before), round(gap, 3))

asyncio.run(main(sys.argv[1]))
"""
    ran = subprocess.run(
        [sys.executable, "-c", code, context], capture_output=True, text=True, check=True
    )
    size, more, gap = ran.stdout.split()
    assert int(size) == (60_000_000 if context == "text" else 1_000)
    assert float(more) < 60, "MiB; a copy would take 115"
    assert float(gap) < 0.5, "seconds in which the loop did not run"

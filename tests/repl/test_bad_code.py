"""Bad code: whatever a block does, the model is told, and the next block works."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from rlm_notebook import RLM
from rlm_notebook.parsing import parse_reply
from rlm_notebook.repl.protocol import Call, Execution, Limits
from rlm_notebook.repl.subprocess import SubprocessREPL
from tests.fakes import FakeLM, answering, block


async def shout(call: Call) -> list[str]:
    return [prompt.upper() for prompt in call.prompts]


@pytest.fixture
async def repl() -> AsyncIterator[SubprocessREPL]:
    made = SubprocessREPL(Limits(20, 4))
    await made.start("the context", shout)
    yield made
    await made.close()


async def goes_on(repl: SubprocessREPL) -> Execution:
    done = await repl.execute("print(context, llm_query('a'))")
    assert (done.stdout, done.error) == ("the context A\n", None)
    return done


@pytest.mark.parametrize(
    ("code", "kind", "says"),
    [
        ("x = bytearray(10 * 1024**3)", "MemoryError", "memory limit"),
        ("x = 'a' * 10 * 1024**3", "MemoryError", ""),
        ("def f(): return f()\nf()", "RecursionError", "recursion"),
        ("input('name? ')", "EOFError", "EOF"),
        ("%matplotlib inline", "SyntaxError", "plain Python, without %magics"),
        ("!ls -l", "SyntaxError", "plain Python, without %magics and !commands"),
        ("x = (", "SyntaxError", "never closed"),
        ("class E(Exception):\n    def __str__(self): raise E\nraise E", "E", ""),
        ("raise KeyboardInterrupt", "KeyboardInterrupt", ""),
        ("raise BaseException('odd')", "BaseException", "odd"),
        ("1 / 0", "ZeroDivisionError", "division"),
    ],
)
async def test_what_a_block_raises_is_said_and_variables_stay(
    repl: SubprocessREPL, code: str, kind: str, says: str
) -> None:
    await repl.execute("kept = 7")
    done = await repl.execute(code)
    assert done.error is not None
    assert done.error["type"] == kind
    assert says in done.error["message"]
    assert "\n" not in done.error["message"]
    assert (await repl.execute("kept")).stdout == "7\n"
    await goes_on(repl)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
        ("import os; os._exit(3)", "exit code 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
        ("import signal, time; signal.alarm(1); time.sleep(9)", "SIGALRM"),
        ("import os; os.abort()", "SIGABRT"),
    ],
)
async def test_a_process_that_ends_is_named_and_the_next_block_has_a_new_one(
    repl: SubprocessREPL, code: str, says: str
) -> None:
    done = await repl.execute(code)
    assert done.error is not None
    assert says in done.error["message"]
    assert done.notes == ["The REPL is a new process."]
    await goes_on(repl)


@pytest.mark.parametrize(
    "code", ["import sys; sys.exit(1)", "quit()", "exit()", "raise SystemExit"]
)
async def test_leaving_is_no_end(repl: SubprocessREPL, code: str) -> None:
    await repl.execute("kept = 7")
    done = await repl.execute(code)
    assert done.error is not None
    assert (await repl.execute("kept")).stdout == "7\n"


async def test_a_gigabyte_of_output_is_cut_with_a_mark(repl: SubprocessREPL) -> None:
    done = await repl.execute("for _ in range(1_100): print('x' * 1_000_000)")
    assert done.error is not None  # the file is as large as it may get
    assert done.error["type"] == "OSError"
    assert len(done.stdout) < 5_000_000
    assert "bytes of output were not kept" in done.stdout
    await goes_on(repl)


def workers() -> list[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return [each for each in children if "worker.py" in str(each.cmdline())]


async def test_a_fork_bomb_ends_with_the_block() -> None:
    repl = SubprocessREPL(Limits(1))
    await repl.start("the context", shout)
    bomb = "import os, time\nfor _ in range(5): os.fork()\ntime.sleep(99)"  # 32 processes
    done = await repl.execute(bomb)
    assert done.error is not None
    assert done.error["type"] == "BlockTimeout"
    await asyncio.sleep(0.1)
    assert len(workers()) == 1
    await goes_on(repl)
    await repl.close()


async def test_too_many_processes_end_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlm_notebook.repl.subprocess.PROCESSES", 20)
    repl = SubprocessREPL(Limits(60))
    await repl.start("the context", shout)
    done = await repl.execute("import os, time\nfor _ in range(5): os.fork()\ntime.sleep(99)")
    assert done.error is not None
    assert done.error["type"] == "TooManyProcesses"
    assert "it had started 32 processes, 20 are allowed" in done.error["message"]
    await goes_on(repl)
    await repl.close()


async def test_reserved_names_and_print_are_restored(repl: SubprocessREPL) -> None:
    done = await repl.execute("del context\nllm_query = None\nprint = None\nanswer = 3")
    assert done.error is None
    assert len(done.notes) == 4
    await goes_on(repl)


async def test_names_of_python_that_the_code_uses_for_itself_stay(repl: SubprocessREPL) -> None:
    await repl.execute("list = [1]\nsum = 3")
    assert (await repl.execute("print(list, sum)")).stdout == "[1] 3\n"


async def test_no_browser_opens(repl: SubprocessREPL) -> None:
    done = await repl.execute("import antigravity, webbrowser\nprint(webbrowser.open('http://x'))")
    assert (done.stdout, done.error) == ("True\n", None)


async def test_threads_that_are_left_running_do_no_harm(repl: SubprocessREPL) -> None:
    code = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()"
    assert (await repl.execute(code)).error is None
    await goes_on(repl)


async def test_asyncio_and_multiprocessing_work(repl: SubprocessREPL) -> None:
    code = (
        "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    return 7\nasyncio.run(f())"
    )
    assert (await repl.execute(code)).stdout == "7\n"
    code = (
        "import multiprocessing\ndef double(n):\n    return 2 * n\n"
        "with multiprocessing.get_context('fork').Pool(2) as pool:\n"
        "    print(pool.map(double, [1, 2, 3]))"
    )
    done = await repl.execute(code)
    assert (done.stdout, done.error) == ("[2, 4, 6]\n", None)
    assert (await repl.execute("import pickle; pickle.loads(pickle.dumps(double))(4)")).stdout == (
        "8\n"
    )


async def test_a_change_of_the_folder_stays_in_the_process(repl: SubprocessREPL) -> None:
    before = Path.cwd()
    assert (await repl.execute("import os\nos.chdir('/')\nos.getcwd()")).stdout == "'/'\n"
    assert Path.cwd() == before
    await goes_on(repl)


@pytest.mark.parametrize(
    "code",
    [
        "\ufeffx = 1\r\nprint(x)\r\n",
        "if True:\n\tprint(1)",
        "größe = 1\nprint(größe)",
        "print(1) # \u2028",
    ],
)
async def test_odd_but_right_code_runs(repl: SubprocessREPL, code: str) -> None:
    assert (await repl.execute(code)).stdout == "1\n"


@pytest.mark.parametrize(
    ("content", "answer"),
    [
        ("7", 7),
        ("{'a': (1, 2)}", {"a": [1, 2]}),
        ("None or 0.5", 0.5),
        ("float('nan')", "nan"),
        ("{1, 2} and 'set'", "set"),
        ("b'x'", "b'x'"),
        ("object", "<class 'object'>"),
    ],
)
def test_answers_that_are_no_str(content: str, answer: object) -> None:
    assert RLM(FakeLM(answering(content))).completion("c", "q").answer == answer


def test_an_answer_nested_without_end_does_not_break_the_run() -> None:
    code = "x = []\nfor _ in range(100_000): x = [x]\nanswer['content'] = x\nanswer['ready'] = True"
    result = RLM(FakeLM(block(code))).completion("c", "q")
    assert result.outcome == "answered"
    assert "RecursionError" in result.answer


def test_ready_without_content_is_said_and_two_blocks_go_on_after_a_failure() -> None:
    lm = FakeLM(
        block("answer['ready'] = True"),
        block("1 / 0") + "\n" + block("print('second')"),
        answering("'done'"),
    )
    result = RLM(lm).completion("c", "q")
    assert result.answer == "done"
    assert "set the content first" in lm.roots[1].messages[-1].content
    assert "ZeroDivisionError" in lm.roots[2].messages[-1].content
    assert "second" in lm.roots[2].messages[-1].content


def test_backticks_inside_of_a_string_are_code() -> None:
    code = 'text = """\n```\nnot the end\n```\n"""\nprint(text)'
    assert parse_reply(block(code)).blocks == [code]

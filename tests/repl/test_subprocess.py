"""The subprocess REPL: what it gives back, what it keeps apart, how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from rlm_notebook.repl import frames
from rlm_notebook.repl.protocol import Call, Limits
from rlm_notebook.repl.subprocess import SubprocessREPL


async def shout(call: Call) -> list[str]:
    return [prompt.upper() for prompt in call.prompts]


@pytest.fixture
async def repl() -> AsyncIterator[SubprocessREPL]:
    made = SubprocessREPL()
    await made.start("the context", shout)
    yield made
    await made.close()


async def test_stdout_stderr_and_the_last_value_come_back(repl: SubprocessREPL) -> None:
    done = await repl.execute("import sys\nprint('out')\nprint('err', file=sys.stderr)\n6 * 7")
    assert (done.stdout, done.stderr, done.error) == ("out\n42\n", "err\n", None)


async def test_output_of_c_code_and_child_processes_stands_in_its_order(
    repl: SubprocessREPL,
) -> None:
    code = "import os\nprint('a')\nos.system('echo b')\nos.write(1, b'c\\xff\\n')\nprint('d')"
    assert (await repl.execute(code)).stdout == "a\nb\nc\ufffd\n0\nd\n".replace("0\n", "")


async def test_output_of_one_block_never_shows_up_in_the_next(repl: SubprocessREPL) -> None:
    await repl.execute("print('first')")
    assert (await repl.execute("print('second')")).stdout == "second\n"


async def test_output_beyond_the_cap_keeps_head_and_tail(repl: SubprocessREPL) -> None:
    done = await repl.execute("print('a' * 10_000_000)\nprint('the end')")
    assert len(done.stdout) < 5_000_000
    assert done.stdout.startswith("aaa")
    assert "were not kept" in done.stdout
    assert done.stdout.endswith("the end\n")


async def test_secrets_of_the_environment_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary")
    monkeypatch.setenv("MY_TOKEN", "canary-token")
    repl = SubprocessREPL()
    await repl.start("c", shout)
    done = await repl.execute(
        "import os\nprint(os.environ)\nprint(open('/proc/self/environ').read())"
    )
    await repl.close()
    assert done.error is None
    assert "canary" not in done.stdout
    assert "PATH" in done.stdout


async def test_two_repls_print_and_write_at_once_and_nothing_mixes() -> None:
    here = Path.cwd()
    repls = [SubprocessREPL() for _ in range(2)]
    await asyncio.gather(*[repl.start("c", shout) for repl in repls])
    code = (
        "import os, time\nfor i in range(50):\n    print({n}, flush=True)\n    time.sleep(0.001)\n"
        "open('out.txt', 'w').write('{n}')\nprint(open('out.txt').read(), os.getcwd())"
    )
    done = await asyncio.gather(
        *[repl.execute(code.format(n=n)) for n, repl in enumerate(repls, start=1)]
    )
    for number, execution in enumerate(done, start=1):
        *lines, last = execution.stdout.splitlines()
        assert lines == [str(number)] * 50
        assert last.split()[0] == str(number)
    assert Path.cwd() == here
    assert not (here / "out.txt").exists()
    folders = {execution.stdout.split()[-1] for execution in done}
    assert len(folders) == 2
    for repl in repls:
        await repl.close()
    assert not any(Path(folder).exists() for folder in folders)


async def test_an_endless_loop_is_killed_with_the_processes_it_started() -> None:
    repl = SubprocessREPL()
    await repl.start("c", shout)
    code = (
        "import subprocess\np = subprocess.Popen(['sleep', '600'])\n"
        "open('pid', 'w').write(str(p.pid))\nwhile True: pass"
    )
    assert repl._directory is not None
    file = repl._directory / "pid"
    running = asyncio.create_task(repl.execute(code))
    while not file.exists() or not file.read_text():
        await asyncio.sleep(0.01)
    pids = [int(file.read_text()), repl._process.pid]  # type: ignore[union-attr]
    begin = time.monotonic()
    await repl.close()
    assert time.monotonic() - begin < 3
    done = await asyncio.wait_for(running, 5)
    assert done.error is not None
    assert done.error["type"] == "ProcessEnded"
    assert repl._process is None, "a REPL that was closed starts no other process"
    assert not psutil.pid_exists(pids[1]), "ours is reaped when close() returns"
    while _alive(pids[0]):  # the system ends the other one in its own time
        assert time.monotonic() - begin < 10
        await asyncio.sleep(0.01)


async def test_a_cancellation_does_not_cut_the_clean_up_short() -> None:
    for turns in range(6):  # cancel at each of the first steps of the clean-up
        repl = SubprocessREPL()
        await repl.start("c", shout)
        assert repl._process is not None
        assert repl._directory is not None
        pid, folder, writer = repl._process.pid, repl._directory, repl._writer
        closing = asyncio.create_task(repl.close())
        for _ in range(turns):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        if turns == 0:  # it had not begun
            await repl.close()
        assert not psutil.pid_exists(pid)
        assert not folder.exists()
        assert writer is not None
        assert writer.transport.is_closing()
        assert repl._writer is None


def _alive(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def test_the_process_ends_when_its_parent_is_killed() -> None:
    script = """
import asyncio
from rlm_notebook.repl.subprocess import SubprocessREPL
async def main():
    repl = SubprocessREPL()
    await repl.start("c", None)
    print(repl._process.pid, repl._directory, flush=True)
    await repl.execute("while True: pass")
asyncio.run(main())
"""
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        pid, folder = parent.stdout.readline().split()
        worker = psutil.Process(int(pid))
    parent.kill()
    parent.wait()
    with contextlib.suppress(psutil.NoSuchProcess):
        worker.wait(timeout=10)
    assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE
    assert not Path(folder).exists()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import os\nos._exit(3)", "ended with exit code 3"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "ended by SIGKILL"),
        ("import ctypes\nctypes.string_at(0)", "ended by SIGSEGV"),
    ],
)
async def test_a_process_that_ends_is_named_and_replaced(
    repl: SubprocessREPL, code: str, message: str
) -> None:
    done = await repl.execute(code)
    assert done.error is not None
    assert message in done.error["message"]
    assert done.notes == ["The REPL is a new process."]
    again = await repl.execute("context")
    assert (again.stdout, again.notes) == ("'the context'\n", [])


@pytest.mark.parametrize("code", ["exit()", "import sys\nsys.exit(2)", "raise SystemExit"])
async def test_leaving_the_interpreter_does_not_end_the_repl(
    repl: SubprocessREPL, code: str
) -> None:
    await repl.execute("x = 1")
    done = await repl.execute(code)
    assert done.error is not None
    assert done.error["type"] == "SystemExit"
    assert (await repl.execute("x")).stdout == "1\n"


async def test_closing_the_standard_streams_hurts_one_block_at_most(repl: SubprocessREPL) -> None:
    await repl.execute("import os\nfor fd in (0, 1, 2): os.close(fd)")
    assert (await repl.execute("print('still here')")).stdout == "still here\n"


@pytest.mark.parametrize(
    "data",
    [
        b"".join(frames.encode({"op": "done"}, [])),
        b"".join(frames.encode({"op": "call", "function": "evil", "id": 1}, [])),
        b"\xff" * 64,
        frames.PREFIX.pack(10, 0) + b"not json!!",
    ],
)
async def test_what_a_hostile_process_sends_never_hurts_the_parent(
    repl: SubprocessREPL, data: bytes
) -> None:
    code = (
        "import os, time\nfor fd in range(3, 64):\n    try:\n"
        f"        os.fstat(fd); os.write(fd, {data!r})\n    except OSError: pass\ntime.sleep(0.2)"
    )
    async with asyncio.timeout(20):
        await repl.execute(code)
        again = await repl.execute("print('fine')")
    assert again.stdout == "fine\n" or again.error is not None


async def test_variables_are_listed_without_running_their_code(repl: SubprocessREPL) -> None:
    code = (
        "class Bad:\n    def __repr__(self): raise ValueError\n"
        "bad = Bad()\nbig = 'x' * 1000\nsmall = [1, 2]\nn = 7\nimport os\n_hidden = 1"
    )
    done = await repl.execute(code)
    assert done.variables == [
        ["Bad", "type", "", ""],
        ["bad", "Bad", "", ""],
        ["big", "str", "1,000 characters", repr("x" * 57)[:-1] + "…'"],
        ["small", "list", "2 items", "[1, 2]"],
        ["n", "int", "", "7"],
    ]


async def test_top_level_await_works(repl: SubprocessREPL) -> None:
    done = await repl.execute("import asyncio\nx = await asyncio.sleep(0, 5)\nx")
    assert done.stdout == "5\n"


async def test_a_dict_with_int_keys_and_tuples_arrives_as_it_was() -> None:
    repl = SubprocessREPL()
    await repl.start({1: ("a", 2), "k": None}, shout)
    assert (await repl.execute("context")).stdout == "{1: ('a', 2), 'k': None}\n"
    await repl.close()


def test_the_worker_needs_the_standard_library_only() -> None:
    import ast
    import sys

    folder = Path(frames.__file__).parent
    for name in ("worker.py", "frames.py", "parcel.py", "interpreter.py", "batching.py"):
        tree = ast.parse((folder / name).read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            modules = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            for module in modules:
                assert module.split(".")[0] in {*sys.stdlib_module_names, "rlm_notebook"}
                if module.startswith("rlm_notebook"):
                    assert "TYPE_CHECKING" in (folder / name).read_text(encoding="utf-8")
    assert os.name == "posix"


@pytest.fixture
async def hurried() -> AsyncIterator[SubprocessREPL]:
    async def slow(call: Call) -> list[str]:
        await asyncio.sleep(0.6)
        return call.prompts

    made = SubprocessREPL(Limits(0.4))
    await made.start("the context", slow)
    yield made
    await made.close()


@pytest.mark.parametrize(
    "code", ["while True: pass", "import time; time.sleep(999)", "import os; os.system('sleep 99')"]
)
async def test_a_block_that_does_not_end_is_stopped_and_the_repl_goes_on(
    hurried: SubprocessREPL, code: str
) -> None:
    begun = time.monotonic()
    done = await hurried.execute(code)
    assert time.monotonic() - begun < 5
    assert done.error is not None
    assert done.error["type"] == "BlockTimeout"
    assert "stopped after 0.4 s of its own" in done.error["message"]
    assert done.notes == ["The REPL is a new process."]
    assert (await hurried.execute("print(context)")).stdout == "the context\n"


async def test_waiting_for_sub_calls_is_no_time_of_the_block(hurried: SubprocessREPL) -> None:
    code = "answers = [llm_query(str(i)) for i in range(3)]\nprint(answers)"
    done = await hurried.execute(code)
    assert (done.stdout, done.error) == ("['0', '1', '2']\n", None)
    done = await hurried.execute("llm_query('x')\nwhile True: pass")
    assert done.error is not None
    assert done.error["type"] == "BlockTimeout"

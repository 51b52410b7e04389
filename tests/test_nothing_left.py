"""However a run ends, it leaves nothing behind: no task, thread, socket or process."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil
import pytest

from rlm_notebook import RLM
from rlm_notebook.handler import handler
from rlm_notebook.live import LiveRun
from tests.fakes import block
from tests.servers.handle import OpenAIServer
from tests.servers.openai_server import Rule

# The root waits for a batch in a thread, for children that wait for batches of their own, and
# for a single call: 30 requests hang, 4 REPL processes run.
ROOT = """\
import threading
threading.Thread(target=llm_query_batched, args=(["hang"] * 9,)).start()
threading.Thread(target=llm_query, args=("hang",)).start()
rlm_query_batched(["child"] * 3)"""
RULES = (
    Rule(match="Answer the request", content=block("llm_query_batched(['hang'] * 6)")),
    Rule(match="hang", fail="hang"),
    Rule(content=block(ROOT)),
)
HANGING = 9 + 1 + 3 * 6
ENDS = ["cancel", "stop", "timeout", "limit"]


@dataclass
class Left:
    """What there is in this process."""

    tasks: list[str]
    threads: list[str]
    processes: list[int]

    @staticmethod
    def now() -> Left:
        async def names() -> list[str]:
            mine = asyncio.current_task()
            return sorted(str(t.get_coro()) for t in asyncio.all_tasks() if t is not mine)

        tasks = handler().block(names())  # first: it starts the handler thread
        # Threads of the loop's default executor are kept for later by asyncio.
        threads = [t.name for t in threading.enumerate() if not t.name.startswith("asyncio_")]
        children = psutil.Process().children(recursive=True)
        pids = [child.pid for child in children if child.status() != psutil.STATUS_ZOMBIE]
        zombies = [child.pid for child in children if child.status() == psutil.STATUS_ZOMBIE]
        assert not zombies
        return Left(tasks, sorted(threads), sorted(pids))


def connections(server: OpenAIServer) -> int:
    """Open connections from this process to the server, the idle ones included."""
    found = psutil.Process().net_connections("tcp")
    mine = [c for c in found if c.raddr and c.raddr.port == server.port]
    return sum(c.status == psutil.CONN_ESTABLISHED for c in mine)


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.02)
    return True


def prepare(server: OpenAIServer, end: str) -> LiveRun:
    settings: dict[str, Any] = {"call_timeout": 60.0}
    if end == "timeout":
        settings["timeout"] = 2.5
    if end == "limit":
        settings["max_calls"] = HANGING + 3  # the roots of the run and its children; one too few
    rlm = RLM("openai/root", sub_model="openai/leaf", base_url=server.url, **settings)
    return rlm.prepare("a text", "a question")


@pytest.mark.parametrize("end", ENDS)
async def test_a_run_that_is_ended_leaves_nothing(openai_server: OpenAIServer, end: str) -> None:
    openai_server.script(*RULES)
    before = Left.now()
    live = prepare(openai_server, end)
    run = asyncio.create_task(live.go())
    if end != "limit":  # which ends the run by itself, with all but one of the calls in flight
        assert await until(lambda: live.trace.tree.totals.in_flight == HANGING)
        assert len(Left.now().processes) == len(before.processes) + 4
        assert connections(openai_server) >= HANGING
    if end == "cancel":
        run.cancel()
    elif end == "stop":
        live.stop()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.wait_for(run, 10)
    assert Left.now() == before
    # Connections whose request was cancelled are closed; those that answered are kept for 4 s.
    assert await until(lambda: connections(openai_server) <= 4, 2)
    assert live.trace.tree.totals.in_flight == 0
    assert not [span for span in live.trace.find() if span.open]
    assert live.result is not None
    assert live.result.outcome == "stopped"
    assert len(openai_server.log()) >= HANGING + 3


async def test_idle_connections_are_closed_after_a_while(openai_server: OpenAIServer) -> None:
    RLM("builtin/extractive", sub_model="openai/m", base_url=openai_server.url).completion(
        ["x" * 40_000] * 4, "Which one?"
    )
    assert connections(openai_server) > 0
    assert await until(lambda: connections(openai_server) == 0)


SCRIPT = """\
import asyncio, os, sys, threading, time
import psutil
from rlm_notebook import RLM
rlm = RLM("openai/root", sub_model="openai/leaf", base_url=sys.argv[1])
if __name__ == "__main__":
    live = rlm.prepare("a text", "a question")
    threading.Thread(target=lambda: asyncio.run(live.go()), daemon=True).start()
    while live.trace.tree.totals.in_flight < int(sys.argv[2]):
        time.sleep(0.01)
    print(*[child.pid for child in psutil.Process().children(recursive=True)], flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("end", ["exit", "SIGTERM", "SIGKILL"])
def test_a_process_that_ends_in_a_run_takes_everything_with_it(
    openai_server: OpenAIServer, end: str
) -> None:
    openai_server.script(*RULES)
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, openai_server.url, str(HANGING)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    workers = [psutil.Process(int(pid)) for pid in process.stdout.readline().split()]
    assert len(workers) == 4
    if end == "exit":
        process.communicate("\n", timeout=10)
        assert process.returncode == 0
    else:
        process.send_signal(getattr(signal, end))
        process.communicate(timeout=10)
    gone, alive = psutil.wait_procs(workers, timeout=5)
    assert alive == []
    assert len(gone) == 4

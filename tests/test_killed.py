"""A run that is killed at any moment: its file loads, has what is older than 150 ms, and resumes."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlm_notebook import RLM, Trace
from rlm_notebook.resume import prepare_resume
from rlm_notebook.settings import Settings
from tests.fakes import FakeLM, answering, block

KILLS = int(os.environ.get("RLM_TEST_KILLS", "20"))
AT_ONCE = 4

CODE = """
found = llm_query_batched([f"{i} {context[:5]}" for i in range(60)])
deep = rlm_query_batched(["left", "right"])
print(len(found), deep, llm_query("single"))
"""


def root() -> FakeLM:
    """A root, its children, and leaves that take their time: about 0.6 s in all."""
    return FakeLM(
        block(CODE),
        answering("context.upper()"),
        answering("context.upper()"),
        answering("[found[7], deep]"),
        leaf=lambda prompt: f"<{prompt}>",
        seconds=0.04,
    )


CHILD = """
import sys, time
from pathlib import Path
from rlm_notebook import RLM
from rlm_notebook.live import LiveRun
from rlm_notebook.trace.recorder import Recorder
from tests.test_killed import root

times = Path(sys.argv[1] + ".times").open("wb", buffering=0)
emit = Recorder._emit
def noted(self, event):
    emit(self, event)
    times.write(b"%d\\n" % time.monotonic_ns())  # one line an event, and no thread may delay it
Recorder._emit = noted
print("begun", flush=True)
RLM(root(), batch_max_concurrent=8).completion("whole text", "what?", trace=sys.argv[1])
"""
ANSWER = ["<7 whole>", ["LEFT", "RIGHT"]]


def kill_one(path: Path, after: float) -> float:
    """Run in a process of its own, killed so many seconds after the run began: when it was, ns."""
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(after)
        killed = time.monotonic_ns()
        os.killpg(process.pid, signal.SIGKILL)
    return killed


async def check(path: Path, killed: float) -> bool:
    """Whether it was killed in mid-run."""
    noted = path.with_name(path.name + ".times")
    happened = (
        [int(line) for line in noted.read_bytes().split(b"\n")[:-1]] if noted.exists() else []
    )
    old = sum(at < killed - 150e6 for at in happened)
    if not path.exists():
        assert old == 0
        return False
    if not path.read_bytes().strip():
        assert old == 0
        return False
    trace = Trace.load(path)
    assert len(trace.events) >= old, "every event that was older than 150 ms is there"
    assert trace.notes == []
    if trace.root is None or trace.root.state == "ok" or "context_digest" not in trace.root.attrs:
        return False
    asked = {slot.prompt for slot in trace.slots if slot.state == "ok"}
    lm = resumed_root(trace)

    def make(settings: Settings) -> RLM:
        return RLM(lm, batch_max_concurrent=8)

    result = await (await prepare_resume(trace, make)).go()
    assert result.answer == ANSWER
    assert not asked & set(lm.subs), "what was answered is not asked again"
    again = Trace.load(path)
    assert again.events == result.trace.events
    assert not [span for span in again.find() if span.open]
    assert again.tree.totals.in_flight == again.tree.totals.waiting == 0
    return True


def resumed_root(trace: Trace) -> FakeLM:
    """The same model, without the replies that are recorded."""
    lm = root()
    done = [s for s in trace.find(kind="lm_call") if s.attrs.get("purpose") == "root"]
    del lm._replies[: sum(call.state == "ok" for call in done)]
    lm._seconds = 0.0
    return lm


@pytest.mark.skipif(sys.platform == "win32", reason="kills process groups")
async def test_a_run_killed_at_random_moments_loses_nothing_and_resumes(tmp_path: Path) -> None:
    draw = random.Random(11)
    moments = [draw.uniform(0.0, 1.1) for _ in range(KILLS)]
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(number: int, after: float) -> bool:
        path = tmp_path / f"{number}" / "run.rlm.jsonl"
        path.parent.mkdir()
        async with gate:
            killed = await asyncio.to_thread(kill_one, path, after)
        return await check(path, killed)

    found = await asyncio.gather(*(one(number, after) for number, after in enumerate(moments)))
    assert sum(found) >= KILLS // 4, "most moments are in the middle of a run"

"""A disk that fills up in mid-run, and a second process that wants the same file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FULL = """
import json, os, sys, warnings
from pathlib import Path
from rlm_notebook import RLM, Trace
from tests.fakes import FakeLM, answering, block

folder = Path(sys.argv[1])
code = "found = llm_query_batched([str(i) for i in range(600)])"
replies = (block(code), answering("len(found)"))
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    first = FakeLM(*replies, leaf=lambda prompt: prompt * 300, seconds=0.01)
    result = RLM(first).completion("text", "q", trace=folder / "run.rlm.jsonl")
free = os.statvfs(folder).f_bavail
trace = Trace.load(result.trace.path)
known = [slot for slot in trace.slots if slot.state == "ok"]
state, spans = trace.root.state, len(trace.tree.spans)
(folder / "filler").unlink()
lm = FakeLM(replies[1], leaf=lambda prompt: prompt * 300)
resumed = trace.resume(model=lm, context="text")
print(json.dumps({
    "answer": result.answer, "outcome": result.outcome, "told": [str(w.message) for w in told],
    "free": free, "spans": spans, "notes": trace.notes, "state": state,
    "whole": len(result.trace.tree.spans), "known": len(known),
    "resumed": resumed.answer, "asked": len(lm.subs), "warnings": resumed.warnings,
    "again": Trace.load(trace.path).root.state,
}))
"""
MOUNT = (
    'mount -t tmpfs -o size=1m tmpfs "$1" && '
    'head -c 760k /dev/zero > "$1/filler" && exec "$2" -c "$3" "$1"'
)


def test_a_run_ends_well_on_a_full_disk_and_its_file_loads_and_resumes(tmp_path: Path) -> None:
    unshare = ["unshare", "--user", "--map-root-user", "--mount"]
    try:
        subprocess.run([*unshare, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no mounts of one's own on this machine")
    command = [*unshare, "sh", "-c", MOUNT, "sh", str(tmp_path), sys.executable, FULL]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["answer"] == 600
    assert found["outcome"] == "answered"
    assert found["free"] == 0
    assert len(found["told"]) == 1
    assert "is incomplete: No space left on device; the run goes on" in found["told"][0]
    assert found["notes"] == []
    assert found["state"] == "interrupted"
    assert 100 < found["spans"] < found["whole"]
    assert 0 < found["known"] < 600
    assert found["resumed"] == 600
    assert found["asked"] == 600 - found["known"]
    assert found["warnings"] == []
    assert found["again"] == "ok"


HOLD = """
import sys
from rlm_notebook import RLM
from tests.fakes import FakeLM, answering

def leaf(prompt):
    print("at work", flush=True)
    sys.stdin.readline()
    return "x"

code = "```repl\\nllm_query('hold')\\n```"
RLM(FakeLM(code, answering("1"), leaf=leaf)).completion("text", "q", trace=sys.argv[1])
"""
TAKE = """
import sys
from rlm_notebook import Trace
from rlm_notebook.errors import RLMError
from rlm_notebook.trace.events import Header
from rlm_notebook.trace.jsonl import JsonlWriter
from pathlib import Path
from tests.fakes import FakeLM

for attempt in (
    lambda: Trace.load(sys.argv[1]).resume(model=FakeLM("x")),
    lambda: JsonlWriter(Path(sys.argv[1]), Header(1, "", "x")),
):
    try:
        attempt()
    except RLMError as error:
        print(error)
"""


def test_a_second_process_is_refused_the_file_of_a_run(tmp_path: Path) -> None:
    path = tmp_path / "run.rlm.jsonl"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as first:
        assert first.stdin is not None
        assert first.stdout is not None
        assert first.stdout.readline() == "at work\n"
        command = [sys.executable, "-c", TAKE, str(path)]
        second = subprocess.run(command, capture_output=True, text=True, check=True)
        first.stdin.write("\n")
        first.stdin.close()
    assert first.returncode == 0
    refused, exists = second.stdout.splitlines()
    assert "is being written by another run: wait, or stop that run" in refused
    assert "exists: choose another trace path" in exists
    from rlm_notebook import Trace

    trace = Trace.load(path)
    assert trace.notes == []
    assert trace.root is not None
    assert trace.root.state == "ok"

"""The measurements; runs inside the benchmark's environment and prints the rows as JSON."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

from tests.benchmarks import our_run
from tests.benchmarks.contestants import CONTESTANTS, LANES, Outcome
from tests.benchmarks.schedule import fifo_makespan, lognormal
from tests.servers.handle import OpenAIServer
from tests.servers.openai_server import Rule

SLOTS = 200
REPEATS = 6
LATENCIES = lognormal(SLOTS, median=0.05, sigma=1.2, seed=7)
ROOT = Rule(model=our_run.ROOT_MODEL, content=our_run.CODE)
LOG = Path("build/bench.log")

Row = dict[str, Any]


class Worker:
    """The process of one contestant."""

    def __init__(self, name: str, url: str, log: TextIO) -> None:
        self._name = name
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.contestants", name, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,  # the peers' own complaints, such as closed event loops
            text=True,
        )

    def run(self, batches: int) -> Outcome:
        """Batches in a row on one client."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"count": SLOTS, "batches": batches}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._name} ended: see {LOG}")
        outcome: Outcome = json.loads(line)
        return outcome

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=30)


def row(name: str, value: float, unit: str, versus: str | None, base: float | None) -> Row:
    """One result; no ratio where there is nothing to divide by."""
    ratio = value / base if base else None
    return {"name": name, "value": value, "unit": unit, "versus": versus, "ratio": ratio}


def slot_cost(workers: dict[str, Worker], server: OpenAIServer, rounds: int) -> list[Row]:
    """Microseconds a slot: 200 slots, 16 at once, a server without delay.

    Batch duration as code in the REPL sees it, divided by 200. Ours has the trace file, the live
    view, and the way from and to the REPL's process in it. Rounds are interleaved; one batch
    each goes before, so that imports and first connections are not counted.
    """
    server.script(ROOT)
    for worker in workers.values():
        worker.run(1)
    costs: dict[str, list[float]] = {name: [] for name in workers}
    for _ in range(rounds):
        for name, worker in workers.items():
            outcome = worker.run(1)
            if any(outcome["lost"]):
                raise RuntimeError(f"{name} lost slots in its first batch: nothing to compare")
            costs[name] += [seconds / SLOTS * 1e6 for seconds in outcome["seconds"]]
    medians = {name: statistics.median(found) for name, found in costs.items()}
    return [
        row(_named("slot_cost", name), value, "us", "rlms", medians["rlms"])
        for name, value in medians.items()
    ]


def makespan(workers: dict[str, Worker], server: OpenAIServer, rounds: int) -> list[Row]:
    """Seconds for 200 slots of lognormal latency, against the FIFO schedule of these latencies.

    Six batches in a row on one client, contestant after contestant (interleaving them would let
    idle connections run out). Batches that lost slots do not count for the makespan: what is
    lost takes no time. ``slots_lost_repeat`` counts what the batches 2 to 6 lost.
    """
    server.script(ROOT, Rule(delays=LATENCIES))
    ideal = fifo_makespan(LATENCIES, LANES)
    rows: list[Row] = []
    lost: dict[str, int] = {}
    for name, worker in workers.items():
        whole: list[float] = []
        drops: list[int] = []
        for _ in range(max(1, rounds // 3)):
            outcome = worker.run(REPEATS)
            drops.append(int(sum(outcome["lost"][1:])))
            pairs = zip(outcome["seconds"], outcome["lost"], strict=True)
            whole += [seconds for seconds, count in pairs if not count]
        lost[name] = int(statistics.median(drops))
        value = statistics.median(whole)
        rows.append(row(_named("makespan_lognormal", name), value, "s", "fifo", ideal))
    for name, count in lost.items():
        rows.append(row(_named("slots_lost_repeat", name), count, "slots", "rlms", lost["rlms"]))
    return rows


def load_ext(rounds: int) -> list[Row]:
    """Seconds of ``%load_ext rlm_notebook`` alone, each in a fresh IPython."""
    code = (
        "import time; from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance(); start = time.perf_counter()\n"
        "shell.run_line_magic('load_ext', 'rlm_notebook')\n"
        "print(time.perf_counter() - start)"
    )
    command = [sys.executable, "-c", code]
    found = [float(subprocess.check_output(command, text=True)) for _ in range(rounds)]
    return [row("load_ext", statistics.median(found), "s", None, None)]


def _named(measurement: str, contestant: str) -> str:
    return measurement if contestant == "ours" else f"{measurement}_{contestant}"


def side_by_side(server: OpenAIServer, rounds: int, wanted: Callable[[str], bool]) -> list[Row]:
    """What is measured against the peers."""
    rows: list[Row] = []
    with ExitStack() as stack:
        LOG.parent.mkdir(exist_ok=True)
        log = stack.enter_context(LOG.open("w"))
        workers = {name: Worker(name, server.url, log) for name in CONTESTANTS}
        for worker in workers.values():
            stack.callback(worker.close)
        if wanted("slot_cost"):
            rows += slot_cost(workers, server, rounds)
        if wanted("makespan_lognormal"):
            rows += makespan(workers, server, rounds)
    return rows


def main() -> None:
    """Measure what was asked for."""
    rounds, only = json.loads(sys.argv[1])

    def wanted(*names: str) -> bool:
        return not only or any(name in only for name in names)

    rows: list[Row] = []
    with OpenAIServer() as server:
        if wanted("slot_cost", "makespan_lognormal"):
            rows += side_by_side(server, rounds, wanted)
        if wanted("load_ext"):
            rows += load_ext(rounds)
        if wanted("click_latency", "event_to_browser"):
            from tests.benchmarks.browser import measure

            for name, milliseconds in measure(server, ROOT).items():
                rows.append(row(name, milliseconds, "ms", None, None))
    print(json.dumps(rows))


if __name__ == "__main__":
    main()

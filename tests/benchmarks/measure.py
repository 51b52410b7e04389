"""The measurements; runs inside the benchmark's environment and prints the rows as JSON."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, TextIO

from tests.benchmarks import our_run, repl
from tests.benchmarks.contestants import CONTESTANTS, LANES, Outcome
from tests.benchmarks.schedule import (
    bimodal,
    fifo_makespan,
    heavy_tailed,
    lognormal,
    lower_bound,
)
from tests.servers.handle import OpenAIServer
from tests.servers.openai_server import Rule

SLOTS = 200
REPEATS = 6
LATENCIES = lognormal(SLOTS, median=0.05, sigma=1.2, seed=7)
BIMODAL = bimodal(SLOTS, fast=0.05, slow=1.0, share=0.05, seed=7)
LENGTHS = heavy_tailed(SLOTS, least=1_500, most=60_000, alpha=1.1, seed=7)
BY_LENGTH = [length * 3e-5 for length in LENGTHS]
"""Seconds: a server that reads some 30,000 characters a second and slot."""
LIMITED, PER_SECOND, BURST = 1_000, 20.0, 20.0
MANY, FEW, SMALL = 10_000, 1_000, 100
CHILDREN = (4, 16)
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

    def run(self, batches: int, count: int = SLOTS, lengths: list[int] | None = None) -> Outcome:
        """Batches in a row on one client."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = {"count": count, "batches": batches, "lengths": lengths}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._name} ended: see {LOG}")
        outcome: Outcome = json.loads(line)
        return outcome

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=30)


Workers = dict[str, Worker]
Wanted = Callable[..., bool]


def row(name: str, value: float, unit: str, versus: str | None, base: float | None) -> Row:
    """One result; no ratio where there is nothing to divide by."""
    ratio = value / base if base else None
    return {"name": name, "value": value, "unit": unit, "versus": versus, "ratio": ratio}


def ratio(name: str, value: float, base: float, versus: str) -> Row:
    """A result that is nothing but a ratio."""
    return row(name, value / base, "ratio", versus, 1.0)


def slot_cost(workers: Workers, server: OpenAIServer, rounds: int) -> list[Row]:
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


def makespan_lognormal(workers: Workers, server: OpenAIServer, rounds: int) -> list[Row]:
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
            whole += _whole(outcome)
        lost[name] = int(statistics.median(drops))
        value = statistics.median(whole)
        rows.append(row(_named("makespan_lognormal", name), value, "s", "fifo", ideal))
    for name, count in lost.items():
        rows.append(row(_named("slots_lost_repeat", name), count, "slots", "rlms", lost["rlms"]))
    return rows


def makespan_bimodal(workers: Workers, server: OpenAIServer, rounds: int) -> list[Row]:
    """The same where 5% of the slots take 20 times as long as the others."""
    server.script(ROOT, Rule(delays=BIMODAL))
    ideal = fifo_makespan(BIMODAL, LANES)
    return [
        row(_named("makespan_bimodal", name), _one_batch(worker, rounds), "s", "fifo", ideal)
        for name, worker in workers.items()
    ]


def makespan_longest_first(workers: Workers, server: OpenAIServer, rounds: int) -> list[Row]:
    """Seconds for prompts of heavy-tailed lengths, where the latency grows with the length,
    against max(longest, sum / lanes), below which no schedule comes.
    """
    server.script(ROOT, Rule(delays=BY_LENGTH))
    bound = lower_bound(BY_LENGTH, LANES)
    name, unit, versus = "makespan_longest_first", "s", "lower_bound"
    rows = [
        row(_named(name, who), _one_batch(worker, rounds, LENGTHS), unit, versus, bound)
        for who, worker in workers.items()
    ]
    return [*rows, row(f"{name}_fifo", fifo_makespan(BY_LENGTH, LANES), unit, versus, bound)]


def rate_limited(log: TextIO) -> list[Row]:
    """1,000 slots against servers that let 20 requests a second through (429 beyond, without a
    word on how long to wait): seconds until all slots have ended, and how many were lost.

    Nearly all of it is waiting, so the contestants run at the same time, each with a server of
    its own. httpx retries nothing, so it is left out. The bound: what goes beyond the first burst,
    at the server's rate. A slot that is given up takes no more time, so who loses slots may well
    finish below the bound: read the two rows together.
    """

    def finish(name: str) -> Outcome:
        with OpenAIServer() as server, closing(Worker(name, server.url, log)) as worker:
            server.script(ROOT)
            worker.run(1, 10)
            limit = Rule(per_second=PER_SECOND, burst=BURST, delay=0.05)
            server.script(ROOT, limit)
            return worker.run(1, LIMITED)

    names = [name for name in CONTESTANTS if name != "httpx"]
    with ThreadPoolExecutor(len(names)) as pool:
        outcomes = dict(zip(names, pool.map(finish, names), strict=True))
    bound = (LIMITED - BURST) / PER_SECOND
    rows = [
        row(_named("rate_limited_finish", name), each["seconds"][0], "s", "server_bound", bound)
        for name, each in outcomes.items()
    ]
    lost = {name: each["lost"][0] for name, each in outcomes.items()}
    return rows + [
        row(_named("rate_limited_lost", name), count, "slots", "rlms", lost["rlms"])
        for name, count in lost.items()
    ]


def many_slots(log: TextIO) -> list[Row]:
    """10,000 slots in one batch, 16 at once, a server without delay: seconds, and how much memory
    (MiB) it adds to the peak of the process (ours: the kernel) after a batch of 100.

    Each contestant has a process of its own, in which nothing else came before: a peak that an
    earlier measurement left behind would hide a part. ``growth_slots`` is our cost of a slot among
    10,000 divided by that among 1,000; batches of both sizes are interleaved.
    """
    rows: list[Row] = []
    found: dict[str, tuple[float, float]] = {}
    for name in ("ours", "rlms"):
        with OpenAIServer() as server, closing(Worker(name, server.url, log)) as worker:
            server.script(ROOT)
            before = worker.run(1, SMALL)["peak_mib"][0]
            many = worker.run(1, MANY)
            if any(many["lost"]):
                print(f"{name} lost {many['lost'][0]} of {MANY} slots", file=sys.stderr)
            found[name] = many["seconds"][0], many["peak_mib"][0] - before
            if name == "ours":
                rows.append(ratio("growth_slots", *growth_slots(worker), f"{FEW:,} slots"))
    for name, (seconds, mib) in found.items():
        reference = found["rlms"]
        rows.append(row(_named("slots_10000_seconds", name), seconds, "s", "rlms", reference[0]))
        rows.append(row(_named("slots_10000_mib", name), mib, "MiB", "rlms", reference[1]))
    return rows


def growth_slots(worker: Worker) -> tuple[float, float]:
    """Seconds a slot in batches of 10,000, and in batches of 1,000."""
    many: list[float] = []
    few: list[float] = []
    for _ in range(3):
        many += [seconds / MANY for seconds in worker.run(1, MANY)["seconds"]]
        few += [seconds / FEW for seconds in worker.run(3, FEW)["seconds"]]
    return statistics.median(many), statistics.median(few)


def growth_children(workers: Workers, server: OpenAIServer) -> list[Row]:
    """Our seconds a child RLM among 16, divided by those among 4; each child answers at once.

    Batches of both sizes are interleaved.
    """
    child = Rule(match="Answer the request", content=our_run.CHILD)
    server.script(Rule(model=our_run.ROOT_MODEL, content=our_run.CHILDREN), child)
    costs: dict[int, list[float]] = {count: [] for count in CHILDREN}
    for _ in range(3):
        for count, found in costs.items():
            found += [seconds / count for seconds in workers["ours"].run(3, count)["seconds"]]
    few, many = (statistics.median(costs[count]) for count in CHILDREN)
    return [ratio("growth_children", many, few, f"{CHILDREN[0]} children")]


def repl_costs(rounds: int) -> list[Row]:
    """What a REPL costs without a language model: see :mod:`tests.benchmarks.repl`."""
    found = repl.measure(rounds)
    reference = found["rlms_local"]
    return [
        row(_named(name, who), value, "ms", "rlms_local", reference[name])
        for name in reference
        for who, values in found.items()
        for value in [values[name]]
    ]


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


def _whole(outcome: Outcome) -> list[float]:
    """Seconds of the batches that lost nothing."""
    pairs = zip(outcome["seconds"], outcome["lost"], strict=True)
    return [seconds for seconds, count in pairs if not count]


def _one_batch(worker: Worker, rounds: int, lengths: list[int] | None = None) -> float:
    """Seconds of a batch: the median of some, each on a new client where a contestant has one."""
    found: list[float] = []
    for _ in range(max(1, rounds // 2)):
        found += _whole(worker.run(1, lengths=lengths))
    if not found:
        raise RuntimeError("every batch lost slots: nothing to compare")
    return statistics.median(found)


def side_by_side(server: OpenAIServer, rounds: int, wanted: Wanted, log: TextIO) -> list[Row]:
    """What is measured against the peers."""
    rows: list[Row] = []
    with ExitStack() as stack:
        workers = {name: Worker(name, server.url, log) for name in CONTESTANTS}
        for worker in workers.values():
            stack.callback(worker.close)
        if wanted("slot_cost"):
            rows += slot_cost(workers, server, rounds)
        if wanted("makespan_lognormal", "slots_lost_repeat"):
            rows += makespan_lognormal(workers, server, rounds)
        if wanted("makespan_bimodal"):
            rows += makespan_bimodal(workers, server, rounds)
        if wanted("makespan_longest_first"):
            rows += makespan_longest_first(workers, server, rounds)
        if wanted("growth_children"):
            rows += growth_children(workers, server)
    return rows


SIDE_BY_SIDE = (
    *("slot_cost", "makespan_lognormal", "slots_lost_repeat", "makespan_bimodal"),
    *("makespan_longest_first", "growth_children"),
)


def main() -> None:
    """Measure what was asked for."""
    rounds, only = json.loads(sys.argv[1])

    def wanted(*names: str) -> bool:
        return not only or any(name in only for name in names)

    rows: list[Row] = []
    LOG.parent.mkdir(exist_ok=True)
    with OpenAIServer() as server, LOG.open("w") as log:
        if wanted(*SIDE_BY_SIDE):
            rows += side_by_side(server, rounds, wanted, log)
        if wanted("rate_limited_finish", "rate_limited_lost"):
            rows += rate_limited(log)
        if wanted("slots_10000_seconds", "slots_10000_mib", "growth_slots"):
            rows += many_slots(log)
        if wanted("repl_first_block", "repl_round_trip", "repl_batch_1000"):
            rows += repl_costs(rounds)
        if wanted("load_ext"):
            rows += load_ext(rounds)
        if wanted("click_latency", "event_to_browser"):
            from tests.benchmarks.browser import measure

            for name, milliseconds in measure(server, ROOT).items():
                rows.append(row(name, milliseconds, "ms", None, None))
    print(json.dumps(rows))


if __name__ == "__main__":
    main()

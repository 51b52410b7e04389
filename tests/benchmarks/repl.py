"""What a REPL costs without any language model: ours, and the two of the reference library.

All answers to sub-calls are there at once, so that what is measured is the way from the code to
who answers, and back.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager
from time import perf_counter
from types import TracebackType
from typing import Any, Protocol

from rlm_notebook.repl.protocol import Call, Limits
from rlm_notebook.repl.subprocess import SubprocessREPL

FIRST = "print(1)"
ROUND_TRIP = """\
import time
llm_query("x")
start = time.perf_counter()
for _ in range(300):
    llm_query("x")
print((time.perf_counter() - start) / 300 * 1e3)"""
BATCH = """\
import time
prompts = ["x" * 10_000 for _ in range(1_000)]
start = time.perf_counter()
answers = llm_query_batched(prompts)
print((time.perf_counter() - start) * 1e3)
assert answers == ["ok"] * 1_000"""

Milliseconds = dict[str, float]


class Repl(Protocol):
    """Runs code in a REPL that is started with it."""

    def run(self, code: str) -> str:
        """What the code prints."""

    def close(self) -> None:
        """End it."""


class OurRepl:
    """A process of its own, on a loop of its own."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._repl = SubprocessREPL(Limits(60.0))
        self._runner.run(self._repl.start("context", self._answer))

    async def _answer(self, call: Call) -> list[str]:
        return ["ok"] * len(call.prompts)

    def run(self, code: str) -> str:
        done = self._runner.run(self._repl.execute(code))
        if done.error is not None:
            raise RuntimeError(str(done.error))
        return done.stdout

    def close(self) -> None:
        self._runner.run(self._repl.close())
        self._runner.close()


class TheirRepl:
    """A REPL of rlms, with its handler and a client that answers at once."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        from rlm.core.lm_handler import LMHandler

        self._handler: AbstractContextManager[Any] = LMHandler(_instant())
        self._repl = make(self._handler.__enter__().address)

    def run(self, code: str) -> str:
        done = self._repl.execute_code(code)
        if done.stderr:
            raise RuntimeError(done.stderr)
        return str(done.stdout)

    def close(self) -> None:
        self._repl.cleanup()
        nothing: tuple[type[BaseException] | None, BaseException | None, TracebackType | None]
        nothing = (None, None, None)
        self._handler.__exit__(*nothing)


def _instant() -> Any:
    from rlm.clients.base_lm import BaseLM
    from rlm.core.types import ModelUsageSummary, UsageSummary

    class Instant(BaseLM):  # type: ignore[misc]
        """Answers at once."""

        def completion(self, prompt: Any) -> str:
            return "ok"

        async def acompletion(self, prompt: Any) -> str:
            return "ok"

        def get_last_usage(self) -> Any:
            return ModelUsageSummary(1, 1, 1)

        def get_usage_summary(self) -> Any:
            return UsageSummary({})

    return Instant("instant")


def _local() -> Repl:
    from rlm.environments.local_repl import LocalREPL

    return TheirRepl(lambda address: LocalREPL(lm_handler_address=address))


def _ipython() -> Repl:
    from rlm.environments.ipython_repl import IPythonREPL

    return TheirRepl(
        lambda address: IPythonREPL(lm_handler_address=address, kernel_mode="subprocess")
    )


REPLS: dict[str, Callable[[], Repl]] = {
    "ours": OurRepl,
    "rlms_local": _local,
    "rlms_ipython": _ipython,
}


def measure(rounds: int) -> dict[str, Milliseconds]:
    """Milliseconds by REPL: from its making to the end of its first block (``repl_first_block``),
    of one ``llm_query`` (``repl_round_trip``), and of a batch of 1,000 prompts of 10,000
    characters (``repl_batch_1000``). Medians; rounds are interleaved.
    """
    found: dict[str, dict[str, list[float]]] = {name: {} for name in REPLS}
    for number in range(rounds + 1):
        for name, make in REPLS.items():
            one = _round(make)
            if number:  # the first one pays for imports
                for row, value in one.items():
                    found[name].setdefault(row, []).append(value)
    return {
        name: {row: statistics.median(values) for row, values in rows.items()}
        for name, rows in found.items()
    }


def _round(make: Callable[[], Repl]) -> Milliseconds:
    start = perf_counter()
    repl = make()
    try:
        repl.run(FIRST)
        first = (perf_counter() - start) * 1e3
        return {
            "repl_first_block": first,
            "repl_round_trip": float(repl.run(ROUND_TRIP)),
            "repl_batch_1000": float(repl.run(BATCH)),
        }
    finally:
        repl.close()

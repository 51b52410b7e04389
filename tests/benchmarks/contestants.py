"""Who is measured: ``python -m tests.benchmarks.contestants NAME BASE_URL``, one process each.

Each line on standard input, ``{"count": 200, "batches": 6, "lengths": null}``, asks for so many
batches in a row on one client; the line that comes back holds the seconds and the lost slots of
each batch, and the peak memory of the process (MiB). The clock runs around the batched function,
as code in the REPL would see it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

LANES = 16
MODEL = "bench"
KEY = "none"

Batched = Callable[[list[str]], list[str | None]]
Outcome = dict[str, list[float]]


def prompts_of(count: int, lengths: list[int] | None = None) -> list[str]:
    """The server takes the latency of a slot from the number."""
    prompts = [f"#{index} " for index in range(count)]
    if lengths is None:
        return prompts
    return [prompt.ljust(length, "x") for prompt, length in zip(prompts, lengths, strict=True)]


def peak_mib() -> float:
    """The most memory that this process has had."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def timed(batched: Batched, prompts: list[str], batches: int) -> Outcome:
    """Run batches in a row; a slot is lost if its text is not what the server sent."""
    expected = [f"answer to: {prompt}" for prompt in prompts]
    outcome: Outcome = {"seconds": [], "lost": []}
    for _ in range(batches):
        start = time.perf_counter()
        answers = batched(prompts)
        outcome["seconds"].append(time.perf_counter() - start)
        lost = sum(a != e for a, e in zip(answers, expected, strict=True))
        outcome["lost"].append(lost)
    outcome["peak_mib"] = [peak_mib()]
    return outcome


class Contestant(Protocol):
    """One way to run batches."""

    def run(self, prompts: list[str], batches: int) -> Outcome:
        """Batches in a row on one client."""


class Httpx:
    """httpx as it is: gather with a semaphore, one client, one loop."""

    def __init__(self, url: str) -> None:
        import httpx

        self._url = f"{url}/chat/completions"
        self._runner = asyncio.Runner()
        self._client = httpx.AsyncClient(timeout=60)

    def run(self, prompts: list[str], batches: int) -> Outcome:
        return timed(lambda asked: self._runner.run(self._batch(asked)), prompts, batches)

    async def _batch(self, prompts: list[str]) -> list[str | None]:
        free = asyncio.Semaphore(LANES)

        async def one(prompt: str) -> str | None:
            async with free:
                body = {"model": MODEL, "messages": [{"role": "user", "content": prompt}]}
                answer = await self._client.post(self._url, json=body)
                text: str | None = answer.json()["choices"][0]["message"]["content"]
                return text

        return list(await asyncio.gather(*(one(prompt) for prompt in prompts)))


class Rlms:
    """The reference library: its local REPL's function, its handler, its OpenAI client.

    Every request for batches gets a new client, as every ``RLM.completion`` does.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    def run(self, prompts: list[str], batches: int) -> Outcome:
        from rlm.clients.openai import OpenAIClient
        from rlm.core.lm_handler import LMHandler
        from rlm.environments.local_repl import LocalREPL

        client = OpenAIClient(api_key=KEY, model_name=MODEL, base_url=self._url)
        with LMHandler(client) as handler:  # its own default: 16 at once
            repl = LocalREPL(lm_handler_address=handler.address)
            try:
                return timed(repl.globals["llm_query_batched"], prompts, batches)
            finally:
                repl.cleanup()


class Dspy:
    """dspy.RLM's own batched function, with 16 threads (its default is 8) and no cache."""

    def __init__(self, url: str) -> None:
        import dspy

        lm = dspy.LM(f"openai/{MODEL}", api_base=url, api_key=KEY, cache=False)
        program = dspy.RLM("context -> answer", sub_lm=lm, max_llm_calls=10**9)
        self._batched: Batched = program._make_llm_tools(max_workers=LANES)["llm_query_batched"]

    def run(self, prompts: list[str], batches: int) -> Outcome:
        return timed(self._batched, prompts, batches)


class Ours:
    """A real run in a real kernel: subprocess REPL, trace file and live view on."""

    def __init__(self, url: str) -> None:
        from jupyter_client.manager import start_new_kernel

        from tests.benchmarks import our_run

        self._manager, self._kernel = start_new_kernel(kernel_name="python3")
        self._execute("%load_ext rlm_notebook\nimport json\nfrom tests.benchmarks import our_run")
        self._cell = our_run.cell(url)

    def run(self, prompts: list[str], batches: int) -> Outcome:
        self._execute(
            f"context = {{'prompts': json.loads({json.dumps(prompts)!r}), 'batches': {batches}}}"
        )
        self._execute(self._cell)
        printed = self._execute("print('RESULT', json.dumps(our_run.outcome_of(result)))")
        outcome: Outcome = json.loads(printed.rpartition("RESULT ")[2])
        return outcome

    def _execute(self, code: str) -> str:
        printed: list[str] = []

        def output(message: dict[str, Any]) -> None:
            if message["msg_type"] == "stream":
                printed.append(message["content"]["text"])
            elif message["msg_type"] == "error":
                printed.append("\n".join(message["content"]["traceback"]))

        reply = self._kernel.execute_interactive(code, output_hook=output, timeout=300)
        if reply["content"]["status"] != "ok":
            raise RuntimeError("".join(printed))
        return "".join(printed)

    def close(self) -> None:
        self._kernel.stop_channels()
        self._manager.shutdown_kernel()


CONTESTANTS: dict[str, Callable[[str], Contestant]] = {
    "ours": Ours,
    "rlms": Rlms,
    "dspy": Dspy,
    "httpx": Httpx,
}


def main() -> None:
    """Serve the lines on standard input."""
    name, url = sys.argv[1:]
    contestant = CONTESTANTS[name](url)
    out, sys.stdout = sys.stdout, sys.stderr  # what a library prints is no result
    for line in sys.stdin:
        asked = json.loads(line)
        prompts = prompts_of(asked["count"], asked["lengths"])
        print(json.dumps(contestant.run(prompts, asked["batches"])), file=out, flush=True)
    close = getattr(contestant, "close", None)
    if close is not None:
        close()


if __name__ == "__main__":
    main()

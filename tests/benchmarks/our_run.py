"""Our engine under the clock: a real ``%%rlm`` cell, with a root model that writes this code."""

from __future__ import annotations

import json
import tempfile
from datetime import datetime
from typing import TYPE_CHECKING

from tests.benchmarks.contestants import LANES, MODEL, Outcome, peak_mib, prompts_of

if TYPE_CHECKING:
    from rlm_notebook import Result

ROOT_MODEL = "root"
CODE = """\
```repl
import json, time
seconds, lost = [], []
expected = [f"answer to: {prompt}" for prompt in context["prompts"]]
for _ in range(context["batches"]):
    start = time.perf_counter()
    answers = llm_query_batched(context["prompts"])
    seconds.append(time.perf_counter() - start)
    lost.append(sum(a != e for a, e in zip(answers, expected, strict=True)))
answer["content"] = json.dumps({"seconds": seconds, "lost": lost})
answer["ready"] = True
```"""


CHILDREN = CODE.replace("llm_query_batched", "rlm_query_batched").replace(
    'f"answer to: {prompt}"', '"done"'
)
"""The same with child RLMs."""
CHILD = """\
```repl
answer["content"] = "done"
answer["ready"] = True
```"""


def context(count: int, batches: int) -> dict[str, object]:
    """What the code reads."""
    return {"prompts": prompts_of(count), "batches": batches}


def cell(url: str) -> str:
    """The cell: reads ``context``, sets ``result``."""
    models = f"--model openai/{ROOT_MODEL} --sub-model openai/{MODEL} --base-url {url}"
    limits = f"--batch-max-concurrent {LANES} --trace-dir {tempfile.mkdtemp(prefix='rlm-bench-')}"
    return f"%%rlm --context context --out result {models} {limits}\nHow long does it take?\n"


def outcome_of(result: Result) -> Outcome:
    """Seconds and lost slots, as the REPL's code saw them.

    The trace must tell the same: every slot recorded, no batch longer than its code saw.
    """
    if not isinstance(result.answer, str):
        raise RuntimeError(result.summary())
    outcome: Outcome = json.loads(result.answer)
    outcome["peak_mib"] = [peak_mib()]
    for batch, seconds in zip(result.trace.batches, outcome["seconds"], strict=True):
        slots = [child for child in batch.children if child.kind == "slot"]
        if len(slots) != batch.attrs["size"] or not 0 < (batch.duration or 0) <= seconds:
            raise RuntimeError(f"the trace does not fit: {batch.duration} s, {len(slots)} slots")
    return outcome


def started_at(result: Result) -> float:
    """Wall-clock time at which the trace begins, in seconds (to the ms)."""
    return datetime.fromisoformat(result.trace.header.started_at).timestamp()

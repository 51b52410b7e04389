"""A trace as a real run makes it, with a clock of its own."""

from __future__ import annotations

from typing import Any

from rlm_notebook.trace.recorder import Recorder
from rlm_notebook.trace.trace import Trace

MS = 1_000_000


class Clock:
    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns

    def forward(self, ms: float) -> None:
        self.ns += round(ms * MS)


def sample(*, slots: int = 20, text: str = "an answer", running: bool = False) -> Trace:
    """Two turns; a batch with queueing, one failed slot and a child run in its last slot."""
    clock = Clock()
    recorder = Recorder(clock=clock)
    run = recorder.start("run", None, question=f"question {text}", context=text, model=text)
    turn = recorder.start("turn", run, index=0)
    call = recorder.start("lm_call", turn, messages=[{"role": "user", "content": text}], model="m")
    clock.forward(40)
    recorder.end(call, "ok", response=text, usage={"input_tokens": 5, "output_tokens": 6})
    recorder.end(recorder.start("code", turn, index=0, code=f"# c\nprint({text!r})"), stdout=text)
    recorder.end(turn, note=text)
    turn = recorder.start("turn", run, index=1)
    code = recorder.start("code", turn, index=0, code="x = llm_query_batched(prompts)")
    batch = recorder.start(
        "batch", code, function="llm_query_batched", size=slots, limit=4, model="m"
    )
    ids = [
        recorder.start("slot", batch, state="waiting", index=i, prompt=text) for i in range(slots)
    ]
    for index, slot in enumerate(ids):
        recorder.running(slot)
        clock.forward(30 if index % 7 else 300)
        if index == slots // 2:
            error = {"type": "http", "message": f"failed {text}", "status": 500}
            recorder.end(slot, "error", error=error)
        elif index + 1 < slots:
            recorder.end(slot, "ok", response=text)
        else:
            child = recorder.start("run", slot, question=text, context=text, model="m", depth=1)
            if running:
                return recorder.trace
            recorder.end(child, "ok", answer=text, outcome="answered")
            recorder.end(slot, "ok", response=text)
    recorder.end(batch)
    failed = {"type": "ValueError", "message": text}
    recorder.end(code, "error", stdout=text, stderr=text, traceback=text, error=failed)
    recorder.end(turn)
    recorder.end(run, "ok", answer=text, outcome="answered")
    recorder.close()
    return recorder.trace


def fields_of(trace: Trace, kind: str) -> dict[str, Any]:
    return next(trace.find(kind=kind)).attrs

"""A trace as a real run makes it, with a clock of its own."""

from __future__ import annotations

import heapq
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


LATENCIES = (90, 120, 60, 1_900, 80, 140, 70, 850, 110, 95, 400, 65, 130, 75, 2_600, 85, 105, 60)
"""Milliseconds; most are short, a few are very long, as LM calls are."""
FAILED = {6: ("http", "rate limited", 429), 13: ("timeout", "no answer within 30 s", None)}
CODE = """\
# Ask each part of the context alone, then put the answers together.
parts = [context[i : i + 20_000] for i in range(0, len(context), 20_000)]
prompts = [f"Which codes are named here? Answer with a list.\\n\\n{part}" for part in parts]
answers = llm_query_batched(prompts)
""" + "\n".join(
    f"found_{n} = [line for line in answers[{n}].splitlines() if line.strip()]" for n in range(20)
)


def realistic(*, slots: int = 20, cancelled: bool = False) -> Trace:
    """Three turns: a batch with a heavy tail at 4 at once, a child run in a slot, the answer.

    With ``cancelled`` it is interrupted in the middle of the batch.
    """
    clock = Clock()
    recorder = Recorder(clock=clock)
    run = recorder.start(
        "run",
        None,
        question="Which access codes are named in the notes, and by whom?",
        context="str, 412,339 characters in 9,120 lines",
        model="openai/gpt-5",
        sub_model="openai/gpt-5-mini",
        depth=0,
    )
    turn = _asked(recorder, clock, run, 0, "Let me look at the context first.", 820)
    code = recorder.start("code", turn, index=0, code="print(context[:500])\nprint(len(context))")
    clock.forward(4)
    recorder.end(code, "ok", stdout="Note 1: nothing to report.\n" * 18 + "412339\n")
    recorder.end(turn)

    turn = _asked(recorder, clock, run, 1, f"```repl\n{CODE}\n```", 1_430)
    code = recorder.start("code", turn, index=0, code=CODE)
    clock.forward(6)
    batch = recorder.start("batch", code, function="llm_query_batched", size=slots, limit=4)
    _batch(recorder, clock, batch, slots, until=1_500 if cancelled else None)
    if cancelled:
        recorder.end_open(run, "cancelled")
        recorder.end(run, "cancelled", outcome="stopped", stopped_by="interrupt")
        recorder.close()
        return recorder.trace
    recorder.end(batch)
    variables = [["answers", "list", f"{slots} items", ""], ["codes", "int", "", "31"]]
    changes = {"new": ["answers"], "changed": ["codes"], "gone": ["draft"]}
    recorder.end(code, "ok", stdout="31 codes\n", variables=variables, changes=changes)
    recorder.end(turn)

    turn = _asked(recorder, clock, run, 2, "Two slots failed; I ask a child.", 640)
    code = recorder.start("code", turn, index=0, code="rest = rlm_query_batched([parts[6]])")
    batch = recorder.start("batch", code, function="rlm_query_batched", size=1, limit=4)
    slot = recorder.start("slot", batch, state="waiting", index=0, prompt="Part 6", child=True)
    recorder.running(slot)
    child = recorder.start(
        "run", slot, question="Part 6", context="str, 20,000 characters", depth=1
    )
    recorder.end(_asked(recorder, clock, child, 0, "One code, 48213.", 510))
    recorder.end(child, "ok", answer="48213", outcome="answered")
    recorder.end(slot, "ok", response="48213")
    recorder.end(batch)
    failed = {"type": "KeyError", "message": "'author'"}
    recorder.end(code, "error", error=failed, traceback="Traceback ...\nKeyError: 'author'")
    recorder.end(turn)
    answer = "31 codes are named. The one of the vault is 48213, by the night watch (note 321)."
    recorder.end(run, "ok", answer=answer, outcome="answered")
    recorder.close()
    return recorder.trace


def everywhere(text: str) -> Trace:
    """A trace of one span of each kind, with ``text`` in every attribute that can hold a text."""
    clock = Clock()
    recorder = Recorder(clock=clock)
    error = {"type": text, "message": text, "status": text}
    attempts = [{"started": 0, "ended": MS, "wait": 0.1, "error": error}]
    names = ("question", "context", "model", "sub_model", "repl", "note", "function", "limit")
    texts = (*names, "purpose", "prompt", "code", "stdout", "stderr", "traceback", "response")
    ends = ("finish_reason", "answer", "partial", "outcome", "stopped_by")
    attrs: dict[str, Any] = {
        **dict.fromkeys((*texts, *ends), text),
        "variables": [[text, text, text, text]],
        "changes": {"new": [text], "gone": [text]},
        "messages": [{"role": text, "content": text}],
        "attempts": attempts,
        text: text,
    }
    parent: int | None = None
    started = []
    for kind in ("run", "turn", "code", "batch", "slot", "run", "lm_call", text):
        size = 1 if kind == "batch" else None
        parent = recorder.start(kind, parent, index=0, size=size, **attrs)
        started.append(parent)
        clock.forward(5)
    for span in reversed(started):
        recorder.end(span, text if span % 2 else "error", error=error)
    recorder.close()
    return recorder.trace


def _asked(recorder: Recorder, clock: Clock, run: int, index: int, response: str, ms: float) -> int:
    """A turn whose LM call has ended; its code is still to come."""
    turn = recorder.start("turn", run, index=index)
    messages = [
        {"role": "system", "content": "You answer by writing Python. " * 40},
        {"role": "user", "content": f"Turn {index + 1}: what is your next step?"},
    ]
    call = recorder.start("lm_call", turn, purpose="root", model="openai/gpt-5", messages=messages)
    clock.forward(ms)
    usage = {"input_tokens": 1_200 + 900 * index, "output_tokens": 180, "cost": 0.004}
    recorder.end(call, "ok", response=response, usage=usage)
    return turn


def _batch(
    recorder: Recorder, clock: Clock, batch: int, slots: int, *, until: float | None = None
) -> None:
    """Four at once: each slot starts when one of the four is free."""
    ids = [
        recorder.start("slot", batch, state="waiting", index=i, prompt=f"Which codes? Part {i}")
        for i in range(slots)
    ]
    begin = clock.ns
    free = [0.0] * 4
    happens: list[tuple[float, int, int, str]] = []
    for index in range(slots):
        start = heapq.heappop(free)
        end = start + LATENCIES[index % len(LATENCIES)]
        heapq.heappush(free, end)
        happens += [(start, 1, index, "start"), (end, 0, index, "end")]
    for at, _, index, what in sorted(happens):
        if until is not None and at > until:
            clock.ns = begin + round(until * MS)
            return
        clock.ns = begin + round(at * MS)
        if what == "start":
            recorder.running(ids[index])
        elif index in FAILED:
            kind, message, status = FAILED[index]
            error = {"type": kind, "message": message, **({"status": status} if status else {})}
            recorder.end(ids[index], "error", error=error)
        else:
            usage = {"input_tokens": 5_100, "output_tokens": 40}
            recorder.end(ids[index], "ok", response=f"Part {index}: A{index}7, by Kim", usage=usage)


def fields_of(trace: Trace, kind: str) -> dict[str, Any]:
    return next(trace.find(kind=kind)).attrs

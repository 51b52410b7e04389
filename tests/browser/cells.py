"""The cells that browser tests and screenshots run."""

from __future__ import annotations

SETUP = """\
%load_ext rlm_notebook
notes = [f"Note {n}: nothing to report. " + "x" * 800 for n in range(1400)]
notes[321] = "Note 321: the access code of the vault is 48213.\""""

QUESTION = "What is the access code of the vault?"


def ask(options: str = "", *, median: float = 0.25) -> str:
    """A cell whose run takes some seconds, with queueing, a heavy tail and some failures."""
    simulate = f'--simulate "latency=lognormal({median},0.8) errors=0.1 seed=7"'
    return (
        f"%%rlm --context notes --out r {simulate} --batch-max-concurrent 6 {options}\n{QUESTION}"
    )


HANG = """\
import asyncio, sys
from rlm_notebook.lm.protocol import Response
class Hang:
    name = "test/hang"
    async def complete(self, request):
        if request.purpose == "sub":
            await asyncio.sleep(600)
        return Response("```repl\\nllm_query_batched(['x'] * 20)\\n```")
    async def close(self): ...
hang = Hang()"""

WIDE = """\
class Wide:
    name = "test/wide"
    async def complete(self, request):
        if request.purpose == "sub":
            return Response(request.messages[-1].content)
        return Response("```repl\\nx = llm_query_batched([str(i) for i in range(2000)])\\n"
                        "answer['content'] = len(x)\\nanswer['ready'] = True\\n```")
    async def close(self): ...
wide = Wide()"""

EVIL = """\
class Evil:
    name = "test/<img src=x onerror=window.hacked=1>"
    async def complete(self, request):
        evil = "<img src=x onerror=window.hacked=1><script>window.hacked=1</script>"
        if request.purpose == "sub":
            return Response(evil)
        return Response(f"{evil}\\n```repl\\nanswer['content'] = llm_query({evil!r})\\n"
                        f"print({evil!r})\\nanswer['ready'] = True\\n```")
    async def close(self): ...
evil = Evil()"""

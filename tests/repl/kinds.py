"""The three REPLs, made for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from rlm_notebook.repl.choice import make_repl
from rlm_notebook.repl.protocol import REPL, Call, Limits, OnCall, OnTool

KINDS = ("subprocess", "kernel", "monty")
PYTHON = ("subprocess", "kernel")
"""Those that run all of Python."""

LIMITS = Limits(20.0, 4.0)


async def shout(call: Call) -> list[str]:
    return [prompt.upper() for prompt in call.prompts]


@asynccontextmanager
async def started(
    kind: str,
    context: Any = "the context",
    on_call: OnCall = shout,
    *,
    tools: tuple[str, ...] = (),
    on_tool: OnTool | None = None,
    limits: Limits = LIMITS,
) -> AsyncIterator[REPL]:
    """A REPL that is closed in the end."""
    repl = make_repl(kind, limits)
    try:
        await repl.start(context, on_call, tools, on_tool)
        yield repl
    finally:
        await repl.close()

"""How the coroutine of a cell is run: awaited where that is possible, patched in where it is not."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import threading
from collections.abc import Coroutine, Iterator
from typing import Any

_CELL = re.compile(r"^%%rlm(?:[ \t]+(?P<line>.*))?$")
_LINE = re.compile(r"^%(?P<name>rlm_resume|rlm_fork)(?:[ \t]+(?P<line>.*))?$")
REGISTERED, TRAVEL = "RLMMagics", "TravelMagics"
"""The names under which IPython keeps the magics."""


def transform_cell(lines: list[str]) -> list[str]:
    """Turn a ``%%rlm`` cell (or one that only resumes or forks a run) into an await, so that it runs as a task of the kernel's own loop.

    While it awaits, clicks and other messages reach the kernel. Measured with ipykernel 7.4: a
    click arrives after 3 ms; under nest-asyncio only after the cell has ended.
    """
    if not lines:
        return lines
    registry = "get_ipython().magics_manager.registry"
    first = lines[0].rstrip("\r\n")
    if found := _CELL.match(first):
        line, cell = found["line"] or "", "".join(lines[1:])
        return [f"await {registry}[{REGISTERED!r}].run_cell({line!r}, {cell!r})\n"]
    if (found := _LINE.match(first)) and not "".join(lines[1:]).strip():
        line = found["line"] or ""
        return [f"await {registry}[{TRAVEL!r}].run_line({found['name']!r}, {line!r})\n"]
    return lines


def run_here(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine from synchronous code, whether or not a loop is running in this thread.

    A running loop is patched by nest-asyncio2, here and only here; one that cannot be patched
    (uvloop) is left alone, and the handler thread runs the coroutine.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    import nest_asyncio2

    try:
        nest_asyncio2.apply(loop)
    except ValueError:
        from rlm_notebook.handler import handler

        return handler().block(coroutine)
    task = loop.create_task(coroutine)
    try:
        return loop.run_until_complete(task)
    except KeyboardInterrupt:
        if task.done():
            raise
        task.cancel()  # without this the run would go on as an orphan
        return loop.run_until_complete(task)


@contextlib.contextmanager
def sigint_cancels(in_kernel: bool) -> Iterator[None]:
    """In a terminal, let Ctrl-C cancel the task that runs now, so that it can clean up.

    The kernel does the same by itself.
    """
    if in_kernel or threading.current_thread() is not threading.main_thread():
        yield
        return
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    previous = signal.getsignal(signal.SIGINT)
    try:
        assert task is not None
        loop.add_signal_handler(signal.SIGINT, task.cancel)
    except (NotImplementedError, RuntimeError, ValueError):
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, previous)

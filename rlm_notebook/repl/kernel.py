"""The REPL in the user's own namespace, for live objects. Its code is trusted.

Blocks run in a thread of their own, so that the kernel's loop, and with it the view, goes on. A
block is stopped by an exception that is raised in it; code that hangs outside of Python cannot
be stopped, only left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import io
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from rlm_notebook.lm.keys import secrets_of
from rlm_notebook.repl import batching
from rlm_notebook.repl.block_clock import BlockClock
from rlm_notebook.repl.block_thread import BlockThread, LoopCalls, Stopped
from rlm_notebook.repl.interpreter import Interpreter, plain
from rlm_notebook.repl.output import Kept
from rlm_notebook.repl.protocol import Execution, Limits, OnCall, OnTool, content

STOP_SECONDS = 2.0
"""How long a block has to end once it is told to."""
NOTICE = (
    "--repl kernel: the model's code runs in this notebook, with all its rights and variables; "
    "use it with models that you trust"
)


class KernelREPL:
    """See :class:`rlm_notebook.repl.protocol.REPL`.

    The code sees the notebook's variables, and what it assigns is assigned there, but for the
    names that belong to the run (``context``, ``answer``...): those are its own. A child RLM
    assigns into a namespace of its own.
    """

    name = "kernel"

    def __init__(self, limits: Limits | None = None, *, is_child: bool = False) -> None:
        self._limits = limits or Limits()
        self._clock = BlockClock(self._limits.block_timeout)
        self._calls = LoopCalls(self._clock)
        self._thread: BlockThread | None = None
        self._captured = Kept()
        self._is_child = is_child
        self._notebook = notebook_namespace()
        self._python = Interpreter({}, self._captured, self._calls)
        self._python.reserved |= {"input": _no_input, "exit": _exit, "quit": _exit}
        self._runs = 0

    async def start(
        self,
        context: Any,
        on_call: OnCall,
        tools: tuple[str, ...] = (),
        on_tool: OnTool | None = None,
        *,
        history: list[dict[str, Any]] | None = None,
    ) -> None:
        """Start the thread; the context is the object itself, not a copy."""
        self._calls.begin_run(on_call, on_tool)
        self._python.add_tools(list(tools))
        number = None if history is None else self._runs
        self._python.begin(context, number, history)
        self._runs += 1
        self._renew()

    async def execute(self, code: str) -> Execution:
        """Run one block; one that does not stop is left behind in its thread."""
        thread = self._thread or self._renew()
        self._calls.begin_block()
        work = asyncio.wrap_future(thread.submit(lambda: self._run(code)))
        try:
            return await self._clock.run(asyncio.shield(work))
        except TimeoutError:
            return await self._stopped(thread, work)
        except asyncio.CancelledError:
            await self._stopped(thread, work)
            raise

    async def _stopped(self, thread: BlockThread, work: asyncio.Future[Execution]) -> Execution:
        error = {"type": "BlockTimeout", "message": self._clock.message}
        self._calls.cancel()
        for _ in range(20):
            thread.interrupt()  # more than once: the code may catch it
            await asyncio.wait([work], timeout=STOP_SECONDS / 20)
            if work.done() and not work.cancelled() and work.exception() is None:
                return _with_error(work.result(), error)
            if work.done():
                return Execution(error=error)
        self._thread = None
        self._captured = self._python.capture = Kept()  # what it prints is not the next block's
        note = "The block could not be stopped: it goes on beside the next ones."
        return Execution(error=error, notes=[note])

    def _run(self, code: str) -> Execution:
        """In the thread: run one block."""
        self._refresh()
        before = dict(self._python.namespace)
        rewrite = batching.rewrite if self._limits.auto_batch else None
        with _folder_of_its_own(), _ROUTER.routed(self._captured):
            found = self._python.run(code, rewrite)
        self._publish(before)
        return _execution(found)

    def _refresh(self) -> None:
        """Take over the notebook's variables; a child does that once."""
        python = self._python
        if self._is_child and python.blocks:
            return
        own = python.reserved.keys() | _OWN
        given = {name: value for name, value in self._notebook.items() if name not in own}
        for name in python.namespace.keys() - own - given.keys():
            del python.namespace[name]
        python.namespace.update(given)
        python.namespace.update(python.reserved)
        if not python.blocks:
            python.given = given

    def _publish(self, before: dict[str, Any]) -> None:
        """Assign in the notebook what the block has assigned."""
        if self._is_child:
            return
        after = self._python.namespace
        for name in (before.keys() | after.keys()) - self._python.reserved.keys() - _OWN:
            if name == "_" or name.startswith("__"):
                continue  # IPython's and ours
            if name not in after:
                self._notebook.pop(name, None)
            elif name not in before or before[name] is not after[name]:
                self._notebook[name] = after[name]

    async def variable(self, name: str) -> Any:
        """The value of a variable as a JSON value; None if there is none."""
        return content(*plain(self._python.namespace.get(name)))

    async def close(self) -> None:
        """End the thread. What the code has assigned stays in the notebook."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._calls.cancel()
            thread.interrupt()
            thread.end()

    def _renew(self) -> BlockThread:
        if self._thread is None:
            self._thread = BlockThread("rlm-kernel-repl")
        return self._thread


_CLONE_FS = 0x200
_OWN = frozenset(("__builtins__",))


def notebook_namespace() -> dict[str, Any]:
    """The variables of the notebook; of the program, where there is none."""
    if "IPython" in sys.modules:
        from IPython.core.getipython import get_ipython

        shell = get_ipython()
        if shell is not None:
            found: dict[str, Any] = shell.user_ns
            return found
    return vars(sys.modules["__main__"])


def _execution(found: dict[str, Any]) -> Execution:
    hidden = secrets_of(os.environ)

    def clean(text: str) -> str:
        for secret, name in hidden.items():
            text = text.replace(secret, f"<{name}>")
        return text

    error = found["error"]
    if error is not None and error["type"] == Stopped.__name__:
        error = {"type": "Interrupted", "message": "the block was interrupted"}
    stdout, stderr = clean(found["stdout"]), clean(found["stderr"])
    same = (stdout, stderr) == (found["stdout"], found["stderr"])
    return Execution(
        stdout=stdout,
        stderr=stderr,
        order=found["order"] if same else [],  # its lengths are those of the texts as printed
        error=error and {name: clean(text) for name, text in error.items()},
        traceback=clean(found["traceback"]),
        variables=[[clean(part) for part in row] for row in found["variables"]],
        changes=found["changes"],
        content=content(found["kind"], clean(found["content"])),
        ready=found["ready"],
        notes=found["notes"],
    )


def _with_error(done: Execution, error: dict[str, Any]) -> Execution:
    return replace(done, error=error, traceback="")


def _no_input(prompt: object = "") -> str:
    raise EOFError("there is nobody to type: work with the context, and ask with llm_query")


def _exit(code: object = None) -> None:
    raise SystemExit(code)


@contextlib.contextmanager
def _folder_of_its_own() -> Iterator[None]:
    """Let a change of the working directory be this thread's alone; else take it back."""
    unshare = getattr(ctypes.CDLL(None), "unshare", None) if sys.platform == "linux" else None
    if unshare is not None and unshare(_CLONE_FS) == 0:
        yield
        return
    before = os.getcwd()
    try:
        yield
    finally:
        os.chdir(before)


class _Router:
    """Sends what the threads of REPLs print to their own places, all else where it went before.

    ``sys.stdout`` is replaced only while a block runs, and what other threads print goes through
    as it is.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: dict[int, Kept] = {}
        self._before: dict[str, Any] = {}
        self._ours: dict[str, _Routed] = {}

    @contextlib.contextmanager
    def routed(self, place: Kept) -> Iterator[None]:
        """What this thread prints goes to ``place``."""
        ident = threading.get_ident()
        with self._lock:
            if not self._places:
                for name in ("stdout", "stderr"):
                    self._before[name] = getattr(sys, name)
                    self._ours[name] = _Routed(self._before[name], name, self._places)
                    setattr(sys, name, self._ours[name])
            self._places[ident] = place
        try:
            with _displayed_in(place):
                yield
        finally:
            with self._lock:
                del self._places[ident]
                if not self._places:
                    for name, ours in self._ours.items():
                        if getattr(sys, name) is ours:
                            setattr(sys, name, self._before[name])


class _Routed(io.TextIOBase):
    """A stream that looks at the thread that writes."""

    def __init__(self, before: Any, stream: str, places: dict[int, Kept]) -> None:
        super().__init__()
        self._before = before
        self._stream = stream
        self._places = places

    def write(self, text: str, /) -> int:
        place = self._places.get(threading.get_ident())
        if place is None:
            written: int = self._before.write(text)
            return written
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        place.write(self._stream, text)
        return len(text)

    @property
    def buffer(self) -> Any:
        """For bytes; what is no UTF-8 becomes U+FFFD."""
        if threading.get_ident() not in self._places:
            return self._before.buffer
        return _Bytes(self.write)

    def flush(self) -> None:
        if threading.get_ident() not in self._places:
            self._before.flush()

    def close(self) -> None:
        """Nothing of the notebook is closed."""

    def isatty(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._before, name)


class _Bytes(io.RawIOBase):
    def __init__(self, write: Callable[[str], int]) -> None:
        super().__init__()
        self._write = write

    def write(self, data: Any, /) -> int:
        self._write(bytes(data).decode("utf-8", "replace"))
        return len(data)


@contextlib.contextmanager
def _displayed_in(place: Kept) -> Iterator[None]:
    """What this thread displays is printed: the model reads texts."""
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    publisher: Any = getattr(shell, "display_pub", None)
    if not hasattr(publisher, "register_hook"):
        yield
        return

    def hook(message: dict[str, Any]) -> None:
        data = message.get("content", {}).get("data", {})
        place.write("stdout", f"{data.get('text/plain', '')}\n")

    publisher.register_hook(hook)
    try:
        yield
    finally:
        publisher.unregister_hook(hook)


_ROUTER = _Router()

"""A thread that runs the blocks of one REPL, for REPLs that live in this process."""

from __future__ import annotations

import asyncio
import concurrent.futures
import ctypes
import json
import queue
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from rlm_notebook.repl import interpreter
from rlm_notebook.repl.block_clock import BlockClock
from rlm_notebook.repl.protocol import (
    FUNCTIONS,
    Call,
    OnCall,
    OnTool,
    SubcallError,
    ToolCall,
    ToolError,
)

T = TypeVar("T")
Job = tuple[Callable[[], Any], concurrent.futures.Future[Any]]


class Stopped(BaseException):
    """Raised in the code of a block that has to end."""


class BlockThread:
    """Does one job after another. A daemon: one that cannot be stopped does not hold the process."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._at_work = False
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    @property
    def ident(self) -> int:
        """The number of the thread."""
        return self._thread.ident or 0

    def submit(self, work: Callable[[], T]) -> concurrent.futures.Future[T]:
        """Do the work in the thread."""
        outcome: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._jobs.put((work, outcome))
        return outcome

    def interrupt(self) -> None:
        """Raise Stopped in the code that runs, as soon as it is back in Python."""
        with self._lock:
            if self._at_work:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self.ident), ctypes.py_object(Stopped)
                )

    def end(self) -> None:
        """End the thread after its last job."""
        self._jobs.put(None)

    def _serve(self) -> None:
        while True:
            try:
                if (job := self._jobs.get()) is None:
                    return
                self._do(*job)
            except Stopped:  # it came too late for its block
                continue

    def _do(self, work: Callable[[], Any], outcome: concurrent.futures.Future[Any]) -> None:
        try:
            with self._lock:
                self._at_work = True
            try:
                result = work()
            finally:
                with self._lock:
                    self._at_work = False
        except BaseException as error:
            outcome.set_exception(error)
        else:
            outcome.set_result(result)


class LoopCalls:
    """Takes the calls of the code to the handler's loop. See ``interpreter.Calls``."""

    def __init__(self, clock: BlockClock) -> None:
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_call: OnCall | None = None
        self._on_tool: OnTool | None = None
        self._lock = threading.Lock()
        self._cancelled = False
        self._under_way: set[concurrent.futures.Future[Any]] = set()

    def begin_run(self, on_call: OnCall, on_tool: OnTool | None) -> None:
        """A run begins; call it on the handler's loop."""
        self._loop = asyncio.get_running_loop()
        self._on_call, self._on_tool = on_call, on_tool

    def begin_block(self) -> None:
        """A block begins: its calls are taken."""
        self._cancelled = False

    def cancel(self) -> None:
        """Cancel the calls that are under way; further ones of this block are refused."""
        with self._lock:
            self._cancelled = True
            under_way = list(self._under_way)
        for future in under_way:
            future.cancel()

    def query(
        self, function: str, prompts: list[str], model: str | None, invalid: list[list[Any]]
    ) -> list[str]:
        """A sub-call; blocks the calling thread."""
        on_call = self._on_call
        assert on_call is not None
        name = next(each for each in FUNCTIONS if each == function)
        call = Call(name, prompts, model, dict(invalid))
        try:
            answers: list[str] = self._block(lambda: on_call(call))
            return answers
        except SubcallError as error:
            raise RuntimeError(str(error)) from None

    def use(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call of a tool; blocks the calling thread."""
        try:
            json.dumps([args, kwargs])
        except (TypeError, ValueError, RecursionError) as error:
            raise interpreter.no_plain_data(name, error) from None
        on_tool = self._on_tool
        assert on_tool is not None
        try:
            return self._block(lambda: on_tool(ToolCall(name, list(args), kwargs)))
        except ToolError as error:
            raise interpreter.exception(error.type, str(error)) from None

    def _block(self, work: Callable[[], Awaitable[Any]]) -> Any:
        async def counted() -> Any:
            with self._clock.waiting():
                return await work()

        assert self._loop is not None
        with self._lock:  # a call is either refused or among those that are cancelled
            if self._cancelled:
                raise Stopped
            future = asyncio.run_coroutine_threadsafe(counted(), self._loop)
            self._under_way.add(future)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise Stopped from None
        except BaseException:
            future.cancel()
            raise
        finally:
            self._under_way.discard(future)

"""The handler thread: one event loop and its HTTP connections, for the process's whole life.

LM calls, REPL processes and child RLMs live here, so that they go on while the kernel's main
thread is busy. (A new loop per batch, as in the reference library, loses answers: the client's
kept-alive connections belong to the old loop.)
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from rlm_notebook.errors import UsageError

T = TypeVar("T")
CLOSE_SECONDS = 5.0
"""How long a clean-up may take before it is no longer waited for."""


class Handler:
    """An event loop in a daemon thread. Use :func:`handler` for the process's own one."""

    def __init__(self, name: str = "rlm-handler") -> None:
        self.loop = asyncio.new_event_loop()
        self.pid = os.getpid()
        self._closers: dict[int, Callable[[], Awaitable[None]]] = {}
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.close()

    @property
    def here(self) -> bool:
        """Whether the caller runs on the handler thread."""
        return threading.current_thread() is self._thread

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the handler's loop; await it from any loop.

        A cancellation is passed on, and this returns only when the coroutine has cleaned up.
        """
        if self.here:
            return await coroutine
        outcome: concurrent.futures.Future[T] = concurrent.futures.Future()
        task: asyncio.Task[T] | None = None

        def start() -> None:
            nonlocal task
            task = self.loop.create_task(coroutine)
            task.add_done_callback(lambda done: _copy(done, outcome))

        def cancel() -> None:
            if task is not None:
                task.cancel()

        self.loop.call_soon_threadsafe(start)
        waiter = asyncio.wrap_future(outcome)
        waiter.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            return await asyncio.shield(waiter)
        except asyncio.CancelledError:
            self.loop.call_soon_threadsafe(cancel)
            while not outcome.done():
                try:
                    await asyncio.wait([waiter])
                except asyncio.CancelledError:
                    continue  # a second interrupt: the clean-up is under way already
            raise

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run a coroutine on the handler's loop from synchronous code.

        Cancelling the future cancels the coroutine.
        """
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def block(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the handler's loop and block until it has ended.

        An interrupt cancels it, and is raised once it has cleaned up.
        """
        future = self.submit(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            concurrent.futures.wait([future], timeout=CLOSE_SECONDS)
            raise

    def on_close(self, key: object, closer: Callable[[], Awaitable[None]]) -> None:
        """Call ``closer`` on the loop when the process ends."""
        self._closers[id(key)] = closer

    def close(self) -> None:
        """Close what was registered, cancel what runs, stop the loop, end the thread."""
        if self.loop.is_closed() or self.pid != os.getpid():
            return

        async def finish() -> None:
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for closer in self._closers.values():
                await closer()
            await asyncio.sleep(0)  # transports report their end in the next iteration
            self.loop.stop()

        self.submit(finish())
        self._thread.join(timeout=CLOSE_SECONDS)


def _copy(task: asyncio.Task[T], outcome: concurrent.futures.Future[T]) -> None:
    if task.cancelled():
        outcome.set_exception(asyncio.CancelledError())
    elif (error := task.exception()) is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(task.result())


def blocking(work: Coroutine[Any, Any, T], instead: str) -> T:
    """Run a coroutine to its end from synchronous code, whether or not a loop runs already.

    Parameters
    ----------
    instead
        What to call where this cannot be done.

    Raises
    ------
    UsageError
        On the handler thread itself.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    if handler().here:
        work.close()
        raise UsageError(f"this would block the handler thread: {instead}")
    return handler().block(work)


_handler: Handler | None = None
_lock = threading.Lock()


def handler() -> Handler:
    """The handler thread of this process; started at the first call."""
    global _handler
    with _lock:
        if _handler is None or _handler.pid != os.getpid() or _handler.loop.is_closed():
            _handler = Handler()
            atexit.register(_handler.close)
        return _handler

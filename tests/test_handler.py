"""The handler thread: awaited from any loop, cancelled with clean-up, closed without leftovers."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from rlm_notebook.handler import Handler, handler


@pytest.fixture
def own() -> object:
    made = Handler("test-handler")
    yield made
    made.close()
    assert not made._thread.is_alive()


async def test_a_coroutine_runs_on_the_handlers_thread_and_its_result_comes_back(
    own: Handler,
) -> None:
    async def where() -> str:
        await asyncio.sleep(0)
        return threading.current_thread().name

    assert await own.run(where()) == "test-handler"


async def test_an_exception_comes_back(own: Handler) -> None:
    async def fail() -> None:
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        await own.run(fail())


async def test_a_cancellation_returns_only_after_the_clean_up(own: Handler) -> None:
    begun, cleaned = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    async def work() -> None:
        loop.call_soon_threadsafe(begun.set)
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            cleaned.set()

    task = asyncio.create_task(own.run(work()))
    await begun.wait()
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()  # a second interrupt while the first one cleans up
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cleaned.is_set()


async def test_it_goes_on_while_the_callers_thread_is_blocked(own: Handler) -> None:
    async def count() -> int:
        for _ in range(20):
            await asyncio.sleep(0.005)
        return 20

    future = own.submit(count())
    time.sleep(0.3)
    assert future.done()
    assert future.result() == 20


def test_there_is_one_handler_for_the_process() -> None:
    assert handler() is handler()


def test_closing_cancels_what_runs_and_calls_the_closers() -> None:
    made, seen = Handler("test-closing"), []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            seen.append("cancelled")

    async def closer() -> None:
        seen.append("closed")

    made.on_close(made, closer)
    made.submit(work())
    time.sleep(0.05)
    made.close()
    made.close()
    assert seen == ["cancelled", "closed"]

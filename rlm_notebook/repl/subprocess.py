"""The default REPL: a process of its own, that can be killed and holds no secrets.

What comes back from it is JSON and text, never unpickled. (The context goes the other way by
pickle: plain data, made by us.)
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, TypeVar

from rlm_notebook.errors import REPLError
from rlm_notebook.repl import frames
from rlm_notebook.repl.protocol import (
    FUNCTIONS,
    Call,
    Execution,
    OnCall,
    OnTool,
    SubcallError,
    ToolCall,
    ToolError,
)

WORKER = Path(__file__).with_name("worker.py")
START_SECONDS = 30.0
LOOK_SECONDS = 1.0
"""How often it is looked whether a block has had its time."""
ENVIRONMENT = (
    "PATH",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TMPDIR",
    "TEMP",
    "TMP",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "PYTHONHOME",
    "SYSTEMROOT",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "OPENBLAS_CORETYPE",
    "OPENBLAS_L2_SIZE",
    "MKL_NUM_THREADS",
)
"""Environment variables that the process gets, besides ``LC_*``. An allow-list: keys stay out."""

T = TypeVar("T")
Answer = asyncio.Future[tuple[dict[str, Any], list[bytes]] | None]
"""What the process sends back to a task; None if it ended before."""


class SubprocessREPL:
    """See :class:`rlm_notebook.repl.protocol.REPL`.

    Parameters
    ----------
    block_timeout
        Seconds that one block may run; the time in which it has sub-calls under way does not
        count. None: no limit.
    memory
        GiB of address space that the process may take. None: no limit.
    """

    name = "subprocess"

    def __init__(self, block_timeout: float | None = None, memory: float | None = None) -> None:
        self._block_timeout = block_timeout
        self._memory = int((memory or 0) * (1 << 30))
        self._waited = 0.0
        self._waiting_since: float | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._calls: set[asyncio.Task[None]] = set()
        self._directory: Path | None = None
        self._contexts: list[Any] = []
        self._history: list[dict[str, Any]] | None = None
        self._on_call: OnCall | None = None
        self._tools: tuple[str, ...] = ()
        self._on_tool: OnTool | None = None
        self._answer: Answer | None = None
        self._write_lock = asyncio.Lock()
        self._broken = ""

    async def start(
        self,
        context: Any,
        on_call: OnCall,
        tools: tuple[str, ...] = (),
        on_tool: OnTool | None = None,
        *,
        history: list[dict[str, Any]] | None = None,
    ) -> None:
        """Start the process, give it the context and the names of the tools.

        With a ``history`` (a session) it may be called again: the process then gets one more
        context, and keeps its variables.
        """
        self._contexts = [context] if history is None else [*self._contexts, context]
        self._history, self._on_call = history, on_call
        self._tools, self._on_tool = tools, on_tool
        try:
            if self._process is None:
                await self._spawn()
            else:
                await self._send_context(len(self._contexts) - 1)
        except BaseException:
            await self.close()
            raise

    async def execute(self, code: str) -> Execution:
        """Run one block; a process that ends under it is replaced by a new one."""
        notes: list[str] = []
        if self._process is None:
            await self._spawn()
            notes.append("The REPL is a new process: variables of earlier blocks are lost.")
        try:
            answer = await self._in_time(self._ask({"op": "exec"}, [frames.to_bytes(code)]))
        except TimeoutError:
            await self._stop_process()
            message = (
                f"the block was stopped after {self._block_timeout:g} s of its own (waiting for "
                "sub-calls not counted): do less in one block, or look for an endless loop"
            )
            return Execution(error={"type": "BlockTimeout", "message": message}, notes=notes)
        if answer is None:
            message = await self._died()
            return Execution(error={"type": "ProcessEnded", "message": message}, notes=notes)
        try:
            return _execution(*answer, notes)
        except (KeyError, IndexError, TypeError, ValueError, RecursionError):
            await self._stop_process()
            broken = {"type": "ProtocolError", "message": "the REPL process sent what is no result"}
            return Execution(error=broken, notes=notes)

    async def _in_time(self, work: Awaitable[T]) -> T:
        """Wait for a block's answer; raise TimeoutError once the block has had its time."""
        if self._block_timeout is None:
            return await work
        loop = asyncio.get_running_loop()
        begun, self._waited = loop.time(), 0.0
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                now = loop.time()
                waiting = 0.0 if self._waiting_since is None else now - self._waiting_since
                left = self._block_timeout - (now - begun - self._waited - waiting)
                if left <= 0:
                    raise TimeoutError
                await asyncio.wait([task], timeout=min(left, LOOK_SECONDS))
        finally:
            task.cancel()
        return task.result()

    async def variable(self, name: str) -> Any:
        """The value of a variable; None if there is none."""
        if self._process is None:
            return None
        answer = await self._ask({"op": "variable", "name": name}, [])
        if answer is None:
            await self._died()
            return None
        try:
            return _content(answer[0]["content"], answer[1][0])
        except (KeyError, IndexError, TypeError, ValueError, RecursionError):
            return None

    async def close(self) -> None:
        """Kill the process with all it started, remove its folder.

        A cancellation (a second interrupt, a limit) does not cut the clean-up short.
        """
        stopping = asyncio.ensure_future(self._stop_process())
        try:
            await asyncio.shield(stopping)
        except asyncio.CancelledError:
            await asyncio.wait([stopping])
            raise

    async def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        self._directory = Path(tempfile.mkdtemp(prefix="rlm-repl-"))
        outputs: list[int] = []
        try:
            for name in ("stdout", "stderr"):
                path = self._directory / f".{name}"
                outputs.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600))
                path.unlink()
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-X", "utf8", str(WORKER)),
                *(str(theirs.fileno()), str(self._memory)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=outputs[0],
                stderr=outputs[1],
                cwd=self._directory,
                env=_environment(self._directory),
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except BaseException as error:
            ours.close()
            if isinstance(error, OSError):
                raise REPLError(
                    f"the REPL process cannot be started: {error.strerror or error}"
                ) from None
            raise
        finally:
            theirs.close()
            for descriptor in outputs:
                os.close(descriptor)
        reader, self._writer = await asyncio.open_connection(sock=ours, limit=1 << 20)
        self._broken = ""
        self._answer = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read(reader))
        try:
            async with asyncio.timeout(START_SECONDS):
                ready = await self._answer
        except TimeoutError:
            ready = None
        if ready is None:
            raise REPLError(f"the REPL process did not start: {await self._died()}")
        for number in range(len(self._contexts)):
            await self._send_context(number)

    async def _send_context(self, number: int) -> None:
        if self._tools:
            await self._send({"op": "tools", "names": list(self._tools)}, [])
        context = self._contexts[number]
        pickled = not isinstance(context, str)
        data = (
            await asyncio.to_thread(pickle.dumps, context, 5)
            if pickled
            else await asyncio.to_thread(frames.to_bytes, context)
        )
        header: dict[str, Any] = {"op": "context", "pickled": pickled}
        if self._history is not None:
            header |= {"number": number, "history": self._history}
        await self._send(header, [data])

    async def _ask(
        self, header: dict[str, Any], texts: list[bytes]
    ) -> tuple[dict[str, Any], list[bytes]] | None:
        """Send a task and wait for its answer; None if the process ended."""
        answer: Answer = asyncio.get_running_loop().create_future()
        self._answer = answer
        if self._reading is None or self._reading.done():
            return None
        with contextlib.suppress(ConnectionError):
            await self._send(header, texts)
        return await answer

    async def _send(self, header: dict[str, Any], texts: list[bytes]) -> None:
        assert self._writer is not None
        async with self._write_lock:
            self._writer.writelines(frames.encode(header, texts))
            await self._writer.drain()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Take frames until the process ends or breaks the protocol."""
        try:
            while True:
                header, texts = await _frame(reader)
                if header["op"] in ("call", "tool"):
                    if not self._calls:
                        self._waiting_since = asyncio.get_running_loop().time()
                    reply = self._reply if header["op"] == "call" else self._tool_reply
                    task = asyncio.create_task(reply(header, texts))
                    self._calls.add(task)
                    task.add_done_callback(self._replied)
                elif self._answer is not None and not self._answer.done():
                    self._answer.set_result((header, texts))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            self._broken = f"it broke the protocol: {error}"
        finally:
            if self._answer is not None and not self._answer.done():
                self._answer.set_result(None)

    def _replied(self, task: asyncio.Task[None]) -> None:
        self._calls.discard(task)
        if not self._calls and self._waiting_since is not None:
            self._waited += asyncio.get_running_loop().time() - self._waiting_since
            self._waiting_since = None

    async def _reply(self, header: dict[str, Any], texts: list[bytes]) -> None:
        assert self._on_call is not None
        number = header.get("id")
        try:
            answers = await self._on_call(_call(header, texts))
        except SubcallError as error:
            reply: dict[str, Any] = {"op": "reply", "id": number, "error": str(error)}
            data: list[bytes] = []
        except (KeyError, TypeError, ValueError) as error:
            reply, data = {"op": "reply", "id": number, "error": f"bad call: {error}"}, []
        else:
            reply = {"op": "reply", "id": number}
            data = [frames.to_bytes(answer) for answer in answers]
        with contextlib.suppress(ConnectionError):
            await self._send(reply, data)

    async def _tool_reply(self, header: dict[str, Any], texts: list[bytes]) -> None:
        """Arguments come as JSON; what the tool returned goes back as the context did."""
        number = header.get("id")
        try:
            value = await self._use(header, texts)
            data = [await asyncio.to_thread(pickle.dumps, value, 5)]
            reply: dict[str, Any] = {"op": "reply", "id": number, "pickled": True}
        except ToolError as error:
            reply = {"op": "reply", "id": number, "error": str(error), "type": error.type}
            data = []
        with contextlib.suppress(ConnectionError):
            await self._send(reply, data)

    async def _use(self, header: dict[str, Any], texts: list[bytes]) -> Any:
        try:
            args, kwargs = json.loads(texts[0])
            call = ToolCall(str(header["name"]), list(args), dict(kwargs))
        except (KeyError, IndexError, TypeError, ValueError, RecursionError) as error:
            raise ToolError("RuntimeError", f"bad call: {error}") from None
        if self._on_tool is None or call.name not in self._tools:
            raise ToolError("NameError", f"no function {call.name!r}")
        return await self._on_tool(call)

    async def _died(self) -> str:
        """Clean up after a process that ended; say how it ended."""
        process, broken = self._process, self._broken
        await self._stop_process()
        code = process.returncode if process is not None else None
        if broken:
            return f"the REPL process was stopped: {broken}"
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                return f"the REPL process was ended by {signal.Signals(-code).name}"
        return f"the REPL process ended with exit code {code}"

    async def _stop_process(self) -> None:
        for task in [*self._calls, *([self._reading] if self._reading else [])]:
            task.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        process, self._process = self._process, None
        if process is not None:
            # The group still exists while its first process is not reaped, so this hits no other.
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
            await asyncio.shield(process.wait())
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(OSError):  # it may have been cut off in mid-frame
                await self._writer.wait_closed()
            self._writer = None
        directory, self._directory = self._directory, None
        if directory is not None:
            await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)


def _environment(home: Path) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in ENVIRONMENT or name.startswith("LC_")
    }
    own = {
        "HOME": str(home),
        "MPLBACKEND": "agg",
        "PYTHONHASHSEED": "0",
        "BROWSER": "true",  # the program: what would open a browser starts that
    }
    return {**kept, **own}


async def _frame(reader: asyncio.StreamReader) -> tuple[dict[str, Any], list[bytes]]:
    size, count = frames.PREFIX.unpack(await reader.readexactly(frames.PREFIX.size))
    if size > frames.MAX_HEADER or count > frames.MAX_TEXTS:
        raise ValueError("a frame is too large")
    packed = await reader.readexactly(frames.SIZE.size * count)
    sizes = [found[0] for found in frames.SIZE.iter_unpack(packed)]
    if sum(sizes) > frames.MAX_BYTES:
        raise ValueError("a frame is too large")
    header = json.loads(await reader.readexactly(size))
    if not isinstance(header, dict):
        raise TypeError("a frame's header is not an object")
    return header, [await reader.readexactly(length) for length in sizes]


def _call(header: dict[str, Any], texts: list[bytes]) -> Call:
    function = header["function"]
    if function not in FUNCTIONS:
        raise ValueError(f"no function {function!r}")
    model = header.get("model")
    if model is not None and not isinstance(model, str):
        raise TypeError("model is no str")
    invalid = {int(index): str(kind)[:100] for index, kind in header.get("invalid") or []}
    return Call(function, [text.decode("utf-8", "replace") for text in texts], model, invalid)


def _execution(header: dict[str, Any], texts: list[bytes], notes: list[str]) -> Execution:
    stdout, stderr, trace = (text.decode("utf-8", "replace") for text in texts[:3])
    error = header["error"]
    if error is not None:
        error = {"type": str(error["type"]), "message": str(error["message"])}
    return Execution(
        stdout=stdout,
        stderr=stderr,
        error=error,
        traceback=trace,
        variables=[[str(part) for part in row[:3]] for row in header["variables"]],
        content=_content(header["content"], texts[3]),
        ready=bool(header["ready"]),
        notes=[*notes, *(str(note) for note in header["notes"])],
    )


def _content(kind: str, data: bytes) -> Any:
    if kind == "none":
        return None
    return json.loads(data) if kind == "json" else data.decode("utf-8", "replace")

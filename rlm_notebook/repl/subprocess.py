"""The default REPL: a process of its own, that can be killed and holds no secrets.

What comes back from it is JSON and text, never unpickled. (The context goes the other way, as a
file with a pickle: plain data, made by us.)
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
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlm_notebook.cancellation import to_the_end
from rlm_notebook.errors import REPLError
from rlm_notebook.repl import frames, parcel
from rlm_notebook.repl.block_clock import BlockClock
from rlm_notebook.repl.journal import Journal
from rlm_notebook.repl.protocol import (
    FUNCTIONS,
    STOPPED,
    Call,
    Execution,
    Limits,
    OnCall,
    OnTool,
    SubcallError,
    ToolCall,
    ToolError,
    content,
)

WORKER = Path(__file__).with_name("worker.py")
START_SECONDS = 30.0
PROCESSES = 256
"""How many processes the code of a block may have at once."""
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

Answer = asyncio.Future[tuple[dict[str, Any], list[bytes]] | None]
"""What the process sends back to a task; None if it ended before."""


class _TooManyProcesses(Exception):
    """The code has started more processes than it may."""


class SubprocessREPL:
    """See :class:`rlm_notebook.repl.protocol.REPL`."""

    name = "subprocess"

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._clock = BlockClock(self._limits.block_timeout)
        self._journal = Journal()
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._calls: set[asyncio.Task[None]] = set()
        self._directory: Path | None = None
        self._contexts: list[Any] = []
        self._history: list[dict[str, Any]] | None = None
        self._tools: tuple[str, ...] = ()
        self._answer: Answer | None = None
        self._write_lock = asyncio.Lock()
        self._broken = ""
        self._closed = False

    async def start(
        self,
        context: Any,
        on_call: OnCall,
        tools: tuple[str, ...] = (),
        on_tool: OnTool | None = None,
        *,
        history: list[dict[str, Any]] | None = None,
    ) -> None:
        """Start the process, give it the context and the names of the tools."""
        self._contexts = [context] if history is None else [*self._contexts, context]
        self._history, self._tools = history, tools
        self._closed = False
        self._journal.begin_run(on_call, on_tool)
        try:
            if self._process is None:
                await self._spawn()
                for number in range(len(self._contexts)):
                    await self._send_context(number)
            else:
                await self._send_context(len(self._contexts) - 1)
        except BaseException:
            await self.close()
            raise

    async def execute(self, code: str) -> Execution:
        """Run one block; a process that ends under it is replaced by a new one."""
        notes: list[str] = []
        if self._process is None:
            notes.append((await self._renewed())[0])
        self._journal.begin(code)
        done = await self._execute(code)
        if done.error is None or done.error["type"] not in STOPPED:
            self._journal.keep()
            return replace(done, notes=[*notes, *done.notes])
        try:
            note, restored = await self._renewed()
        except REPLError:
            return done  # it was closed; or the next block tries again, and says why
        return replace(done, notes=[note], variables=restored.variables if restored else [])

    async def _renewed(self) -> tuple[str, Execution | None]:
        """A new process, with the variables of the earlier blocks if that can be done."""
        await self._spawn()

        async def again(code: str) -> Execution | None:
            done = await self._execute(code)
            stopped = done.error is not None and done.error["type"] in STOPPED
            return None if stopped else done

        note, restored = await self._journal.replay(again, self._send_context)
        if restored is None:
            await self._stop_process()
            await self._spawn()
            for number in range(len(self._contexts)):
                await self._send_context(number)
        return note, restored

    async def _execute(self, code: str) -> Execution:
        header = {"op": "exec", "auto_batch": self._limits.auto_batch}
        try:
            answer = await self._clock.run(
                self._ask(header, [frames.to_bytes(code)]), self._check_processes
            )
        except TimeoutError:
            await self._stop_process()
            return Execution(error={"type": "BlockTimeout", "message": self._clock.message})
        except _TooManyProcesses as error:
            await self._stop_process()
            return Execution(error={"type": "TooManyProcesses", "message": str(error)})
        if answer is None:
            message = await self._died()
            return Execution(error={"type": "ProcessEnded", "message": message})
        try:
            return _execution(*answer)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError):
            await self._stop_process()
            broken = {"type": "ProtocolError", "message": "the REPL process sent what is no result"}
            return Execution(error=broken)

    def _check_processes(self) -> None:
        """Raise if the code has started more processes than it may."""
        if self._process is not None and (count := _group_size(self._process.pid)) > PROCESSES:
            raise _TooManyProcesses(
                f"the block was stopped: it had started {count:,} processes, {PROCESSES} are allowed"
            )

    async def variable(self, name: str) -> Any:
        """The value of a variable; None if there is none."""
        if self._process is None:
            return None
        answer = await self._ask({"op": "variable", "name": name}, [])
        if answer is None:
            await self._died()
            return None
        try:
            return content(answer[0]["kind"], answer[1][0])
        except (KeyError, IndexError, TypeError, ValueError, RecursionError):
            return None

    async def close(self) -> None:
        """Kill the process with all it started, remove its folder.

        A cancellation (a second interrupt, a limit) does not cut the clean-up short.
        """
        self._closed = True
        await to_the_end(self._stop_process())

    async def _spawn(self) -> None:
        if self._closed:
            raise REPLError("the REPL was closed: no further block can run")
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
                *(str(theirs.fileno()), str(int((self._limits.memory or 0) * (1 << 30)))),
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
        if self._closed:  # in the meantime
            await self._stop_process()
            raise REPLError("the REPL was closed: no further block can run")
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

    async def _send_context(self, number: int) -> None:
        assert self._directory is not None
        if self._tools:
            await self._send({"op": "tools", "names": list(self._tools)}, [])
        file = str(self._directory / f".context-{number}")
        try:
            await asyncio.to_thread(parcel.write, self._contexts[number], file)
        except OSError as error:
            raise REPLError(
                f"the context cannot be given to the REPL process: {error.strerror or error}"
            ) from None
        header: dict[str, Any] = {"op": "context", "file": file}
        if self._history is not None:
            header |= {"number": number, "history": self._history}
        await self._send(header, [])

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
                    reply = self._reply if header["op"] == "call" else self._tool_reply
                    task = asyncio.create_task(reply(header, texts))
                    self._calls.add(task)
                    task.add_done_callback(self._calls.discard)
                elif self._answer is not None and not self._answer.done():
                    self._answer.set_result((header, texts))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            self._broken = f"it broke the protocol: {error}"
        finally:
            if self._answer is not None and not self._answer.done():
                self._answer.set_result(None)

    async def _reply(self, header: dict[str, Any], texts: list[bytes]) -> None:
        number = header.get("id")
        try:
            with self._clock.waiting():
                answers = await self._journal.call(_call(header, texts))
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
            with self._clock.waiting():
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
        if call.name not in self._tools:
            raise ToolError("NameError", f"no function {call.name!r}")
        return await self._journal.use(call)

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


def _execution(header: dict[str, Any], texts: list[bytes]) -> Execution:
    stdout, stderr, trace = (text.decode("utf-8", "replace") for text in texts[:3])
    error = header["error"]
    if error is not None:
        error = {"type": str(error["type"]), "message": str(error["message"])}
    return Execution(
        stdout=stdout,
        stderr=stderr,
        order=[
            ("stdout" if stream == "stdout" else "stderr", abs(int(size)))
            for stream, size in header["order"]
        ],
        error=error,
        traceback=trace,
        variables=[[str(part) for part in row[:4]] for row in header["variables"]],
        changes={
            str(what): [str(name) for name in names] for what, names in header["changes"].items()
        },
        content=content(header["kind"], texts[3]),
        ready=bool(header["ready"]),
        notes=[str(note) for note in header["notes"]],
    )


def _group_size(leader: int) -> int:
    """How many processes there are in the session of a process."""
    count = 0
    with contextlib.suppress(OSError):  # no /proc: not counted
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError):
                    count += os.getsid(int(name)) == leader
    return count

"""The REPL process: runs the model's code and sends its sub-calls to the parent.

Started by :mod:`rlm_notebook.repl.subprocess` as a script, in an empty folder, with an
environment without secrets. Standard library only. The main thread runs the code; one thread
reads what the parent sends, so that sub-calls may come from any thread of the code.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import itertools
import json
import os
import pickle
import queue
import shutil
import socket
import sys
import threading
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlm_notebook.repl import batching, frames, interpreter, parcel
else:

    def _load(name: str) -> types.ModuleType:
        path = Path(__file__).with_name(f"{name}.py")
        spec = importlib.util.spec_from_file_location(f"_rlm_{name}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    batching, frames, interpreter, parcel = map(
        _load, ("batching", "frames", "interpreter", "parcel")
    )

OUTPUT_CAP = 4 * 1024 * 1024
"""Bytes of stdout, and of stderr, that are kept of one block: head and tail."""
MOST_SWITCHES = 10_000
"""How often the code may go from stdout to stderr and back until the order is no longer kept."""
FILE_CAP = 1 << 30
"""Bytes of the largest file that the code may write, its output included."""
OPEN_FILES = 1_024


Inbox = queue.SimpleQueue[tuple[dict[str, Any], list[bytes]]]


class Channel:
    """The socket to the parent."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._reader = sock.makefile("rb", buffering=1 << 16)
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._waiting: dict[int, Inbox] = {}
        self._pid = os.getpid()
        self._home = os.getcwd()
        self.tasks: queue.SimpleQueue[tuple[dict[str, Any], list[bytes]]] = queue.SimpleQueue()

    def send(self, header: dict[str, Any], texts: list[bytes]) -> None:
        data = b"".join(frames.encode(header, texts))
        with self._lock:
            self._sock.sendall(data)

    def query(
        self, function: str, prompts: list[str], model: str | None, invalid: list[list[Any]]
    ) -> list[str]:
        """A sub-call."""
        header = {"op": "call", "function": function, "model": model, "invalid": invalid}
        answers = self._request(function, header, list(map(frames.to_bytes, prompts)))
        return [answer.decode() for answer in answers]

    def use(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call of a tool."""
        try:
            sent = json.dumps([args, kwargs], allow_nan=True)
        except (TypeError, ValueError, RecursionError) as error:
            raise interpreter.no_plain_data(name, error) from None
        (data,) = self._request(name, {"op": "tool", "name": name}, [frames.to_bytes(sent)])
        return pickle.loads(data)

    def _request(self, name: str, header: dict[str, Any], texts: list[bytes]) -> list[bytes]:
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"{name} works in the REPL's own process only, not in a process that "
                "the code started: use threads, or llm_query_batched"
            )
        number = next(self._ids)
        inbox: Inbox = queue.SimpleQueue()
        self._waiting[number] = inbox
        self.send({**header, "id": number}, texts)
        reply, answers = inbox.get()
        del self._waiting[number]
        if "error" in reply:
            raise interpreter.exception(reply.get("type"), reply["error"])
        return answers

    def read_forever(self) -> None:
        """Runs in its own thread; the parent's death ends the process."""
        try:
            while True:
                header_size, count = frames.PREFIX.unpack(self._exactly(frames.PREFIX.size))
                sizes = [
                    frames.SIZE.unpack(self._exactly(frames.SIZE.size))[0] for _ in range(count)
                ]
                header = json.loads(self._exactly(header_size))
                texts = [self._exactly(size) for size in sizes]
                if header["op"] == "reply":
                    inbox = self._waiting.get(header["id"])
                    if inbox is not None:
                        inbox.put((header, texts))
                else:
                    self.tasks.put((header, texts))
        except (EOFError, OSError):
            # The parent is gone and can no longer remove the folder it made for this process.
            shutil.rmtree(self._home, ignore_errors=True)
            os._exit(0)

    def _exactly(self, size: int) -> bytes:
        data: bytes = self._reader.read(size)
        if len(data) != size:
            raise EOFError
        return data


class FileCapture:
    """What a block writes to file descriptors 1 and 2, from Python, C or a child process.

    See :class:`rlm_notebook.repl.interpreter.Capture`.
    """

    def __init__(self) -> None:
        self._kept = {fd: os.dup(fd) for fd in (1, 2)}
        for fd in self._kept.values():
            os.set_inheritable(fd, False)
        self._marks: list[tuple[int, int]] = []
        """Descriptor and how long its file was when the other one was written to."""
        self._last = 1

    def begin(self) -> None:
        for fd, kept in self._kept.items():
            os.ftruncate(kept, 0)
            os.dup2(kept, fd)
        self._marks, self._last = [], 1
        sys.stdout = _Stream(1, self)
        sys.stderr = _Stream(2, self)

    def end(self) -> tuple[str, str, list[tuple[str, int]]]:
        for stream in (sys.stdout, sys.stderr):
            _flush(stream)
        out, err = (self._read(self._kept[fd]) for fd in (1, 2))
        return out, err, self._order()

    def switch(self, fd: int) -> None:
        """The code goes on to write to the other stream."""
        if fd == self._last:
            return
        _flush(sys.stdout if self._last == 1 else sys.stderr)
        if len(self._marks) < MOST_SWITCHES:
            self._marks.append((self._last, os.fstat(self._kept[self._last]).st_size))
        self._last = fd

    def _order(self) -> list[tuple[str, int]]:
        sizes = {fd: os.fstat(kept).st_size for fd, kept in self._kept.items()}
        if not all(0 < size <= OUTPUT_CAP for size in sizes.values()):
            return []
        if len(self._marks) >= MOST_SWITCHES:
            return []
        order = []
        read = {1: 0, 2: 0}
        for fd, upto in [*self._marks, *sizes.items()]:
            data = os.pread(self._kept[fd], upto - read[fd], read[fd])
            read[fd] = upto
            if data:
                name = "stdout" if fd == 1 else "stderr"
                order.append((name, len(data.decode("utf-8", "replace"))))
        return order

    def _read(self, fd: int) -> str:
        size = os.fstat(fd).st_size
        if size <= OUTPUT_CAP:
            data = os.pread(fd, size, 0)
        else:
            head, tail = OUTPUT_CAP * 3 // 4, OUTPUT_CAP // 4
            mark = f"\n[... {size - head - tail:,} bytes of output were not kept ...]\n"
            data = os.pread(fd, head, 0) + mark.encode() + os.pread(fd, tail, size - tail)
        return data.decode("utf-8", "replace")


class _Stream(io.TextIOWrapper):
    """Writes to a descriptor, by lines, so that what child processes print stands in its place."""

    def __init__(self, fd: int, capture: FileCapture) -> None:
        raw = io.BufferedWriter(io.FileIO(fd, "wb", closefd=False))
        super().__init__(raw, encoding="utf-8", errors="replace", line_buffering=True)
        self._fd = fd
        self._capture = capture

    def write(self, text: str, /) -> int:
        self._capture.switch(self._fd)
        return super().write(text)


def _flush(stream: Any) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        stream.flush()  # if the block closed or replaced it, what was written is in the file


def _limit(memory: int) -> None:
    """Keep the process from taking all of the machine. ``memory`` in bytes, 0 is no limit."""
    try:
        import resource
    except ImportError:
        return  # not on Windows
    wanted = {"RLIMIT_CORE": 0, "RLIMIT_FSIZE": FILE_CAP, "RLIMIT_NOFILE": OPEN_FILES}
    if memory:
        wanted["RLIMIT_AS"] = memory
    for name, value in wanted.items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, (value, hard))


def main() -> None:
    """Serve the parent on the socket whose file descriptor is the first argument.

    The second one is the memory limit in bytes.
    """
    sock = socket.socket(fileno=int(sys.argv[1]))
    _limit(int(sys.argv[2]))
    sock.set_inheritable(False)
    sys.argv = [""]
    # A module, so that what the code defines can be pickled (multiprocessing wants that).
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    channel = Channel(sock)
    python = interpreter.Interpreter(module.__dict__, FileCapture(), channel)
    threading.Thread(target=channel.read_forever, name="rlm-reader", daemon=True).start()
    channel.send({"op": "ready"}, [])
    while True:
        header, texts = channel.tasks.get()
        if header["op"] == "context":
            value = parcel.read(header["file"])
            python.begin(value, header.get("number"), header.get("history"))
        elif header["op"] == "tools":
            python.add_tools(header["names"])
        elif header["op"] == "exec":
            rewrite = batching.rewrite if header["auto_batch"] else None
            channel.send(*_done(python.run(texts[0].decode(), rewrite)))
        elif header["op"] == "variable":
            kind, content = interpreter.plain(python.namespace.get(header["name"]))
            channel.send({"op": "value", "kind": kind}, [frames.to_bytes(content)])


def _done(found: dict[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
    texts = [found.pop(name) for name in ("stdout", "stderr", "traceback", "content")]
    return {"op": "done", **found}, list(map(frames.to_bytes, texts))


if __name__ == "__main__":
    main()

"""The REPL process: runs the model's code and sends its sub-calls to the parent.

Started by :mod:`rlm_notebook.repl.subprocess` as a script, in an empty folder, with an
environment without secrets. Standard library only. The main thread runs the code; one thread
reads what the parent sends, so that sub-calls may come from any thread of the code.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import contextlib
import importlib.util
import inspect
import io
import itertools
import json
import linecache
import os
import pickle
import queue
import shutil
import socket
import sys
import threading
import traceback
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlm_notebook.repl import frames
else:
    _spec = importlib.util.spec_from_file_location(
        "_rlm_frames", Path(__file__).with_name("frames.py")
    )
    frames = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(frames)

OUTPUT_CAP = 4 * 1024 * 1024
"""Bytes of stdout, and of stderr, that are kept of one block: head and tail."""
REPR_CAP = 60
FILE_CAP = 1 << 30
"""Bytes of the largest file that the code may write, its output included."""
OPEN_FILES = 1_024
_FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


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

    def request(self, header: dict[str, Any], texts: list[bytes]) -> list[bytes]:
        """Send a sub-call, or the call of a tool, and wait for its answers."""
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"{header.get('function', header.get('name'))} works in the REPL's own process only, not in a process that "
                "the code started: use threads, or llm_query_batched"
            )
        number = next(self._ids)
        inbox: Inbox = queue.SimpleQueue()
        self._waiting[number] = inbox
        self.send({**header, "id": number}, texts)
        reply, answers = inbox.get()
        del self._waiting[number]
        if "error" in reply:
            raise _exception(reply.get("type"), reply["error"])
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


class Capture:
    """What a block writes to file descriptors 1 and 2, from Python, C or a child process."""

    def __init__(self) -> None:
        self._kept = {fd: os.dup(fd) for fd in (1, 2)}
        for fd in self._kept.values():
            os.set_inheritable(fd, False)

    def begin(self) -> None:
        for fd, kept in self._kept.items():
            os.ftruncate(kept, 0)
            os.dup2(kept, fd)
        sys.stdout = _writer(1)
        sys.stderr = _writer(2)

    def end(self) -> tuple[bytes, bytes]:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError, AttributeError):
                continue  # the block closed or replaced it: what was written is in the file
        return self._read(self._kept[1]), self._read(self._kept[2])

    def _read(self, fd: int) -> bytes:
        size = os.fstat(fd).st_size
        if size <= OUTPUT_CAP:
            data = os.pread(fd, size, 0)
        else:
            head, tail = OUTPUT_CAP * 3 // 4, OUTPUT_CAP // 4
            mark = f"\n[... {size - head - tail:,} bytes of output were not kept ...]\n"
            data = os.pread(fd, head, 0) + mark.encode() + os.pread(fd, tail, size - tail)
        return frames.to_bytes(data.decode("utf-8", "replace"))


def _writer(fd: int) -> io.TextIOWrapper:
    # By lines, so that what child processes print stands in its order between ours.
    return open(fd, "w", encoding="utf-8", errors="replace", buffering=1, closefd=False)


class Shown(str):
    """A text that shows itself without quotes when it is the last expression of a block."""

    __slots__ = ()
    __repr__ = str.__str__


class Interpreter:
    """One namespace, its reserved names, and the execution of blocks in it."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.capture = Capture()
        self.answer: dict[str, Any] = {"content": None, "ready": False}
        # A module, so that what the code defines can be pickled (multiprocessing wants that).
        self._module = sys.modules["__main__"] = types.ModuleType("__main__")
        self.namespace: dict[str, Any] = self._module.__dict__
        self.namespace["__builtins__"] = builtins
        self.reserved: dict[str, Any] = {
            "context": None,
            "answer": self.answer,
            "llm_query": self._single("llm_query"),
            "llm_query_batched": self._batched("llm_query_batched"),
            "rlm_query": self._single("rlm_query"),
            "rlm_query_batched": self._batched("rlm_query_batched"),
            "SHOW_VARS": self.show_vars,
            "FINAL": self.final,
            "FINAL_VAR": self.final_var,
        }
        self.namespace.update(self.reserved)
        self.blocks = 0

    def _single(self, function: str) -> Any:
        def query(prompt: str, model: str | None = None) -> str:
            return self._call(function, [prompt], model)[0]

        query.__name__ = query.__qualname__ = function
        return query

    def _batched(self, function: str) -> Any:
        def query(prompts: list[str], model: str | None = None) -> list[str]:
            if isinstance(prompts, str):
                raise TypeError(f"{function} takes a list of prompts, not one str")
            return self._call(function, list(prompts), model)

        query.__name__ = query.__qualname__ = function
        return query

    def _call(self, function: str, prompts: list[Any], model: Any) -> list[str]:
        if model is not None and not isinstance(model, str):
            raise TypeError(f"model is a str such as 'openai/gpt-5', not {type(model).__name__}")
        invalid = [
            [index, type(prompt).__name__]
            for index, prompt in enumerate(prompts)
            if not isinstance(prompt, str)
        ]
        texts = [frames.to_bytes(p) if isinstance(p, str) else b"" for p in prompts]
        header = {"op": "call", "function": function, "model": model, "invalid": invalid}
        return [answer.decode() for answer in self.channel.request(header, texts)]

    def add_tools(self, names: list[str]) -> None:
        """Functions of the user; they run in the user's process."""
        for name in names:
            self.reserved[name] = self.namespace[name] = self._tool(name)

    def _tool(self, name: str) -> Any:
        def tool(*args: Any, **kwargs: Any) -> Any:
            try:
                sent = json.dumps([args, kwargs], allow_nan=True)
            except (TypeError, ValueError, RecursionError) as error:
                raise TypeError(
                    f"{name} takes plain data (str, numbers, lists, dicts): {error}"
                ) from None
            (data,) = self.channel.request({"op": "tool", "name": name}, [frames.to_bytes(sent)])
            return pickle.loads(data)

        tool.__name__ = tool.__qualname__ = name
        return tool

    def begin(self, value: Any, number: int | None, history: Any) -> None:
        """A run begins; ``number`` counts the contexts of a session."""
        self.reserved["context"] = self.namespace["context"] = value
        self.answer.clear()
        self.answer.update(content=None, ready=False)
        if number is not None:
            name = f"context_{number}"
            self.reserved[name] = self.namespace[name] = value
            self.reserved["history"] = self.namespace["history"] = history

    def show_vars(self) -> str:
        """The user's variables, one a line."""
        rows = self.variables()
        return Shown("\n".join(f"{name}: {kind} {value}" for name, kind, value in rows) or "none")

    def final(self, value: Any) -> None:
        """Set the final answer (the older way to say it)."""
        self.answer.update(content=value, ready=True)

    def final_var(self, name: str) -> None:
        """Set the final answer to the value of a variable (the older way to say it)."""
        self.final(self.namespace[name] if isinstance(name, str) else name)

    def variables(self) -> list[list[str]]:
        return [
            [name, type(value).__name__, _short(value)]
            for name, value in list(self.namespace.items())
            if not name.startswith("_")
            and name not in self.reserved
            and not inspect.ismodule(value)
        ]

    def run(self, code: str) -> tuple[dict[str, Any], list[bytes]]:
        """Run one block; return the ``done`` message."""
        self.blocks += 1
        filename = f"<block {self.blocks}>"
        linecache.cache[filename] = (len(code), None, code.splitlines(keepends=True), filename)
        error: dict[str, str] | None = None
        trace = ""
        self.capture.begin()
        try:
            self._execute(code, filename)
        except BaseException as raised:
            error, trace = _error(raised, filename)
        stdout, stderr = self.capture.end()
        notes = self._restore()
        kind, content = _content(self.answer.get("content"))
        header = {
            "op": "done",
            "error": error,
            "variables": self.variables(),
            "notes": notes,
            "content": kind,
            "ready": bool(self.answer.get("ready")),
        }
        return header, [stdout, stderr, frames.to_bytes(trace), content]

    def _execute(self, code: str, filename: str) -> None:
        tree = ast.parse(code.removeprefix("\ufeff"), filename)
        last: ast.Expression | None = None
        if tree.body and isinstance(tree.body[-1], ast.Expr):
            last = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]
        for part in (tree, last):
            if part is None:
                continue
            mode = "eval" if isinstance(part, ast.Expression) else "exec"
            compiled = compile(part, filename, mode, _FLAGS, dont_inherit=True)
            value = eval(compiled, self.namespace)
            if compiled.co_flags & inspect.CO_COROUTINE:
                value = asyncio.run(value)
            if part is last and value is not None:
                print(repr(value))

    def _restore(self) -> list[str]:
        notes = []
        given = self.namespace.get("answer")
        if given is not self.answer and isinstance(given, dict):
            self.answer.clear()
            self.answer.update(given)
        for name, original in self.reserved.items():
            if self.namespace.get(name) is not original:
                if name != "answer" or not isinstance(given, dict):
                    notes.append(f"`{name}` is reserved: it was restored")
                self.namespace[name] = original
        if not callable(self.namespace.get("print", print)):
            del self.namespace["print"]
            notes.append("`print` is the function to show something with: it was restored")
        self.answer.setdefault("content", None)
        self.answer.setdefault("ready", False)
        return notes


def _exception(kind: Any, message: str) -> Exception:
    """The exception of that name, if it is one of Python's own that takes a message."""
    found = getattr(builtins, str(kind), None)
    if isinstance(found, type) and issubclass(found, Exception):
        try:
            return found(message)
        except TypeError:
            pass  # UnicodeDecodeError and the like want more
    return RuntimeError(f"{kind}: {message}" if kind else message)


def _error(raised: BaseException, filename: str) -> tuple[dict[str, str], str]:
    """Type, message, and the traceback from the first frame of the block's own code on."""
    frame = raised.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename != filename:
        frame = frame.tb_next
    name = type(raised).__name__
    try:
        message = str(raised)
        lines = traceback.format_exception(type(raised), raised, frame)
    except Exception:  # a __str__ of the model's own that raises
        message, lines = "", [name]
    if isinstance(raised, SyntaxError) and (raised.text or "").lstrip().startswith(("%", "!")):
        message = f"{message.strip()}: this is plain Python, without %magics and !commands"
        lines.append(f"({message})")
    if isinstance(raised, MemoryError):
        message = message or "the REPL's memory limit was reached"
    if isinstance(raised, SystemExit):
        message = "the code called exit; the REPL goes on"
    return {"type": name, "message": message.strip().split("\n")[0][:500]}, "".join(lines)


def _content(value: Any) -> tuple[str, bytes]:
    """``answer["content"]`` as a kind (none, text, json) and its bytes."""
    if value is None:
        return "none", b""
    if isinstance(value, str):
        return "text", frames.to_bytes(value)
    try:
        return "json", json.dumps(value, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError):
        return "text", frames.to_bytes(_safe_str(value))


def _safe_str(value: Any) -> str:
    try:
        return str(value)
    except Exception as error:
        return f"<{type(value).__name__} whose str() raises {type(error).__name__}>"


def _short(value: Any) -> str:
    """A short value or the size; never runs code of the value's own class."""
    kind = type(value)
    if kind is str:
        return f"{len(value):,} characters" if len(value) > REPR_CAP else repr(value)
    if kind in (bool, float, complex) or (kind is int and value.bit_length() < 128):
        return repr(value)
    if kind in (list, tuple, dict, set, frozenset, bytes, bytearray):
        return f"{len(value):,} item" + ("" if len(value) == 1 else "s")
    return ""


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
    channel = Channel(sock)
    interpreter = Interpreter(channel)
    threading.Thread(target=channel.read_forever, name="rlm-reader", daemon=True).start()
    channel.send({"op": "ready"}, [])
    while True:
        header, texts = channel.tasks.get()
        if header["op"] == "context":
            value = pickle.loads(texts[0]) if header["pickled"] else texts[0].decode()
            interpreter.begin(value, header.get("number"), header.get("history"))
        elif header["op"] == "tools":
            interpreter.add_tools(header["names"])
        elif header["op"] == "exec":
            channel.send(*interpreter.run(texts[0].decode()))
        elif header["op"] == "variable":
            value = interpreter.namespace.get(header["name"])
            kind, content = _content(value)
            channel.send({"op": "value", "content": kind}, [content])


if __name__ == "__main__":
    main()

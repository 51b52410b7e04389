"""The REPL in pydantic-monty's sandbox: an interpreter without files, network and host access.

It speaks a subset of Python; what it lacks comes back to the model as an error. Its worker is a
process of its own, driven from a thread.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import os
import re
import signal
from dataclasses import replace
from typing import Any

import pydantic_monty as monty

from rlm_notebook.cancellation import to_the_end
from rlm_notebook.errors import REPLError
from rlm_notebook.repl.block_clock import BlockClock
from rlm_notebook.repl.block_thread import BlockThread, LoopCalls, Stopped
from rlm_notebook.repl.interpreter import plain
from rlm_notebook.repl.journal import Journal
from rlm_notebook.repl.output import Kept
from rlm_notebook.repl.protocol import (
    FUNCTIONS,
    Execution,
    Limits,
    OnCall,
    OnTool,
    content,
)

_FRAME = 32 * 1024 * 1024
"""Characters (of 4 bytes at most) that are sent at once; the worker takes frames of 256 MiB."""
_MOST_SUSPENSIONS = 2**31 - 1
_HELPERS = """
__rlm_print = print
__rlm_answer = answer = {"content": None, "ready": False}
def FINAL(value):
    __rlm_answer["content"] = value
    __rlm_answer["ready"] = True
def FINAL_VAR(name, names=None):
    FINAL(names[name] if isinstance(name, str) and names else name)
def __rlm_short(value):
    kind = type(value).__name__
    if kind in ("str", "bytes"):
        return repr(value) if len(value) <= 60 else repr(value[:57])[:-1] + "…'"
    if kind in ("bool", "float", "NoneType", "range"):
        return repr(value)
    if kind == "int":
        return repr(value) if -10**38 < value < 10**38 else "a large int"
    return ""
def __rlm_row(name, value):
    kind = type(value).__name__
    size = ""
    units = {"str": "character", "bytes": "byte"}
    if kind in ("str", "bytes", "list", "tuple", "dict", "set", "frozenset", "range"):
        size = f"{len(value):,} {units.get(kind, 'item')}" + ("" if len(value) == 1 else "s")
    return [name, kind, size, __rlm_short(value)]
def __rlm_rows(names):
    return [
        __rlm_row(name, value)
        for name, value in names.items()
        if name[0] != "_" and name not in __rlm_reserved and type(value).__name__ != "module"
    ]
def SHOW_VARS(names={}):
    rows = [" ".join([each for each in [f"{row[0]}:", row[1], row[2], row[3]] if each])
            for row in __rlm_rows(names)]
    return "\\n".join(rows) or "none"
__rlm_helpers = {"FINAL": FINAL, "FINAL_VAR": FINAL_VAR, "SHOW_VARS": SHOW_VARS}
"""
_AFTER = """
__rlm_notes = []
if answer is not __rlm_answer:
    if type(answer).__name__ == "dict":
        __rlm_answer.clear()
        __rlm_answer.update(answer)
    else:
        __rlm_notes.append("answer")
    answer = __rlm_answer
__rlm_answer.setdefault("content", None)
__rlm_answer.setdefault("ready", False)
__rlm_locals = locals()
for __rlm_name in __rlm_given:
    if __rlm_locals.get(__rlm_name) is not __rlm_given[__rlm_name]:
        __rlm_notes.append(__rlm_name)
for __rlm_name in __rlm_helpers:
    if __rlm_locals.get(__rlm_name) is not __rlm_helpers[__rlm_name]:
        __rlm_notes.append(__rlm_name)
for __rlm_name in __rlm_functions:
    if __rlm_name in __rlm_locals and type(__rlm_locals[__rlm_name]).__name__ != "function":
        __rlm_notes.append(__rlm_name)
if __rlm_locals.get("print", __rlm_print) is not __rlm_print:
    __rlm_notes.append("print")
[__rlm_notes, __rlm_rows(__rlm_locals), bool(__rlm_answer["ready"])]
"""


class MontyREPL:
    """See :class:`rlm_notebook.repl.protocol.REPL`."""

    name = "monty"

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._clock = BlockClock(None)  # the sandbox counts its own time
        self._calls = LoopCalls(self._clock)
        self._journal = Journal()
        self._thread: BlockThread | None = None
        self._pool: monty.Monty | None = None
        self._session: monty.MontySession | None = None
        self._pid: int | None = None
        self._captured = Kept()
        self._contexts: list[Any] = []
        self._history: list[dict[str, Any]] | None = None
        self._tools: tuple[str, ...] = ()
        self._feeds = 0
        self._blocks: dict[int, int] = {}
        """Which block the feed with that number was."""
        self._seen: dict[str, list[str]] = {}
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
        """Start the sandbox and give it the context."""
        self._contexts = [context] if history is None else [*self._contexts, context]
        self._history, self._tools = history, tools
        self._closed = False
        self._journal.begin_run(on_call, on_tool)
        self._calls.begin_run(self._journal.call, self._journal.use)
        try:
            if self._session is None:
                await self._spawn()
                for number in range(len(self._contexts)):
                    await self._begin_run(number)
            else:
                await self._begin_run(len(self._contexts) - 1)
        except BaseException:
            await self.close()
            raise

    async def execute(self, code: str) -> Execution:
        """Run one block; a sandbox that ends under it is replaced by a new one."""
        self._journal.begin(code)
        self._calls.begin_block()
        done: Execution = await self._in_thread(lambda: self._run(code))
        if self._session is not None:
            self._journal.keep()
            return done
        if self._closed:
            return done
        note, restored = await self._renewed()
        return replace(done, notes=[note], variables=restored.variables if restored else [])

    async def _renewed(self) -> tuple[str, Execution | None]:
        await self._stop()
        await self._spawn()

        async def again(code: str) -> Execution | None:
            self._calls.begin_block()
            done: Execution = await self._in_thread(lambda: self._run(code))
            return done if self._session is not None else None

        note, restored = await self._journal.replay(again, self._begin_run)
        if restored is None:
            await self._stop()
            await self._spawn()
            for number in range(len(self._contexts)):
                await self._begin_run(number)
        return note, restored

    async def variable(self, name: str) -> Any:
        """The value of a variable as a JSON value; None if there is none."""
        if self._session is None or not name.isidentifier():
            return None
        with contextlib.suppress(monty.MontyError, ValueError, RecursionError):
            return content(*plain(await self._in_thread(lambda: self._feed(name))))
        return None

    async def close(self) -> None:
        """End the sandbox. A cancellation does not cut the clean-up short."""
        self._closed = True
        await to_the_end(self._stop())

    async def _in_thread(self, work: Any) -> Any:
        thread = self._thread
        assert thread is not None
        future = asyncio.wrap_future(thread.submit(work))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            self._kill()
            await asyncio.wait([future])
            future.exception()
            raise

    def _kill(self) -> None:
        """End the worker, so that the thread gets out of its call."""
        self._calls.cancel()
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)

    async def _spawn(self) -> None:
        if self._closed:
            raise REPLError("the REPL was closed: no further block can run")
        self._thread = self._thread or BlockThread("rlm-monty-repl")
        self._feeds, self._blocks = 0, {}

        def open_session() -> None:
            # One pool a REPL: a full pool would let children wait for their parents' places.
            self._pool = monty.Monty(min_processes=1, max_processes=1)
            self._pool.__enter__()
            limits: Any = {
                "max_feed_duration_secs": self._limits.block_timeout,
                "max_memory": int((self._limits.memory or 0) * (1 << 30)) or None,
                "max_suspensions": _MOST_SUSPENSIONS,
            }
            self._session = self._pool.checkout(limits=limits)
            self._session.__enter__()
            self._pid = self._session.worker_pid

        try:
            await self._in_thread(open_session)
        except (monty.MontyError, OSError, RuntimeError) as error:
            raise REPLError(f"the sandbox cannot be started: {error}") from None

    async def _stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._kill()

        def close_session() -> None:
            for each in (self._session, self._pool):
                if each is not None:
                    with contextlib.suppress(Exception):  # it may have ended in any state
                        each.__exit__(None, None, None)
            self._session = self._pool = self._pid = None

        try:
            await asyncio.wrap_future(thread.submit(close_session))
        finally:
            thread.end()

    async def _begin_run(self, number: int) -> None:
        def begin() -> None:
            value = self._contexts[number]
            given = {"context": value}
            if self._history is not None:
                given |= {f"context_{number}": value, "history": self._history}
            functions = [*FUNCTIONS, *self._tools]
            self._feed(_HELPERS, {"__rlm_functions": functions})
            sent = _in_pieces(given.pop("context"))
            self._feed("__rlm_pieces = []")
            for piece in sent:
                self._feed("__rlm_pieces.append(__rlm_piece)", {"__rlm_piece": piece})
            join = "''.join(__rlm_pieces)" if isinstance(value, str) else "__rlm_pieces[0]"
            self._feed(f"context = {join}\n__rlm_pieces = __rlm_piece = None")
            names = ["context"]
            if self._history is not None:
                self._feed(f"context_{number} = context", {"history": self._history})
                names += ["history", *(f"context_{each}" for each in range(number + 1))]
            given_code = ", ".join(f"{name!r}: {name}" for name in names)
            reserved = [*names, "answer", "FINAL", "FINAL_VAR", "SHOW_VARS", *functions]
            self._feed(f"__rlm_given = {{{given_code}}}", {"__rlm_reserved": reserved})

        try:
            await self._in_thread(begin)
        except monty.MontyError as error:
            reason = str(error).partition(" — ")[0]
            raise REPLError(
                f"the sandbox cannot take the context: {reason}; it holds plain values only (str, "
                "bytes, numbers, lists, dicts): convert it, or use --repl subprocess"
            ) from None

    def _run(self, code: str) -> Execution:
        """In the thread: run one block."""
        code = code.removeprefix("\ufeff").replace("\r\n", "\n")
        self._blocks[self._feeds + 1] = len(self._blocks) + 1
        self._captured.begin()
        error: dict[str, Any] | None = None
        trace = ""
        try:
            value = self._feed(_with_names(code), output=self._captured)
            if value is not None and _ends_with_expression(code):
                self._captured.write("stdout", f"{value!r}\n")
        except monty.MontyCrashedError as crash:
            error = self._ended("ProcessEnded", f"the sandbox ended: {crash}")
        except monty.MontyError as raised:
            error, trace = self._said(raised)
            if error["type"] == "TimeoutError" and "time limit exceeded" in error["message"]:
                message = BlockClock(self._limits.block_timeout).message
                error, trace = self._ended("BlockTimeout", message), ""
        except RecursionError:
            error = {"type": "RecursionError", "message": "the value is nested too deep to show"}
        except Stopped:
            error = self._ended("ProcessEnded", "the block was interrupted")
        stdout, stderr, order = self._captured.end()
        done = Execution(stdout, stderr, error, trace, order=order)
        return done if self._session is None else self._looked(done)

    def _ended(self, kind: str, message: str) -> dict[str, Any]:
        """The session is not to be used any more."""
        self._session = None
        return {"type": kind, "message": message}

    def _looked(self, done: Execution) -> Execution:
        """Restore the reserved names; add variables and the answer."""
        try:
            notes, rows, ready = self._feed(_AFTER)
            self._restore(notes)
            kind, text = self._content()
        except monty.MontyError as error:
            ended = self._ended("ProcessEnded", f"the sandbox ended: {error}")
            return done if done.error is not None else replace(done, error=ended)
        seen = {row[0]: row for row in rows}
        before, self._seen = self._seen, seen
        changes = {
            "new": [name for name in seen if name not in before],
            "changed": [name for name in seen if name in before and seen[name] != before[name]],
            "gone": [name for name in before if name not in seen],
        }
        return replace(
            done,
            variables=rows,
            changes={what: names for what, names in changes.items() if names},
            notes=[
                "`print` is the function to show something with: it was restored"
                if name == "print"
                else f"`{name}` is reserved: it was restored"
                for name in notes
            ],
            content=content(kind, text),
            ready=ready,
        )

    def _content(self) -> tuple[str, str]:
        try:
            return plain(_host_value(self._feed('__rlm_answer["content"]')))
        except (RecursionError, monty.MontyConversionError) as error:
            return "text", f"<a value that cannot leave the sandbox: {type(error).__name__}>"

    def _restore(self, names: list[str]) -> None:
        for name in names:
            if name == "print":
                self._feed("print = __rlm_print")
            elif name in ("FINAL", "FINAL_VAR", "SHOW_VARS"):
                self._feed(f"{name} = __rlm_helpers[{name!r}]")
            elif name in FUNCTIONS or name in self._tools:
                self._feed("None", {name: _function(name)})
            elif name != "answer":
                self._feed(f"{name} = __rlm_given[{name!r}]")

    def _feed(
        self, code: str, inputs: dict[str, Any] | None = None, output: Kept | None = None
    ) -> Any:
        """In the thread: run code in the sandbox, answer what it asks; its last value."""
        assert self._session is not None
        self._feeds += 1
        write = output.write if output is not None else lambda stream, text: None
        state: Any = self._session.feed_start(code, inputs=inputs, print_callback=write)
        while not isinstance(state, monty.MontyComplete):
            if isinstance(state, monty.FunctionSnapshot):
                state = state.resume_not_handled() if state.is_os_function else self._answer(state)
            elif isinstance(state, monty.NameLookupSnapshot):
                known = state.variable_name in FUNCTIONS or state.variable_name in self._tools
                given = {"value": _function(state.variable_name)} if known else {}
                state = state.resume(**given)
            else:
                state = state.resume(
                    {
                        number: {"exception": RuntimeError("there is nothing to wait for")}
                        for number in state.pending_call_ids
                    }
                )
        return state.output

    def _answer(self, state: Any) -> Any:
        """Answer a call of the code."""
        name = str(state.function_name)
        try:
            result: Any = {"return_value": self._called(name, state.args, state.kwargs)}
        except Exception as error:
            result = {"exception": error}
        return state.resume(result)

    def _called(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name in self._tools:
            return self._calls.use(name, args, kwargs)
        if name == "input":
            raise RuntimeError("there is nobody to type: work with the context")
        if name in ("exit", "quit"):
            raise RuntimeError("the code called exit; the REPL goes on")
        if name not in FUNCTIONS:
            raise NameError(f"name {name!r} is not defined in this sandbox")
        prompts, model = _arguments(name, *args, **kwargs)
        if model is not None and not isinstance(model, str):
            raise TypeError(f"model is a str such as 'openai/gpt-5', not {type(model).__name__}")
        invalid = [
            [index, type(prompt).__name__]
            for index, prompt in enumerate(prompts)
            if not isinstance(prompt, str)
        ]
        texts = [prompt if isinstance(prompt, str) else "" for prompt in prompts]
        answers = self._calls.query(name, texts, model, invalid)
        return answers if name.endswith("_batched") else answers[0]

    def _said(self, raised: Any) -> tuple[dict[str, Any], str]:
        """Type, message and traceback, with the blocks in place of the feeds."""
        inner = raised.exception()
        kind = type(inner).__name__
        message = str(inner).strip().split("\n")[0][:500]
        text = raised.display() if hasattr(raised, "display") else str(raised)
        text = re.sub(
            r"<python-input-(\d+)>",
            lambda found: f"<block {self._blocks.get(int(found[1]) + 1, found[1])}>",
            text,
        )
        if kind == "SyntaxError" and re.search(r"^\s+[%!]", text, re.MULTILINE):
            message += ": this is plain Python, without %magics and !commands"
            text += f"\n({message})"
        if kind == "NotImplementedError" or "not supported" in message:
            text += "\n(The sandbox runs a subset of Python: write it with simpler means.)"
        return {"type": kind, "message": message}, text


def _arguments(function: str, prompts: Any, model: Any = None) -> tuple[list[Any], Any]:
    if not function.endswith("_batched"):
        return [prompts], model
    if isinstance(prompts, str):
        raise TypeError(f"{function} takes a list of prompts, not one str")
    return list(prompts), model


def _function(name: str) -> Any:
    """What stands for a host function in the sandbox."""

    def function() -> None:
        """Called by its name only."""

    function.__name__ = function.__qualname__ = name
    return function


def _in_pieces(value: Any) -> list[Any]:
    """A long text in pieces that fit into a frame; any other value as it is."""
    if not isinstance(value, str):
        return [_host_value(value)]
    return [value[at : at + _FRAME] for at in range(0, len(value), _FRAME)]


def _host_value(value: Any) -> Any:
    return str(value) if isinstance(value, monty.MontyClassProxy) else value


def _ends_with_expression(code: str) -> bool:
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return bool(body) and isinstance(body[-1], ast.Expr)


def _with_names(code: str) -> str:
    """The code, with the names it sees handed to SHOW_VARS() and FINAL_VAR(name)."""
    if "SHOW_VARS" not in code and "FINAL_VAR" not in code:
        return code
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return code
    lines = code.encode().split(b"\n")
    ends = [
        (node.end_lineno or 0, node.end_col_offset or 0, bool(node.args))
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and (node.func.id, len(node.args)) in (("SHOW_VARS", 0), ("FINAL_VAR", 1))
    ]
    for line, column, more in sorted(ends, reverse=True):
        text = lines[line - 1]
        insert = b", locals()" if more else b"locals()"
        lines[line - 1] = text[: column - 1] + insert + text[column - 1 :]
    return b"\n".join(lines).decode()

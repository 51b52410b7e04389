"""Python that runs the model's blocks in one namespace: what the REPLs made of Python share.

Standard library only, and no other module of this package: the REPL process loads this file by
its path.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import inspect
import itertools
import json
import linecache
import traceback
from collections.abc import Callable
from typing import Any, Protocol

REPR_CAP = 60
"""Characters of a value that are shown beside its name."""
_ITEMS_SHOWN = 3
_FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
_TABLES = frozenset(("numpy", "pandas", "polars", "pyarrow"))
_SINGLE = ("llm_query", "rlm_query")

Order = list[tuple[str, int]]
"""Which stream was written to, one after the other: its name and how many characters."""


class Capture(Protocol):
    """Keeps what a block prints."""

    def begin(self) -> None:
        """A block begins."""

    def end(self) -> tuple[str, str, Order]:
        """A block has ended: its stdout, its stderr, and in which order they were written."""


class Calls(Protocol):
    """Takes the calls of the code to where they are answered."""

    def query(
        self, function: str, prompts: list[str], model: str | None, invalid: list[list[Any]]
    ) -> list[str]:
        """One answer a prompt; ``invalid`` has index and type name of prompts that are no str."""

    def use(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function of the user."""


Rewrite = Callable[[ast.Module, dict[str, Any]], Callable[[], list[str]]]
"""Changes a block before it runs (see ``batching``); what it returns says, in the end, what was
done."""


class Shown(str):
    """A text that shows itself without quotes when it is the last expression of a block."""

    __slots__ = ()
    __repr__ = str.__str__


class Interpreter:
    """One namespace, its reserved names, and the execution of blocks in it."""

    def __init__(self, namespace: dict[str, Any], capture: Capture, calls: Calls) -> None:
        self.namespace = namespace
        self.capture = capture
        self.calls = calls
        self.answer: dict[str, Any] = {"content": None, "ready": False}
        self.namespace["__builtins__"] = builtins
        self.reserved: dict[str, Any] = {
            "context": None,
            "answer": self.answer,
            **{name: self._single(name) for name in _SINGLE},
            **{f"{name}_batched": self._batched(f"{name}_batched") for name in _SINGLE},
            "SHOW_VARS": self.show_vars,
            "FINAL": self.final,
            "FINAL_VAR": self.final_var,
        }
        self.namespace.update(self.reserved)
        self.given: dict[str, Any] = {}
        """What is in the namespace without the model's doing: it is none of its variables."""
        self.blocks = 0
        self._seen: dict[str, tuple[int, list[str]]] = {}

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
        texts = [prompt if isinstance(prompt, str) else "" for prompt in prompts]
        return self.calls.query(function, texts, model, invalid)

    def add_tools(self, names: list[str]) -> None:
        """Functions of the user; they run in the user's process."""
        for name in names:
            self.reserved[name] = self.namespace[name] = self._tool(name)

    def _tool(self, name: str) -> Any:
        def tool(*args: Any, **kwargs: Any) -> Any:
            return self.calls.use(name, args, kwargs)

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
        rows = [" ".join(filter(None, (f"{row[0]}:", *row[1:]))) for row in self.variables()]
        return Shown("\n".join(rows) or "none")

    def final(self, value: Any) -> None:
        """Set the final answer (the older way to say it)."""
        self.answer.update(content=value, ready=True)

    def final_var(self, name: str) -> None:
        """Set the final answer to the value of a variable (the older way to say it)."""
        self.final(self.namespace[name] if isinstance(name, str) else name)

    def variables(self) -> list[list[str]]:
        """Name, type, size and short value of each."""
        return [
            [name, type(value).__name__, *described(value)]
            for name, value in list(self.namespace.items())
            if self._is_own(name, value)
        ]

    def _is_own(self, name: str, value: Any) -> bool:
        return (
            not name.startswith("_")
            and name not in self.reserved
            and not inspect.ismodule(value)
            and (name not in self.given or self.given[name] is not value)
        )

    def run(self, code: str, rewrite: Rewrite | None = None) -> dict[str, Any]:
        """Run one block; return its output, error, variables and answer as plain data."""
        self.blocks += 1
        filename = f"<block {self.blocks}>"
        linecache.cache[filename] = (len(code), None, code.splitlines(keepends=True), filename)
        error: dict[str, str] | None = None
        trace = ""
        done: Callable[[], list[str]] = list
        self.capture.begin()
        try:
            tree = ast.parse(code.removeprefix("\ufeff"), filename)
            if rewrite is not None:
                done = rewrite(tree, self.namespace)
            self._execute(tree, filename)
        except BaseException as raised:
            error, trace = said(raised, filename)
        finally:
            stdout, stderr, order = self.capture.end()
        notes = self._restore()
        kind, content = plain(self.answer.get("content"))
        variables, changes = self._look()
        return {
            "stdout": stdout,
            "stderr": stderr,
            "order": order,
            "error": error,
            "traceback": trace,
            "variables": variables,
            "changes": changes,
            "notes": [*done(), *notes],
            "kind": kind,
            "content": content,
            "ready": bool(self.answer.get("ready")),
        }

    def _execute(self, tree: ast.Module, filename: str) -> None:
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

    def _look(self) -> tuple[list[list[str]], dict[str, list[str]]]:
        """The variables, and which of them are new, changed or gone since the last block.

        A change inside of an object shows if it changes the size or the short value.
        """
        rows = self.variables()
        seen = {row[0]: (id(self.namespace.get(row[0])), row) for row in rows}
        before, self._seen = self._seen, seen
        changes = {
            "new": [name for name in seen if name not in before],
            "changed": [name for name in seen if name in before and seen[name] != before[name]],
            "gone": [name for name in before if name not in seen],
        }
        return rows, {what: names for what, names in changes.items() if names}


def said(raised: BaseException, filename: str) -> tuple[dict[str, str], str]:
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


def plain(value: Any) -> tuple[str, str]:
    """A value as a kind (none, text, json) and its text."""
    if value is None:
        return "none", ""
    if isinstance(value, str):
        return "text", str(value)
    try:
        return "json", json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return "text", _safe_str(value)


def exception(kind: Any, message: str) -> Exception:
    """The exception of that name, if it is one of Python's own that takes a message."""
    found = getattr(builtins, str(kind), None)
    if isinstance(found, type) and issubclass(found, Exception):
        try:
            return found(message)
        except TypeError:
            pass  # UnicodeDecodeError and the like want more
    return RuntimeError(f"{kind}: {message}" if kind else message)


def no_plain_data(tool: str, error: Exception) -> TypeError:
    """What the code is told if it calls a function of the user with other things."""
    return TypeError(f"{tool} takes plain data (str, numbers, lists, dicts): {error}")


def described(value: Any) -> tuple[str, str]:
    """The size and a short value, as texts. Never runs code of the value's own class."""
    kind = type(value)
    if kind is str:
        return _count(len(value), "character"), _short(value)
    if kind in (bytes, bytearray):
        return _count(len(value), "byte"), ""
    if kind in (list, tuple, dict, set, frozenset, range):
        return _count(len(value), "item"), _short(value)
    if kind.__module__.partition(".")[0] in _TABLES and isinstance(
        shape := getattr(value, "shape", None), tuple
    ):
        return " × ".join(f"{size:,}" for size in shape), ""
    return "", _short(value)


def _short(value: Any, inside: bool = False) -> str:
    """A value in at most REPR_CAP characters; '' if it cannot be shown without its own code."""
    kind = type(value)
    cap = REPR_CAP // _ITEMS_SHOWN if inside else REPR_CAP
    if kind is str:
        return repr(value) if len(value) <= cap else repr(value[: cap - 3])[:-1] + "…'"
    if kind in (bool, float, complex, type(None)):
        return repr(value)
    if kind is int:
        return repr(value) if value.bit_length() < 128 else f"an int of {value.bit_length():,} bits"
    if kind is range:
        return repr(value)
    if kind not in (list, tuple, dict, set, frozenset):
        return ""
    if inside:
        return f"{kind.__name__} of {_count(len(value), 'item')}"
    items = itertools.islice(value.items() if kind is dict else value, _ITEMS_SHOWN)
    shown = [
        f"{_inner(each[0])}: {_inner(each[1])}" if kind is dict else _inner(each) for each in items
    ]
    if len(value) > len(shown):
        shown.append("…")
    opening, closing = "[]" if kind is list else "()" if kind is tuple else "{}"
    text = f"{opening}{', '.join(shown)}{closing}"
    return text if len(text) <= 2 * REPR_CAP else text[: 2 * REPR_CAP] + "…"


def _inner(value: Any) -> str:
    return _short(value, inside=True) or type(value).__name__


def _count(size: int, noun: str) -> str:
    return f"{size:,} {noun}" + ("" if size == 1 else "s")


def _safe_str(value: Any) -> str:
    try:
        return str(value)
    except Exception as error:
        return f"<{type(value).__name__} whose str() raises {type(error).__name__}>"

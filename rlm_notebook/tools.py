"""The user's own functions in the REPL: called by the model's code, run in the user's process."""

from __future__ import annotations

import asyncio
import inspect
import keyword
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rlm_notebook.context import check_context
from rlm_notebook.errors import ContextError, UsageError
from rlm_notebook.repl.protocol import FUNCTIONS

RESERVED = frozenset((*FUNCTIONS, "context", "answer", "SHOW_VARS", "FINAL", "FINAL_VAR"))
_SCALARS = (int, float, bool, type(None))


@dataclass(frozen=True)
class Tool:
    """A function of the user under the name that the model calls it by."""

    name: str
    function: Callable[..., Any]
    signature: str
    """``fetch_page(url: str) -> str``"""
    description: str
    """The first paragraph of its docstring, on one line."""

    @classmethod
    def of(cls, name: str, function: Callable[..., Any]) -> Tool:
        """The tool that a function is."""
        try:
            signature = name + str(inspect.signature(function)).replace("'", "")
        except (TypeError, ValueError):
            signature = f"{name}(...)"
        paragraph = (inspect.getdoc(function) or "").strip().partition("\n\n")[0]
        return cls(name, function, signature, " ".join(paragraph.split()))

    async def use(self, loop: asyncio.AbstractEventLoop, args: list[Any], kwargs: Any) -> Any:
        """Call it: in a thread of its own, or, if it is async, on ``loop``.

        Returns
        -------
        Any
            What it returned: plain data or a table.

        Raises
        ------
        Exception
            What it raised; TypeError if what it returned is of another kind.
        """
        if inspect.iscoroutinefunction(self.function):
            work = self.function(*args, **kwargs)
            future = asyncio.run_coroutine_threadsafe(work, loop)
            value = await asyncio.wrap_future(future)
        else:
            value = await asyncio.to_thread(self.function, *args, **kwargs)
        if type(value) not in _SCALARS:
            try:
                check_context(value)
            except ContextError as error:
                raise TypeError(f"{self.name} returned what the REPL cannot get: {error}") from None
        return value


def make_tools(given: Mapping[str, Any] | Iterable[Any] | None) -> dict[str, Tool]:
    """The tools by name.

    Parameters
    ----------
    given
        Functions, or functions by name.

    Raises
    ------
    UsageError
        Something is not a function, or a name cannot be used.
    """
    if given is None:
        return {}
    pairs: list[tuple[Any, Any]]
    if isinstance(given, Mapping):
        pairs = list(given.items())
    else:
        pairs = [(getattr(each, "__name__", None), each) for each in given]
    tools: dict[str, Tool] = {}
    for name, function in pairs:
        if not callable(function):
            raise UsageError(f"tools: {function!r:.60} is not a function")
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
            raise UsageError(f"tools: {name!r} is no name for a function: give a dict by name")
        if name in RESERVED:
            raise UsageError(f"tools: {name} is a name of the REPL itself: give it another one")
        tools[name] = Tool.of(name, function)
    return tools

"""What a REPL is to the engine: start with a context, execute blocks, close."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from rlm_notebook.errors import RLMError

Function = Literal["llm_query", "llm_query_batched", "rlm_query", "rlm_query_batched"]
FUNCTIONS: tuple[Function, ...] = (
    "llm_query",
    "llm_query_batched",
    "rlm_query",
    "rlm_query_batched",
)


class SubcallError(RLMError):
    """A sub-call is refused as a whole: it is raised in the REPL code that made it."""


@dataclass(frozen=True)
class Call:
    """A sub-call that REPL code makes."""

    function: Function
    prompts: list[str]
    model: str | None = None
    invalid: dict[int, str] = field(default_factory=dict)
    """Index -> type name of prompts that are not str; their place in ``prompts`` is ''."""


@dataclass(frozen=True)
class ToolCall:
    """A call of a function of the user."""

    name: str
    args: list[Any]
    kwargs: dict[str, Any]


class ToolError(RLMError):
    """A function of the user failed: it is raised in the REPL code that called it.

    Attributes
    ----------
    type
        Name of the exception.
    """

    def __init__(self, type: str, message: str) -> None:
        super().__init__(message)
        self.type = type


@dataclass(frozen=True)
class Execution:
    """What running one code block gave."""

    stdout: str = ""
    stderr: str = ""
    error: dict[str, Any] | None = None
    """``{"type", "message"}`` if the block raised, or if its process ended."""
    traceback: str = ""
    """Cut to the block's own code."""
    order: list[tuple[str, int]] = field(default_factory=list)
    """If both streams were written to: which one, and how many characters, in turn."""
    variables: list[list[str]] = field(default_factory=list)
    """Name, type, size and short value of each variable of the model's code."""
    changes: dict[str, list[str]] = field(default_factory=dict)
    """``new``, ``changed``, ``gone``: names of variables, against the block before."""
    content: Any = None
    """``answer["content"]``: a JSON value."""
    ready: bool = False
    """Whether ``answer["ready"]`` is set."""
    notes: list[str] = field(default_factory=list)
    """What the REPL did on its own account, for the model and the view."""

    @property
    def outputs(self) -> list[str]:
        """What was printed, in the order in which it was, as far as that is known."""
        if not self.order:
            return [self.stdout, self.stderr]
        texts, at = {"stdout": self.stdout, "stderr": self.stderr}, {"stdout": 0, "stderr": 0}
        found = []
        for stream, size in self.order:
            found.append(texts[stream][at[stream] : at[stream] + size])
            at[stream] += size
        return found


STOPPED = frozenset(("BlockTimeout", "ProcessEnded", "ProtocolError", "TooManyProcesses"))
"""Types of errors of blocks that did not end by themselves."""


@dataclass(frozen=True)
class Limits:
    """What a block may take.

    Parameters
    ----------
    block_timeout
        Seconds that one block may run; the time in which it has sub-calls under way does not
        count. None: no limit.
    memory
        GiB of memory. None: no limit.
    auto_batch
        Whether loops of independent sub-calls are run as one batch.
    """

    block_timeout: float | None = None
    memory: float | None = None
    auto_batch: bool = False


OnCall = Callable[[Call], Awaitable[list[str]]]
"""Answers a sub-call: one text a prompt, in the order of the prompts."""

OnTool = Callable[[ToolCall], Awaitable[Any]]
"""Answers the call of a tool with plain data or a table; raises ToolError."""


def content(kind: str, data: bytes | str) -> Any:
    """The JSON value that ``interpreter.plain`` has made a kind and a text of.

    Raises
    ------
    ValueError, RecursionError
        It has not.
    """
    if kind == "none":
        return None
    text = data if isinstance(data, str) else data.decode("utf-8", "replace")
    return json.loads(text) if kind == "json" else text


class REPL(Protocol):
    """Runs code blocks one after another in one namespace. Used on the handler's loop only."""

    @property
    def name(self) -> str:
        """Shown in the trace."""

    async def start(
        self,
        context: Any,
        on_call: OnCall,
        tools: tuple[str, ...] = (),
        on_tool: OnTool | None = None,
        *,
        history: list[dict[str, Any]] | None = None,
    ) -> None:
        """Make the REPL ready; ``context`` becomes its variable, ``tools`` its functions.

        With a ``history`` (a session) it may be called again: the REPL then gets one more
        context, and keeps its variables.

        Raises
        ------
        REPLError
            It could not be started.
        """

    async def execute(self, code: str) -> Execution:
        """Run one block to its end. Never raises for what the block does."""

    async def variable(self, name: str) -> Any:
        """The value of a variable as a JSON value (for ``FINAL_VAR``); None if there is none."""

    async def close(self) -> None:
        """End it and everything it started. May be called at any time, and twice."""

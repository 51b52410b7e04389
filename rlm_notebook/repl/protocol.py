"""What a REPL is to the engine: start with a context, execute blocks, close."""

from __future__ import annotations

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
    variables: list[list[str]] = field(default_factory=list)
    """Name, type, size or short value of each user variable."""
    content: Any = None
    """``answer["content"]``: a JSON value."""
    ready: bool = False
    """Whether ``answer["ready"]`` is set."""
    notes: list[str] = field(default_factory=list)
    """What the REPL did on its own account, for the model and the view."""


OnCall = Callable[[Call], Awaitable[list[str]]]
"""Answers a sub-call: one text a prompt, in the order of the prompts."""

OnTool = Callable[[ToolCall], Awaitable[Any]]
"""Answers the call of a tool with plain data or a table; raises ToolError."""


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
    ) -> None:
        """Make the REPL ready; ``context`` becomes its variable, ``tools`` its functions.

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

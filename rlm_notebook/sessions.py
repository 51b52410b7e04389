"""Sessions: a REPL that is kept between runs, with its variables and what was asked before."""

from __future__ import annotations

from typing import Any

from rlm_notebook.errors import UsageError
from rlm_notebook.handler import handler
from rlm_notebook.repl.choice import make_repl
from rlm_notebook.repl.protocol import REPL, Execution, Limits, OnCall, OnTool


class Session:
    """What stays between runs; one run at a time uses it.

    In the REPL, ``context`` is the newest context, ``context_0``, ``context_1``... are all of
    them, and ``history`` is a list of ``{"question", "answer"}``.
    """

    def __init__(self, name: str = "session") -> None:
        self.name = name
        self.contexts: list[str] = []
        """Descriptions of the contexts so far."""
        self.history: list[dict[str, Any]] = []
        self.variables: list[list[str]] = []
        """Name, type and size of each variable, as the last block left them."""
        self._repl: REPL | None = None
        self._taken = False

    def __repr__(self) -> str:
        state = "closed" if self._repl is None else f"{len(self.variables)} variables"
        return f"<Session {self.name}: {len(self.history)} answers, {state}>"

    def take(self) -> None:
        """Reserve it for a run.

        Raises
        ------
        UsageError
            Another run uses it.
        """
        self.check_free()
        self._taken = True

    def check_free(self) -> None:
        """Raise UsageError if another run uses it."""
        if self._taken:
            raise UsageError(f"session {self.name} is in use by another run: wait, or stop that")

    def give_back(self, question: str, answer: Any) -> None:
        """The run has ended."""
        self._taken = False
        if answer is not None:
            self.history.append({"question": question, "answer": answer})

    def describe(self) -> str:
        """What the model is told of earlier runs; '' in the first one."""
        if len(self.contexts) < 2:
            return ""
        contexts = "; ".join(
            f"`context_{number}`: {text}" for number, text in enumerate(self.contexts[:-1])
        )
        names = ", ".join(f"{row[0]} ({row[1]})" for row in self.variables) or "none"
        return (
            f" (also `context_{len(self.contexts) - 1}`)\nFrom earlier questions of this session "
            f"there are still {contexts}; `history`: the questions and answers so far; "
            f"your variables: {names}."
        )

    def close(self) -> None:
        """End its process. Variables are gone; the history stays."""
        if self._repl is not None:
            handler().block(self.aclose())

    async def aclose(self) -> None:
        """The same, on the handler's loop."""
        repl, self._repl = self._repl, None
        self.variables, self.contexts = [], []
        if repl is not None:
            await repl.close()

    def repl(self, kind: str, limits: Limits, is_child: bool) -> KeptREPL:
        """The REPL of the next run.

        Raises
        ------
        UsageError
            It has one of another kind.
        """
        if self._repl is None:
            self._repl = make_repl(kind, limits, is_child)
            handler().on_close(self, self.aclose)
        return KeptREPL(self, self._repl)

    def check_kind(self, kind: str) -> None:
        """Raise UsageError if its REPL is of another kind."""
        if self._repl is not None and self._repl.name != kind:
            raise UsageError(
                f"session {self.name} has a {self._repl.name} REPL, not {kind}: close it first, "
                f"with %rlm_sessions --close {self.name}"
            )


class KeptREPL:
    """See :class:`rlm_notebook.repl.protocol.REPL`. Its end lets the process live."""

    def __init__(self, session: Session, repl: REPL) -> None:
        self.name = repl.name
        self._session = session
        self._repl = repl
        self._at_work = False

    async def start(
        self,
        context: Any,
        on_call: OnCall,
        tools: tuple[str, ...] = (),
        on_tool: OnTool | None = None,
        *,
        history: list[dict[str, Any]] | None = None,
    ) -> None:
        """Give the REPL a further context."""
        await self._repl.start(context, on_call, tools, on_tool, history=history)

    async def execute(self, code: str) -> Execution:
        """Run one block."""
        self._at_work = True
        done = await self._repl.execute(code)
        self._at_work = False
        self._session.variables = done.variables
        return done

    async def variable(self, name: str) -> Any:
        """The value of a variable."""
        return await self._repl.variable(name)

    async def close(self) -> None:
        """A block that still runs is ended with its process; else the process stays."""
        if self._at_work:
            await self._session.aclose()

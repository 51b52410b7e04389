"""What a REPL has run, and what its sub-calls were answered: enough to bring its variables back."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from rlm_notebook.repl.protocol import (
    Call,
    Execution,
    OnCall,
    OnTool,
    SubcallError,
    ToolCall,
    ToolError,
)

Key = bytes
FRESH = "The REPL is a new process."


@dataclass
class Block:
    """One block, the run of a session that it belongs to, and the answers it got."""

    code: str
    run: int
    answers: dict[Key, deque[Any]] = field(default_factory=lambda: defaultdict(deque))
    """By call, in the order of the calls that are the same."""


class Journal:
    """Stands between a REPL and those who answer its sub-calls."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.run = -1
        """The run of a session that goes on now, from 0."""
        self._on_call: OnCall | None = None
        self._on_tool: OnTool | None = None
        self._block: Block | None = None
        self._replaying: dict[Key, deque[Any]] | None = None
        self._differs = False

    def begin_run(self, on_call: OnCall, on_tool: OnTool | None) -> None:
        """A run begins; its sub-calls are answered by these."""
        self.run += 1
        self._on_call, self._on_tool = on_call, on_tool

    def begin(self, code: str) -> None:
        """A block begins."""
        self._block = Block(code, self.run)

    def keep(self) -> None:
        """The block has ended by itself."""
        assert self._block is not None
        self.blocks.append(self._block)

    async def call(self, call: Call) -> list[str]:
        """Answer a sub-call. See :data:`rlm_notebook.repl.protocol.OnCall`."""
        assert self._on_call is not None
        key = _key(call.function, call.model, *call.prompts, *call.invalid)
        found: list[str] = await self._answer(key, self._on_call, call)
        return found

    async def use(self, call: ToolCall) -> Any:
        """Answer the call of a tool. See :data:`rlm_notebook.repl.protocol.OnTool`."""
        if self._on_tool is None:
            raise ToolError("NameError", f"no function {call.name!r}")
        key = _key("tool", call.name, json.dumps([call.args, call.kwargs]))
        return await self._answer(key, self._on_tool, call)

    async def _answer(self, key: Key, live: Callable[[Any], Awaitable[Any]], call: Any) -> Any:
        if self._replaying is not None:
            if not self._replaying.get(key):
                self._differs = True
                raise SubcallError("the REPL is being restored, and this call was not made before")
            answer = self._replaying[key].popleft()
        else:
            try:
                answer = await live(call)
            except (SubcallError, ToolError) as error:
                answer = error
            if self._block is not None:
                self._block.answers[key].append(answer)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def replay(
        self,
        execute: Callable[[str], Awaitable[Execution | None]],
        begin_run: Callable[[int], Awaitable[None]],
    ) -> tuple[str, Execution | None]:
        """Run all blocks again, with the answers that they got.

        Parameters
        ----------
        execute
            Runs a block; None if it did not end by itself.
        begin_run
            Called with the number of each run before its blocks.

        Returns
        -------
        tuple
            What to say of it; and how the last block ended, None if the variables did not come
            back: then the REPL holds something else.
        """
        last: Execution | None = None
        run = -1
        self._block = None
        for number, block in enumerate(self.blocks, start=1):
            while run < block.run:
                run += 1
                await begin_run(run)
            self._replaying = {key: deque(found) for key, found in block.answers.items()}
            self._differs = False
            try:
                last = await execute(block.code)
            finally:
                self._replaying = None
            if self._differs or last is None:
                self.blocks.clear()
                why = "made other calls" if self._differs else "did not end"
                return (
                    f"{FRESH} Variables of earlier blocks are lost: block {number} of them {why} "
                    "when it was run again.",
                    None,
                )
        while run < self.run:
            run += 1
            await begin_run(run)
        if last is None:
            return FRESH, Execution()
        count = len(self.blocks)
        what = "the earlier block was" if count == 1 else f"the {count} earlier blocks were"
        said = f"{FRESH} Variables came back: {what} run again, with the recorded answers."
        return said, last


def _key(*parts: Any) -> Key:
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = str(part).encode("utf-8", "replace")
        found.update(len(data).to_bytes(8, "big"))
        found.update(data)
    return found.digest()

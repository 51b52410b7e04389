"""Sub-calls: what REPL code asks for becomes batches and slots, plain LM calls and child runs.

A slot is a record before it is a string: its failure is recorded, then returned in its place.
Everything here runs on the handler's loop.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from rlm_notebook.calls import Caller, error_attrs
from rlm_notebook.errors import LMError, RLMError
from rlm_notebook.gates import Prompts, edited, prompts_of
from rlm_notebook.hedge import Hedge
from rlm_notebook.lm.protocol import LM, Message, Request
from rlm_notebook.repl.protocol import Call, SubcallError, ToolCall, ToolError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rlm_notebook.forks import Edit
    from rlm_notebook.gates import Gates
    from rlm_notebook.settings import Settings
    from rlm_notebook.tools import Tool
    from rlm_notebook.trace.recorder import Recorder
    from rlm_notebook.trace.tree import Span

RunChild = Callable[[str, str | None, int, "int | None"], Awaitable[str]]
"""(prompt, model, parent span, slot if it is one of a batch) -> answer; raises LMError."""

Ask = Callable[[str, "str | None", bool], Awaitable[str]]
"""(prompt, model, whether it is the first time) -> answer; raises LMError."""


class SubcallGate:
    """How many child RLMs are at work at once, in the whole tree of runs.

    A child that waits for its own children lends its place to them, so that nested children
    never wait for each other and never more than ``limit`` are at work.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._free = asyncio.Semaphore(limit)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[Place]:
        """Wait for a place and hold it."""
        await self._free.acquire()
        place = Place(self._free)
        try:
            yield place
        finally:
            place.leave()


class Place:
    """The place of one child at work."""

    def __init__(self, free: asyncio.Semaphore) -> None:
        self._free = free
        self._held = True
        self._lent = 0

    @asynccontextmanager
    async def lent(self) -> AsyncIterator[None]:
        """Give the place to others while the block of this statement runs."""
        self._lent += 1
        self.leave()
        try:
            yield
        except BaseException:
            self._lent -= 1
            raise
        self._lent -= 1
        if not self._lent:
            await self._free.acquire()
            self._held = True
            if self._lent:  # another thread of the same child began to wait meanwhile
                self.leave()

    def leave(self) -> None:
        """Give the place up for good."""
        if self._held:
            self._held = False
            self._free.release()


class Subcalls:
    """Answers the sub-calls of one run's REPL."""

    def __init__(
        self,
        recorder: Recorder,
        settings: Settings,
        caller: Caller,
        lookup: Callable[[str | None], LM],
        run_child: RunChild | None,
        place: Place | None,
        run: int,
        tools: Mapping[str, Tool],
        loop: asyncio.AbstractEventLoop,
        edit_of: Callable[[int], Edit | None],
        gates: Gates,
        depth: int,
    ) -> None:
        self._edit_of = edit_of
        self._gates = gates
        self._depth = depth
        self.turn = 0
        """Of the run, from 1."""
        self._tools = tools
        self._loop = loop
        self._recorder = recorder
        self._settings = settings
        self._caller = caller
        self._lookup = lookup
        self._run_child = run_child
        self._place = place
        self._run = run
        self.parent = 0
        """The ``code`` span that runs now."""

    async def answer(self, call: Call) -> list[str]:
        """One text a prompt, in the order of the prompts. Failed ones start with ``Error:``.

        Raises
        ------
        SubcallError
            With ``failure_rule="taskgroup"``: a slot failed and the rest was cancelled.
        """
        child = call.function.startswith("rlm_") and self._run_child is not None
        if child and self._place is not None:
            async with self._place.lent():
                return await self._answer(call, child)
        return await self._answer(call, child)

    async def use(self, call: ToolCall) -> Any:
        """Call a function of the user, and record it.

        Raises
        ------
        ToolError
            It failed.
        """
        recorder = self._recorder
        arguments = ", ".join(
            [*(repr(value) for value in call.args), *(f"{k}={v!r}" for k, v in call.kwargs.items())]
        )
        span = recorder.start("tool", self.parent, function=call.name, arguments=arguments)
        recorded = recorder.recorded(span)
        if recorded is not None and (error := recorded.error) is not None:
            recorder.end(span, "error", error=error)
            raise ToolError(str(error.get("type")), str(error.get("message")))
        if recorded is not None and "value" in recorded.attrs:
            result, value = recorded.attrs.get("result"), recorded.attrs["value"]
            recorder.end(span, "ok", result=result, value=value)
            return value
        try:
            value = await self._tools[call.name].use(self._loop, call.args, call.kwargs)
        except asyncio.CancelledError:
            recorder.end(span, "cancelled")
            raise
        except Exception as error:
            kind, message = type(error).__name__, " ".join(str(error).split())
            recorder.end(span, "error", error={"type": kind, "message": message})
            raise ToolError(kind, message) from None
        result = value if isinstance(value, str) else repr(value)
        recorder.end(span, "ok", result=result, **({"value": value} if _is_json(value) else {}))
        return value

    async def _answer(self, call: Call, child: bool) -> list[str]:
        if call.function.endswith("_batched"):
            return await self._batch(call, child)
        prompt, parent = call.prompts[0], self.parent
        if child and not call.invalid:
            assert self._run_child is not None
            try:
                return [await self._run_child(prompt, call.model, parent, None)]
            except RLMError as error:
                return [f"Error: {error}"]
        lm = self._find(call.model)
        span = self._recorder.start(
            "lm_call",
            parent,
            state="waiting",
            function=call.function,
            purpose="sub",
            model=_name(lm, call.model),
            prompt=prompt,
        )

        async def ask(prompt: str, model: str | None, first: bool) -> str:
            return await self._plain(span, self._find(model), prompt, call.invalid.get(0))

        try:
            return [await self._asked(ask, parent, span, prompt, call.model)]
        except LMError as error:
            return [f"Error: {error}"]

    async def _batch(self, call: Call, child: bool) -> list[str]:
        settings, recorder = self._settings, self._recorder
        limit = settings.max_concurrent_subcalls if child else settings.batch_max_concurrent
        written = call.prompts
        call = await self._at_batch(call)
        lm = self._find(call.model)
        name = _name(lm, call.model)
        batch = recorder.start(
            "batch",
            self.parent,
            function=call.function,
            size=len(call.prompts),
            limit=limit,
            model=name,
            prompts=written,
        )
        marks: dict[str, Any] = {"child": True} if child else {}
        spans = [
            recorder.start(
                "slot",
                batch,
                state="waiting",
                index=index,
                prompt=prompt,
                model=name,
                **marks,
                **edited("prompt", written[index], prompt),
            )
            for index, prompt in enumerate(call.prompts)
        ]
        requests = [
            None if child else self._caller.request("sub", Message("user", prompt))
            for prompt in call.prompts
        ]
        rule = settings.hedge if not child else None
        hedge = Hedge(rule, len(spans)) if rule is not None else None
        answers = [""] * len(spans)
        failed: list[tuple[int, LMError]] = []
        hopeless: LMError | None = None
        self._as_recorded(batch)

        async def slot(index: int) -> None:
            nonlocal hopeless
            span = spans[index]
            recorded = recorder.recorded(span)
            found = recorder.follower.edited(span, "prompt") if recorder.follower else None
            prompt = found if isinstance(found, str) else call.prompts[index]

            async def ask(prompt: str, model: str | None, first: bool) -> str:
                lm = self._find(model)
                if child and index not in call.invalid and not isinstance(lm, RLMError):
                    assert self._run_child is not None
                    return await self._run_child(prompt, model, batch, span)
                request = requests[index] if first and found is None else None
                return await self._plain(span, lm, prompt, call.invalid.get(index), request, hedge)

            try:
                if recorded is None and hopeless is not None:
                    raise self._not_sent(span, hopeless)
                answers[index] = await self._asked(ask, batch, span, prompt, call.model)
            except LMError as error:
                answers[index] = f"Error: {error}"
                failed.append((index, error))
                if error.hopeless and recorded is None:
                    hopeless = error  # what is not under way yet would only fail in the same way
                if settings.failure_rule == "taskgroup":
                    raise

        try:
            await _in_lanes(slot, _longest_first(call.prompts), limit)
        except LMError:
            recorder.end_open(batch, "cancelled")
            index, error = failed[0]
            message = f"slot {index} failed, the rest of the batch was cancelled: {error}"
            recorder.end(batch, "error", error={"type": "slot", "message": message})
            raise SubcallError(message) from None
        except asyncio.CancelledError:
            recorder.end_open(batch, "cancelled")
            recorder.end(batch, "cancelled")
            raise
        recorder.end(batch, "ok", failed=len(failed))
        return answers

    async def _at_batch(self, call: Call) -> Call:
        """The user may look at a batch, and edit its prompts, before it begins."""
        attrs = {"function": call.function, "size": len(call.prompts)}
        if not self._gates.active:
            return call
        if self._recorder.knows(self.parent, "batch", attrs, call.prompts):
            return call
        about = {**self._about(call.model), "prompt": "\n".join(call.prompts)}
        # Lists are long: they are written out only if someone stops here.
        decision = await self._gates.at("batch", self.parent, about, Prompts(call.prompts))
        if "prompts" not in decision.edits:
            return call
        return replace(call, prompts=prompts_of(decision.edits["prompts"], len(call.prompts)))

    async def _asked(self, ask: Ask, parent: int, span: int, prompt: str, model: str | None) -> str:
        """The answer of a slot or a single sub-call; one that fails may be looked at, asked again
        or answered by the user.

        Raises
        ------
        LMError
            It failed for good.
        """
        recorder, first = self._recorder, True
        while True:
            try:
                return await ask(prompt, model, first)
            except LMError as error:
                if recorder.recorded(span) is not None or error.type in ("limit", "not_sent"):
                    raise
                name = _name(self._find(model), model) or ""
                editable = {"prompt": prompt, "model": name, "response": ""}
                about = {**self._about(model), "prompt": prompt, "error": str(error)}
                decision = await self._gates.at("slot", parent, about, editable)
                edits = decision.edits
                before: dict[str, Any] = {"error": error_attrs(error)}
                if "response" in edits:
                    answer = edits["response"]
                    recorder.edit(span, "ok", before={**before, "response": None}, response=answer)
                    return answer
                if decision.action != "retry":
                    raise
                if "prompt" in edits:
                    before["prompt"] = prompt
                first, prompt, model = False, edits.get("prompt", prompt), edits.get("model", model)
                name = edits.get("model", name)
                recorder.again(span, before=before, prompt=prompt, model=name)

    def _about(self, model: str | None) -> dict[str, Any]:
        """What a breakpoint can ask for."""
        return {"turn": self.turn, "depth": self._depth, "model": model or ""}

    def _as_recorded(self, batch: int) -> None:
        """A batch that was given up at its first failure is given up again.

        Raises
        ------
        SubcallError
            As it was.
        """
        recorded = self._recorder.recorded(batch)
        if recorded is None or recorded.error is None:
            return
        tree = self._recorder.trace.tree
        for slot in list(tree.spans[batch].slots):
            twin = self._recorder.recorded(slot.id)
            if twin is not None:
                self._recorder.end(slot.id, twin.state, **_outcome(twin))
        self._recorder.end(batch, "error", error=recorded.error)
        raise SubcallError(str(recorded.error.get("message")))

    async def _plain(
        self,
        span: int,
        lm: LM | RLMError,
        prompt: str,
        invalid: str | None,
        request: Request | None = None,
        hedge: Hedge | None = None,
    ) -> str:
        recorded = self._recorder.recorded(span) is not None
        edit = self._edit_of(span) if not recorded else None
        if edit is not None and edit.model is not None:
            lm = self._find(edit.model)
            self._recorder.update(span, model=_name(lm, edit.model))
        if not recorded and (invalid is not None or isinstance(lm, RLMError)):
            message = f"a prompt must be a str, not {invalid}" if invalid is not None else str(lm)
            failure = LMError(message, type="prompt" if invalid is not None else "model")
            self._recorder.end(span, "not_sent", error=error_attrs(failure))
            raise failure
        if edit is not None:
            request = None
            if edit.prompt is not None:
                self._recorder.edit(span, before={"prompt": prompt}, prompt=edit.prompt)
                prompt = edit.prompt
        if request is None:
            request = self._caller.request("sub", Message("user", prompt))
        response = await self._caller.call(span, cast("LM", lm), request, self._run, hedge)
        if response.text is None:
            return f"Error: the model returned no content ({response.finish_reason or 'no reason'})"
        return response.text

    def _not_sent(self, span: int, reason: LMError) -> LMError:
        failure = LMError(f"not sent: {reason}", type="not_sent", status=reason.status)
        self._recorder.end(span, "not_sent", error=error_attrs(failure))
        return failure

    def _find(self, model: str | None) -> LM | RLMError:
        try:
            return self._lookup(model)
        except RLMError as error:
            return error


def _outcome(span: Span) -> dict[str, Any]:
    names = ("response", "usage", "finish_reason", "error")
    return {name: span.attrs[name] for name in names if name in span.attrs}


def _is_json(value: Any) -> bool:
    """Whether the value comes back from JSON as it is."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(each) for key, each in value.items())
    if isinstance(value, list):
        return all(map(_is_json, value))
    return value is None or isinstance(value, str | bool | int) or _is_finite(value)


def _is_finite(value: Any) -> bool:
    return isinstance(value, float) and math.isfinite(value)


def _longest_first(prompts: list[str]) -> list[int]:
    """In which order the slots start: a long prompt that starts last would be the tail.

    Prompts within a thousand characters of each other keep their order.
    """
    return sorted(range(len(prompts)), key=lambda index: -(len(prompts[index]) // 1_000))


async def _in_lanes(work: Callable[[int], Awaitable[None]], order: list[int], lanes: int) -> None:
    """Do ``work(index)`` for each index of ``order``, started in that order, ``lanes`` at once.

    The first exception cancels the rest, and is raised once all lanes have ended.
    """
    indices: Iterator[int] = iter(order)

    async def lane() -> None:
        for index in indices:
            await work(index)

    tasks = [asyncio.ensure_future(lane()) for _ in range(min(lanes, len(order)))]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _name(lm: LM | RLMError, given: str | None) -> str | None:
    return given if isinstance(lm, RLMError) else lm.name

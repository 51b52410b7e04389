"""The turn loop of one run, root or child: ask, parse, execute, feed back.

It runs on whichever loop awaits it: the root on the kernel's, children on the handler's. LM calls
and the REPL are always on the handler's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from rlm_notebook import prompts
from rlm_notebook.calls import Caller, error_attrs, error_from
from rlm_notebook.context import Context, taken
from rlm_notebook.errors import LMError, RLMError
from rlm_notebook.gates import Decision, Gates, edited
from rlm_notebook.handler import Handler
from rlm_notebook.lm.protocol import LM, Message, Purpose, Request, Response
from rlm_notebook.parsing import Final, Reply, parse_reply, without_thinking
from rlm_notebook.repl.choice import make_repl
from rlm_notebook.repl.output import shown
from rlm_notebook.repl.protocol import REPL, STOPPED, Execution, Limits
from rlm_notebook.sessions import Session
from rlm_notebook.settings import Settings
from rlm_notebook.subcalls import Place, SubcallGate, Subcalls
from rlm_notebook.tools import Tool
from rlm_notebook.trace.recorder import Recorder
from rlm_notebook.trace.tree import Span

if TYPE_CHECKING:
    from rlm_notebook.replay import Edit


@dataclass(frozen=True)
class Shared:
    """What all runs of one tree share."""

    settings: Settings
    recorder: Recorder
    handler: Handler
    caller: Caller
    gate: SubcallGate
    lookup: Callable[[str | None], LM]
    """Sub-model by name; None is the default one."""
    loop: asyncio.AbstractEventLoop
    """The loop of the root run, on which async tools run."""
    gates: Gates
    tools: Mapping[str, Tool] = field(default_factory=dict)
    session: Session | None = None
    """Keeps the REPL of the root run."""
    edit_of: Callable[[int], Edit | None] = lambda _: None
    """What a fork changes in the call with that span."""
    make_repl: Callable[[str, Limits, bool], REPL] = make_repl
    """By the name of its kind, its limits, and whether it is that of a child."""


@dataclass
class Ending:
    """How a run ended."""

    answer: Any = None
    outcome: str = "no_answer"
    partial: Any = None


class Run:
    """One run. ``await run.go()`` once.

    Parameters
    ----------
    span
        The ``run`` span, started already (a child's may have waited in a queue).
    depth
        0 for the root.
    """

    def __init__(
        self,
        shared: Shared,
        lm: LM,
        *,
        context: Context,
        question: str,
        span: int,
        depth: int = 0,
        place: Place | None = None,
    ) -> None:
        self._shared = shared
        self._recorder = shared.recorder
        self._lm = lm
        self._context = context
        self._question = question
        self._span = span
        self._depth = depth
        self._can_recurse = depth + 1 < shared.settings.max_depth
        session = shared.session if depth == 0 else None
        self._session = session
        make: Callable[[str, Limits, bool], REPL]
        make = shared.make_repl if session is None else session.repl
        settings = shared.settings
        limits = Limits(settings.block_timeout, settings.repl_memory, settings.auto_batch)
        self._repl = make(settings.repl, limits, depth > 0)
        self._subcalls = Subcalls(
            shared.recorder,
            shared.settings,
            shared.caller,
            shared.lookup,
            self._run_child if self._can_recurse else None,
            place,
            span,
            shared.tools,
            shared.loop,
            shared.edit_of,
            shared.gates,
            depth,
        )
        self._messages: list[Message] = []
        self._number = 0
        """Of the turn, from 1."""
        self._call = 0
        """Span of the newest root call."""
        self._has_seen_output = False
        self.ending = Ending()
        """How it ended, or stands now: a partial answer survives a cancellation."""

    async def go(self) -> Ending:
        """Run to the end. Ends neither the ``run`` span nor open spans below it.

        Raises
        ------
        RLMError
            The root model failed, or the REPL could not be started.
        """
        shared, limit = self._shared, self._shared.settings.max_iterations
        run = shared.handler.run
        try:
            names = tuple(shared.tools)
            repl, subcalls, session = self._repl, self._subcalls, self._session
            history = session.history if session is not None else None
            if session is not None:
                session.contexts.append(self._context.description)
            start = repl.start(
                self._context.value, subcalls.answer, names, subcalls.use, history=history
            )
            await run(start)
            tools = [(tool.signature, tool.description) for tool in shared.tools.values()]
            self._messages = [
                prompts.system_prompt(can_recurse=self._can_recurse, tools=tools),
                prompts.first_message(self._question, self._described(), limit),
            ]
            for index in range(limit):
                if await self._turn(index):
                    return self.ending
            await self._final(limit)
            return self.ending
        finally:
            await _to_the_end(run(self._repl.close()))

    def _described(self) -> str:
        session = self._session
        return self._context.description + (session.describe() if session is not None else "")

    async def _turn(self, index: int) -> bool:
        """One turn; True if it gave the answer."""
        span = self._recorder.start("turn", self._span, index=index)
        self._number = self._subcalls.turn = index + 1
        response = await self._ask(span, "root")
        text = response.text or ""
        reply = parse_reply(text, response.finish_reason)
        if not reply.blocks:
            text, reply = await self._at_reply(span, text, reply)
        self._messages.append(Message("assistant", text))
        feedback: list[str] = []
        done = False
        number = 0
        while number < len(reply.blocks):
            code = reply.blocks[number]
            if done:
                block = self._recorder.start("code", span, index=number, code=code)
                self._recorder.end(block, "skipped", note="the answer was given before it")
                number += 1
                continue
            decision = await self._at_code(span, number, code, text)
            if "response" in decision.edits:  # read it again, and stop at its first block
                text = self._answered_instead(decision.edits["response"])
                reply = parse_reply(text)
                continue
            execution = await self._execute(span, number, code, decision)
            feedback.append(self._feedback(execution, number, len(reply.blocks)))
            done = self._accept(execution, unseen=number > 0)
            number += 1
        if not done and reply.final is not None:
            done = await self._accept_final(reply.final, bool(reply.blocks), feedback)
        if not done:
            notes = self._notes(reply, text)
            feedback.extend(notes)
            if notes:
                self._recorder.update(span, note=" ".join(notes))
            limit = self._shared.settings.max_iterations
            self._messages.append(prompts.output_message(feedback, index + 1, limit))
        self._has_seen_output = self._has_seen_output or bool(reply.blocks)
        self._recorder.end(span)
        return done

    async def _at_reply(self, turn: int, text: str, reply: Reply) -> tuple[str, Reply]:
        """An answer without code may be edited before it is taken."""
        if self._recorder.recorded(turn) is not None:
            return text, reply
        decision = await self._shared.gates.at(
            "reply", turn, self._about(response=text), {"response": text}
        )
        if "response" not in decision.edits:
            return text, reply
        self._recorder.edit(
            self._call, "ok", before={"response": text}, response=decision.edits["response"]
        )
        text = decision.edits["response"]
        return text, parse_reply(text)

    async def _at_code(self, turn: int, number: int, code: str, text: str) -> Decision:
        if self._recorder.knows(turn, "code", {"index": number}):
            return Decision()
        editable = {"code": code, **({"response": text} if number == 0 else {})}
        about = self._about(code=code, response=text)
        return await self._shared.gates.at("code", turn, about, editable)

    def _answered_instead(self, text: str) -> str:
        """The user has put another answer in the place of the model's."""
        before = self._messages[-1].content
        self._recorder.edit(self._call, "ok", before={"response": before}, response=text)
        self._messages[-1] = Message("assistant", text)
        return text

    def _about(self, **texts: Any) -> dict[str, Any]:
        """What a breakpoint can ask for."""
        model, depth = self._lm.name, self._depth
        return {"turn": self._number, "depth": depth, "model": model, **texts}

    async def _ask(self, turn: int, purpose: Purpose) -> Response:
        caller, recorder = self._shared.caller, self._recorder
        by_hand: str | None = None
        told = [{"role": m.role, "content": m.content} for m in self._messages]
        if not recorder.knows(turn, "lm_call", {}):
            by_hand = await self._at_call(turn)
        messages = [{"role": m.role, "content": m.content} for m in self._messages]
        request = caller.request(purpose, *self._messages)
        span = self._call = recorder.start(
            "lm_call",
            turn,
            state="waiting",
            purpose=purpose,
            model=self._lm.name,
            messages=messages,
            **edited("messages", told, messages),
        )
        if by_hand is not None:
            recorder.running(span)
            recorder.edit(span, before={"response": None}, response=by_hand)
            recorder.end(span, "ok")
            return Response(by_hand)
        self._take_edited_messages(span)
        self._check_messages(span)
        edit = self._shared.edit_of(span) if recorder.recorded(span) is None else None
        if edit is not None and edit.prompt is not None:
            request = self._told_besides(span, request, edit.prompt)
        try:
            return await self._shared.handler.run(caller.call(span, self._lm, request, self._span))
        except LMError as error:
            recorder.end(turn, "error", error=error_attrs(error))
            raise

    async def _at_call(self, turn: int) -> str | None:
        """The user may edit what the model is told, or answer in its place: that is returned."""
        gates, caller = self._shared.gates, self._shared.caller
        if not gates.active:
            return None
        share, name = caller.limits.share(self._recorder.trace.tree.totals)
        if gates.warns(share):
            await gates.at("budget", turn, self._about(limit=name, share=share), {})
        last = self._messages[-1]
        about = self._about(prompt=last.content)
        decision = await gates.at("call", turn, about, {"prompt": last.content, "response": ""})
        if "prompt" in decision.edits:
            self._messages[-1] = Message(last.role, decision.edits["prompt"])
        return decision.edits.get("response")

    def _take_edited_messages(self, call: int) -> None:
        """Where the user had edited what the model is told, the model is told that again."""
        follower = self._recorder.follower
        found = follower.edited(call, "messages") if follower is not None else None
        if isinstance(found, list):
            self._messages = [
                Message(m["role"], m["content"])
                for m in found
                if isinstance(m, dict) and isinstance(m.get("content"), str)
            ]

    def _told_besides(self, call: int, request: Request, text: str) -> Request:
        """The request with a text of the user's at its end, from now on."""
        last = self._messages[-1]
        self._messages[-1] = Message(last.role, f"{last.content}\n\n{text}")
        messages = [{"role": m.role, "content": m.content} for m in self._messages]
        before = [*messages[:-1], {"role": last.role, "content": last.content}]
        self._recorder.update(call, messages=messages, edited={"messages": before})
        return msgspec.structs.replace(request, messages=tuple(self._messages))

    def _check_messages(self, call: int) -> None:
        """Whether a replay tells the model the same as the recorded run."""
        follower, recorded = self._recorder.follower, self._recorder.recorded(call)
        if follower is None or not follower.strict or recorded is None:
            return
        place = self._recorder.trace.tree.spans[call].place
        before = recorded.attrs.get("messages")
        now = [{"role": m.role, "content": m.content} for m in self._messages]
        for number, (old, new) in enumerate(zip_longest(before or [], now), start=1):
            if not follower.compare(place, f"message {number}", _content(old), _content(new)):
                raise self._shared.caller.end_of_recording()

    async def _execute(self, turn: int, number: int, written: str, decision: Decision) -> Execution:
        code = decision.edits.get("code", written)
        marks = edited("code", written, code)
        span = self._recorder.start("code", turn, index=number, code=code, **marks)
        follower = self._recorder.follower
        found = follower.edited(span, "code") if follower is not None else None
        code = found if isinstance(found, str) else code
        if code != written:  # the model sees it as its own: else the output would not fit
            reply = self._messages[-1]
            self._messages[-1] = Message(reply.role, reply.content.replace(written, code, 1))
        recorded = self._recorder.recorded(span)
        if decision.action == "skip" or (recorded is not None and recorded.state == "skipped"):
            self._recorder.end(span, "skipped", note=prompts.SKIPPED)
            return Execution(notes=[prompts.SKIPPED])
        self._subcalls.parent = span
        execution = await self._run_block(span, code)
        attrs: dict[str, Any] = {
            "stdout": execution.stdout,
            "stderr": execution.stderr,
            "variables": execution.variables,
        }
        if execution.order:
            attrs["order"] = execution.order
        if execution.changes:
            attrs["changes"] = execution.changes
        if execution.error is not None:
            attrs |= {"error": execution.error, "traceback": execution.traceback}
        if execution.notes:
            attrs["note"] = " ".join(execution.notes)
        self._recorder.end(span, "error" if execution.error else "ok", **attrs)
        if execution.content is not None:
            self.ending.partial = execution.content
        return execution

    async def _run_block(self, span: int, code: str) -> Execution:
        """Run a block, or run it again as it was recorded."""
        follower, recorded = self._recorder.follower, self._recorder.recorded(span)
        strict = follower is not None and follower.strict
        if recorded is None or recorded.state in ("cancelled", "interrupted"):
            if strict:
                raise self._shared.caller.end_of_recording()
            return await self._shared.handler.run(self._repl.execute(code))
        then = recorded_execution(recorded)
        if then.error is not None and then.error.get("type") in STOPPED:
            return then  # it had to be stopped then, so it would have to be stopped again
        execution = await self._shared.handler.run(self._repl.execute(code))
        if not strict:  # what the model was told then is what counts, also if it is random
            return replace(then, content=execution.content, ready=execution.ready)
        assert follower is not None
        place = self._recorder.trace.tree.spans[span].place
        for what in ("stdout", "stderr", "error", "traceback"):
            if follower.difference is None:
                follower.compare(place, what, getattr(then, what), getattr(execution, what))
        for missing in follower.left(span):
            follower.compare(missing.place, "a call", missing.prompt or missing.name, None)
        if follower.difference is not None:
            raise self._shared.caller.end_of_recording()
        return execution

    def _feedback(self, execution: Execution, number: int, of: int) -> str:
        parts = [*execution.outputs, execution.traceback]
        if execution.error is not None and not execution.traceback:
            parts.append(execution.error["message"])
        parts.extend(execution.notes)
        if execution.ready and execution.content is None:
            parts.append(prompts.NOT_READY)
        text = "\n".join(shown(part).rstrip("\n") for part in parts if part.strip())
        limit = self._shared.settings.output_limit
        return prompts.block_output(number + 1, of, prompts.truncated(text, limit))

    def _accept(self, execution: Execution, *, unseen: bool) -> bool:
        if not execution.ready or execution.content is None:
            return False
        self.ending = Ending(execution.content, "answered_unseen" if unseen else "answered")
        return True

    async def _accept_final(self, final: Final, with_code: bool, feedback: list[str]) -> bool:
        if final.is_variable:
            value = await self._shared.handler.run(self._repl.variable(final.text))
            if value is None:
                feedback.append(f"FINAL_VAR: there is no variable {final.text!r}.")
                return False
        elif with_code:
            feedback.append(prompts.UNSEEN_FINAL)
            return False
        else:
            value = final.text
        unseen = with_code or not self._has_seen_output
        self.ending = Ending(value, "answered_unseen" if unseen else "answered")
        return True

    def _notes(self, reply: Reply, text: str) -> list[str]:
        if reply.cut:
            return [prompts.CUT_REPLY]
        if reply.blocks or reply.final is not None:
            return []
        return [prompts.NO_CODE if without_thinking(text).strip() else prompts.EMPTY_REPLY]

    async def _final(self, index: int) -> None:
        """The turns have run out: ask once for an answer in words."""
        span = self._recorder.start("turn", self._span, index=index, final=True)
        self._messages.append(prompts.final_request(self._question))
        response = await self._ask(span, "final")
        text = without_thinking(response.text or "").strip()
        final = parse_reply(text).final
        if final is not None and not final.is_variable:
            text = final.text
        if text:
            self.ending = Ending(text, "fallback", self.ending.partial)
        self._recorder.end(span)

    async def _run_child(
        self, prompt: str, model: str | None, parent: int, slot: int | None
    ) -> str:
        """Answer one ``rlm_query`` prompt; runs on the handler's loop.

        Parameters
        ----------
        parent
            The ``code`` span, or the ``batch``.
        slot
            The slot of the batch; None for a single ``rlm_query``.

        Raises
        ------
        LMError
            The child gave no answer.
        """
        shared, recorder, depth = self._shared, self._recorder, self._depth + 1
        question = prompts.CHILD_QUESTION
        lm, context = shared.lookup(model), taken(prompt)
        waiting = (
            start_run(shared, lm, context, question, depth, parent, "waiting", prompt=prompt)
            if slot is None
            else slot
        )
        recorded = recorder.recorded(waiting)
        if recorded is not None and not (recorder.follower and recorder.follower.strict):
            return _recorded_answer(recorded)
        async with shared.gate.place() as place:
            recorder.running(waiting)
            span = (
                waiting
                if slot is None
                else start_run(shared, lm, context, question, depth, slot, "running")
            )
            child = Run(
                shared, lm, context=context, question=question, span=span, depth=depth, place=place
            )
            failure: LMError | None = None
            try:
                ending = await child.go()
            except RLMError as error:
                failure = error if isinstance(error, LMError) else LMError(str(error), type="repl")
                ending = replace(child.ending, outcome="error")
            except BaseException:
                end_run(recorder, span, replace(child.ending, outcome="stopped"), "cancelled")
                recorder.end(waiting, "cancelled")
                raise
            if failure is None and ending.answer is None:
                failure = LMError("the child RLM gave no answer", type="no_answer")
            if failure is not None:
                end_run(recorder, span, ending, "error", failure)
                recorder.end(waiting, "error", error=error_attrs(failure))
                raise failure
            end_run(recorder, span, ending, "ok")
            answer = answer_text(ending.answer)
            recorder.end(waiting, "ok", response=answer)
            return answer


def start_run(
    shared: Shared,
    lm: LM,
    context: Context,
    question: str,
    depth: int = 0,
    parent: int | None = None,
    state: Literal["waiting", "running"] = "running",
    **attrs: Any,
) -> int:
    """Start the span of a run."""
    return shared.recorder.start(
        "run",
        parent,
        state=state,
        question=question,
        context=context.description,
        model=lm.name,
        depth=depth,
        repl=shared.settings.repl,
        **attrs,
    )


def end_run(
    recorder: Recorder,
    span: int,
    ending: Ending,
    state: str,
    error: LMError | None = None,
    **attrs: Any,
) -> None:
    """End the span of a run, and every span that is still open below it."""
    recorder.end_open(span, "cancelled")
    attrs |= {"outcome": ending.outcome, "answer": ending.answer}
    if ending.answer is None and ending.partial is not None:
        attrs["partial"] = ending.partial
    if error is not None:
        attrs["error"] = error_attrs(error)
    recorder.end(span, state, **attrs)


def recorded_execution(span: Span) -> Execution:
    """What a recorded block gave, as far as the trace tells it."""
    attrs = span.attrs
    order = attrs.get("order")
    note = attrs.get("note")
    return Execution(
        stdout=str(attrs.get("stdout") or ""),
        stderr=str(attrs.get("stderr") or ""),
        error=span.error,
        traceback=str(attrs.get("traceback") or ""),
        order=[(str(name), int(size)) for name, size in order] if isinstance(order, list) else [],
        variables=attrs.get("variables") or [],
        changes=attrs.get("changes") or {},
        notes=[note] if isinstance(note, str) else [],
    )


def _recorded_answer(span: Span) -> str:
    """What a child run that is in the trace had answered.

    Raises
    ------
    LMError
        It had failed.
    """
    if span.error is not None:
        raise error_from(span.error)
    return answer_text(span.attrs.get("answer") if span.kind == "run" else span.response)


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Do it whole, also if a cancellation comes before it has begun."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        raise


def _content(message: Any) -> Any:
    return message.get("content") if isinstance(message, dict) else message


def answer_text(answer: Any) -> str:
    """An answer as the text that ``rlm_query`` returns: a str as it is, other values as JSON."""
    return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)

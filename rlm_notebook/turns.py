"""The turn loop of one run, root or child: ask, parse, execute, feed back.

It runs on whichever loop awaits it: the root on the kernel's, children on the handler's. LM calls
and the REPL are always on the handler's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlm_notebook import prompts
from rlm_notebook.calls import error_attrs
from rlm_notebook.cancellation import to_the_end
from rlm_notebook.context import Context, taken
from rlm_notebook.conversation import Conversation
from rlm_notebook.errors import LMError, RLMError
from rlm_notebook.gates import Decision, edited
from rlm_notebook.lm.protocol import LM, Message
from rlm_notebook.parsing import Final, Reply, parse_reply, without_thinking
from rlm_notebook.recorded import recorded_answer, recorded_execution
from rlm_notebook.repl.output import shown
from rlm_notebook.repl.protocol import REPL, STOPPED, Execution, Limits
from rlm_notebook.runs import Ending, Shared, end_run, start_run
from rlm_notebook.subcalls import Place, Subcalls
from rlm_notebook.trace.jsonl import text_of

if TYPE_CHECKING:
    pass


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
        self._said = Conversation(shared, lm, span, depth)
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
            self._said.messages = [
                prompts.system_prompt(can_recurse=self._can_recurse, tools=tools),
                prompts.first_message(self._question, self._described(), limit),
            ]
            for index in range(limit):
                if await self._turn(index):
                    return self.ending
            await self._final(limit)
            return self.ending
        finally:
            await to_the_end(run(self._repl.close()))

    def _described(self) -> str:
        session = self._session
        return self._context.description + (session.describe() if session is not None else "")

    async def _turn(self, index: int) -> bool:
        """One turn; True if it gave the answer."""
        span = self._recorder.start("turn", self._span, index=index)
        said = self._said
        said.turn = self._subcalls.turn = index + 1
        response = await said.ask(span, "root")
        text = response.text or ""
        reply = parse_reply(text, response.finish_reason)
        if not reply.blocks:
            text, reply = await self._at_reply(span, text, reply)
        said.messages.append(Message("assistant", text))
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
                said.answer_instead(text, decision.edits["response"])
                text = decision.edits["response"]
                said.messages[-1] = Message("assistant", text)
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
            said.messages.append(prompts.output_message(feedback, index + 1, limit))
        self._has_seen_output = self._has_seen_output or bool(reply.blocks)
        self._recorder.end(span)
        return done

    async def _at_reply(self, turn: int, text: str, reply: Reply) -> tuple[str, Reply]:
        """An answer without code may be edited before it is taken."""
        if self._recorder.recorded(turn) is not None:
            return text, reply
        gates, about = self._shared.gates, self._said.about(response=text)
        decision = await gates.at("reply", turn, about, {"response": text})
        edited_text = decision.edits.get("response")
        if edited_text is None:
            return text, reply
        self._said.answer_instead(text, edited_text)
        return edited_text, parse_reply(edited_text)

    async def _at_code(self, turn: int, number: int, code: str, text: str) -> Decision:
        if self._recorder.knows(turn, "code", {"index": number}):
            return Decision()
        editable = {"code": code, **({"response": text} if number == 0 else {})}
        about = self._said.about(code=code, response=text)
        return await self._shared.gates.at("code", turn, about, editable)

    async def _execute(self, turn: int, number: int, written: str, decision: Decision) -> Execution:
        code = decision.edits.get("code", written)
        marks = edited("code", written, code)
        span = self._recorder.start("code", turn, index=number, code=code, **marks)
        follower = self._recorder.follower
        found = follower.edited(span, "code") if follower is not None else None
        code = found if isinstance(found, str) else code
        if code != written:
            self._said.replace_code(written, code)
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
        strict = self._recorder.strict
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
        self._said.messages.append(prompts.final_request(self._question))
        response = await self._said.ask(span, "final")
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
        if recorded is not None and not recorder.strict:
            return recorded_answer(recorded)
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
            answer = text_of(ending.answer)
            recorder.end(waiting, "ok", response=answer)
            return answer

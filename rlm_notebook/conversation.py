"""What one run tells its model and what that answers: the messages, the calls, the user's edits."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import msgspec

from rlm_notebook.calls import error_attrs
from rlm_notebook.errors import LMError
from rlm_notebook.gates import edited
from rlm_notebook.lm.protocol import LM, Message, Purpose, Request, Response

if TYPE_CHECKING:
    from rlm_notebook.runs import Shared


class Conversation:
    """The messages of one run, root or child.

    Parameters
    ----------
    run
        Its span.
    depth
        0 for the root.
    """

    def __init__(self, shared: Shared, lm: LM, run: int, depth: int) -> None:
        self._shared = shared
        self._recorder = shared.recorder
        self._lm = lm
        self._run = run
        self._depth = depth
        self.messages: list[Message] = []
        self.turn = 0
        """Number of the turn that goes on, from 1."""
        self._call = 0
        """Span of the newest call."""

    def about(self, **texts: Any) -> dict[str, Any]:
        """What a breakpoint can ask for."""
        return {"turn": self.turn, "depth": self._depth, "model": self._lm.name, **texts}

    async def ask(self, turn: int, purpose: Purpose) -> Response:
        """Ask the model, or take what the user says in its place.

        Raises
        ------
        LMError
            It failed; ``turn`` has ended.
        """
        recorder = self._recorder
        written, by_hand = self._told(), None
        if not recorder.knows(turn, "lm_call", {}):
            by_hand = await self._at_gate(turn)
        request = self._shared.caller.request(purpose, *self.messages)
        told = self._told()
        span = self._call = recorder.start(
            "lm_call",
            turn,
            state="waiting",
            purpose=purpose,
            model=self._lm.name,
            messages=told,
            **edited("messages", written, told),
        )
        if by_hand is not None:
            recorder.running(span)
            recorder.edit(span, before={"response": None}, response=by_hand)
            recorder.end(span, "ok")
            return Response(by_hand)
        request = self._as_recorded(span, request)
        self._check(span)
        try:
            call = self._shared.caller.call(span, self._lm, request, self._run)
            return await self._shared.handler.run(call)
        except LMError as error:
            recorder.end(turn, "error", error=error_attrs(error))
            raise

    def answer_instead(self, before: str, text: str) -> None:
        """The user puts another answer in the place of the newest one."""
        self._recorder.edit(self._call, "ok", before={"response": before}, response=text)

    def replace_code(self, written: str, code: str) -> None:
        """Let the model see edited code as its own: else the output would not fit."""
        reply = self.messages[-1]
        self.messages[-1] = Message(reply.role, reply.content.replace(written, code, 1))

    def _told(self) -> list[dict[str, str]]:
        return [{"role": m.role, "content": m.content} for m in self.messages]

    async def _at_gate(self, turn: int) -> str | None:
        """The user may edit what the model is told, or answer in its place: that is returned."""
        gates, caller = self._shared.gates, self._shared.caller
        if not gates.active:
            return None
        share, name = caller.limits.share(self._recorder.trace.tree.totals)
        if gates.warns(share):
            await gates.at("budget", turn, self.about(limit=name, share=share), {})
        last = self.messages[-1]
        editable = {"prompt": last.content, "response": ""}
        decision = await gates.at("call", turn, self.about(prompt=last.content), editable)
        if "prompt" in decision.edits:
            self.messages[-1] = Message(last.role, decision.edits["prompt"])
        return decision.edits.get("response")

    def _as_recorded(self, call: int, request: Request) -> Request:
        """The request, with what the user had edited in the recorded run, or edits in a fork."""
        follower = self._recorder.follower
        found = follower.edited(call, "messages") if follower is not None else None
        edit = self._shared.edit_of(call) if self._recorder.recorded(call) is None else None
        if isinstance(found, list):
            self.messages = [
                Message(m["role"], m["content"])
                for m in found
                if isinstance(m, dict) and isinstance(m.get("content"), str)
            ]
        elif edit is not None and edit.prompt is not None:
            before, last = self._told(), self.messages[-1]
            self.messages[-1] = Message(last.role, f"{last.content}\n\n{edit.prompt}")
            self._recorder.edit(call, before={"messages": before}, messages=self._told())
        else:
            return request
        return msgspec.structs.replace(request, messages=tuple(self.messages))

    def _check(self, call: int) -> None:
        """Whether a replay tells the model the same as the recorded run.

        Raises
        ------
        LMError
            It does not.
        """
        follower, recorded = self._recorder.follower, self._recorder.recorded(call)
        if follower is None or not follower.strict or recorded is None:
            return
        place = self._recorder.trace.tree.spans[call].place
        before = recorded.attrs.get("messages")
        pairs = zip_longest(before if isinstance(before, list) else [], self._told())
        for number, (old, new) in enumerate(pairs, start=1):
            if not follower.compare(place, f"message {number}", _content(old), _content(new)):
                raise self._shared.caller.end_of_recording()


def _content(message: Any) -> Any:
    return message.get("content") if isinstance(message, dict) else message

"""One recorded LM call: sent, retried where that may help, and recorded with every attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from rlm_notebook.errors import LMError
from rlm_notebook.limits import RunLimits
from rlm_notebook.lm.protocol import LM, Message, Purpose, Request, Response
from rlm_notebook.provider_limit import limit_of
from rlm_notebook.retry import RetryPolicy
from rlm_notebook.trace.jsonl import clean
from rlm_notebook.trace.recorder import Recorder


class Caller:
    """Makes LM calls; shared by the turns, the single sub-calls and the slots of a run.

    Parameters
    ----------
    timeout
        Seconds for one call with all its attempts and waits.
    most
        Requests in flight to one provider.
    limits
        What the whole tree of runs may use.
    on_limit
        Called with the reason when a limit is reached: the run is to end.
    """

    def __init__(
        self,
        recorder: Recorder,
        timeout: float,
        policy: RetryPolicy,
        most: int,
        limits: RunLimits,
        on_limit: Callable[[str], None],
    ) -> None:
        self._recorder = recorder
        self._limits = limits
        self._on_limit = on_limit
        self._errors_in_a_row = 0
        self._timeout = timeout
        self._policy = policy
        self._most = most
        self._seen: dict[tuple[str, ...], int] = {}

    def request(self, purpose: Purpose, *messages: Message) -> Request:
        """A request that knows how many equal ones came before it. Call in order of submission."""
        key = tuple(message.content for message in messages)
        occurrence = self._seen.get(key, 0)
        self._seen[key] = occurrence + 1
        return Request(messages, purpose, occurrence)

    async def call(self, span: int, lm: LM, request: Request, run: int) -> Response:
        """Send it as soon as its provider has a place, and record how it ends.

        Parameters
        ----------
        run
            Span of the run that asks: runs take turns at their provider.

        Raises
        ------
        LMError
            It failed for good; the span is ended already.
        """
        recorder, loop = self._recorder, asyncio.get_running_loop()
        limit = limit_of(lm, self._most)
        deadline = 0.0
        attempts: list[dict[str, Any]] = []
        try:
            while True:
                try:
                    async with limit.place(run):
                        begin = recorder.now()
                        if not attempts:
                            self._check_limits(span)
                            recorder.running(span)
                            deadline = loop.time() + self._timeout
                        else:
                            waited = (begin - attempts[-1]["ended"]) * 1e-9
                            attempts[-1] = {**attempts[-1], "wait": waited}
                        response = await self._attempt(lm, request, deadline)
                    break
                except LMError as failure:
                    if failure.type == "limit":
                        raise
                    attempt = {"started": begin, "ended": recorder.now()}
                    attempts.append({**attempt, "error": error_attrs(failure)})
                    wait = self._policy.wait(len(attempts), failure)
                    if wait is None or loop.time() + wait >= deadline:
                        self._errors_in_a_row += 1
                        more = {"attempts": attempts} if len(attempts) > 1 else {}
                        recorder.end(span, "error", error=error_attrs(failure), **more)
                        raise
                recorder.update(span, attempts=list(attempts))
                await asyncio.sleep(wait)
        except asyncio.CancelledError:
            if deadline:
                recorder.end(span, "cancelled")
            raise
        if attempts:
            attempts.append({"started": begin, "ended": recorder.now()})
        return self._record(span, response, attempts)

    async def _attempt(self, lm: LM, request: Request, deadline: float) -> Response:
        try:
            async with asyncio.timeout_at(deadline):
                response = await lm.complete(request)
        except Exception as error:
            raise _failure(error, lm, self._timeout) from None
        if not isinstance(response, Response):
            raise LMError(f"{lm.name} returned {type(response).__name__}", type="protocol")
        return response

    def _check_limits(self, span: int) -> None:
        """Nothing awaits between this and the start of the call, so the limits are exact."""
        totals = self._recorder.trace.tree.totals
        reason = self._limits.reached(totals, self._errors_in_a_row)
        if reason is None:
            return
        failure = LMError(f"not sent: the run's limit is reached ({reason})", type="limit")
        self._recorder.end(span, "not_sent", error=error_attrs(failure))
        self._on_limit(reason)
        raise failure

    def _record(self, span: int, response: Response, attempts: list[dict[str, Any]]) -> Response:
        self._errors_in_a_row = 0
        if response.text is not None:
            response = msgspec.structs.replace(response, text=clean(response.text))
        text = response.text
        state = "null" if text is None else "ok" if text.strip() else "empty"
        attrs: dict[str, Any] = {"response": text, "usage": msgspec.to_builtins(response.usage)}
        if response.finish_reason is not None:
            attrs["finish_reason"] = response.finish_reason
        if attempts:
            attrs["attempts"] = attempts
        self._recorder.end(span, state, **attrs)
        return response


def error_attrs(error: LMError) -> dict[str, Any]:
    """The error as the trace keeps it."""
    attrs: dict[str, Any] = {"type": error.type, "message": str(error)}
    if error.status is not None:
        attrs["status"] = error.status
    return attrs


def _failure(error: Exception, lm: LM, timeout: float) -> LMError:
    if isinstance(error, LMError):
        return error
    if isinstance(error, TimeoutError):
        return LMError(
            f"{lm.name} gave no answer within {timeout:g} s: give it more time with call_timeout",
            type="timeout",
        )
    first = str(error).strip().split("\n")[0]
    return LMError(f"{lm.name} raised {type(error).__name__}: {first}", type=type(error).__name__)

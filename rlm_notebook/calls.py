"""One recorded LM call: sent, retried where that may help, and recorded with every attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from rlm_notebook import prices
from rlm_notebook.errors import LMError
from rlm_notebook.hedge import Hedge
from rlm_notebook.limits import RunLimits
from rlm_notebook.lm.protocol import (
    LM,
    Message,
    Purpose,
    Request,
    Response,
    StreamingLM,
)
from rlm_notebook.provider_limit import ProviderLimit, limit_of
from rlm_notebook.recorded import error_from
from rlm_notebook.retry import RetryPolicy
from rlm_notebook.trace.jsonl import clean, text_of
from rlm_notebook.trace.recorder import Recorder
from rlm_notebook.trace.tree import Span

END_OF_RECORDING = "the recorded run ends here"
TEXT_SECONDS = 0.05
"""How often the text of a streamed answer is recorded."""
HEDGE_LOOK_SECONDS = 0.05
"""How often a call looks whether it has become a straggler."""


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
        self.recorder = recorder
        self.timeout = timeout
        self.policy = policy
        self._most = most
        self.limits = limits
        self._provider_limits: dict[int, ProviderLimit] = {}
        self._on_limit = on_limit
        self._errors_in_a_row = 0
        self._seen: dict[tuple[str, ...], int] = {}

    def request(self, purpose: Purpose, *messages: Message) -> Request:
        """A request that knows how many equal ones came before it. Call in order of submission."""
        key = tuple(message.content for message in messages)
        occurrence = self._seen.get(key, 0)
        self._seen[key] = occurrence + 1
        return Request(messages, purpose, occurrence)

    async def call(
        self, span: int, lm: LM, request: Request, run: int, hedge: Hedge | None = None
    ) -> Response:
        """Send it as soon as its provider has a place, and record how it ends.

        Parameters
        ----------
        run
            Span of the run that asks: runs take turns at their provider.
        hedge
            When it is asked a second time.

        Raises
        ------
        LMError
            It failed for good; the span is ended already.
        """
        recorded = self.recorder.recorded(span)
        if recorded is not None:
            return self._again(span, recorded)
        if self.recorder.strict:
            raise self._not_recorded(span)
        call = _Call(self, span, lm, request, run, hedge)
        try:
            response = await call.go()
            if response.usage.cost is None:
                response = await prices.priced(lm, response)
        except LMError as failure:
            if failure.type != "limit":
                self._errors_in_a_row += 1
                self.recorder.end(span, "error", error=error_attrs(failure), **call.attrs())
            raise
        except asyncio.CancelledError:
            if call.deadline:
                self.recorder.end(span, "cancelled", **call.attrs())
            raise
        self._errors_in_a_row = 0
        return self._record(span, response, call.attrs())

    def _again(self, span: int, recorded: Span) -> Response:
        """What a recorded call gave, without asking again."""
        state, error = recorded.state, recorded.error
        if state in ("ok", "empty", "null"):
            names = ("response", "usage", "finish_reason")
            attrs = {name: recorded.attrs[name] for name in names if name in recorded.attrs}
            self.recorder.running(span)
            self.recorder.end(span, state, **attrs)
            text, reason = recorded.response, attrs.get("finish_reason")
            return Response(text, recorded.usage, reason if isinstance(reason, str) else None)
        if error is None or state not in ("error", "not_sent"):
            raise self._not_recorded(span)
        failure = error_from(error)
        self.recorder.end(span, state, error=error)
        if failure.type == "limit":
            self._on_limit(str(failure))
        raise failure

    def _not_recorded(self, span: int) -> LMError:
        follower, live = self.recorder.follower, self.recorder.trace.tree.spans[span]
        above = follower.twin(live.parent.id) if follower and live.parent else None
        if follower is not None and above is not None and above.state in ("ok", "error"):
            asked = live.prompt or text_of(live.attrs.get("messages"))
            follower.compare(live.place, "a call", None, asked)
        failure = self.end_of_recording()
        self.recorder.end(span, "not_sent", error=error_attrs(failure))
        return failure

    def end_of_recording(self) -> LMError:
        """The recorded run does not go further: this one, which repeats it, ends too."""
        self._on_limit(END_OF_RECORDING)
        return LMError("not sent: the recorded run has no answer to this", type="limit")

    def limit(self, lm: LM) -> ProviderLimit:
        """The limit of a model's provider; this run's settings hold from its first call on."""
        found = self._provider_limits.get(id(lm))
        if found is None:
            found = self._provider_limits[id(lm)] = limit_of(lm, self._most)
            prices.prepare(lm)
        return found

    def check_limits(self, span: int) -> None:
        """Nothing awaits between this and the start of the call, so the limits are exact.

        Raises
        ------
        LMError
            ``limit``: the span is ended, and the run is told.
        """
        totals = self.recorder.trace.tree.totals
        reason = self.limits.reached(totals, self._errors_in_a_row)
        if reason is None:
            return
        failure = LMError(f"not sent: the run's limit is reached ({reason})", type="limit")
        self.recorder.end(span, "not_sent", error=error_attrs(failure))
        self._on_limit(reason)
        raise failure

    def _record(self, span: int, response: Response, more: dict[str, Any]) -> Response:
        if response.text is not None:
            response = msgspec.structs.replace(response, text=clean(response.text))
        text = response.text
        state = "null" if text is None else "ok" if text.strip() else "empty"
        attrs: dict[str, Any] = {"response": text, "usage": msgspec.to_builtins(response.usage)}
        if response.finish_reason is not None:
            attrs["finish_reason"] = response.finish_reason
        self.recorder.end(span, state, **attrs, **more)
        return response


class _Call:
    """The attempts of one call."""

    def __init__(
        self,
        caller: Caller,
        span: int,
        lm: LM,
        request: Request,
        run: int,
        hedge: Hedge | None,
    ) -> None:
        self._caller = caller
        self._recorder = caller.recorder
        self._span = span
        self._lm = lm
        self._request = request
        self._run = run
        self._hedge = hedge
        self._limit = caller.limit(lm)
        self._attempts: list[dict[str, Any]] = []
        self._failed = 0
        self._refused = 0
        self._text: _StreamedText | None = None
        self.deadline = 0.0
        """On the loop's clock; 0 until it is sent."""

    def attrs(self) -> dict[str, Any]:
        """What the trace gets about its attempts, and about its streaming."""
        found: dict[str, Any] = {}
        if len(self._attempts) > 1:
            found["attempts"] = self._attempts
        if self._text is not None and self._text.first is not None:
            found["first_token"] = self._text.first
        return found

    async def go(self) -> Response:
        """Attempt after attempt, until one succeeds or no further one would help."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                return await self._in_place()
            except LMError as failure:
                if failure.type == "limit":
                    raise
                wait = self._wait(failure, loop.time())
                if wait is None:
                    raise
            waits_since = loop.time()
            again = {} if self._text is None else {"response": None}
            self._recorder.update(self._span, attempts=list(self._attempts), **again)
            await asyncio.sleep(wait)
            self._attempts[-1] = {**self._attempts[-1], "wait": loop.time() - waits_since}

    def _wait(self, failure: LMError, now: float) -> float | None:
        """Seconds until the next attempt; None if there is none."""
        refused = failure.status == 429 and failure.type == "http"
        if refused and self._limit.refuses_all:
            failure.hopeless = True
            return None
        self._refused += refused
        self._failed += not refused
        wait = self._caller.policy.wait(self._failed, failure, self._refused)
        if wait is None or now + wait < self.deadline:
            return wait
        if (failure.retry_after or 0.0) >= self._caller.timeout:
            failure.hopeless = True  # no call may wait that long
        return None

    async def _in_place(self) -> Response:
        """One attempt, or two where it is hedged."""
        async with self._limit.place(self._run, self._request) as place:
            if not self.deadline:
                self._caller.check_limits(self._span)
                self._recorder.running(self._span)
                self.deadline = asyncio.get_running_loop().time() + self._caller.timeout
            if self._hedge is None:
                response = await self._attempt()
            else:
                response = await self._hedged(self._hedge)
            place.used(response.usage)
            return response

    async def _attempt(self, **marks: Any) -> Response:
        attempt = {"started": self._recorder.now(), **marks}
        self._attempts.append(attempt)
        try:
            async with asyncio.timeout_at(self.deadline):
                response = await self._send()
            if not isinstance(response, Response):
                raise LMError(
                    f"{self._lm.name} returned {type(response).__name__}", type="protocol"
                )
        except asyncio.CancelledError:
            attempt |= {"ended": self._recorder.now(), "cancelled": True}
            raise
        except Exception as error:
            failure = _failure(error, self._lm, self._caller.timeout)
            attempt |= {"ended": self._recorder.now(), "error": error_attrs(failure)}
            raise failure from None
        attempt["ended"] = self._recorder.now()
        return response

    async def _send(self) -> Response:
        if self._request.purpose == "sub" or not isinstance(self._lm, StreamingLM):
            return await self._lm.complete(self._request)
        self._text = _StreamedText(self._recorder, self._span)
        try:
            return await self._lm.stream(self._request, self._text.add)
        finally:
            self._text.close()

    async def _hedged(self, hedge: Hedge) -> Response:
        """One attempt; a second one beside it once it is a straggler. The first answer wins."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        first = asyncio.create_task(self._attempt())
        racing = {first}
        try:
            while not first.done():
                after = hedge.after()
                elapsed = loop.time() - begun
                if after is not None and elapsed >= after:
                    hedge.take()
                    racing.add(asyncio.create_task(self._beside()))
                    break
                look = HEDGE_LOOK_SECONDS
                await asyncio.wait(
                    racing, timeout=look if after is None else min(look, after - elapsed)
                )
            response = await _first_answer(first, racing)
        finally:
            await _cancelled(racing)
        hedge.ended(loop.time() - begun)
        if len(racing) == 1:
            return response
        usage = msgspec.structs.replace(response.usage, complete=False)  # the other one cost too
        return msgspec.structs.replace(response, usage=usage)

    async def _beside(self) -> Response:
        async with self._limit.place(self._run, self._request) as place:
            response = await self._attempt(hedge=True)
            place.used(response.usage)
            return response


class _StreamedText:
    """Records the text of an answer while it comes, some times a second."""

    def __init__(self, recorder: Recorder, span: int) -> None:
        self._recorder = recorder
        self._span = span
        self._pieces: list[str] = []
        self._timer: asyncio.TimerHandle | None = None
        self.first: int | None = None
        """When the first piece came, ns since the trace began."""

    def add(self, text: str) -> None:
        """One more piece."""
        if self.first is None:
            self.first = self._recorder.now()
        self._pieces.append(text)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(TEXT_SECONDS, self._flush)

    def close(self) -> None:
        """Record what is left."""
        if self._timer is not None:
            self._timer.cancel()
            self._flush()

    def _flush(self) -> None:
        self._timer = None
        text, self._pieces = "".join(self._pieces), []
        self._recorder.text(self._span, clean(text))


def error_attrs(error: LMError) -> dict[str, Any]:
    """The error as the trace keeps it."""
    attrs: dict[str, Any] = {"type": error.type, "message": str(error)}
    if error.status is not None:
        attrs["status"] = error.status
    return attrs


async def _first_answer(
    first: asyncio.Task[Response], racing: set[asyncio.Task[Response]]
) -> Response:
    """The first response; where all fail, the failure of ``first``."""
    waiting = set(racing)
    while waiting:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            if each.exception() is None:
                return each.result()
    return first.result()


async def _cancelled(racing: set[asyncio.Task[Response]]) -> None:
    """Cancel what still runs, and wait until it has cleaned up."""
    for each in racing:
        each.cancel()
    await asyncio.gather(*racing, return_exceptions=True)


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

"""What a language model is to this package: one async method, plain values in and out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, Protocol, runtime_checkable

import msgspec

Purpose = Literal["root", "sub", "final"]
"""Why a call is made: a turn of the root, a sub-call from REPL code, the last request for an answer."""
OnText = Callable[[str], None]
"""Gets each further piece of a text that is streamed."""


class Message(msgspec.Struct, frozen=True):
    """One chat message."""

    role: Literal["system", "user", "assistant"]
    content: str


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens and cost of one call or of many. None means not reported."""

    input_tokens: int | None = None
    """Tokens of the prompt."""
    output_tokens: int | None = None
    """Tokens of the response."""
    cost: float | None = None
    """USD: as the provider reports it, or by a price list."""
    complete: bool = True
    """False if a part is unknown, so that the numbers are a floor."""
    cached_tokens: int | None = None
    """Tokens of the prompt that were read from the provider's cache, which mostly costs less."""
    estimated: bool = False
    """True if a part of the cost comes from a price list."""

    @staticmethod
    def total(parts: Iterable[Usage]) -> Usage:
        """The sum; parts that were not reported make it a floor (``complete=False``)."""
        known_in = known_out = 0
        cost: float | None = None
        complete, cached, estimated = True, 0, False
        for part in parts:
            if part.input_tokens is None or part.output_tokens is None or not part.complete:
                complete = False
            known_in += part.input_tokens or 0
            known_out += part.output_tokens or 0
            cached += part.cached_tokens or 0
            if part.cost is not None:
                cost = (cost or 0.0) + part.cost
                estimated = estimated or part.estimated
        return Usage(known_in, known_out, cost, complete, cached or None, estimated)


class Request(msgspec.Struct, frozen=True):
    """One LM call."""

    messages: tuple[Message, ...]
    purpose: Purpose = "sub"
    occurrence: int = 0
    """How many calls with the same messages the run made before this one (seeds the simulation)."""


class Response(msgspec.Struct, frozen=True):
    """The answer to one LM call."""

    text: str | None
    """The text; None if the provider returned no content at all."""
    usage: Usage = Usage(complete=False)
    finish_reason: str | None = None
    model: str | None = None
    """The model name the provider reports, where it does."""


@runtime_checkable
class LM(Protocol):
    """Anything that answers requests. Pass an object of your own as ``RLM(model=...)``."""

    @property
    def name(self) -> str:
        """``provider/model``, shown in the view and stored in the trace."""

    async def complete(self, request: Request) -> Response:
        """Answer one request.

        Called on the event loop of the handler thread, many at once.

        Raises
        ------
        LMError
            The call failed; the message is one line and holds no secret.
        """

    async def close(self) -> None:
        """Release connections. Called once, on the same loop."""


@runtime_checkable
class StreamingLM(LM, Protocol):
    """An :class:`LM` that can also hand its text over as it comes."""

    async def stream(self, request: Request, on_text: OnText) -> Response:
        """Answer one request; call ``on_text`` with each further piece of the text.

        Raises
        ------
        LMError
            The call failed, also in the middle of the text.
        """

"""What a language model is to this package: one async method, plain values in and out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

Purpose = Literal["root", "sub", "final"]
"""Why a call is made: a turn of the root, a sub-call from REPL code, the last request for an answer."""


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
    """USD, where the provider reports it."""
    complete: bool = True
    """False if a part is unknown, so that the numbers are a floor."""

    @staticmethod
    def total(parts: Iterable[Usage]) -> Usage:
        """The sum; parts that were not reported make it a floor (``complete=False``)."""
        known_in = known_out = 0
        cost: float | None = None
        complete = True
        for part in parts:
            if part.input_tokens is None or part.output_tokens is None or not part.complete:
                complete = False
            known_in += part.input_tokens or 0
            known_out += part.output_tokens or 0
            if part.cost is not None:
                cost = (cost or 0.0) + part.cost
        return Usage(known_in, known_out, cost, complete)


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


Params = dict[str, Any]

"""Models behind Anthropic's messages API. One call is one ``POST {base_url}/messages``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from rlm_notebook.errors import LMError
from rlm_notebook.lm.chat import blame, count, decoded, one_line, start_of, text_or_none
from rlm_notebook.lm.http_model import TIMEOUT, HTTPModel
from rlm_notebook.lm.presets import ANTHROPIC, Preset
from rlm_notebook.lm.protocol import Message, Response, Usage
from rlm_notebook.lm.provider_settings import ProviderSettings
from rlm_notebook.trace.jsonl import clean

if TYPE_CHECKING:
    import httpx

VERSION = "2023-06-01"
"""Of the API."""
OUTPUT_TOKENS = 8_192
"""The API wants a limit; where none is set, this is one that nearly all models take."""
EMPTY = "(empty)"
"""Stands for an empty message, which the API refuses."""
_REASONS = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length"}
"""Its names of finish reasons, in the words of chat completions."""


class _Answer(msgspec.Struct):
    """Only the shape that is needed is checked; what is odd elsewhere never loses a slot."""

    content: list[Any] | None = None
    stop_reason: Any = None
    usage: Any = None
    model: Any = None
    error: Any = None


class AnthropicLM(HTTPModel):
    """A model behind the messages API.

    ``AnthropicLM("claude-sonnet-4-5")``. The parameters are those of
    :class:`~rlm_notebook.lm.http_model.HTTPModel`; ``base_url`` with or without ``/v1``.
    """

    path = "/messages"

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float | None = TIMEOUT,
        client: Callable[[], httpx.AsyncClient] | None = None,
        preset: Preset = ANTHROPIC,
        settings: ProviderSettings | None = None,
    ) -> None:
        super().__init__(
            model,
            preset=preset,
            base_url=base_url,
            api_key=api_key,
            timeout=timeout,
            client=client,
            settings=settings,
        )

    def address(self, given: str) -> str:
        """With ``/v1``, which Anthropic's own variable leaves out."""
        return given if urlsplit(given).path.strip("/") else given.rstrip("/") + "/v1"

    def key_headers(self, key: str, user: str | None) -> dict[str, str]:
        """``x-api-key``, and the version that is always sent."""
        return {"anthropic-version": VERSION, **({"x-api-key": key} if key else {})}

    def body(self, messages: tuple[Message, ...], *, stream: bool) -> Any:
        """System messages apart, as the API wants them."""
        given = self.settings
        system = "\n\n".join(m.content for m in messages if m.role == "system")
        values = {
            "model": self.model,
            "max_tokens": given.max_output_tokens or OUTPUT_TOKENS,
            "system": system or None,
            "messages": [
                {"role": m.role, "content": m.content if m.content.strip() else EMPTY}
                for m in messages
                if m.role != "system"
            ],
            "temperature": given.temperature,
            "top_p": given.top_p,
            "stream": stream or None,
        }
        found = {name: value for name, value in values.items() if value is not None}
        return {**found, **self._preset.extra_body, **given.extra_body}

    def decode(self, body: bytes) -> Response:
        """A message."""
        answer = decoded(body, _Answer, "message")
        if answer.error:
            raise blame(answer.error)
        if answer.content is None:
            raise LMError(f"the answer holds no content: {start_of(body)}", type="protocol")
        parts = [part.get("text") for part in answer.content if isinstance(part, dict)]
        texts = [part for part in parts if isinstance(part, str)]
        text = clean("".join(texts)) if texts else None
        return Response(
            text, _usage(answer.usage), _reason(answer.stop_reason), text_or_none(answer.model)
        )

    def reader(self) -> MessageStream:
        """Of the events of a message."""
        return MessageStream()


class MessageStream:
    """Puts a streamed message together."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._usage: dict[str, Any] = {}
        self._reason: str | None = None
        self._model: str | None = None
        self._ended = False

    def take(self, data: str) -> str:
        """Take one event in; return the text that it adds."""
        try:
            event = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise LMError(f"no JSON in the stream: {one_line(data)}", type="protocol") from None
        if not isinstance(event, dict):
            return ""
        if event.get("error"):
            raise blame(event["error"])
        kind = event.get("type")
        if kind == "message_start" and isinstance(event.get("message"), dict):
            self._model = text_or_none(event["message"].get("model"))
            self._add_usage(event["message"].get("usage"))
        elif kind == "content_block_delta" and isinstance(event.get("delta"), dict):
            text = event["delta"].get("text")
            if isinstance(text, str):
                text = clean(text)
                self._texts.append(text)
                return text
        elif kind == "message_delta":
            if isinstance(event.get("delta"), dict):
                self._reason = _reason(event["delta"].get("stop_reason")) or self._reason
            self._add_usage(event.get("usage"))
        elif kind == "message_stop":
            self._ended = True
        return ""

    def response(self) -> Response:
        """The whole message."""
        if not self._ended and self._reason is None:
            raise LMError("the stream was cut before its end", type="disconnected")
        text = "".join(self._texts) if self._texts else None
        return Response(text, _usage(self._usage), self._reason, self._model)

    def _add_usage(self, usage: Any) -> None:
        if isinstance(usage, dict):  # the later numbers are running totals: they replace
            self._usage.update({key: value for key, value in usage.items() if value is not None})


def _usage(reported: Any) -> Usage:
    """Tokens read from the cache, or written to it, are input too; the API counts them apart."""
    if not isinstance(reported, dict):
        return Usage(complete=False)
    kinds = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    fresh, written, read = (count(reported.get(kind)) for kind in kinds)
    output = count(reported.get("output_tokens"))
    tokens = None if fresh is None else fresh + (written or 0) + (read or 0)
    return Usage(
        tokens,
        output,
        cached_tokens=read or None,
        complete=tokens is not None and output is not None,
    )


def _reason(value: Any) -> str | None:
    return _REASONS.get(value, value) if isinstance(value, str) else None

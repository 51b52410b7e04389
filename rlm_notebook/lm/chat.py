"""The chat-completions answer, whole or streamed: bytes in, a :class:`Response` or one line of
blame out.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Hashable
from functools import cache
from typing import Any, TypeVar, cast

import msgspec

from rlm_notebook.errors import LMError
from rlm_notebook.lm.protocol import Response, Usage
from rlm_notebook.trace.jsonl import clean

SHOWN_BODY = 80
"""Characters of a body that is not JSON which an error shows."""
SHOWN_MESSAGE = 300
"""Characters of a provider's message which an error shows."""
_STATUS = {
    "rate_limit_error": 429,
    "overloaded_error": 529,
    "api_error": 500,
    "server_error": 500,
    "authentication_error": 401,
    "not_found_error": 404,
}
"""Errors that come inside of a stream have names in place of a status."""


class _Message(msgspec.Struct):
    content: Any = None
    refusal: Any = None


class _Choice(msgspec.Struct):
    message: _Message | None = None
    finish_reason: Any = None
    error: Any = None


class _Completion(msgspec.Struct):
    """Only the shape that is needed is checked; what is odd elsewhere never loses a slot."""

    choices: list[_Choice] | None = None
    usage: Any = None
    model: Any = None
    error: Any = None


class _Delta(msgspec.Struct):
    content: Any = None
    refusal: Any = None


class _StreamChoice(msgspec.Struct):
    delta: _Delta | None = None
    finish_reason: Any = None
    error: Any = None


class _Chunk(msgspec.Struct):
    choices: list[_StreamChoice] | None = None
    usage: Any = None
    model: Any = None
    error: Any = None


def decode_completion(body: bytes) -> Response:
    """Read the body of a successful answer.

    Raises
    ------
    LMError
        ``protocol``: no JSON, or JSON of another shape. ``http``: an error that was sent with a
        status of success, as OpenRouter does.
    """
    completion = decoded(body, _Completion, "chat completion")
    choice = completion.choices[0] if completion.choices else None
    failed = completion.error or (choice.error if choice is not None else None)
    if failed:
        raise blame(failed)
    if choice is None or choice.message is None:
        what = "message" if choice else "choices"
        raise LMError(f"the answer holds no {what}: {start_of(body)}", type="protocol")
    text = _text(choice.message.content)
    reason = text_or_none(choice.finish_reason)
    if text is None and isinstance(choice.message.refusal, str):
        text, reason = clean(choice.message.refusal), "refusal"
    return Response(text, _usage(completion.usage), reason, text_or_none(completion.model))


class ChatStream:
    """Puts a streamed chat completion together."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._refusals: list[str] = []
        self._reason: str | None = None
        self._usage: Any = None
        self._model: str | None = None

    def take(self, data: str) -> str:
        """Take one chunk in; return the text that it adds.

        Raises
        ------
        LMError
            ``protocol``: no JSON, or another shape. ``http``: an error in the middle of the stream.
        """
        chunk = decoded(data.encode("utf-8", "replace"), _Chunk, "chunk of a chat completion")
        choice = chunk.choices[0] if chunk.choices else None
        failed = chunk.error or (choice.error if choice is not None else None)
        if failed:
            raise blame(failed)
        self._usage = chunk.usage or self._usage
        self._model = text_or_none(chunk.model) or self._model
        if choice is None:
            return ""
        self._reason = text_or_none(choice.finish_reason) or self._reason
        if choice.delta is None:
            return ""
        if isinstance(choice.delta.refusal, str):
            self._refusals.append(clean(choice.delta.refusal))
        text = _text(choice.delta.content)
        if text is None:
            return ""
        self._texts.append(text)
        return text

    def response(self) -> Response:
        """The whole answer. A stream may end without ``[DONE]``, but not without a finish reason."""
        if self._reason is None:
            raise LMError("the stream was cut before its end", type="disconnected")
        text, reason = "".join(self._texts) if self._texts else None, self._reason
        if not text and self._refusals:
            text, reason = "".join(self._refusals), "refusal"
        return Response(text, _usage(self._usage), reason, self._model)


T = TypeVar("T")


def decoded(body: bytes, shape: type[T], what: str) -> T:
    """Read JSON of a known shape.

    Raises
    ------
    LMError
        ``protocol``: no JSON, or JSON of another shape.
    """
    try:
        try:
            return cast(T, _decoder(cast(Hashable, shape)).decode(body))
        except msgspec.ValidationError:
            raise
        except (msgspec.DecodeError, UnicodeDecodeError):
            # lone surrogates, broken UTF-8, NaN: Python's reader takes them
            return msgspec.convert(json.loads(body.decode("utf-8", "replace")), shape)
    except msgspec.ValidationError as error:
        raise LMError(f"the answer is no {what}: {one_line(str(error))}", type="protocol") from None
    except (ValueError, RecursionError):
        raise LMError(f"the answer is no JSON: {start_of(body)}", type="protocol") from None


@cache
def _decoder(shape: Hashable) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(shape)


def blame(error: Any) -> LMError:
    """The error that a server reports inside of an answer with a status of success."""
    code = error.get("code") if isinstance(error, dict) else None
    status = code if isinstance(code, int) and not isinstance(code, bool) else None
    if status is None and isinstance(error, dict):
        status = _STATUS.get(str(error.get("type")))
    return LMError(f"the server reports an error: {_message(error)}", type="http", status=status)


def error_text(body: bytes) -> str:
    """The message in the body of an error, in one line; the start of the body if it is no JSON."""
    try:
        loaded = json.loads(body)
    except (ValueError, RecursionError):
        return start_of(body) if body.strip() else ""
    return _message(loaded)


def _message(found: Any) -> str:
    """The words in what providers put into an error: they agree on no shape."""
    while isinstance(found, dict | list) and found:
        if isinstance(found, list):
            found = found[0]
        else:
            keys = ("error", "message", "detail", "msg")
            found = next((found[key] for key in keys if found.get(key)), None)
    return one_line(found) if isinstance(found, str) else ""


def _text(content: Any) -> str | None:
    """The text of a message, which may come in parts."""
    if isinstance(content, str):
        return content if content.isascii() else clean(content)
    if not isinstance(content, list):
        return None
    parts = [part.get("text") if isinstance(part, dict) else part for part in content]
    texts = [part for part in parts if isinstance(part, str)]
    return clean("".join(texts)) if texts else None


def _usage(reported: Any) -> Usage:
    if not isinstance(reported, dict):
        return Usage(complete=False)
    tokens_in = count(reported.get("prompt_tokens"))
    tokens_out = count(reported.get("completion_tokens"))
    details = reported.get("prompt_tokens_details")
    cached = count(details.get("cached_tokens")) if isinstance(details, dict) else None
    cost = reported.get("cost")
    if not isinstance(cost, int | float) or isinstance(cost, bool) or not 0 <= cost < math.inf:
        cost = None
    return Usage(
        tokens_in,
        tokens_out,
        None if cost is None else float(cost),
        cached_tokens=cached or None,
        complete=tokens_in is not None and tokens_out is not None,
    )


def count(value: Any) -> int | None:
    """The value if it is a number of tokens."""
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return value if whole else None


def text_or_none(value: Any) -> str | None:
    """The value if it is a text."""
    return value if isinstance(value, str) else None


def start_of(body: bytes) -> str:
    """The first characters of a body, in one line."""
    return one_line(body[: 8 * SHOWN_BODY].decode("utf-8", "replace"), SHOWN_BODY) or "(empty)"


def one_line(text: str, limit: int = SHOWN_MESSAGE) -> str:
    """The text on one line, cut at ``limit`` characters."""
    line = re.sub(r"[\s\x00-\x1f\x7f]+", " ", clean(text)).strip()
    return line if len(line) <= limit else line[: limit - 1] + "…"

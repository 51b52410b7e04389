"""The chat-completions answer: bytes in, a :class:`Response` or one line of blame out."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import msgspec

from rlm_notebook.errors import LMError
from rlm_notebook.lm.protocol import Response, Usage
from rlm_notebook.trace.jsonl import clean

SHOWN_BODY = 80
"""Characters of a body that is not JSON which an error shows."""
SHOWN_MESSAGE = 300
"""Characters of a provider's message which an error shows."""


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


_decoder = msgspec.json.Decoder(_Completion)


def decode_completion(body: bytes) -> Response:
    """Read the body of a successful answer.

    Raises
    ------
    LMError
        ``protocol``: no JSON, or JSON of another shape. ``http``: an error that was sent with a
        status of success, as OpenRouter does.
    """
    try:
        try:
            completion = _decoder.decode(body)
        except msgspec.ValidationError:
            raise
        except (msgspec.DecodeError, UnicodeDecodeError):
            # lone surrogates, broken UTF-8, NaN: Python's reader takes them
            loaded = json.loads(body.decode("utf-8", "replace"))
            completion = msgspec.convert(loaded, _Completion)
    except msgspec.ValidationError as error:
        raise LMError(
            f"the answer is no chat completion: {_one_line(str(error), SHOWN_MESSAGE)}",
            type="protocol",
        ) from None
    except (ValueError, RecursionError):
        raise LMError(f"the answer is no JSON: {_start(body)}", type="protocol") from None
    choice = completion.choices[0] if completion.choices else None
    blame = completion.error or (choice.error if choice is not None else None)
    if blame:
        code = blame.get("code") if isinstance(blame, dict) else None
        status = code if isinstance(code, int) and not isinstance(code, bool) else None
        raise LMError(f"the server reports an error: {_message(blame)}", type="http", status=status)
    if choice is None or choice.message is None:
        what = "message" if choice else "choices"
        raise LMError(f"the answer holds no {what}: {_start(body)}", type="protocol")
    text = _text(choice.message.content)
    reason = choice.finish_reason if isinstance(choice.finish_reason, str) else None
    if text is None and isinstance(choice.message.refusal, str):
        text, reason = clean(choice.message.refusal), "refusal"
    model = completion.model if isinstance(completion.model, str) else None
    return Response(text, _usage(completion.usage), reason, model)


def error_text(body: bytes) -> str:
    """The message in the body of an error, in one line; the start of the body if it is no JSON."""
    try:
        loaded = json.loads(body)
    except (ValueError, RecursionError):
        return _start(body) if body.strip() else ""
    return _message(loaded)


def _message(blame: Any) -> str:
    """The words in what providers put into an error: they agree on no shape."""
    while isinstance(blame, dict | list) and blame:
        if isinstance(blame, list):
            blame = blame[0]
        else:
            keys = ("error", "message", "detail", "msg")
            blame = next((blame[key] for key in keys if blame.get(key)), None)
    return _one_line(blame, SHOWN_MESSAGE) if isinstance(blame, str) else ""


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
    tokens_in = _count(reported.get("prompt_tokens"))
    tokens_out = _count(reported.get("completion_tokens"))
    cost = reported.get("cost")
    if not isinstance(cost, int | float) or isinstance(cost, bool) or not 0 <= cost < math.inf:
        cost = None
    return Usage(
        tokens_in,
        tokens_out,
        None if cost is None else float(cost),
        complete=tokens_in is not None and tokens_out is not None,
    )


def _count(value: Any) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return value if whole else None


def _start(body: bytes) -> str:
    """The first characters of a body, in one line."""
    return _one_line(body[: 8 * SHOWN_BODY].decode("utf-8", "replace"), SHOWN_BODY) or "(empty)"


def _one_line(text: str, limit: int) -> str:
    line = re.sub(r"[\s\x00-\x1f\x7f]+", " ", clean(text)).strip()
    return line if len(line) <= limit else line[: limit - 1] + "…"

"""A scriptable server: ``python -m tests.servers.openai_server`` prints its port.

It speaks OpenAI's chat completions and Anthropic's messages, whole and streamed.

Without a script it answers every prompt at once with ``answer to: <prompt>``. ``POST /script``
sets rules (see :class:`Rule`), ``GET /log`` returns what was received, in order of arrival.

It ends when its standard input closes, so it never outlives who started it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import time
from typing import Any, Literal

import msgspec
from aiohttp import web

USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
NUMBER = re.compile(r"#(\d+)")


class Rule(msgspec.Struct, omit_defaults=True, kw_only=True):
    """What to do with the requests it applies to. The first rule that applies is taken."""

    match: str = ""
    """Applies if this is part of the last message..."""
    model: str | None = None
    """... and the model is this one..."""
    times: int | None = None
    """... but only to so many requests."""
    delay: float = 0.0
    """Seconds before the answer."""
    delays: list[float] | None = None
    """Seconds before the answer, by the number in the prompt: ``#17`` waits ``delays[17]``."""
    status: int = 200
    headers: dict[str, str] = {}
    body: str | None = None
    """The whole body, in place of a chat completion."""
    content: Any = msgspec.UNSET
    """The message's content; default: an echo of the prompt."""
    message: dict[str, Any] = {}
    """Further fields of the message."""
    finish_reason: str | None = "stop"
    usage: Any = msgspec.field(default_factory=lambda: dict(USAGE))
    """None leaves it out."""
    fail: Literal["hang", "drop", "cut"] | None = None
    """Never answer; close the connection without an answer, or in the middle of it."""
    gap: float = 0.0
    """Streamed answers: seconds before each piece."""
    done: bool = True
    """Streamed answers: whether ``[DONE]`` ends them."""
    per_second: float | None = None
    """Requests per second that are let through (a token bucket): 429 beyond..."""
    burst: float = 1.0
    """... and how many at once, after a time without any."""
    raw: list[str] | None = None
    """Streamed answers: what is sent, piece by piece, as latin-1 (so that any byte can be)."""


class Allowance:
    """A token bucket. The clock runs from the first request on."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._level = rule.burst
        self._at = time.monotonic()

    def take(self) -> bool:
        """Whether one more request is let through."""
        assert self._rule.per_second is not None
        now = time.monotonic()
        filled = self._level + (now - self._at) * self._rule.per_second
        self._level, self._at = min(self._rule.burst, filled), now
        if self._level < 1:
            return False
        self._level -= 1
        return True


class Entry(msgspec.Struct):
    """One request, as the server saw it. Times are ``time.monotonic_ns()``, which on Linux is one
    clock for all processes."""

    received: int
    model: str
    prompt: str
    """Content of the last message."""
    authorization: str | None = None
    answered: int | None = None
    """None if it was never answered."""
    port: int | None = None
    """The client's port: one value is one connection."""
    headers: dict[str, str] = {}
    body: dict[str, Any] = {}
    """All of the request, but for its messages."""


class _Message(msgspec.Struct):
    content: str


class _Body(msgspec.Struct):
    model: str
    messages: list[_Message]
    stream: bool = False


class Server:
    """Answers by the script, and keeps the log."""

    def __init__(self) -> None:
        self.rules: list[Rule] = []
        self.log: list[Entry] = []
        self._allowances: dict[int, Allowance] = {}
        self._body = msgspec.json.Decoder(_Body)
        self._script = msgspec.json.Decoder(list[Rule])

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        received = time.monotonic_ns()
        if request.path.endswith(("/chat/completions", "/messages")):
            return await self._complete(request, received)
        if request.path == "/script":
            self.rules, self.log = self._script.decode(await request.content.read()), []
            self._allowances.clear()
            return web.Response(body=b"[]")
        if request.path == "/log":
            return web.Response(body=msgspec.json.encode(self.log))
        return web.Response(status=404, text="no such path")

    async def _complete(self, request: web.BaseRequest, received: int) -> web.StreamResponse:
        sent = await request.content.read()
        body = self._body.decode(sent)
        prompt = body.messages[-1].content
        peer = request.transport.get_extra_info("peername") if request.transport else None
        more = {} if len(sent) > 10_000 else msgspec.json.decode(sent)
        more.pop("messages", None)
        entry = Entry(
            received,
            body.model,
            prompt,
            request.headers.get("authorization"),
            port=peer[1] if peer else None,
            headers={name.lower(): value for name, value in request.headers.items()},
            body=more,
        )
        self.log.append(entry)
        rule = self._rule(body.model, prompt)
        if rule.per_second is not None:
            allowance = self._allowances.setdefault(id(rule), Allowance(rule))
            if not allowance.take():
                error = b'{"error": {"message": "rate limit reached", "type": "rate_limit_error"}}'
                return web.Response(status=429, body=error, headers=rule.headers)
        delay = _delay(rule, prompt)
        if delay:
            await asyncio.sleep(delay)
        anthropic = request.path.endswith("/messages")
        if body.stream and rule.status == 200 and rule.body is None and rule.fail != "hang":
            stream = _stream_message if anthropic else _stream_completion
            pieces = rule.raw or stream(rule, body.model, prompt)
            return await _stream(request, rule, entry, pieces)
        if rule.fail is not None:
            return await _fail(request, rule)
        entry.answered = time.monotonic_ns()
        make = _message if anthropic else _completion
        data = make(rule, body.model, prompt) if rule.body is None else rule.body.encode()
        headers = {"content-type": "application/json", **rule.headers}
        return web.Response(status=rule.status, body=data, headers=headers)

    def _rule(self, model: str, prompt: str) -> Rule:
        for rule in self.rules:
            if rule.match in prompt and rule.model in (None, model) and rule.times != 0:
                if rule.times is not None:
                    rule.times -= 1
                return rule
        return _ECHO


_ECHO = Rule()


def _delay(rule: Rule, prompt: str) -> float:
    number = NUMBER.search(prompt) if rule.delays else None
    return rule.delays[int(number[1])] if number and rule.delays else rule.delay


def _completion(rule: Rule, model: str, prompt: str) -> bytes:
    content = f"answer to: {prompt}" if rule.content is msgspec.UNSET else rule.content
    message = {"role": "assistant", "content": content, **rule.message}
    completion: dict[str, Any] = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": rule.finish_reason}],
    }
    if rule.usage is not None:
        completion["usage"] = rule.usage
    return msgspec.json.encode(completion)


def _message(rule: Rule, model: str, prompt: str) -> bytes:
    content = f"answer to: {prompt}" if rule.content is msgspec.UNSET else rule.content
    usage = rule.usage or {}
    message = {
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [{"type": "text", "text": content}] if isinstance(content, str) else content,
        "stop_reason": {"stop": "end_turn", "length": "max_tokens"}.get(rule.finish_reason or ""),
        "usage": {
            "input_tokens": usage.get("prompt_tokens"),
            "output_tokens": usage.get("completion_tokens"),
        },
        **rule.message,
    }
    return msgspec.json.encode(message)


def _stream_completion(rule: Rule, model: str, prompt: str) -> list[str]:
    content = f"answer to: {prompt}" if rule.content is msgspec.UNSET else rule.content
    base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": model}
    deltas = [{"role": "assistant", "content": ""}, *({"content": c} for c in _words(content))]
    chunks: list[dict[str, Any]] = [
        {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        for delta in [*deltas, rule.message]
    ]
    end = {"index": 0, "delta": {}, "finish_reason": rule.finish_reason}
    chunks.append({**base, "choices": [end]})
    if rule.usage is not None:
        chunks.append({**base, "choices": [], "usage": rule.usage})
    events = [": keep-alive\n\n", *(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)]
    return [*events, "data: [DONE]\n\n"] if rule.done else events


def _stream_message(rule: Rule, model: str, prompt: str) -> list[str]:
    content = f"answer to: {prompt}" if rule.content is msgspec.UNSET else rule.content
    usage = rule.usage or {}
    start = {"model": model, "content": [], "usage": {"input_tokens": usage.get("prompt_tokens")}}
    stop = {"stop": "end_turn", "length": "max_tokens"}.get(rule.finish_reason or "")
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "ping"},
        *(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": c}}
            for c in _words(content)
        ),
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": stop},
            "usage": {"output_tokens": usage.get("completion_tokens")},
        },
        {"type": "message_stop"},
    ]
    return [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]


def _words(content: Any) -> list[str]:
    return re.findall(r"\S*\s*", content)[:-1] if isinstance(content, str) else []


async def _stream(
    request: web.BaseRequest, rule: Rule, entry: Entry, pieces: list[str]
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream", **rule.headers})
    await response.prepare(request)
    sent = pieces[: len(pieces) // 2] if rule.fail is not None else pieces
    for piece in sent:
        if rule.gap:
            await asyncio.sleep(rule.gap)
        await response.write(piece.encode("utf-8" if rule.raw is None else "latin-1"))
    if rule.fail is not None and request.transport is not None:
        request.transport.close()
        return response
    entry.answered = time.monotonic_ns()
    await response.write_eof()
    return response


async def _fail(request: web.BaseRequest, rule: Rule) -> web.StreamResponse:
    if rule.fail == "hang":
        await asyncio.Event().wait()
    response = web.StreamResponse(headers={"content-length": "1000"})
    if rule.fail == "cut":
        await response.prepare(request)
        await response.write(b'{"choices": [')
    if request.transport is not None:
        request.transport.close()
    return response


async def serve(port: int) -> None:
    """Serve until standard input closes."""
    runner = web.ServerRunner(web.Server(Server().handle, access_log=None), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="default: one that is free")
    asyncio.run(serve(parser.parse_args().port))

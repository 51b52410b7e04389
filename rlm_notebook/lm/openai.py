"""Models behind an OpenAI-compatible server: OpenAI, OpenRouter, vLLM, llama.cpp, Ollama...

One call is one ``POST {base_url}/chat/completions``. There are no retries here: whoever retries
finds what it needs in the error.
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

import msgspec

from rlm_notebook.errors import LMError, ModelError
from rlm_notebook.lm.chat import decode_completion, error_text
from rlm_notebook.lm.presets import OPENAI, Preset
from rlm_notebook.lm.protocol import Message, Request, Response
from rlm_notebook.lm.transport import CONNECT_SECONDS, Clients, shown, transport_error
from rlm_notebook.trace.jsonl import clean

if TYPE_CHECKING:
    import httpx

TIMEOUT = 300.0
"""Seconds for one call, where nothing else is said."""
PATH = "/chat/completions"
QUOTA = re.compile(rb"insufficient_quota|exceeded your current quota|billing_hard_limit")
"""In the body of a 429 that no waiting mends."""
CHUNK = 256 * 1024
"""Bytes sent in one piece; aiohttp warns of bodies over 1 MB that would hold the loop up."""

_clients = Clients()


class _Body(msgspec.Struct, omit_defaults=True):
    """What is sent."""

    model: str
    messages: tuple[Message, ...]


class OpenAILM:
    """A model behind an OpenAI-compatible server.

    ``OpenAILM("gpt-5")``, ``OpenAILM("llama3.2", base_url="http://localhost:11434/v1")``.

    Parameters
    ----------
    model
        The model's name as the server knows it.
    base_url
        The server's address up to and with ``/v1``; default: the preset's variable
        (``OPENAI_BASE_URL``), or its address.
    api_key
        Default: the preset's variable (``OPENAI_API_KEY``). Only OpenAI itself, and other presets
        at their own address, cannot do without one.
    timeout
        Seconds for one call, connecting included; None: no limit.
    client
        Builds an HTTP client of its own for this model; default: the one of the loop, which all
        models share.
    preset
        Another provider that speaks the same: see :data:`rlm_notebook.lm.presets.PRESETS`.

    Raises
    ------
    ModelError
        The key is missing, or the address or the key cannot be right.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float | None = TIMEOUT,
        client: Callable[[], httpx.AsyncClient] | None = None,
        preset: Preset = OPENAI,
    ) -> None:
        if not model.strip():
            raise ModelError(
                "the model name is empty: write openai/NAME, for instance openai/gpt-5"
            )
        address = base_url or os.environ.get(preset.address_variable) or preset.address
        self._preset = preset
        self.model = model.strip()
        self.base_url, user = _address(address)
        """The server's address, without user, password and query."""
        self.timeout = timeout
        self._key_source = "api_key" if api_key else preset.key_variable
        self._key = (api_key or os.environ.get(preset.key_variable) or "").strip()
        at_home = urlsplit(self.base_url).hostname == urlsplit(preset.address).hostname
        if preset.needs_key and at_home and not self._key and not user:
            raise ModelError(
                f"{self.name} needs an API key: set the environment variable {preset.key_variable}, "
                "or give the base_url of a server that needs none"
            )
        self._secrets = _secrets(address, self._key, user)
        self._url: httpx.URL | str = _request_url(address)
        self._headers = dict(self._make_headers(user))
        self._clients = _clients if client is None else Clients(client)

    @property
    def name(self) -> str:
        """``openai/<model>``, or another provider's name in its place."""
        return f"{self._preset.provider}/{self.model}"

    def __repr__(self) -> str:
        return f"OpenAILM({self.model!r}, base_url={self.base_url!r})"

    async def complete(self, request: Request) -> Response:
        """Answer one request.

        ``text`` is None only if the server sent no content at all. A refusal is the model's
        answer in words, sent in another field: it becomes the text, with the finish reason
        ``refusal``, so that paid words are not lost. The answer's finish reason is otherwise as
        the server gives it.

        Raises
        ------
        LMError
            ``connect``, ``disconnected``, ``timeout``, ``protocol``, ``http`` or ``quota``. The
            message is one line and holds no key.
        """
        body = encode_body(self.model, request.messages)
        try:
            async with asyncio.timeout(self.timeout):
                answer = await self._send(body)
        except TimeoutError:
            raise LMError(
                f"no answer from {self.name} at {self.base_url} within {self.timeout:g} s: "
                "give it more time with call_timeout, or a shorter prompt",
                type="timeout",
            ) from None
        return self._read(answer)

    async def close(self) -> None:
        """Release connections; the shared client closes with the last model that uses it."""
        await self._clients.release(self)

    async def _send(self, body: bytes) -> httpx.Response:
        client = self._clients.get(self)
        import httpx  # the client has loaded it: this is a look-up

        if isinstance(self._url, str):
            self._url = httpx.URL(self._url)  # parsed once, not once a call
        connect = min(CONNECT_SECONDS, self.timeout or CONNECT_SECONDS)
        # built by hand: client.post() merges settings that this client does not have (60 us)
        request = httpx.Request(
            "POST",
            self._url,
            headers={**self._headers, "content-length": str(len(body))},
            content=body if len(body) <= CHUNK else _chunks(body),
            extensions={"timeout": {"connect": connect, "pool": connect}},
        )
        failure: LMError
        try:
            return await client.send(request)
        except Exception as error:
            found = transport_error(error, self.base_url)
            failure = LMError(self._scrub(str(found)), type=found.type)
        # outside of the except block: the failure must not carry the request with its headers
        raise failure

    def _read(self, answer: httpx.Response) -> Response:
        if answer.status_code >= 300:
            raise self._refused(answer)
        try:
            return decode_completion(answer.content)
        except LMError as error:
            text = f"{self.name} at {self.base_url}: {self._scrub(str(error))}"
            failure = LMError(text, type=error.type, status=error.status)
        raise failure

    def _refused(self, answer: httpx.Response) -> LMError:
        """What an HTTP status other than success means, and what to do."""
        status = answer.status_code
        said = self._scrub(error_text(answer.content))
        says = f" ({said})" if said else ""
        where = f"{self.name} at {self.base_url}"
        if status == 401 and not self._key:
            text = f"{where} asks for an API key (401): set the environment variable {self._preset.key_variable}{says}"
        elif status == 401:
            text = f"{where} does not accept the key in {self._key_source} (401): check it{says}"
        elif status == 404:
            text = (
                f"no model {self.model!r} at {self.base_url} (404): check the model's name, and that "
                f"the address is right (it mostly ends in /v1){says}"
            )
        elif status < 400:
            target = self._scrub(shown(answer.headers.get("location", ""))) or "elsewhere"
            text = f"{where} redirects ({status}) to {target}: give that address as base_url"
        else:
            text = f"{where} answered {status} {answer.reason_phrase}".rstrip()
            text += f": {said}" if said else ""
        spent = status == 402 or (status == 429 and QUOTA.search(answer.content) is not None)
        return LMError(
            text,
            type="quota" if spent else "http",
            status=status,
            retry_after=_retry_after(answer.headers),
        )

    def _make_headers(self, user: str | None) -> Iterator[tuple[str, str]]:
        yield "content-type", "application/json"
        yield "accept", "application/json"
        yield "accept-encoding", "gzip, deflate"
        yield "user-agent", "rlm_notebook"
        if self._key:
            if not re.fullmatch(r"[\x21-\x7e]+", self._key):
                raise ModelError(
                    f"the key in {self._key_source} has blanks or characters that no key has: "
                    "copy it again"
                )
            yield "authorization", f"Bearer {self._key}"
        elif user:
            yield "authorization", f"Basic {base64.b64encode(user.encode()).decode()}"

    def _scrub(self, text: str) -> str:
        """The text without secrets. The address stays: a made-up key may be a part of it."""
        return self.base_url.join(self._secrets.sub("[key]", p) for p in text.split(self.base_url))


def encode_body(model: str, messages: tuple[Message, ...]) -> bytes:
    """The request as JSON. Lone surrogates, which no JSON text can hold, become U+FFFD."""
    try:
        return msgspec.json.encode(_Body(model, messages))
    except UnicodeEncodeError:
        cleaned = tuple(Message(message.role, clean(message.content)) for message in messages)
        return msgspec.json.encode(_Body(clean(model), cleaned))


def _address(base_url: str) -> tuple[str, str | None]:
    """The address to show, and ``user:password`` where it holds them."""
    text = base_url.strip()
    parts = urlsplit(text)
    try:
        bad_port = parts.port == 0
    except ValueError:
        bad_port = True
    if parts.scheme not in ("http", "https") or not parts.hostname or bad_port:
        guess = text.rpartition("://")[2].rpartition("@")[2]
        raise ModelError(
            f"base_url {guess!r} is not a web address: "
            "write it with http:// or https://, for instance http://localhost:11434/v1"
        )
    user = parts.netloc.rpartition("@")[0]
    return shown(text).rstrip("/").removesuffix(PATH), unquote(user) if user else None


def _request_url(base_url: str) -> str:
    """The address of one call. A query (as Azure's ``?api-version=``) stays behind the path."""
    parts = urlsplit(base_url.strip())
    path = parts.path.rstrip("/").removesuffix(PATH) + PATH
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], path, parts.query, ""))


def _secrets(address: str, key: str, user: str | None) -> re.Pattern[str]:
    """Matches what must never be shown: key, password, and long values in the address's query.

    Long secrets are also found cut or half masked, as servers quote them; short ones (made-up
    keys, such as ``none``) only as a word of their own.
    """
    values = [value for _, value in parse_qsl(urlsplit(address.strip()).query) if len(value) >= 12]
    if user:
        values += [user, user.partition(":")[2], base64.b64encode(user.encode()).decode()]
    patterns = [
        re.escape(value[:6]) + r"[^\s\"',}<]*"
        if len(value) >= 12
        else rf"(?<!\w){re.escape(value)}(?!\w)"
        for value in (key, *values)
        if value
    ]
    return re.compile("|".join(patterns) or r"(?!)")


async def _chunks(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), CHUNK):
        yield body[start : start + CHUNK]


def _retry_after(headers: httpx.Headers) -> float | None:
    """Seconds, from ``retry-after-ms`` or from ``retry-after`` (seconds or an HTTP date)."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name, "").strip()
        try:
            seconds = float(value) * unit
        except ValueError:
            try:
                date = parsedate_to_datetime(value)
            except ValueError:
                continue  # absent, or neither
            seconds = max(0.0, date.timestamp() - time.time())
        if 0 <= seconds < float("inf"):
            return seconds
    return None

"""What all models behind a web address share: address, key, one request, and what went wrong.

There are no retries here: whoever retries finds what it needs in the error.
"""

from __future__ import annotations

import asyncio
import base64
import re
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

import msgspec

from rlm_notebook.errors import LMError, ModelError
from rlm_notebook.lm.chat import error_text
from rlm_notebook.lm.keys import expanded, find_key, find_variable
from rlm_notebook.lm.presets import Preset
from rlm_notebook.lm.protocol import Message, OnText, Request, Response
from rlm_notebook.lm.provider_settings import ProviderSettings
from rlm_notebook.lm.transport import CONNECT_SECONDS, Clients, shown, transport_error
from rlm_notebook.trace.jsonl import clean

if TYPE_CHECKING:
    import httpx

TIMEOUT = 300.0
"""Seconds for one call, where nothing else is said."""
QUOTA = re.compile(
    rb"insufficient_quota|exceeded your current quota|billing_hard_limit|credit balance is too low"
)
"""In the body of a refusal that no waiting mends."""
NO_STREAM = re.compile(rb"\bstream(?:ing|_options)?\b")
"""In the body of a 400 of a server that does not stream."""
CHUNK = 256 * 1024
"""Bytes sent in one piece; aiohttp warns of bodies over 1 MB that would hold the loop up."""

_clients = Clients()


class StreamReader(Protocol):
    """Puts one streamed answer together."""

    def take(self, data: str) -> str:
        """Take the data of one event in; return the text that it adds."""

    def response(self) -> Response:
        """The whole answer, once the stream has ended.

        Raises
        ------
        LMError
            ``disconnected``: it was cut.
        """


class HTTPModel(ABC):
    """A model behind a web address.

    Parameters
    ----------
    model
        The model's name as the server knows it.
    base_url
        The server's address up to and with ``/v1``; default: the settings, the preset's variable
        (``OPENAI_BASE_URL``), or the preset's address.
    api_key
        Default: the preset's variable (``OPENAI_API_KEY``) in the environment, in a ``.env`` file
        or in the keyring. Only presets at their own address cannot do without one.
    timeout
        Seconds for one request, connecting included; None: no limit.
    client
        Builds an HTTP client of its own for this model; default: the one of the loop, which all
        models share.
    preset
        The provider: see :data:`rlm_notebook.lm.presets.PRESETS`.
    settings
        Headers, sampling and the like.

    Raises
    ------
    ModelError
        The key is missing, or the address or the key cannot be right.
    """

    path: str
    """Of a call, behind the address."""

    def __init__(
        self,
        model: str,
        *,
        preset: Preset,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float | None = TIMEOUT,
        client: Callable[[], httpx.AsyncClient] | None = None,
        settings: ProviderSettings | None = None,
    ) -> None:
        if not model.strip():
            raise ModelError(
                f"the model name is empty: write {preset.provider}/NAME, for instance "
                f"{preset.provider}/{preset.example}"
            )
        self.settings = settings = settings or ProviderSettings()
        address = base_url or settings.base_url or find_variable(preset.address_variable)
        address = self.address(address or preset.address)
        self._preset = preset
        self.model = model.strip()
        self.base_url, user = _address(address, self.path)
        """The server's address, without user, password and query."""
        self.timeout = settings.timeout or timeout
        self._key_variable = settings.key_variable or preset.key_variable
        self._key_source = "api_key" if api_key else self._key_variable
        self.at_home = urlsplit(self.base_url).hostname == urlsplit(preset.address).hostname
        """Whether it is the provider itself, not another server that speaks the same."""
        self._key = (api_key or find_key(self._key_variable)).strip()
        if preset.needs_key and self.at_home and not self._key and not user:
            raise ModelError(
                f"{self.name} needs an API key: set the environment variable "
                f"{self._key_variable} (or put it into a .env file or the keyring), "
                "or give the base_url of a server that needs none"
            )
        if self._key and not re.fullmatch(r"[\x21-\x7e]+", self._key):
            raise ModelError(
                f"the key in {self._key_source} has blanks or characters that no key has: "
                "copy it again"
            )
        own = self._own_headers()
        self._secrets = _secrets(address, self._key, user, own)
        self._url: httpx.URL | str = _request_url(address, self.path)
        self._headers = {
            "content-type": "application/json",
            "accept": "application/json",
            "accept-encoding": "gzip, deflate",
            "user-agent": "rlm_notebook",
            **self.key_headers(self._key, user),
            **own,
        }
        self._clients = _clients if client is None else Clients(client)
        self.can_stream = settings.stream
        """False once the server has refused to stream."""

    @property
    def name(self) -> str:
        """``provider/model``."""
        return f"{self._preset.provider}/{self.model}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r}, base_url={self.base_url!r})"

    def address(self, given: str) -> str:
        """The address up to and with ``/v1``."""
        return given

    @abstractmethod
    def key_headers(self, key: str, user: str | None) -> dict[str, str]:
        """The headers that carry the key, or user and password."""

    @abstractmethod
    def body(self, messages: tuple[Message, ...], *, stream: bool) -> Any:
        """What is sent, as a value for msgspec."""

    @abstractmethod
    def decode(self, body: bytes) -> Response:
        """Read the body of a successful answer; raises LMError without the server's name."""

    @abstractmethod
    def reader(self) -> StreamReader:
        """A reader for one streamed answer."""

    async def complete(self, request: Request) -> Response:
        """Answer one request.

        ``text`` is None only if the server sent no content at all. A refusal is the model's
        answer in words, sent in another field: it becomes the text, with the finish reason
        ``refusal``, so that paid words are not lost. The answer's finish reason is otherwise as
        the server gives it; ``length`` means: cut at the limit of output tokens.

        Raises
        ------
        LMError
            ``connect``, ``disconnected``, ``timeout``, ``protocol``, ``http`` or ``quota``. The
            message is one line and holds no key.
        """
        return await self._in_time(self._complete(request))

    async def stream(self, request: Request, on_text: OnText) -> Response:
        """Answer one request, and hand over its text as it comes.

        Parameters
        ----------
        on_text
            Called with each further piece of the text.

        Raises
        ------
        LMError
            As :meth:`complete`; also ``disconnected`` for a stream that was cut, and
            ``no_stream`` for a server that does not stream: asked again, it is not streamed.
        """
        if not self.can_stream:
            return await self.complete(request)
        return await self._in_time(self._stream(request, on_text))

    async def close(self) -> None:
        """Release connections; the shared client closes with the last model that uses it."""
        await self._clients.release(self)

    async def _in_time(self, work: Coroutine[Any, Any, Response]) -> Response:
        try:
            async with asyncio.timeout(self.timeout):
                return await work
        except TimeoutError:
            raise LMError(
                f"no answer from {self.name} at {self.base_url} within {self.timeout:g} s: "
                "give it more time with call_timeout, or a shorter prompt",
                type="timeout",
            ) from None

    async def _complete(self, request: Request) -> Response:
        answer = await self._send(self._encode(request, stream=False))
        try:
            return await self._whole(answer)
        finally:
            await answer.aclose()

    async def _stream(self, request: Request, on_text: OnText) -> Response:
        answer = await self._send(self._encode(request, stream=True))
        try:
            kind = answer.headers.get("content-type", "")
            if answer.status_code < 300 and kind.startswith("text/event-stream"):
                return await self._streamed(answer, on_text)
            return await self._whole(answer, streamed=True)  # it may ignore "stream"
        finally:
            await answer.aclose()

    def _encode(self, request: Request, *, stream: bool) -> bytes:
        """The request as JSON. Lone surrogates, which no JSON text can hold, become U+FFFD."""
        try:
            return msgspec.json.encode(self.body(request.messages, stream=stream))
        except UnicodeEncodeError:
            cleaned = tuple(Message(m.role, clean(m.content)) for m in request.messages)
            return msgspec.json.encode(self.body(cleaned, stream=stream))

    async def _send(self, body: bytes) -> httpx.Response:
        """The answer's head; its body is still to be read."""
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
            return await client.send(request, stream=True)
        except Exception as error:
            failure = self._broken(error)
        # outside of the except block: the failure must not carry the request with its headers
        raise failure

    async def _whole(self, answer: httpx.Response, *, streamed: bool = False) -> Response:
        failure: LMError
        try:
            await answer.aread()
            if answer.status_code < 300:
                return self.decode(answer.content)
            failure = self._refused(answer, streamed)
        except LMError as error:
            failure = self._blamed(error)
        except Exception as error:
            failure = self._broken(error)
        raise failure

    async def _streamed(self, answer: httpx.Response, on_text: OnText) -> Response:
        from httpx_sse import EventSource

        reader = self.reader()
        failure: LMError
        try:
            async with aclosing(EventSource(answer).aiter_sse()) as events:
                async for event in events:
                    if event.data == "[DONE]":
                        break
                    text = reader.take(event.data)
                    if text:
                        on_text(text)
            return reader.response()
        except LMError as error:
            failure = self._blamed(error)
        except Exception as error:
            failure = self._broken(error)
        raise failure

    def _broken(self, error: Exception) -> LMError:
        found = transport_error(error, self.base_url)
        return LMError(self._scrub(str(found)), type=found.type)

    def _blamed(self, error: LMError) -> LMError:
        text = f"{self.name} at {self.base_url}: {self._scrub(str(error))}"
        return LMError(text, type=error.type, status=error.status)

    def _refused(self, answer: httpx.Response, streamed: bool) -> LMError:
        """What an HTTP status other than success means, and what to do."""
        status = answer.status_code
        said = self._scrub(error_text(answer.content))
        says = f" ({said})" if said else ""
        where = f"{self.name} at {self.base_url}"
        if status == 401 and not self._key:
            text = f"{where} asks for an API key (401): set the environment variable {self._key_variable}{says}"
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
        return LMError(
            text,
            type=self._kind(answer, streamed),
            status=status,
            retry_after=_retry_after(answer.headers),
        )

    def _kind(self, answer: httpx.Response, streamed: bool) -> str:
        status = answer.status_code
        if status == 402 or (status in (400, 429) and QUOTA.search(answer.content)):
            return "quota"
        if streamed and status in (400, 422) and NO_STREAM.search(answer.content):
            self.can_stream = False
            return "no_stream"
        return "http"

    def _own_headers(self) -> dict[str, str]:
        """The headers of the settings, with keys in place of ``$NAME``."""
        found = {}
        for name, value in self.settings.headers.items():
            text = expanded(value)
            if text is None:
                raise ModelError(
                    f"header {name} of {self.name}: {value} is not there: set it in the "
                    "environment, a .env file or the keyring"
                )
            if not re.fullmatch(r"[!#$%&'*+.^_`|~\w-]+", name) or re.search(r"[\r\n\0]", text):
                raise ModelError(f"header {name!r} of {self.name} is no HTTP header: check it")
            found[name.lower()] = text
        return found

    def _scrub(self, text: str) -> str:
        """The text without secrets. The address stays: a made-up key may be a part of it."""
        return self.base_url.join(self._secrets.sub("[key]", p) for p in text.split(self.base_url))


def _address(base_url: str, path: str) -> tuple[str, str | None]:
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
    return shown(text).rstrip("/").removesuffix(path), unquote(user) if user else None


def _request_url(base_url: str, path: str) -> str:
    """The address of one call. A query (as Azure's ``?api-version=``) stays behind the path."""
    parts = urlsplit(base_url.strip())
    whole = parts.path.rstrip("/").removesuffix(path) + path
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], whole, parts.query, ""))


def _secrets(address: str, key: str, user: str | None, headers: dict[str, str]) -> re.Pattern[str]:
    """Matches what must never be shown: key, password, long values in the query and in headers.

    Long secrets are also found cut or half masked, as servers quote them; short ones (made-up
    keys, such as ``none``) only as a word of their own.
    """
    values = [value for _, value in parse_qsl(urlsplit(address.strip()).query) if len(value) >= 12]
    values += [value for value in headers.values() if len(value) >= 12]
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

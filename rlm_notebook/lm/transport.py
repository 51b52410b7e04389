"""The HTTP client of a loop: one for all models, no queue of its own, failures in plain words.

httpx over aiohttp's connections: measured 265 us a call where httpx's own transport takes 1,200
(200 calls, 16 in flight, a local server without delay, two cores).
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit, urlunsplit

from rlm_notebook.errors import LMError

if TYPE_CHECKING:  # 200 ms of imports, paid when the first client is built
    import ssl

    import httpx
    from aiohttp import ClientSession

CONNECT_SECONDS = 15.0
"""Limit for looking up, connecting and the TLS handshake of one connection."""
KEEP_ALIVE_SECONDS = 4.0
"""How long an idle connection is kept. Shorter than the 5 s after which uvicorn (vLLM and many
others) closes it from its side: a request sent at that very moment would be lost."""


class Clients:
    """One HTTP client for each event loop, closed with the last of its users.

    A client's kept-alive connections belong to the loop that opened them, so a client is never
    used on another loop.
    """

    def __init__(self, make: Callable[[], httpx.AsyncClient] | None = None) -> None:
        self._make = make or make_client
        self._clients: dict[asyncio.AbstractEventLoop, httpx.AsyncClient] = {}
        self._users: dict[asyncio.AbstractEventLoop, set[int]] = {}

    def get(self, user: object) -> httpx.AsyncClient:
        """The client of the running loop; it stays open until ``user`` releases it."""
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            self._forget_closed_loops()
            client = self._clients[loop] = self._make()
            self._users[loop] = set()
        self._users[loop].add(id(user))
        return client

    async def release(self, user: object) -> None:
        """``user`` is done with the running loop's client."""
        loop = asyncio.get_running_loop()
        users = self._users.get(loop, set())
        users.discard(id(user))
        if not users and loop in self._clients:
            del self._users[loop]
            await self._clients.pop(loop).aclose()

    def _forget_closed_loops(self) -> None:
        for loop in list(self._clients):  # a copy: other threads have loops of their own
            if loop.is_closed():
                self._clients.pop(loop, None)
                self._users.pop(loop, None)


def make_client() -> httpx.AsyncClient:
    """Build a client whose connections are never fewer than its callers want.

    Limits on requests in flight are the engine's (they show as queue wait); a limit down here
    would queue invisibly. Call it on the loop that will use it.
    """
    import httpx

    # trust_env=False: httpx would build a transport for every proxy in the environment at once,
    # and a socks proxy there fails the construction
    return httpx.AsyncClient(transport=_routes(), trust_env=False, timeout=None)


def _routes() -> httpx.AsyncBaseTransport:
    import httpx

    class Routes(httpx.AsyncBaseTransport):
        """Direct connections to loopback, the environment's proxy for what it covers."""

        def __init__(self) -> None:
            self._tls: ssl.SSLContext | None = None
            self._transports: dict[str | None, httpx.AsyncBaseTransport] = {}
            self._routes: dict[tuple[str, str], httpx.AsyncBaseTransport] = {}

        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            key = (request.url.scheme, request.url.host)
            transport = self._routes.get(key)
            if transport is None:
                proxy = proxy_of(*key)
                if proxy not in self._transports:
                    if self._tls is None:
                        self._tls = httpx.create_ssl_context(trust_env=True)
                    self._transports[proxy] = _connections(proxy, self._tls)
                transport = self._routes[key] = self._transports[proxy]
            return await transport.handle_async_request(request)

        async def aclose(self) -> None:
            for transport in self._transports.values():
                await transport.aclose()

    return Routes()


def _connections(proxy: str | None, tls: ssl.SSLContext) -> httpx.AsyncBaseTransport:
    import aiohttp
    import httpx
    from httpx_aiohttp import AiohttpTransport

    if proxy is not None and not proxy.startswith(("http://", "https://")):
        try:
            limits = httpx.Limits(keepalive_expiry=KEEP_ALIVE_SECONDS)
            return httpx.AsyncHTTPTransport(proxy=proxy, verify=tls, limits=limits)
        except (ImportError, ValueError) as error:
            raise httpx.ProxyError(str(error)) from None

    def session() -> ClientSession:
        # limit=0 is none at all; httpx-aiohttp turns httpx's "no limit" into aiohttp's default
        # of 100 connections, where the 101st request would wait unseen
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS, ssl=tls)
        return aiohttp.ClientSession(
            connector=connector, cookie_jar=aiohttp.DummyCookieJar(), proxy=proxy
        )

    return AiohttpTransport(verify=tls, client=session)


def proxy_of(scheme: str, host: str) -> str | None:
    """The proxy for a host by the environment (``HTTPS_PROXY``, ``ALL_PROXY``...) or the system.

    None for loopback, and for what ``NO_PROXY`` names.
    """
    from urllib.request import getproxies, proxy_bypass

    if is_loopback(host):
        return None
    proxies = getproxies()
    proxy = proxies.get(scheme) or proxies.get("all")
    if not proxy or proxy_bypass(host):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine."""
    host = host.strip("[]").lower().rstrip(".")
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def shown(url: str) -> str:
    """The address as it may be shown: without user, password and query."""
    parts = urlsplit(url)
    return urlunsplit(
        SplitResult(parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "")
    )


def transport_error(error: BaseException, url: str) -> LMError:
    """Say in one line what went wrong between here and the server, and what to do.

    Types: ``connect`` (the request was not sent), ``tls``, ``timeout``, ``disconnected`` (the connection
    broke, the server may have worked on the request), ``protocol`` (not HTTP).
    """
    import aiohttp
    import httpx

    server = shown(url)
    local = is_loopback(urlsplit(url).hostname or "")
    # httpx-aiohttp reports a server that hangs up as a connect timeout: its cause is right
    cause = error.__cause__ if isinstance(error.__cause__, aiohttp.ClientError) else error
    reason = _reason(cause)
    if isinstance(cause, aiohttp.ClientProxyConnectionError | aiohttp.ClientHttpProxyError) or (
        isinstance(error, httpx.ProxyError)
    ):
        host = urlsplit(url).hostname
        mend = f"check HTTPS_PROXY and ALL_PROXY, or add {host} to NO_PROXY"
        return LMError(f"no way to {server} through the proxy: {mend} ({reason})", type="connect")
    if isinstance(cause, aiohttp.ClientSSLError | aiohttp.ClientConnectorCertificateError):
        mend = "check the address (http or https?) and the certificate; SSL_CERT_FILE adds one"
        return LMError(f"no secure connection to {server}: {mend} ({reason})", type="tls")
    if isinstance(cause, aiohttp.ClientConnectorDNSError):
        host = urlsplit(url).hostname
        return LMError(
            f"the host {host} of {server} is not known: check base_url and the network ({reason})",
            type="connect",
        )
    if isinstance(cause, aiohttp.ClientConnectorError | httpx.ConnectError):
        mend = "is it running?" if local else "check base_url, the network and the proxy"
        return LMError(f"no server answers at {server}: {mend} ({reason})", type="connect")
    if isinstance(cause, aiohttp.ServerTimeoutError | httpx.TimeoutException):
        return LMError(
            f"no connection to {server} within {CONNECT_SECONDS:g} s: check base_url, the network "
            "and the proxy",
            type="timeout",
        )
    if isinstance(cause, aiohttp.ClientResponseError | aiohttp.InvalidURL | httpx.ProtocolError):
        return LMError(
            f"{server} did not answer in HTTP: check base_url ({reason})", type="protocol"
        )
    return LMError(
        f"{server} closed the connection before the answer was complete: "
        f"see the server's log ({reason})",
        type="disconnected",
    )


def _reason(error: BaseException) -> str:
    """The cause in a few words."""
    inner = getattr(error, "os_error", None) or getattr(error, "_os_error", None) or error
    if isinstance(inner, ConnectionRefusedError):
        return "connection refused"
    if isinstance(inner, ConnectionResetError):
        return "connection reset"
    text = getattr(inner, "strerror", None) or getattr(inner, "message", None) or str(inner)
    return " ".join(str(text).split()).partition(": <")[0][:200] or type(inner).__name__

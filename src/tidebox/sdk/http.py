"""Connections to servers and to sandboxes: HTTP requests, with the errors of Tidebox, and the sockets that are open."""

from __future__ import annotations

import contextlib
import socket
import ssl
import weakref
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import httpcore2  # noqa: F401 # httpx2 loads it with the first request, which would hold up somebody's event loop
import httpx2
import msgspec
from websockets.asyncio.client import ClientConnection

import tidebox
from tidebox.errors import InvalidRequest, TideboxError
from tidebox.model.limits import MIB
from tidebox.model.principal import ClientSource
from tidebox.sdk.errors import ClientClosed, ConnectionLost, ServerProtocolError, ServerUnreachable
from tidebox.sdk.failures import from_answer
from tidebox.sdk.target import is_local, source_headers

USER_AGENT = f"tidebox/{tidebox.__version__}"
# Well before the server closes a connection that nobody uses: a request must not meet its end.
_IDLE_SECONDS = 20.0
# A program may be silent for as long as it runs, so it is the kernel that looks whether the other side is still there;
# not every system knows all of these.
KEEP_ALIVE = tuple(
    (level, getattr(socket, name), value)
    for level, name, value in (
        (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
        (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 20),
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 10),
        (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
        (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", 50_000),
    )
    if hasattr(socket, name)
)
# The longest answer that is kept in memory: a program may print 64 MiB, and as JSON that may be six times as much.
MAX_ANSWER_BYTES = 512 * MIB
_MAX_ERROR_BYTES = MIB
_NOT_CONNECTED = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)


class Http:
    """The connections of one client, those for requests kept for the next one."""

    def __init__(self, connect_timeout: float, source: ClientSource = "SDK") -> None:
        self.connect_timeout = connect_timeout
        self.headers = source_headers(source)
        """What every request says of this client."""
        self._clients: dict[tuple[str, bool], httpx2.AsyncClient] = {}
        self._sockets: weakref.WeakSet[ClientConnection] = weakref.WeakSet()
        self._closed = False

    async def ask(
        self,
        method: str,
        url: str,
        *,
        bearer: str | None,
        content: Mapping[str, Any] | None = None,
        params: Mapping[str, str | list[str]] | None = None,
        headers: Mapping[str, str] | None = None,
        seconds: float | None = None,
        limit: int = MAX_ANSWER_BYTES,
    ) -> bytes:
        """The body of the answer to a JSON request, of which every step may take so many seconds."""
        body = None
        if content is not None:
            try:
                body = msgspec.json.encode(content)
            except (TypeError, UnicodeEncodeError) as error:
                raise InvalidRequest(f"not something that can be sent: {error}") from None
            headers = {"Content-Type": "application/json", **(headers or {})}
        exchange = self.exchange(method, url, bearer=bearer, body=body, params=params, headers=headers, seconds=seconds)
        async with exchange as response:
            return await read_whole(response, limit)

    @contextlib.asynccontextmanager
    async def exchange(
        self,
        method: str,
        url: str,
        *,
        bearer: str | None,
        body: bytes | AsyncIterator[bytes] | None = None,
        params: Mapping[str, str | list[str]] | None = None,
        headers: Mapping[str, str] | None = None,
        seconds: float | None = None,
    ) -> AsyncIterator[httpx2.Response]:
        """One request and its answer, whose body is read within the context; an answer of another kind is raised."""
        credential = {} if bearer is None else {"Authorization": f"Bearer {bearer}"}
        try:
            request = self._client(url).stream(
                method,
                url,
                content=body,
                params=params,
                headers={**credential, **(headers or {})},
                timeout=httpx2.Timeout(seconds, connect=self.connect_timeout),
            )
            async with request as response:
                if response.is_error or response.is_redirect:
                    raise from_answer(response.status_code, response.headers, await _read_error(response))
                yield response
        except httpx2.TransportError as error:
            raise _failure(url, error) from error
        except (httpx2.InvalidURL, UnicodeEncodeError) as error:
            raise InvalidRequest(f"not something that can be asked for: {error}") from None

    def _client(self, url: str) -> httpx2.AsyncClient:
        self.check_open()
        parts = urlsplit(url)
        key = parts.scheme, is_local(parts.hostname or "")
        client = self._clients.get(key)
        if client is None:
            client = self._clients[key] = _make_client(*key, self.headers)
        return client

    def check_open(self) -> None:
        """Raise if the client was closed."""
        if self._closed:
            raise ClientClosed("the client was closed")

    def look_after(self, connection: ClientConnection) -> None:
        """End this one too, if nobody else has done so."""
        self._sockets.add(connection)

    async def close(self) -> None:
        """End the connections; what is under way on them fails."""
        self._closed = True
        for connection in list(self._sockets):
            connection.transport.abort()
            await connection.wait_closed()
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.aclose()


async def read_whole(response: httpx2.Response, limit: int) -> bytes:
    """The body of an answer that may have so many bytes."""
    body = bytearray()
    async for piece in response.aiter_raw():
        body += piece
        if len(body) > limit:
            raise ServerProtocolError(f"the server's answer has more than {limit} bytes", limit=limit)
    return bytes(body)


async def _read_error(response: httpx2.Response) -> bytes:
    try:
        return await read_whole(response, _MAX_ERROR_BYTES)
    except ServerProtocolError:
        return b""  # then the status has to do


def _make_client(scheme: str, local: bool, headers: Mapping[str, str]) -> httpx2.AsyncClient:
    # Reading the certificates takes longer than everything else, and plain HTTP has no use for them.
    verify: ssl.SSLContext | bool = ssl.create_default_context() if scheme == "https" else False
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=8, keepalive_expiry=_IDLE_SECONDS)
    direct = httpx2.AsyncHTTPTransport(verify=verify, limits=limits, socket_options=KEEP_ALIVE)
    return httpx2.AsyncClient(
        verify=verify,
        limits=limits,
        # Where the environment names a proxy, that has the last word.
        mounts={"all://": direct},
        trust_env=not local,
        headers={"User-Agent": USER_AGENT, "Accept-Encoding": "identity", **headers},
    )


def _failure(url: str, error: httpx2.TransportError) -> TideboxError:
    where = "{0.scheme}://{0.netloc}".format(urlsplit(url))
    reason = str(error) or type(error).__name__
    if isinstance(error, httpx2.UnsupportedProtocol):
        return InvalidRequest(f"not an address: {where}", field="url")
    if isinstance(error, _NOT_CONNECTED):
        return ServerUnreachable(f"no connection to {where}: {reason}")
    return ConnectionLost(f"the connection to {where} broke: {reason}")

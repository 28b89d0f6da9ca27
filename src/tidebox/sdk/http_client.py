"""Connections to servers and to sandboxes: HTTP requests, with the errors of Tidebox, and the sockets that are open."""

from __future__ import annotations

import contextlib
import socket
import ssl
import weakref
from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol
from urllib.parse import urlsplit

import httpcore2  # noqa: F401 # httpx2 loads it with the first request, which would hold up somebody's event loop
import httpx2
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import InvalidStatus

import tidebox
from tidebox.errors import InvalidRequest, TideboxError
from tidebox.model.limits import MIB
from tidebox.model.principal import CLIENT_HEADER, ClientSource, clean_client
from tidebox.protocols.codec import encode
from tidebox.protocols.dataplane.frames import MAX_FRAME_BYTES
from tidebox.sdk.error_decoding import from_answer
from tidebox.sdk.errors import ClientClosed, ConnectionLost, ServerProtocolError, ServerUnreachable
from tidebox.sdk.server_target import ServerTarget, is_local, source_headers
from tidebox.sdk.transport import OPENING_ERRORS, Connect, opening_error

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
_CLOSE_SECONDS = 2.0
# Frames that come before they are read; a sender that is further ahead of its reader has to wait.
_UNREAD_FRAMES = 16
_NOT_CONNECTED = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)


class Abortable(Protocol):
    """A transport that can be closed without a closing handshake."""

    def abort(self) -> None: ...


class WebSocketConnection(Protocol):
    """A WebSocket connection, as far as it is used here."""

    @property
    def transport(self) -> Abortable: ...

    async def send(self, message: bytes, *, text: bool | None = None) -> None: ...

    async def recv(self, decode: bool | None = None) -> Any: ...

    async def ping(self) -> Any: ...

    async def close(self) -> None: ...


class HttpClient:
    """The connections of one client, those for requests kept for the next one."""

    def __init__(
        self,
        connect_timeout: float = 10.0,
        source: ClientSource | None = "SDK",
        *,
        client: str | None = None,
        upgrade_timeout: float | None = None,
        tls: ssl.SSLContext | None = None,
        proxies: bool = True,
        max_frame_bytes: int = MAX_FRAME_BYTES,
    ) -> None:
        """``tls`` replaces the system's certificates; without ``proxies`` those of the environment are not used.

        ``client`` is the name of the program that this one works for, for the server's audit log. Of a socket's frames
        that nobody has read yet some are kept, none larger than ``max_frame_bytes``.
        """
        self._max_frame_bytes = max_frame_bytes
        self.connect_timeout = connect_timeout
        self.upgrade_timeout = connect_timeout if upgrade_timeout is None else upgrade_timeout
        """Until a socket is open."""
        self.headers = {} if source is None else source_headers(source)
        """Headers of every request, which identify this client."""
        if client is not None and (name := clean_client(client)) is not None:
            self.headers[CLIENT_HEADER] = name
        self.tls = tls
        self._proxies = proxies
        self._clients: dict[tuple[str, bool], httpx2.AsyncClient] = {}
        self._sockets: weakref.WeakSet[ClientConnection] = weakref.WeakSet()
        self._closed = False

    async def ask(
        self,
        method: str,
        url: str,
        *,
        bearer: str | None,
        content: Any = None,
        params: Mapping[str, str | list[str]] | None = None,
        headers: Mapping[str, str] | None = None,
        seconds: float | None = None,
        limit: int = MAX_ANSWER_BYTES,
    ) -> bytes:
        """The body of the answer to a JSON request, of which every step may take so many seconds."""
        body = None
        if content is not None:
            body = encode(content)
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
        key = parts.scheme, self.is_direct(parts.hostname or "")
        client = self._clients.get(key)
        if client is None:
            client = self._clients[key] = _make_client(*key, self.headers, self.tls)
        return client

    def is_direct(self, host: str) -> bool:
        """Whether no proxy stands between us and a host."""
        return not self._proxies or is_local(host)

    def check_open(self) -> None:
        """Raise if the client was closed."""
        if self._closed:
            raise ClientClosed("the client was closed")

    async def dial(self, url: str, token: str | None, headers: Mapping[str, str] | None = None) -> WebSocketConnection:
        """A WebSocket connection, made with a token or a key; raises if that is not good."""
        self.check_open()
        credential = {} if token is None else {"Authorization": f"Bearer {token}"}
        target = ServerTarget(url, token, self.is_direct(urlsplit(url).hostname or ""))
        try:
            connection = await Connect(
                url,
                additional_headers={**self.headers, **credential, **(headers or {})},
                user_agent_header=USER_AGENT,
                compression=None,
                proxy=None if target.local else True,
                ssl=(self.tls or True) if url.startswith("wss:") else None,
                open_timeout=self.upgrade_timeout,
                # Answers to pings are not seen while frames wait to be read; the kernel looks after the connection.
                ping_interval=None,
                close_timeout=_CLOSE_SECONDS,
                max_size=self._max_frame_bytes,
                max_queue=_UNREAD_FRAMES,
            )
        except InvalidStatus as error:
            response = error.response
            raise from_answer(response.status_code, response.headers, bytes(response.body or b"")) from error
        except OPENING_ERRORS as error:
            raise opening_error(target, error) from error
        self._sockets.add(connection)
        sock = connection.transport.get_extra_info("socket")
        with contextlib.suppress(OSError):  # of one that is lost already; the receiving side is told
            for option in KEEP_ALIVE:
                sock.setsockopt(*option)
        return connection

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


def _make_client(
    scheme: str, direct: bool, headers: Mapping[str, str], tls: ssl.SSLContext | None
) -> httpx2.AsyncClient:
    # Reading the certificates takes longer than everything else, and plain HTTP has no use for them.
    verify: ssl.SSLContext | bool = (tls or ssl.create_default_context()) if scheme == "https" else False
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=32, keepalive_expiry=_IDLE_SECONDS)
    transport = httpx2.AsyncHTTPTransport(verify=verify, limits=limits, socket_options=KEEP_ALIVE)
    return httpx2.AsyncClient(
        verify=verify,
        limits=limits,
        # Where the environment names a proxy, that has the last word.
        mounts={"all://": transport},
        trust_env=not direct,
        headers={"User-Agent": USER_AGENT, "Accept-Encoding": "identity", **headers},
    )


def timed_out(error: BaseException) -> bool:
    """Whether a connection was given up because nothing came in time."""
    return isinstance(error.__cause__, httpx2.TimeoutException)


def _failure(url: str, error: httpx2.TransportError) -> TideboxError:
    where = "{0.scheme}://{0.netloc}".format(urlsplit(url))
    reason = str(error) or type(error).__name__
    if isinstance(error, httpx2.UnsupportedProtocol):
        return InvalidRequest(f"not an address: {where}", field="url")
    if isinstance(error, _NOT_CONNECTED):
        return ServerUnreachable(f"no connection to {where}: {reason}")
    return ConnectionLost(f"the connection to {where} broke: {reason}")

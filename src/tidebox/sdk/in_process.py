"""A server in this process, reached without a socket: requests go to its ASGI app, as one that travels would.

The server treats these requests as any others: they carry a credential, and the address of the client that they are
made for.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import unquote, urlencode, urlsplit

import httpx2
from websockets.exceptions import ConnectionClosedError, ConnectionClosedOK
from websockets.frames import Close, CloseCode

from tidebox.model.principal import ClientSource
from tidebox.sdk.error_decoding import from_answer
from tidebox.sdk.errors import ConnectionLost
from tidebox.sdk.http_client import USER_AGENT, HttpClient, WebSocketConnection

Message = MutableMapping[str, Any]
App = Callable[
    [MutableMapping[str, Any], Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]

# Messages of either side that wait to be taken.
_WAITING = 64
_GONE = Close(CloseCode.ABNORMAL_CLOSURE, "")


class InProcessHttp(HttpClient):
    """Requests to ``app`` for what is below ``url``, its address as clients see it; others go over the network.

    ``address`` is that of the client that the requests are made for.
    """

    def __init__(
        self,
        app: App,
        url: str,
        *,
        address: str = "127.0.0.1",
        source: ClientSource = "SDK",
        client: str | None = None,
    ) -> None:
        super().__init__(source=source, client=client)
        self._app = app
        self._base = url.rstrip("/")
        self._address = address
        # The server answers a request to its end, also one whose client has left.
        self._serving: set[asyncio.Task[None]] = set()
        self._open: weakref.WeakSet[InProcessConnection] = weakref.WeakSet()

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
        """One request and its answer, as over the network, but that nothing of it is timed on the way."""
        scope = self._scope("http", url, bearer, headers or {}, params)
        if scope is None:
            travelling = super().exchange(
                method, url, bearer=bearer, body=body, params=params, headers=headers, seconds=seconds
            )
            async with travelling as response:
                yield response
            return
        self.check_open()
        scope["method"] = method
        if isinstance(body, bytes):
            scope["headers"].append((b"content-length", b"%d" % len(body)))
        answer = _InProcessResponse(body)
        self._start(scope, answer.receive, answer.send, answer.over)
        try:
            response = await answer.response()
            if response.is_error or response.is_redirect:
                raise from_answer(response.status_code, response.headers, await response.aread())
            yield response
        finally:
            answer.leave()

    async def dial(self, url: str, token: str | None, headers: Mapping[str, str] | None = None) -> WebSocketConnection:
        """A WebSocket connection, as over the network."""
        scope = self._scope("websocket", url.replace("ws", "http", 1), token, headers or {}, None)
        if scope is None:
            return await super().dial(url, token, headers)
        self.check_open()
        scope["scheme"] = scope["scheme"].replace("http", "ws")
        connection = InProcessConnection()
        self._open.add(connection)
        self._start(scope, connection.to_app, connection.from_app, connection.over)
        await connection.opened()
        return connection

    async def close(self) -> None:
        """End the connections; the server ends what it still does for them in its own time."""
        for connection in list(self._open):
            connection.abort()
        await super().close()

    def _scope(
        self,
        kind: str,
        url: str,
        bearer: str | None,
        headers: Mapping[str, str],
        params: Mapping[str, str | list[str]] | None,
    ) -> dict[str, Any] | None:
        """Make the ASGI scope of a request; None if its URL is not the server's."""
        if not url.startswith(self._base + "/"):
            return None
        base, parts = urlsplit(self._base), urlsplit(url)
        path = parts.path[len(base.path) :]
        query = "&".join(filter(None, (parts.query, urlencode(params or {}, doseq=True))))
        all_headers = {"Host": base.netloc, "User-Agent": USER_AGENT, **self.headers, **headers}
        if bearer is not None:
            all_headers["Authorization"] = f"Bearer {bearer}"
        return {
            "type": kind,
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "scheme": base.scheme,
            "path": unquote(path),
            "raw_path": path.encode("ascii", "backslashreplace"),
            "query_string": query.encode("ascii", "backslashreplace"),
            "root_path": "",
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in all_headers.items()],
            "client": (self._address, 0),
            "server": (base.hostname, base.port),
            "subprotocols": [],
            "extensions": {"websocket.http.response": {}},
        }

    def _start(
        self,
        scope: dict[str, Any],
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
        over: Callable[[], None],
    ) -> None:
        async def serve() -> None:
            try:
                await self._app(scope, receive, send)
            finally:
                over()

        task = asyncio.get_running_loop().create_task(serve(), name="in-process request")
        self._serving.add(task)
        task.add_done_callback(self._served)

    def _served(self, task: asyncio.Task[None]) -> None:
        self._serving.discard(task)
        if not task.cancelled():
            task.exception()  # the server has logged it


class _InProcessResponse(httpx2.AsyncByteStream):
    """The answer to one request, handed over piece by piece as it is read."""

    def __init__(self, body: bytes | AsyncIterator[bytes] | None) -> None:
        self._body = body
        self._sent_body = False
        self._started: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._taken = asyncio.Event()
        """Set when what was sent last was read, or nobody will read it."""
        self._taken.set()
        self._complete = False
        self._left = asyncio.Event()

    async def response(self) -> httpx2.Response:
        """The answer as soon as it begins."""
        start = await self._started
        return httpx2.Response(start["status"], headers=list(start.get("headers", ())), stream=self)

    def leave(self) -> None:
        """Read no more; the server is told that the client is gone."""
        self._left.set()
        self._taken.set()
        self._started.cancel()

    def over(self) -> None:
        """Note that the server is done with the request."""
        if not self._started.done():
            self._started.set_exception(ConnectionLost("the server gave no answer"))
        self._pieces.put_nowait(None)

    async def receive(self) -> Message:
        """Return the next ASGI event of the request."""
        if not self._sent_body:
            if self._body is None or isinstance(self._body, bytes):
                self._sent_body = True
                return {"type": "http.request", "body": self._body or b"", "more_body": False}
            piece = await anext(self._body, None)
            self._sent_body = piece is None
            return {"type": "http.request", "body": piece or b"", "more_body": piece is not None}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Take what the server answers; waits until it is read."""
        if self._left.is_set():
            return
        if message["type"] == "http.response.start":
            self._started.set_result(message)
        elif message["type"] == "http.response.body":
            self._complete = not message.get("more_body")
            if piece := message.get("body"):
                self._taken.clear()
                self._pieces.put_nowait(bytes(piece))
            if self._complete:
                self._pieces.put_nowait(None)
            else:
                await self._taken.wait()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (piece := await self._pieces.get()) is not None:
            self._taken.set()
            yield piece
        if not self._complete:
            raise ConnectionLost("the server broke off its answer")

    async def aclose(self) -> None:
        """Do nothing: the exchange disconnects by ``leave``."""


class InProcessConnection:
    """Both sides of a WebSocket connection: what a client calls, and what the server's app does."""

    def __init__(self) -> None:
        self._inward: asyncio.Queue[Message] = asyncio.Queue(_WAITING)
        self._outward: asyncio.Queue[bytes | Close] = asyncio.Queue(_WAITING)
        self._accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._refusal: Message = {}
        self._refusal_body = b""
        self._closed: Close | None = None
        self._left = asyncio.Event()
        self._ended = asyncio.Event()
        """Set when either side is done."""
        self._inward.put_nowait({"type": "websocket.connect"})

    # What a client calls

    @property
    def transport(self) -> InProcessConnection:
        """The transport that can be aborted: the connection itself."""
        return self

    async def opened(self) -> None:
        """Wait until the server accepts; raises what it refuses with."""
        try:
            await self._accepted
        except BaseException:
            self.abort()
            raise

    async def send(self, message: bytes, *, text: bool | None = None) -> None:
        """Send a text."""
        if self._closed is not None or self._left.is_set():
            raise self._closing(self._closed)
        await self._inward.put({"type": "websocket.receive", "text": message.decode()})

    async def recv(self, decode: bool | None = None) -> bytes:
        """The next text, as bytes."""
        if self._outward.empty():
            if self._closed is not None:
                raise self._closing(self._closed)
            if self._left.is_set():
                raise self._closing(None)
        item = await self._outward.get()
        if isinstance(item, Close):
            raise self._closing(item)
        return item

    async def ping(self) -> Awaitable[None]:
        """Return an awaitable that is done when the server has taken all that was sent."""
        if self._closed is not None or self._left.is_set():
            raise self._closing(self._closed)
        return asyncio.ensure_future(self._all_taken())

    async def _all_taken(self) -> None:
        taken = asyncio.ensure_future(self._inward.join())
        ended = asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait({taken, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not taken.done():
                raise self._closing(self._closed)
        finally:
            taken.cancel()
            ended.cancel()

    async def close(self) -> None:
        """Close the connection to the app."""
        self.abort()

    def abort(self) -> None:
        """Disconnect at once: the server is told when it receives next."""
        if not self._left.is_set():
            self._left.set()
            self._ended.set()
            # A server task that waits to send has room now; what it sends is not read.
            while not self._outward.empty():
                self._outward.get_nowait()
            self._outward.put_nowait(_GONE)

    def _closing(self, close: Close | None) -> ConnectionClosedOK | ConnectionClosedError:
        if close is not None and close.code in (CloseCode.NORMAL_CLOSURE, CloseCode.GOING_AWAY):
            return ConnectionClosedOK(close, None)
        return ConnectionClosedError(close, None)

    # What the server's app does

    async def to_app(self) -> Message:
        """The next event for the server."""
        if not self._inward.empty():
            self._inward.task_done()
            return self._inward.get_nowait()
        if self._left.is_set() or self._closed is not None:
            return {"type": "websocket.disconnect", "code": CloseCode.NORMAL_CLOSURE}
        taking = asyncio.ensure_future(self._inward.get())
        leaving = asyncio.ensure_future(self._left.wait())
        try:
            await asyncio.wait({taking, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if taking.done():
                self._inward.task_done()
                return taking.result()
            return {"type": "websocket.disconnect", "code": CloseCode.ABNORMAL_CLOSURE}
        finally:
            taking.cancel()
            leaving.cancel()

    async def from_app(self, message: Message) -> None:
        """Take what the server sends; waits while the client is behind with reading."""
        kind = message["type"]
        if self._left.is_set():
            if kind == "websocket.send":
                raise OSError("the client is gone")
            return
        if kind == "websocket.send":
            text = message.get("text")
            await self._outward.put(message["bytes"] if text is None else text.encode())
        elif kind == "websocket.accept":
            self._accepted.set_result(None)
        elif kind == "websocket.close":
            self._end(Close(message.get("code") or CloseCode.NORMAL_CLOSURE, message.get("reason") or ""))
        elif kind == "websocket.http.response.start":
            self._refusal = message
        elif kind == "websocket.http.response.body":
            self._refusal_body += message.get("body", b"")
            if not message.get("more_body"):
                self._refuse(self._refusal["status"], self._refusal["headers"], self._refusal_body)

    def over(self) -> None:
        """Note that the server is done with the connection."""
        if self._closed is None:
            self._end(_GONE)

    def _end(self, close: Close) -> None:
        if not self._accepted.done():
            self._refuse(403, (), b"")
        self._closed = close
        self._ended.set()
        # Read after what was sent before it; a reader that is far behind finds out by the flag.
        if not self._outward.full():
            self._outward.put_nowait(close)

    def _refuse(self, status: int, headers: Any, body: bytes) -> None:
        if not self._accepted.done():
            self._accepted.set_exception(from_answer(status, httpx2.Headers(list(headers)), body))

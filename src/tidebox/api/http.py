"""uvicorn's protocols with bounds: a head that is too long or too slow is refused, in the server's one envelope.

The request line and the headers are read before anybody is asked for a credential.
"""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.datastructures import Headers
from websockets.http11 import Response
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import StatusLike

from tidebox.api import problems
from tidebox.model.ids import new_id

MAX_HEAD_BYTES = 32 * 1024
MAX_HEADERS = 100
HEAD_SECONDS = 10.0
LAST_FRAMES_SECONDS = 0.05
LAST_WORDS_SECONDS = 1.0


class BoundedHttp(HttpToolsProtocol):
    """HTTP/1.1."""

    _head_bytes = 0
    _in_head = True
    _head_timer: asyncio.TimerHandle | None = None
    _refusal = problems.of_status(HTTPStatus.BAD_REQUEST, "this is not valid HTTP")

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # What the parser has of an unfinished head it keeps, however long that grows.
        if self._in_head and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(_TOO_LONG)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect_head()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_timer()
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > MAX_HEAD_BYTES or len(self.headers) > MAX_HEADERS:
            self._refusal = _TOO_LONG
            raise ValueError("the head is too long")  # ends the parser, which answers with the refusal
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(self._refusal)

    def _expect_head(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        self._stop_timer()
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._refuse, _TOO_SLOW)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, problem: problems.Problem) -> None:
        if self.transport.is_closing():
            return
        headers, content = problems.render(problem, new_id("req"))
        status = HTTPStatus(problem.status)
        lines = [b"HTTP/1.1 %d %s" % (status, status.phrase.encode())]
        lines += [b"%s: %s" % header for header in (*headers, (b"connection", b"close"))]
        self.transport.write(b"\r\n".join([*lines, b"", content]))
        self.transport.close()


_TOO_LONG = problems.of_status(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request line and headers are too long")
_TOO_SLOW = problems.of_status(HTTPStatus.REQUEST_TIMEOUT, "the request line and headers took too long")


class CourteousWebSocket(WebSocketsSansIOProtocol):
    """WebSocket. A wrong handshake is answered in the envelope; when the server ends, a client is heard out first."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.conn = _Handshake(max_size=config.ws_max_size, logger=logging.getLogger("uvicorn.error"))

    async def send(self, message: Any) -> None:
        """Send; frames that are ready together, as their surface says with ``more``, leave in one write."""
        text = message.get("text")
        if text is None or self.conn.state is not State.OPEN or self.disconnected or not self.writable.is_set():
            await super().send(message)
            return
        self.conn.send_text(text.encode())
        if not message.get("more"):
            self.transport.write(b"".join(self.conn.data_to_send()))

    def keepalive_timeout(self) -> None:
        """Give up a client that answers no ping, and with it what it has not taken: that would be waited for."""
        super().keepalive_timeout()
        self.loop.call_later(LAST_WORDS_SECONDS, self.transport.abort)

    def shutdown(self) -> None:
        """Close the connection, after what its surface has still to send: the end of a program, for one."""
        self.loop.call_later(LAST_FRAMES_SECONDS, self._close_when_sent)

    def _close_when_sent(self) -> None:
        if self.disconnected:
            return
        if self.writable.is_set():
            super().shutdown()
        else:
            # The client reads, but slowly; how long that may take altogether is bounded by the server's end.
            self.loop.call_later(LAST_FRAMES_SECONDS, self._close_when_sent)


class _Handshake(ServerProtocol):
    def reject(self, status: StatusLike, text: str) -> Response:
        problem = problems.of_status(int(status), text.strip() or None)
        headers, content = problems.render(problem, new_id("req"))
        shown = Headers([(name.decode(), value.decode()) for name, value in headers])
        shown["Connection"] = "close"
        return Response(problem.status, HTTPStatus(problem.status).phrase, shown, content)

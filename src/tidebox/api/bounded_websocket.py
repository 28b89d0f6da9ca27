"""uvicorn's WebSocket with bounds: how much of a turn of the loop a client takes, and what it may send unauthenticated.

Before the upgrade is accepted nothing is parsed. From then on a client is a stranger until its surface has
authenticated a caller.
"""

from __future__ import annotations

import asyncio
import logging
import time
from asyncio.transports import BaseTransport
from http import HTTPStatus
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.datastructures import Headers
from websockets.frames import CloseCode, Frame
from websockets.http11 import Response
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import StatusLike

from tidebox.api import problems
from tidebox.api.asgi import is_known
from tidebox.api.connection_limits import ConnectionState
from tidebox.api.paced_reader import PacedReader
from tidebox.model.ids import new_id

# Two of the longest tokens; then it is known who sends, or the connection is over.
STRANGER_BYTES = 16 * 1024
# Messages that are ready for a surface, beside those that came together with them.
MAX_WAITING = 64
MAX_WAITING_BYTES = 64 * 1024
# Frames that carry nothing for a surface: so many at once, and so many in a second.
IDLE_FRAMES = 200
IDLE_FRAMES_PER_SECOND = 50
# A shorter piece of a message takes more memory than it brings bytes: a message has only so many of these.
SMALL_PIECE_BYTES = 128
MAX_SMALL_PIECES = 4096
LAST_FRAMES_SECONDS = 0.05
LAST_WORDS_SECONDS = 1.0


class BoundedWebSocket(WebSocketsSansIOProtocol):
    """WebSocket. A wrong handshake is answered in the envelope; when the server ends, a client is heard out first."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        assert isinstance(server_state, ConnectionState)
        self._state = server_state
        # Without extensions: what is compressed may be longer than anything that was sent.
        self.conn = _Handshake(max_size=config.ws_max_size, logger=logging.getLogger("uvicorn.error"))
        self._is_stranger = True
        self._stranger_bytes = 0
        self._idle_frames = float(IDLE_FRAMES)
        self._idle_since = 0.0
        self._small_pieces = 0
        self._waiting_bytes = 0

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)
        self._pacer = PacedReader(self.loop, self.transport, self._parse)

    def connection_lost(self, exc: Exception | None) -> None:
        self._pacer.end()
        self._state.admission.leave(self.transport)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.handshake_initiated:
            self._pacer.feed(data)
            return
        # The request, as it was read before.
        super().data_received(data)
        self._pacer.stop()
        if not self.handshake_initiated:
            # It could not be read, and the connection knows why.
            self._pacer.end()
            self.close_sent = self.handshake_complete = True
            answer = b"".join(self.conn.data_to_send())
            self.transport.write(answer or self.conn.reject(HTTPStatus.BAD_REQUEST, "").serialize())
            self.transport.close()

    def _parse(self, data: bytes) -> None:
        if self.transport.is_closing():
            return None
        if self._is_stranger:
            self._is_stranger = not is_known(self.scope)
            self._stranger_bytes += len(data)
            if self._is_stranger and self._stranger_bytes > STRANGER_BYTES:
                return self._fail(CloseCode.MESSAGE_TOO_BIG, "too much before a token")
        return super().data_received(data)

    # Frames

    def handle_text(self, event: Frame) -> None:
        if not (event.fin and event.data) or self.close_sent:  # what nearly every message is not
            self._check_frame(event)
        super().handle_text(event)

    def handle_bytes(self, event: Frame) -> None:
        self._check_frame(event)
        super().handle_bytes(event)

    def handle_cont(self, event: Frame) -> None:
        self._check_frame(event)
        super().handle_cont(event)

    def handle_ping(self) -> None:
        self._count_idle()
        if not self.transport.is_closing():
            super().handle_ping()

    def handle_pong(self, event: Frame) -> None:
        self._count_idle()
        super().handle_pong(event)

    def _check_frame(self, event: Frame) -> None:
        if self.close_sent or not (event.data or (event.fin and self.frames)):
            # The end of a message may be empty, a message may not: none of any protocol here is.
            self._count_idle()
        if event.fin:
            self._small_pieces = 0
        elif len(event.data) < SMALL_PIECE_BYTES:
            self._small_pieces += 1
            if self._small_pieces > MAX_SMALL_PIECES:
                self._fail(CloseCode.POLICY_VIOLATION, "too many small pieces of a message")

    def _count_idle(self) -> None:
        now = time.monotonic()
        regained = (now - self._idle_since) * IDLE_FRAMES_PER_SECOND
        self._idle_since = now
        self._idle_frames = min(IDLE_FRAMES, self._idle_frames + regained) - 1
        if self._idle_frames < 0:
            self._fail(CloseCode.POLICY_VIOLATION, "too many empty frames")

    def send_receive_event_to_app(self) -> None:
        """Hand a message on; if that are many now, no more are parsed until the surface has taken them."""
        data = self.frames[0] if len(self.frames) == 1 else b"".join(self.frames)
        self.frames = []
        if self.close_sent:
            return
        if self.curr_msg_data_type == "text":
            try:
                self.queue.put_nowait({"type": "websocket.receive", "text": data.decode()})
            except UnicodeDecodeError:
                self._fail(CloseCode.INVALID_DATA, "a text that is not UTF-8")
                return
        else:
            self.queue.put_nowait({"type": "websocket.receive", "bytes": data})
        self._waiting_bytes += len(data)
        if self._is_stranger or self._waiting_bytes > MAX_WAITING_BYTES or self.queue.qsize() >= MAX_WAITING:
            self._pacer.stop()

    def handle_parser_exception(self) -> None:
        """End the connection as its parser says."""
        self._pacer.end()
        super().handle_parser_exception()

    def _fail(self, code: CloseCode, reason: str) -> None:
        """End the connection over what its client sent."""
        self._pacer.end()
        if self.transport.is_closing():
            return
        self._state.refusals.note(reason, self.client[0] if self.client else "")
        if self.close_sent:
            self.transport.abort()
            return
        self.conn.fail(code, reason)
        self.handle_parser_exception()

    # What surfaces do

    async def receive(self) -> Any:
        """The next event. A stranger is heard again only when the surface asks for more than it was given."""
        if self.queue.empty() and self.handshake_complete:
            self._pacer.go_on()
        message = await self.queue.get()
        if self.queue.empty():
            self._waiting_bytes = 0
            if not self._is_stranger:
                self._pacer.go_on()
        return message

    async def send(self, message: Any) -> None:
        """Send; frames that are ready together, as their surface says with ``more``, leave in one write."""
        text = message.get("text")
        if text is None or self.conn.state is not State.OPEN or self.disconnected or not self.writable.is_set():
            await super().send(message)
            if self.close_sent:
                self.handshake_complete = True  # also if the upgrade was refused
                self._pacer.go_on()  # the client's part of the end is waited for
            return
        self.conn.send_text(text.encode())
        if not message.get("more"):
            self.transport.write(b"".join(self.conn.data_to_send()))

    # The end

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

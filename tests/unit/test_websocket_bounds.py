"""What a WebSocket takes before its upgrade is accepted, which on a real server is a moment."""

from __future__ import annotations

import asyncio

import uvicorn

from tidebox.api.asgi import Receive, Scope, Send
from tidebox.api.bounded_http import BoundedHttp
from tidebox.api.bounded_websocket import STRANGER_BYTES, BoundedWebSocket
from tidebox.api.connection_limits import ConnectionLimiter, ConnectionState

HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


async def test_nothing_is_parsed_before_the_upgrade_is_accepted() -> None:
    asked, accepting = asyncio.Event(), asyncio.Event()
    messages: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        asked.set()
        await accepting.wait()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            messages.append(message["text"])

    config = uvicorn.Config(app, log_config=None, lifespan="off", ws=BoundedWebSocket, ws_max_size=2**24)
    state = ConnectionState(ConnectionLimiter(10, 10))
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: BoundedHttp(config, state, {}), "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(HANDSHAKE)
        await asyncio.wait_for(asked.wait(), 10)
        (protocol,) = state.connections
        assert isinstance(protocol, BoundedWebSocket)
        # One short message, and one that would be far too long for a stranger.
        writer.write(b"\x81\x82\0\0\0\0hi" + b"\x81\xff" + (2**23).to_bytes(8, "big") + b"\0\0\0\0" + b"x" * 2**23)
        await asyncio.sleep(0.2)
        assert not protocol.conn.reader.buffer
        assert protocol.queue.empty()
        accepting.set()
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        assert (await reader.readexactly(4))[2:] == (1009).to_bytes(2, "big")
        assert messages == ["hi"]
        assert len(protocol.conn.reader.buffer) <= STRANGER_BYTES
        writer.close()

"""A head that takes too long is refused; time is what the tests over a real server would have to wait for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import uvicorn
from uvicorn.server import ServerState

from tidebox.api import http
from tidebox.api.asgi import Receive, Scope, Send

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})


@pytest.fixture
async def streams(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Streams]:
    monkeypatch.setattr(http, "HEAD_SECONDS", 0.1)
    config = uvicorn.Config(hello, log_config=None, lifespan="off")
    state = ServerState()
    server = await asyncio.get_running_loop().create_server(lambda: http.BoundedHttp(config, state, {}), "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        yield reader, writer
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: "])
async def test_a_head_that_does_not_come_is_given_up(sent: bytes, streams: Streams) -> None:
    reader, writer = streams
    writer.write(sent)
    answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "request_timeout"


async def test_so_is_the_second_one(streams: Streams) -> None:
    reader, writer = streams
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200 ")
    writer.write(b"GET / HTTP/1.1\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 408 ")


async def test_an_idle_connection_is_kept(streams: Streams) -> None:
    reader, writer = streams
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    await reader.readuntil(b"hello")
    await asyncio.sleep(0.2)  # longer than a head may take
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200 ")

"""Heads and bodies that take too long are refused; time is what tests over a real server would have to wait for."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import pytest
import uvicorn

from tidebox.api import bounded_http
from tidebox.api.asgi import Receive, RequestContext, Scope, Send, attach
from tidebox.api.connection_limits import ConnectionLimiter, ConnectionState
from tidebox.api.surface import Surface
from tidebox.model.principal import Caller, Principal

_SURFACE = Surface(name="test", matches=lambda scope: True)
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["path"].startswith("/known"):
        caller = Caller(Principal("ada"), "", "req-1", "test")
        attach(scope, RequestContext("req-1", "", _SURFACE, caller=caller))
    if scope["path"].endswith("/read"):
        while (message := await receive()).get("more_body"):
            pass
        if message["type"] == "http.disconnect":
            return
    if scope["path"].endswith("/large"):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(64):
            await send({"type": "http.response.body", "body": b"x" * 1024 * 1024, "more_body": True})
        await send({"type": "http.response.body"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})


@contextlib.asynccontextmanager
async def connection(
    config: uvicorn.Config, made: list[bounded_http.BoundedHttp] | None = None
) -> AsyncIterator[Streams]:
    """To a listener; its protocols are added to ``made``."""
    state = ConnectionState(ConnectionLimiter(10, 10))

    def make() -> bounded_http.BoundedHttp:
        protocol = bounded_http.BoundedHttp(config, state, {})
        if made is not None:
            made.append(protocol)
        return protocol

    server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        yield reader, writer
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@pytest.fixture
async def streams(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Streams]:
    monkeypatch.setattr(bounded_http, "HEAD_SECONDS", 1.0)
    monkeypatch.setattr(bounded_http, "REQUEST_SECONDS", 1.0)
    async with connection(uvicorn.Config(hello, log_config=None, lifespan="off")) as opened:
        yield opened


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
    await asyncio.sleep(1.2)  # longer than a head may take
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200 ")


# Bodies


@pytest.mark.parametrize("path", ["/read", "/known/read"])
async def test_a_body_that_does_not_come_is_given_up(path: str, streams: Streams) -> None:
    reader, writer = streams
    writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf".encode())
    assert (await asyncio.wait_for(reader.read(), 10)).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize(("path", "status"), [("/read", b"408"), ("/known/read", b"200")])
async def test_only_a_known_client_may_send_a_body_slowly(path: str, status: bytes, streams: Streams) -> None:
    reader, writer = streams
    writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 12\r\n\r\n".encode())
    # What comes after the first line may be cut off: the server does not wait for what is sent to it still.
    reading = asyncio.create_task(reader.readline())
    for _ in range(12):
        if reading.done():
            break
        writer.write(b"x")
        await asyncio.sleep(0.2)
    assert (await asyncio.wait_for(reading, 10)).startswith(b"HTTP/1.1 " + status)


async def test_a_body_that_nobody_reads_is_not_waited_for(streams: Streams) -> None:
    reader, writer = streams
    writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf")
    with contextlib.suppress(ConnectionResetError):
        assert (await asyncio.wait_for(reader.read(), 10)).endswith(b"hello")


async def test_the_rest_of_a_body_that_nobody_reads_may_come(streams: Streams) -> None:
    reader, writer = streams
    writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 8\r\n\r\nhalf")
    await reader.readuntil(b"hello")
    writer.write(b"half")
    await asyncio.sleep(0.3)  # longer than it would have been waited for
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200 ")


# Answers


async def test_a_stranger_that_takes_no_answer_is_given_up(streams: Streams) -> None:
    reader, writer = streams
    writer.write(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
    await asyncio.sleep(1.5)
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await asyncio.wait_for(reader.readexactly(60 * 1024 * 1024), 20)


async def test_a_known_client_may_take_its_time(streams: Streams) -> None:
    reader, writer = streams
    writer.write(b"GET /known/large HTTP/1.1\r\nHost: x\r\n\r\n")
    await asyncio.sleep(1.5)
    assert len(await asyncio.wait_for(reader.readexactly(64 * 1024 * 1024), 60)) == 64 * 1024 * 1024


# Connections


async def test_empty_lines_do_not_keep_a_connection() -> None:
    config = uvicorn.Config(hello, log_config=None, lifespan="off", timeout_keep_alive=1)
    async with connection(config) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"hello")
        for _ in range(30):
            if reader.at_eof():
                break
            writer.write(b"\r\n")
            await asyncio.sleep(0.1)
        assert reader.at_eof()


async def test_few_requests_wait_for_their_turn() -> None:
    made: list[bounded_http.BoundedHttp] = []
    most = 0

    async def count(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal most
        most = max(most, len(made[0].pipeline))
        await hello(scope, receive, send)

    async with connection(uvicorn.Config(count, log_config=None, lifespan="off"), made) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 5000)
        for _ in range(5000):
            await reader.readuntil(b"hello")
    assert 0 < most < 200


async def test_a_request_whose_client_leaves_is_told_so_also_if_others_wait_behind_it() -> None:
    told = asyncio.Event()

    async def wait(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        assert (await receive())["type"] == "http.disconnect"
        told.set()

    async with connection(uvicorn.Config(wait, log_config=None, lifespan="off")) as (_, writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 2)
        await asyncio.sleep(0.1)
        writer.transport.abort()
        await asyncio.wait_for(told.wait(), 10)

"""A server in the same process: its app sees what it would see of a request that travelled, and so does the client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosedError

from tests.api.conftest import RunningServer
from tidebox.errors import NotFound, Unauthorized
from tidebox.sdk import AsyncAccess, AsyncInterpreter, ConnectionLost
from tidebox.sdk.in_process import InProcessHttp
from tidebox.sdk.message_socket import MessageSocket

URL = "https://boxes.example/below"


class Recorder:
    """An app that notes the scope of each request, and answers as it is told."""

    def __init__(self, *messages: dict[str, Any], fails: bool = False) -> None:
        self._messages = messages
        self._fails = fails
        self.scope: dict[str, Any] = {}
        self.body = b""
        self.sent = 0
        self.left = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scope = scope
        more = True
        while more:
            message = await receive()
            self.body += message.get("body", b"")
            more = message.get("more_body", False)
        for answer in self._messages:
            await send(answer)
            self.sent += 1
        if self._fails:
            raise RuntimeError("on purpose")
        while (await receive())["type"] not in ("http.disconnect", "websocket.disconnect"):
            pass
        self.left.set()


def start(status: int = 200) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": [(b"etag", b"1")]}


def body(data: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


async def test_a_request_comes_with_its_credential_address_and_names() -> None:
    app = Recorder(start(), body(b"a", more=True), body(b"b"))
    http = InProcessHttp(app, URL, address="192.0.2.7", source="MCP", client="an editor/1\r\nX-Evil: 1")
    answer = await http.ask(
        "POST", f"{URL}/v1/a%20b?x=1", bearer="secret", content={"y": "ü"}, params={"z": ["1", "2"]}
    )
    assert answer == b"ab"
    assert app.body == '{"y":"ü"}'.encode()
    assert (app.scope["method"], app.scope["path"], app.scope["raw_path"]) == ("POST", "/v1/a b", b"/v1/a%20b")
    assert (app.scope["query_string"], app.scope["client"][0]) == (b"x=1&z=1&z=2", "192.0.2.7")
    headers = dict(app.scope["headers"])
    assert headers[b"authorization"] == b"Bearer secret"
    assert headers[b"host"] == b"boxes.example"
    assert headers[b"x-tidebox-source"] == b"MCP"
    assert headers[b"x-tidebox-client"] == b"an editor/1X-Evil: 1"
    assert headers[b"content-length"] == b"%d" % len(app.body)
    await asyncio.wait_for(app.left.wait(), 30)


async def test_an_error_is_raised_and_a_broken_answer_is_none() -> None:
    envelope = b'{"error": {"code": "not_found", "message": "no", "retryable": false}}'
    with pytest.raises(NotFound, match="no"):
        await InProcessHttp(Recorder(start(404), body(envelope)), URL).ask("GET", f"{URL}/x", bearer=None)
    with pytest.raises(ConnectionLost):
        await InProcessHttp(Recorder(fails=True), URL).ask("GET", f"{URL}/x", bearer=None)
    with pytest.raises(ConnectionLost):
        await InProcessHttp(Recorder(start(), body(b"a", more=True), fails=True), URL).ask(
            "GET", f"{URL}/x", bearer=None
        )


async def test_an_answer_waits_for_its_reader_and_ends_when_that_leaves() -> None:
    app = Recorder(start(), *(body(b"x" * 1000, more=True) for _ in range(100)), body(b""))
    http = InProcessHttp(app, URL)
    async with http.exchange("GET", f"{URL}/long", bearer=None) as response:
        pieces = response.aiter_raw()
        await anext(pieces)
        await asyncio.sleep(0.05)
        assert app.sent < 5
    await asyncio.wait_for(app.left.wait(), 30)


async def test_a_body_is_read_as_it_is_asked_for() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for number in range(3):
            yield b"%d" % number

    app = Recorder(start(), body(b""))
    async with InProcessHttp(app, URL).exchange("POST", f"{URL}/up", bearer=None, body=pieces()):
        pass
    assert app.body == b"012"


async def test_a_socket_is_refused_as_the_server_refuses_it() -> None:
    refusal = b'{"error": {"code": "unauthorized", "message": "no", "retryable": false}}'
    head = {"type": "websocket.http.response.start", "status": 401, "headers": []}
    app = Recorder(head, {"type": "websocket.http.response.body", "body": refusal})
    with pytest.raises(Unauthorized):
        await MessageSocket.open(InProcessHttp(app, URL), f"{URL.replace('https', 'wss')}/ws", None)
    await asyncio.wait_for(app.left.wait(), 30)


async def test_a_socket_brings_texts_and_its_end() -> None:
    accept: dict[str, Any] = {"type": "websocket.accept"}
    texts = [{"type": "websocket.send", "text": str(number)} for number in range(200)]
    app = Recorder(accept, *texts, {"type": "websocket.close", "code": 1000})
    socket = await MessageSocket.open(InProcessHttp(app, URL), f"{URL.replace('https', 'wss')}/ws?a=1", "secret")
    assert (app.scope["type"], app.scope["scheme"], app.scope["query_string"]) == ("websocket", "wss", b"a=1")
    await asyncio.sleep(0.05)
    assert app.sent < 100  # a sender that is far ahead of its reader has to wait
    received = []
    while (message := await socket.receive()) is not None:
        received.append(message)
    assert received == [b"%d" % number for number in range(200)]
    await socket.close()


async def test_a_client_that_is_closed_leaves_its_sockets() -> None:
    app = Recorder({"type": "websocket.accept"})
    http = InProcessHttp(app, URL)
    connection = await http.dial(f"{URL.replace('https', 'wss')}/ws", None)
    reading = asyncio.create_task(connection.recv())
    await asyncio.sleep(0)
    await http.close()
    with pytest.raises(ConnectionClosedError):
        await asyncio.wait_for(reading, 30)
    await asyncio.wait_for(app.left.wait(), 30)


async def test_what_is_elsewhere_goes_over_the_network(running_server: RunningServer) -> None:
    http = InProcessHttp(Recorder(), URL)
    async with (
        AsyncInterpreter(running_server.url, api_key=running_server.key, http=http) as interpreter,
        AsyncAccess(running_server.url, api_key=running_server.key) as access,
    ):
        assert (await interpreter.run(["echo", "hi"])).stdout == b"hi\n"
        made = await access.ensure("a-thread-of-inside", keep=True)
        assert made.session_id is not None
        # Known by its id alone, also to another client.
        async with AsyncAccess(running_server.url, api_key=running_server.key) as other:
            opened = await other.open(made.session_id)
            assert opened.id == made.id
            assert (await opened.exec("echo $((6 * 7))")).stdout == b"42\n"
        assert (await made.exec("true")).ok
        await made.release()
        with pytest.raises(NotFound):
            await access.open(made.session_id)

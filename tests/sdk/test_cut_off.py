"""Servers that hang up, or send one elsewhere."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tidebox.errors import TideboxError
from tidebox.sdk import AsyncAccess, ConnectionLost, ServerProtocolError, ServerRefused


class Peer:
    """A server that answers each request as the test says; without an answer it hangs up."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.heads: list[str] = []
        self.answers: dict[str, list[bytes]] = {}

    def session(self, **changes: Any) -> bytes:
        place = {"id": "sb-1", "http_base_url": f"{self.url}/v1", "ws_base_url": f"ws{self.url[4:]}/v1"}
        fields = {"session_id": "s", "sandbox": place, "token": "a-token", "expires_at": "2999-01-01T00:00:00Z"}
        return answer(msgspec.json.encode(fields | changes))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        waiting = self.answers.get(head.split()[1].partition("?")[0], [])
        writer.write(waiting.pop(0) if waiting else b"")
        writer.close()

    def asked(self) -> list[str]:
        return [head.split()[1].partition("?")[0] for head in self.heads]


def answer(body: bytes, status: str = "200 OK", *, length: int | None = None, more: str = "") -> bytes:
    size = len(body) if length is None else length
    return f"HTTP/1.1 {status}\r\nContent-Length: {size}\r\nConnection: close\r\n{more}\r\n".encode() + body


@asynccontextmanager
async def peer() -> AsyncIterator[Peer]:
    serve: list[Callable[..., Any]] = []
    server = await asyncio.start_server(lambda *streams: serve[0](*streams), "127.0.0.1", 0)
    made = Peer(server.sockets[0].getsockname()[1])
    serve.append(made.serve)
    async with server:
        yield made


SESSIONS = "/v1/sandbox/sessions"


async def test_a_request_for_access_is_sent_again_once_as_the_same() -> None:
    async with peer() as server, AsyncAccess(server.url, api_key="a-key") as access:
        server.answers[SESSIONS] = [b"", server.session()]
        sandbox = await access.ensure("thread", keep=True)
        assert (sandbox.id, server.asked()) == ("sb-1", [SESSIONS, SESSIONS])
        keys = [line for head in server.heads for line in head.splitlines() if line.lower().startswith("idempotency")]
        assert len(keys) == 2
        assert len(set(keys)) == 1
        with pytest.raises(ConnectionLost):
            await access.ensure("another")
        assert server.asked() == [SESSIONS] * 4


async def test_a_program_is_not_started_twice() -> None:
    async with peer() as server, AsyncAccess(server.url, api_key="a-key") as access:
        server.answers[SESSIONS] = [server.session()]
        sandbox = await access.ensure("thread", keep=True)
        with pytest.raises(ConnectionLost) as caught:
            await sandbox.exec("true")
        assert caught.value.retryable
        assert server.asked() == [SESSIONS, "/v1/exec"]
        # The sandbox gets its token, and never the key.
        assert "a-key" not in server.heads[1]
        assert "a-token" in server.heads[1]


async def test_a_download_that_is_cut_off_is_none(tmp_path: Path) -> None:
    async with peer() as server, AsyncAccess(server.url, api_key="a-key") as access:
        server.answers[SESSIONS] = [server.session()]
        server.answers["/v1/files/download"] = [answer(b"half", length=8), answer(b"half", length=8)]
        sandbox = await access.ensure("thread", keep=True)
        with pytest.raises(ConnectionLost):
            await sandbox.files.download("file", tmp_path / "file")
        with pytest.raises(ConnectionLost):
            await sandbox.files.download("file")
        assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (answer(b"", "307 Temporary Redirect", more="Location: http://elsewhere.invalid/\r\n"), ServerRefused),
        (answer(b"<html>"), ServerProtocolError),
        (answer(b'{"token": "t"}'), ServerProtocolError),
        (b"nonsense\r\n\r\n", ConnectionLost),
    ],
)
async def test_answers_that_are_none(said: bytes, kind: type[TideboxError]) -> None:
    async with peer() as server, AsyncAccess(server.url, api_key="a-key") as access:
        server.answers[SESSIONS] = [said, said]
        with pytest.raises(kind):
            await access.ensure("thread")


async def test_a_session_without_a_name() -> None:
    async with peer() as server, AsyncAccess(server.url, api_key="a-key") as access:
        server.answers[SESSIONS] = [server.session(session_id=None)]
        with pytest.raises(ServerProtocolError, match="name the session"):
            await access.ensure("thread")

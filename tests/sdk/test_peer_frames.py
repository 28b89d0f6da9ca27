"""What another server may send in one frame to a server that hands it on."""

from __future__ import annotations

import contextlib

import pytest

from tests.sdk.peer import Talk, serving
from tidebox.broker.sandboxes.providers.peer import Peer
from tidebox.model.limits import MIB
from tidebox.sdk.errors import ConnectionLost
from tidebox.sdk.message_socket import MessageSocket


async def test_frames_of_another_server_are_bounded() -> None:
    def talk(client: Talk) -> None:
        client.say_raw(b"x" * (4 * MIB))
        client.say_raw(b"x" * (4 * MIB + 1))
        client.wait_closed()

    with serving(talk) as server:
        peer = Peer("other", server.url, "key")
        socket = await MessageSocket.open(peer.http, server.url.replace("http", "ws"), "token")
        assert len(await socket.receive() or b"") == 4 * MIB
        with pytest.raises(ConnectionLost):
            await socket.receive()
        await peer.http.close()


@pytest.mark.parametrize("frame", [b"\x89\x00", b"\x8a\x00", b"\x81\x00"], ids=["ping", "pong", "empty"])
async def test_a_flood_of_frames_that_say_nothing_is_cut_off(frame: bytes) -> None:
    def talk(client: Talk) -> None:
        client.say_raw(b"the first message")
        with contextlib.suppress(OSError):
            client.send_bytes(frame * 200_000)
        client.wait_closed()

    with serving(talk) as server:
        peer = Peer("other", server.url, "key")
        socket = await MessageSocket.open(peer.http, server.url.replace("http", "ws"), "token")
        assert await socket.receive() == b"the first message"

        async def read_all() -> None:
            while await socket.receive() is not None:
                pass  # empty messages may come before it is noticed

        with pytest.raises(ConnectionLost):
            await read_all()
        await peer.http.close()


async def test_pings_now_and_then_are_answered() -> None:
    def talk(client: Talk) -> None:
        client.send_bytes(b"\x89\x00" * 100)
        client.say_raw(b"the last message")
        client.wait_closed()

    with serving(talk) as server:
        peer = Peer("other", server.url, "key")
        socket = await MessageSocket.open(peer.http, server.url.replace("http", "ws"), "token")
        assert await socket.receive() == b"the last message"
        await peer.http.close()

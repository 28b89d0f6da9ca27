"""Frames of every kind of nonsense, over a real socket: all are answered, and the server goes on."""

from __future__ import annotations

import asyncio
import copy
import json
import random
import socket
from collections.abc import Callable
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosedError

from tests.api.conftest import RunningServer
from tests.api.fathom.client import Client, connected
from tests.api.fathom.conftest import assert_idle

FRAMES = 10_000
PROGRAMS = 50
MIB = 1 << 20

VALID: list[dict[str, Any]] = [
    {"v": 1, "type": "ping", "ts": "2025-12-27T11:30:00.000Z"},
    {"v": 1, "type": "cancel", "id": "exec_a1b2c3d4", "ts": "2025-12-27T11:30:05.000Z"},
    {
        "v": 1,
        "type": "execute",
        "id": "exec_a1b2c3d4",
        "ts": "2025-12-27T11:30:00.000Z",
        "language": "cobol",
        "code": "print('hello world')",
        "stdin": None,
        "env": {"API_KEY": "..."},
        "limits": {"timeout_ms": 30000, "memory_mb": 256, "cpu_shares": 512, "max_output_bytes": 1048576},
    },
]
VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    1,
    2,
    1e300,
    10**30,
    "",
    "x",
    "\0",
    "\ud800",
    "é" * 300,
    [],
    {},
    [[[[]]]],
    {"v": 1},
]


def mutated(chance: random.Random) -> str | bytes:
    """A message with some damage: in its values, or in its bytes."""
    message = json.loads(json.dumps(chance.choice(VALID)))
    kind = chance.random()
    if kind < 0.45:
        for _ in range(chance.randint(1, 3)):
            place = message["limits"] if "limits" in message and chance.random() < 0.3 else message
            if isinstance(place, dict) and place:
                name = chance.choice([*place, "extra"])
                if chance.random() < 0.3:
                    place.pop(name, None)
                else:
                    place[name] = copy.deepcopy(chance.choice(VALUES))
        return json.dumps(message)
    text = json.dumps(message)
    if kind < 0.8:
        characters = list(text)
        for _ in range(chance.randint(1, 8)):
            where = chance.randrange(len(characters))
            characters[where : where + chance.randint(0, 3)] = chance.choice('{}[]",:\\u0ée\0 1-')
        return "".join(characters)
    if kind < 0.9:
        return "".join(
            chr(chance.choice([chance.randrange(128), chance.randrange(0xE000, 0x11_0000)])) for _ in range(40)
        )
    return chance.randbytes(chance.randrange(80))


async def test_ten_thousand_frames_of_nonsense(idle_server: RunningServer) -> None:
    """Each frame has one answer, each program that was started between them runs to its end."""
    chance = random.Random(1)
    async with connected(idle_server) as client:
        reading = asyncio.create_task(count_answers(client, FRAMES + PROGRAMS))
        for number in range(FRAMES):
            if number % (FRAMES // PROGRAMS) == 0:
                await client.start(f"print({number})", id=f"program_{number}")
            await client.socket.send(mutated(chance))
        await asyncio.wait_for(reading, 60)
        programs = [id for id in client.transcripts if id.startswith("program_")]
        assert len(programs) == PROGRAMS
        for done in await client.finish_all(programs):
            assert done.sequence == ["ack", "running", "stdout", "completed", "result"]
        assert (await client.run("print('still here')")).stdout == "still here\n"
    assert idle_server.process.poll() is None


async def count_answers(client: Client, expected: int) -> None:
    answers = 0
    while answers < expected:
        answers += (await client.next())["type"] in ("pong", "error", "ack")


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (b'{"v":1,"type":"ping"}', "messages are text frames"),
        ("", "the message is not JSON"),
        ("[" * MIB, "the message is not a JSON object"),
        ('{"v":1,"type":"ping","x":' + "[" * (4 * MIB), "the message is nested too deeply"),
        ('{"v":1,"type":"ping","x":"' + "x" * (8 * MIB) + '"}', "the message is longer than 8388608 bytes"),
        ("x" * (9 * MIB), "the message is longer than 8388608 bytes"),
        ("é" * (5 * MIB), "the message is longer than 8388608 bytes"),
    ],
    ids=["binary", "empty", "array", "nested", "oversized", "oversized nonsense", "oversized characters"],
)
async def test_the_connection_survives(client: Client, frame: str | bytes, message: str) -> None:
    await client.socket.send(frame)
    answer = await client.next()
    assert (answer["type"], answer["code"]) == ("error", "INVALID_REQUEST")
    assert answer["message"].startswith(message)
    await client.ping()


async def test_an_oversized_request_is_told_by_its_id(client: Client) -> None:
    done = await client.run("print(1)", stdin="x" * (9 * MIB), id="large")
    assert done.sequence == ["INVALID_REQUEST"]
    assert (await client.run("print(1)", id="large_2")).stdout == "1\n"


async def test_a_message_in_many_fragments_is_one_message(client: Client) -> None:
    text = json.dumps({"v": 1, "type": "ping", "padding": "x" * 10_000})
    await client.socket.send(text[start : start + 7] for start in range(0, len(text), 7))
    assert (await client.next())["type"] == "pong"


async def test_far_too_long_a_message_ends_its_connection_only(idle_server: RunningServer) -> None:
    async with connected(idle_server) as client, connected(idle_server) as other:
        with pytest.raises(ConnectionClosedError) as caught:
            await asyncio.gather(client.socket.send("x" * (20 * MIB)), client.next())
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1009
        await other.ping()


async def test_text_that_is_no_utf8_ends_its_connection_only(idle_server: RunningServer) -> None:
    async with connected(idle_server) as client, connected(idle_server) as other:
        await client.socket.send(b"\xff\xfe", text=True)
        with pytest.raises(ConnectionClosedError) as caught:
            await client.next()
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1007
        await other.ping()


@pytest.mark.parametrize(
    "data",
    [
        b"\xc1\x80\x00\x00\x00\x00",
        b"\x81\x01x",
        b"\x89\xfe\xff\xff" + b"x" * 70_000,
        b"\xff" * 100,
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["reserved bit", "no mask", "long control frame", "noise", "http"],
)
async def test_a_broken_websocket_ends_alone(idle_server: RunningServer, data: bytes) -> None:
    async with connected(idle_server) as client, connected(idle_server) as other:
        client.socket.transport.write(data)
        with pytest.raises(ConnectionClosedError):
            await client.next()
        await other.ping()


async def test_a_client_that_leaves_in_the_middle_of_a_frame(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(rate_limit="off", orphan_grace_sec="0")
    upgrade = (
        f"GET /ws HTTP/1.1\r\nHost: x\r\nX-API-KEY: {server.key}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    ).encode()
    for cut in (10, len(upgrade) - 2, len(upgrade)):
        for rest in (b"", b"\x81\xff\x00\x00\x00\x00\x00\x10", b"\x81\x85\x00\x00\x00\x00he"):
            with socket.create_connection(server.address) as raw:
                raw.sendall(upgrade[:cut] + (rest if cut == len(upgrade) else b""))
    async with connected(server) as client:
        assert (await client.run("print(1)")).stdout == "1\n"
    assert_idle(server)

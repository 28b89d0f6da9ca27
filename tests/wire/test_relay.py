"""Relay rules: ranges, disconnects, bad clients, shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.wire.agents import agent_link, finish, sh
from tidebox import errors
from tidebox.model.events import OutputEvent
from tidebox.runtime.link import Link
from tidebox.runtime.relay import CLIENT_SLOTS, Relay
from tidebox.wire.envelope import encode_message
from tidebox.wire.frames import encode_frame
from tidebox.wire.ids import STEP
from tidebox.wire.messages import Ping, Shutdown

PROLOGUE = struct.Struct(">II")


@pytest.fixture
async def own() -> AsyncIterator[Link]:
    async with agent_link() as link:
        yield link


@pytest.fixture
async def path(own: Link, tmp_path: Path) -> AsyncIterator[Path]:
    path = tmp_path / "run" / "agent.sock"
    relay = await Relay.open(own, path)
    yield path
    await relay.close()


async def connect(path: Path) -> Link:
    sock = socket.socket(socket.AF_UNIX)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, str(path))
    return await Link.open(sock, through_relay=True, ready_within=30)


@contextlib.asynccontextmanager
async def raw_client(path: Path) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter, int, int]]:
    """A client that speaks bytes; its id range is read already."""
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        start, end = PROLOGUE.unpack(await reader.readexactly(PROLOGUE.size))
        yield reader, writer, start, end
    finally:
        writer.close()


async def dropped(reader: asyncio.StreamReader) -> None:
    """Wait until the relay closes the connection."""
    async with asyncio.timeout(30):
        with contextlib.suppress(ConnectionResetError):
            while await reader.read(65_536):
                pass


async def test_only_this_user_may_connect(path: Path) -> None:
    modes = [stat.S_IMODE(os.stat(place).st_mode) for place in (path, path.parent)]
    assert modes == [0o600, 0o700]


async def test_the_prologue_and_the_cached_ready(own: Link, path: Path) -> None:
    async with raw_client(path) as (first, _, start, end):
        assert (start, end) == (1, STEP)
        assert await first.readexactly(len(own.ready_frame)) == own.ready_frame
        async with raw_client(path) as (_, _, start, end):
            assert (start, end) == (STEP + 1, 2 * STEP)


async def test_clients_and_the_owner_work_side_by_side(own: Link, path: Path) -> None:
    clients = [await connect(path) for _ in range(5)]
    links = [own, *clients]
    results = await asyncio.gather(
        *(finish(link.open_exec(sh(f"sleep 0.1; echo {number}"))) for number, link in enumerate(links))
    )
    assert [output for output, _, _ in results] == [b"%d\n" % number for number in range(len(links))]
    for client in clients:
        await client.close()


@pytest.mark.parametrize("id", [0, 1, STEP, 2 * STEP, 0xFFFFFFFF, 127 * STEP + 1])
async def test_an_id_of_somebody_else_drops_the_client_alone(own: Link, path: Path, id: int) -> None:
    neighbour = await connect(path)
    async with raw_client(path) as (reader, writer, start, end):
        assert not start <= id < end
        writer.write(encode_message(Ping(), id, 10))
        await dropped(reader)
    await neighbour.ping()
    await own.ping()
    await neighbour.close()


@pytest.mark.parametrize("garbage", [bytes(9), b"\xff" * 100])
async def test_broken_frames_drop_the_client_alone(own: Link, path: Path, garbage: bytes) -> None:
    async with raw_client(path) as (reader, writer, _, _):
        writer.write(garbage)
        await dropped(reader)
    await own.ping()


async def test_a_malformed_message_is_the_agents_to_answer(own: Link, path: Path) -> None:
    async with raw_client(path) as (reader, writer, start, _):
        await reader.readexactly(len(own.ready_frame))
        writer.write(encode_message(Ping(), start, 10) + encode_frame(start + 1, 2, b"garbage"))
        pong = await reader.readexactly(29)
        assert pong[4:8] == start.to_bytes(4, "big")
        answer = await reader.readexactly(9)
        assert answer[4:8] == (start + 1).to_bytes(4, "big")
        assert answer[8] == 1
    await own.ping()


async def test_a_client_too_many_is_closed(path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(CLIENT_SLOTS):
            await stack.enter_async_context(raw_client(path))
        reader, writer = await asyncio.open_unix_connection(path)
        await dropped(reader)
        writer.close()


async def test_programs_die_with_their_client_and_the_slot_is_free_again(own: Link, path: Path) -> None:
    client = await connect(path)
    execution = client.open_exec(sh("echo $$; sleep 600"))
    pid = 0
    async for event in execution.events():
        if isinstance(event, OutputEvent):
            pid = int(event.data)
            break
    await client.close()
    for _ in range(600):
        async with raw_client(path) as (_, _, start, _):
            if start == 1:
                break
        await asyncio.sleep(0.05)
    else:
        raise AssertionError("the slot was not given again")
    for _ in range(600):
        if not await asyncio.to_thread(Path(f"/proc/{pid}").exists):
            break
        await asyncio.sleep(0.05)
    else:
        raise AssertionError("the program lives on")


async def test_the_next_client_hears_nothing_of_the_last_one(path: Path) -> None:
    for _ in range(10):
        client = await connect(path)
        execution = client.open_exec(sh("yes"))
        await anext(execution.events())
        await client.close()
        follower = await connect(path)
        output, _, _ = await finish(follower.open_exec(sh("echo mine")))
        assert output == b"mine\n"
        await follower.close()


async def test_large_files_pass_unchanged(path: Path, tmp_path: Path) -> None:
    content = bytes(range(256)) * 40_000
    client = await connect(path)
    await client.files.write(str(tmp_path / "file"), content)
    assert b"".join([chunk async for chunk in client.files.read(str(tmp_path / "file"))]) == content
    await client.close()


async def test_a_client_that_does_not_read_stalls_nobody(own: Link, path: Path) -> None:
    slow = await connect(path)
    flood = slow.open_exec(sh("head -c 30000000 /dev/zero"))
    slow._stream.pause_reading()
    async with asyncio.timeout(10):
        output, _, _ = await finish(own.open_exec(sh("sleep 0.3; echo alive")))
        assert output == b"alive\n"
        slow._stream.resume_reading()
        flooded, _, _ = await finish(flood)
    assert len(flooded) == 30_000_000
    await slow.close()


async def test_shutdown_by_a_client_ends_the_box(own: Link, path: Path) -> None:
    async with raw_client(path) as (reader, writer, _, _):
        writer.write(encode_message(Shutdown(), 0, 10))
        await dropped(reader)
    async with asyncio.timeout(30):
        await own.wait_closed()
    assert not await asyncio.to_thread(path.exists)


async def test_clients_go_with_the_agent(own: Link, path: Path) -> None:
    client = await connect(path)
    await own.close()
    async with asyncio.timeout(30):
        await client.wait_closed()
    with pytest.raises(errors.BoxGone):
        await client.ping()
    assert not await asyncio.to_thread(path.exists)


async def test_a_leftover_socket_is_replaced(own: Link, tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    with socket.socket(socket.AF_UNIX) as leftover:
        leftover.bind(str(path))
    relay = await Relay.open(own, path)
    client = await connect(path)
    await client.ping()
    await client.close()
    await relay.close()


async def test_a_path_that_is_too_long_is_said(own: Link, tmp_path: Path) -> None:
    with pytest.raises(errors.ProvisionFailed, match="cannot listen"):
        await Relay.open(own, tmp_path / ("x" * 120))

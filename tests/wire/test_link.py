"""The asyncio skin, against a real agent process of an old and of the current generation."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import signal
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.wire.agents import agent_link, finish, sh
from tidebox import errors
from tidebox.errors import ConnectFailed
from tidebox.model.events import Exited, OutputEvent, Started, StdinRefused
from tidebox.runtime.link import Link
from tidebox.wire import bulk
from tidebox.wire.connection import AgentConnection
from tidebox.wire.fields import Message
from tidebox.wire.files import CloseHandle, Copy, FsRequest, FsResponse, HandleData, OpenFile
from tidebox.wire.messages import (
    Error,
    ExecLimits,
    ExecRequest,
    ExecStarted,
    ExecStdinAck,
    ExecStdout,
    Pong,
    Ready,
)


@pytest.fixture(params=[7, 10], ids=["generation7", "generation10"])
async def link(request: pytest.FixtureRequest) -> AsyncIterator[Link]:
    async with agent_link(request.param) as opened:
        assert opened.generation == request.param
        yield opened


async def test_a_program_tells_its_whole_story(link: Link) -> None:
    events = [event async for event in link.open_exec(sh("echo out; echo err >&2; exit 7")).events()]
    assert isinstance(events[0], Started)
    assert {(event.stream, event.data) for event in events if isinstance(event, OutputEvent)} == {
        ("stdout", b"out\n"),
        ("stderr", b"err\n"),
    }
    assert isinstance(events[-1], Exited)
    assert events[-1].code == 7


async def test_a_program_that_cannot_start_raises(link: Link) -> None:
    with pytest.raises(errors.ExecFailed) as caught:
        await finish(link.open_exec(ExecRequest(cmd="/no/such/program")))
    assert caught.value.details["kind"] == "not_found"


async def test_a_signal_is_told_apart_from_an_exit_code(link: Link) -> None:
    execution = link.open_exec(sh("echo up; exec sleep 60"))
    async for event in execution.events():
        if isinstance(event, OutputEvent):
            await execution.signal(signal.SIGTERM)
        if isinstance(event, Exited):
            assert (event.code, event.signal) == (None, signal.SIGTERM)


async def test_more_input_than_any_window_comes_back_whole(link: Link) -> None:
    sent = os.urandom(5_000_000)
    execution = link.open_exec(sh("cat"))

    async def feed() -> None:
        await execution.write(sent)
        await execution.end_input()

    feeding = asyncio.create_task(feed())
    output, _, exited = await finish(execution)
    await feeding
    assert output == sent
    assert exited.code == 0


async def test_input_for_a_program_that_has_closed_it_is_refused_once(link: Link) -> None:
    execution = link.open_exec(sh("exec 0<&-; echo closed; sleep 0.5"))
    refusals = 0
    async for event in execution.events():
        if isinstance(event, OutputEvent):
            await execution.write(b"x" * 100_000)
        refusals += isinstance(event, StdinRefused)
    assert refusals == 1
    await execution.write(b"after the end")


async def test_output_that_nobody_takes_stalls_only_its_own_program() -> None:
    async with agent_link(10) as link:
        flood = link.open_exec(sh("head -c 30000000 /dev/zero"))
        async with asyncio.timeout(20):
            output, _, _ = await finish(link.open_exec(sh("sleep 0.3; echo alive")))
            assert output == b"alive\n"
            await link.ping()
            flooded, _, _ = await finish(flood)
        assert len(flooded) == 30_000_000


async def test_without_flow_control_memory_is_bounded_by_not_reading() -> None:
    async with agent_link(7) as link:
        flood = link.open_exec(sh("head -c 30000000 /dev/zero"))
        await asyncio.sleep(0.5)
        assert flood._queued < 8 << 20
        output, _, _ = await finish(flood)
        assert len(output) == 30_000_000
        await link.ping()


async def test_an_old_agent_fails_one_operation_and_goes_on() -> None:
    async with agent_link(5) as link:
        with pytest.raises(errors.UnsupportedOperation, match="needs protocol generation 6, the sandbox speaks 5"):
            await link.ping()
        output, _, _ = await finish(link.open_exec(sh("echo fine")))
        assert output == b"fine\n"


async def test_files_survive_the_round_trip(link: Link, tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    content = os.urandom(1 << 20) * 20
    assert await link.files.write(path, content) == len(content)
    assert b"".join([chunk async for chunk in link.files.read(path)]) == content
    assert b"".join([chunk async for chunk in link.files.read(path, offset=5, length=1000)]) == content[5:1005]

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(content), 3_000_001):
            yield content[start : start + 3_000_001]

    assert await link.files.write(path, pieces()) == len(content)
    assert b"".join([chunk async for chunk in link.files.read(path)]) == content
    assert await link.files.write(path, b"") == 0
    assert [chunk async for chunk in link.files.read(path)] == []


async def test_file_operations(link: Link, tmp_path: Path) -> None:
    files = link.files
    await files.mkdir(str(tmp_path / "a" / "b"))
    await files.write(str(tmp_path / "a" / "b" / "one"), b"1", mode=0o600)
    await files.rename(str(tmp_path / "a" / "b" / "one"), str(tmp_path / "a" / "two"))
    info = await files.stat(str(tmp_path / "a" / "two"))
    assert (info.kind, info.size, info.mode & 0o777) == ("file", 1, 0o600)
    assert sorted(Path(entry.path).name for entry in await files.list(str(tmp_path / "a"))) == ["b", "two"]
    with pytest.raises(errors.FileOperationFailed):
        await files.remove(str(tmp_path / "a"))
    await files.remove(str(tmp_path / "a"), recursive=True)
    with pytest.raises(errors.FileOperationFailed, match="No such file or directory"):
        await files.stat(str(tmp_path / "a"))
    with pytest.raises(errors.FileOperationFailed, match="No such file or directory"):
        await files.write(str(tmp_path / "missing" / "file"), b"x")


async def test_a_failed_file_operation_has_its_errno_as_a_number(link: Link, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()

    async def read_directory() -> None:
        async for _ in link.files.read(str(tmp_path)):
            pass

    for failing, number in (
        (link.files.stat(str(tmp_path / "missing")), errno.ENOENT),
        (link.files.list(str(tmp_path / "full" / "file")), errno.ENOTDIR),
        (link.files.remove(str(tmp_path / "full")), errno.ENOTEMPTY),
        (link.files.call(Copy(src=str(tmp_path / "missing"), dst=str(tmp_path / "b"))), errno.ENOENT),
        (link.files.write(str(tmp_path / "a" / "b"), b""), errno.ENOENT),
        (link.files.write("/dev/null", b""), errno.EINVAL),
        (link.files.stat("a\0b"), errno.EINVAL),
        (link.files.call(CloseHandle(handle=99)), None),
        (read_directory(), errno.EISDIR),
    ):
        with pytest.raises(errors.FileOperationFailed) as caught:
            await failing
        assert caught.value.errno == number, caught.value.message


async def test_an_abandoned_read_leaves_the_link_usable(link: Link, tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    await link.files.write(path, bytes(40_000_000))
    reading = link.files.read(path)
    await anext(reading)
    await reading.aclose()
    async with asyncio.timeout(10):
        await link.ping()
        assert (await link.files.stat(path)).size == 40_000_000


async def test_tcp_both_ways_with_half_close(link: Link) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read())
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server:
        stream = await link.connect_tcp("127.0.0.1", server.sockets[0].getsockname()[1])
        sent = os.urandom(3_000_000)
        await stream.write(sent)
        stream.write_eof()
        got = b""
        while chunk := await stream.read():
            got += chunk
        assert got == sent
        stream.close()


async def test_a_refused_connection_is_told(link: Link) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectFailed, match=r"connect 127\.0\.0\.1"):
            await link.connect_tcp("127.0.0.1", unused.getsockname()[1])


async def test_everything_pending_fails_when_the_agent_dies(link: Link) -> None:
    execution = link.open_exec(ExecRequest(cmd="/bin/sleep", args=["60"]))
    pending = asyncio.create_task(finish(execution))
    parent = link.open_exec(sh("echo $PPID"))
    output, _, _ = await finish(parent)
    os.kill(int(output), signal.SIGKILL)
    async with asyncio.timeout(30):
        with pytest.raises(errors.BoxGone):
            await pending
        await link.wait_closed()
    assert link.gone
    with pytest.raises(errors.BoxGone):
        link.open_exec(sh("true"))


async def test_shutdown_ends_the_agent(link: Link) -> None:
    execution = link.open_exec(ExecRequest(cmd="/bin/sleep", args=["60"]))
    assert isinstance(await anext(execution.events()), Started)
    link.shutdown()
    async with asyncio.timeout(10):
        await link.wait_closed()


class FakeAgent:
    """The other end of a link, which says whatever a test wants."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._connection = AgentConnection(10)

    def say(self, data: bytes) -> None:
        self._sock.sendall(data)

    def push(self, data: bytes) -> int:
        """Send what the socket takes."""
        select.select([], [self._sock], [])
        return self._sock.send(data)

    async def hear(self) -> Any:
        """The next message from the host."""
        while (item := self._connection.next_item()) is None:
            data = await asyncio.get_running_loop().sock_recv(self._sock, 65_536)
            assert data
            self._connection.reader.buffer()[: len(data)] = data
            self._connection.reader.received(len(data))
        return item

    def frame(self, message: Message, id: int) -> bytes:
        return self._connection.encode(message, id)


@pytest.fixture
async def fake() -> AsyncIterator[tuple[Link, FakeAgent]]:
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.setblocking(False)
        agent = FakeAgent(theirs)
        limits = ExecLimits(
            max_executions=1, input_limit=65_536, output_limit=65_792, stdin_chunk_size=65_536, output_chunk_size=65_536
        )
        agent.say(agent.frame(Ready(boot_time_ns=1, init_time_ns=1, ready_time_ns=1, exec_limits=limits), 0))
        opened = await Link.open(ours, ready_within=30)
        yield opened, agent
        await opened.close()


async def test_acks_beyond_what_was_sent_open_no_window(fake: tuple[Link, FakeAgent]) -> None:
    link, agent = fake
    execution = link.open_exec(ExecRequest(cmd="x"))
    agent.say(agent.frame(ExecStdinAck(consumed=2**60), execution.id))
    await asyncio.sleep(0.1)
    writing = asyncio.create_task(execution.write(bytes(10 * 65_536)))
    await asyncio.sleep(0.2)
    assert not writing.done()
    assert execution._sent == 65_536
    await link.close()
    with pytest.raises(errors.BoxGone):
        await writing


async def test_an_agent_that_ignores_the_window_fails_the_exec(fake: tuple[Link, FakeAgent]) -> None:
    link, agent = fake
    execution = link.open_exec(ExecRequest(cmd="x"))
    flood = agent.frame(ExecStdout(data=b""), execution.id) * 70_000
    while flood:
        count = await asyncio.to_thread(agent.push, flood)
        flood = flood[count:]
    with pytest.raises(errors.AgentProtocolError, match="ignores flow control"):
        await finish(execution)
    assert not link.gone


async def test_every_output_is_acknowledged_when_the_window_is_one_chunk(fake: tuple[Link, FakeAgent]) -> None:
    link, agent = fake
    execution = link.open_exec(ExecRequest(cmd="x"))
    await agent.hear()
    agent.say(agent.frame(ExecStarted(pid=1), execution.id) + agent.frame(ExecStdout(data=b"abc"), execution.id))
    assert await anext(execution.events()) == Started(1)
    assert await anext(execution.events()) == OutputEvent("stdout", b"abc")
    ack = await agent.hear()
    assert ack.message.consumed == 259


async def test_an_agent_that_sends_no_number_is_not_read_by_its_words(fake: tuple[Link, FakeAgent]) -> None:
    link, agent = fake
    listing = asyncio.create_task(link.files.list("/"))
    text = f"list: Too large (os error {errno.EOVERFLOW})"
    agent.say(agent.frame(FsResponse(ok=False, error=text), (await agent.hear()).id))
    with pytest.raises(errors.FileOperationFailed) as caught:
        await listing
    assert (caught.value.message, caught.value.errno) == (text, None)


async def test_an_error_message_fails_its_operation_alone(fake: tuple[Link, FakeAgent]) -> None:
    link, agent = fake
    first = asyncio.create_task(link.ping())
    second = asyncio.create_task(link.ping())
    ids = [(await agent.hear()).id, (await agent.hear()).id]
    agent.say(agent.frame(Error(kind="invalid_session", message="no"), ids[0]) + agent.frame(Pong(), ids[1]))
    with pytest.raises(errors.AgentProtocolError, match="no"):
        await first
    await second


def beyond_credit(id: int) -> bytes:
    return b"".join(bulk.record_pieces(id, bulk.KIND_FS, bulk.FLOW_GUEST_TO_HOST, 1 << 40, b"x"))


def wrong_kind(id: int) -> bytes:
    return b"".join(bulk.record_pieces(id, bulk.KIND_TCP, bulk.FLOW_GUEST_TO_HOST, 0, b"x"))


def unaccepted(id: int) -> bytes:
    return b"".join(bulk.record_pieces(id, bulk.KIND_FS, bulk.FLOW_GUEST_TO_HOST, 0, b"x"))


@pytest.mark.parametrize("record", [beyond_credit, wrong_kind, unaccepted])
async def test_a_bulk_record_out_of_place_fails_the_read(
    fake: tuple[Link, FakeAgent], record: Callable[[int], bytes]
) -> None:
    link, agent = fake

    async def read() -> bytes:
        return b"".join([chunk async for chunk in link.files.read("/file")])

    reading = asyncio.create_task(read())
    opened = await agent.hear()
    assert isinstance(opened.message.op, OpenFile)
    agent.say(agent.frame(FsResponse(ok=True, data=HandleData(handle=1)), opened.id))
    request = await agent.hear()
    assert isinstance(request.message, FsRequest)
    id: int = request.id
    if record is not unaccepted:
        accepted = bulk.BulkAccepted(
            kind=1,
            flows=2,
            format=1,
            max_record_payload=1 << 20,
            host_to_guest_credit_limit=0,
            guest_to_host_credit_limit=8 << 20,
        )
        agent.say(agent.frame(accepted, id))
    agent.say(record(id))
    while not isinstance((closing := await agent.hear()).message, FsRequest):
        pass
    agent.say(agent.frame(FsResponse(ok=True), closing.id))
    with pytest.raises(errors.AgentProtocolError):
        await reading


@pytest.mark.parametrize("garbage", [bytes(9), b"\xff" * 64, b"\x00\x00\x00\x06\x00\x00\x00\x00\x00\xff"])
async def test_garbage_ends_the_link_with_a_typed_error(fake: tuple[Link, FakeAgent], garbage: bytes) -> None:
    link, agent = fake
    pending = asyncio.create_task(link.ping())
    await agent.hear()
    agent.say(garbage)
    with pytest.raises(errors.AgentProtocolError):
        await pending
    assert link.gone


async def test_a_silent_agent_is_given_up() -> None:
    ours, theirs = socket.socketpair()
    with theirs, pytest.raises(errors.BoxGone, match="not ready"):
        await Link.open(ours, ready_within=0.1)

"""Boot sequence, generations, hostile input, relay clients, shutdown."""

from __future__ import annotations

import os
import random
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.peer import SOURCE, Peer, running
from tidebox.wire import cbor
from tidebox.wire import files as fs
from tidebox.wire.envelope import encode_message
from tidebox.wire.fields import Message
from tidebox.wire.files import FsRequest, FsResponse
from tidebox.wire.frames import encode_frame
from tidebox.wire.ids import STEP
from tidebox.wire.messages import (
    Bootstrap,
    ClockSync,
    Error,
    ExecRequest,
    ExecStarted,
    ExecStdin,
    ExecStdout,
    InitAck,
    InitResolved,
    Ping,
    Pong,
    Ready,
    RelayClientDisconnected,
    RootDiskGrow,
    Shutdown,
    TcpConnect,
    TcpConnected,
    Touch,
    Touched,
    WorkloadThaw,
)


@pytest.fixture
def unbooted(python: str) -> Iterator[Peer]:
    """An agent that waits for its bootstrap."""
    peer = Peer(python)
    yield peer
    peer.sock.close()
    peer.process.wait(30)


def envelope(name: str, payload: Any, generation: int = 10) -> bytes:
    """The body of a frame as anybody could make it."""
    return cbor.encode({"v": generation, "t": name, "p": cbor.encode(payload)})


def raw(peer: Peer, id: int, body: bytes, flags: int = 0) -> None:
    """Send a frame as it is."""
    peer.sock.sendall(encode_frame(id, flags, body))


# Boot


def test_boot_step_by_step(unbooted: Peer) -> None:
    unbooted.sock.sendall(encode_message(Bootstrap(), 0, 10))
    resolved = unbooted.expect(0, InitResolved)
    assert (resolved.default_user.uid, resolved.default_user.gid) == (os.getuid(), os.getgid())
    assert unbooted.connection.ready is None
    unbooted.sock.sendall(encode_message(InitAck(), 0, 10))
    ready = unbooted.expect(0, Ready)
    assert ready.exec_limits is not None
    assert ready.exec_limits.output_chunk_size + 256 <= ready.exec_limits.output_limit


def test_boot_and_first_request_in_one_piece(unbooted: Peer) -> None:
    request = encode_message(ExecRequest(cmd="echo", args=["at once"]), 1, 10)
    unbooted.sock.sendall(unbooted.connection.boot(Bootstrap()) + request)
    unbooted.expect(0, InitResolved)
    unbooted.expect(0, Ready)
    unbooted.expect(1, ExecStarted)
    assert unbooted.expect(1, ExecStdout).data == b"at once\n"


@pytest.mark.parametrize(
    "first",
    [Ping(), Bootstrap(hostname="box"), Bootstrap(handoff_init={"cmd": "/sbin/init"}), Bootstrap(user="nobody-at-all")],
    ids=["another message", "hostname", "other init", "unknown user"],
)
def test_boot_that_cannot_be(unbooted: Peer, first: Message) -> None:
    unbooted.sock.sendall(encode_message(first, 0, 10))
    assert unbooted.process.wait(30) == 1


def test_host_refuses_the_boot(unbooted: Peer) -> None:
    unbooted.sock.sendall(encode_message(Bootstrap(), 0, 10) + encode_message(InitAck(failure=True), 0, 10))
    assert unbooted.process.wait(30) == 1


@pytest.mark.parametrize("generation", range(1, 11))
def test_every_generation_can_be_pinned(python: str, generation: int) -> None:
    with running(python, generation, boot=False) as peer:
        assert peer.connection.negotiated == generation
        assert peer.connection.ready is not None
        assert (peer.connection.ready.exec_limits is not None) == (generation >= 10)
        assert peer.run("echo", "hello").stdout == b"hello\n"


@pytest.mark.parametrize("generation", [1, 5, 6])
def test_before_bootstrap_messages_the_agent_starts_by_itself(python: str, generation: int) -> None:
    peer = Peer(python, generation)
    try:
        peer.expect(0, InitResolved)
        peer.sock.sendall(encode_message(InitAck(), 0, generation))
        peer.expect(0, Ready)
    finally:
        peer.sock.close()
        peer.process.wait(30)


def test_what_a_pinned_agent_does_not_know(python: str) -> None:
    with running(python, 5, boot=False) as peer:
        raw(peer, 3, envelope("core.ping", {}))
        error = peer.expect(3, Error)
        assert (error.kind, error.offending_type) == ("unsupported_message_type", "core.ping")
        assert peer.run("echo", "fine").stdout == b"fine\n"


def test_a_newer_host_is_welcome(python: str) -> None:
    with running(python, 7) as peer:
        raw(peer, 4, envelope("core.ping", {}, generation=200))
        peer.expect(4, Pong)


@pytest.mark.parametrize(
    "message",
    [RootDiskGrow(size_bytes=5), WorkloadThaw(attempt_id="a", mode="continue")],
    ids=lambda message: message.WIRE,
)
def test_generation_nine_is_not_available(agent: Peer, message: Message) -> None:
    agent.send(8, message)
    assert agent.expect(8, Error).kind == "capability_unavailable"


# Small things


def test_ping_and_touch(agent: Peer) -> None:
    agent.send(1, Ping())
    agent.expect(1, Pong)
    agent.send(2, Touch())
    first = agent.expect(2, Touched).activity_seq
    agent.send(3, Ping())
    agent.expect(3, Pong)
    agent.send(4, Touch())
    assert agent.expect(4, Touched).activity_seq == first + 1


def test_clock_sync_is_taken_in_silence(agent: Peer) -> None:
    agent.send(0, ClockSync(unix_time_nanos=1))
    assert agent.silent(0, 0.1)
    assert agent.run("echo", "x").stdout == b"x\n"


# Hostile input


@pytest.mark.parametrize(
    ("name", "payload"),
    [
        ("core.exec.request", {}),
        ("core.exec.request", {"cmd": 5}),
        ("core.exec.request", {"cmd": "true", "args": "no list"}),
        ("core.exec.request", {"cmd": "true", "rows": 70000, "tty": True}),
        ("core.exec.request", None),
        ("core.exec.request", [1, 2, 3]),
        ("core.fs.request", {"op": {"Explode": {}}}),
        ("core.fs.request", {"op": "Stat"}),
        ("core.tcp.connect", {"host": "h", "port": -1}),
    ],
)
def test_undecodable_payload(agent: Peer, name: str, payload: Any) -> None:
    raw(agent, 6, envelope(name, payload), flags=2)
    error = agent.expect(6, Error)
    assert (error.kind, error.offending_type) == ("invalid_payload", name)
    assert agent.run("echo", "alive").stdout == b"alive\n"


def test_wrong_flags(agent: Peer) -> None:
    raw(agent, 6, envelope("core.exec.request", {"cmd": "true"}), flags=0)
    assert agent.expect(6, Error).kind == "invalid_flags"


def test_unknown_type(agent: Peer) -> None:
    raw(agent, 6, envelope("core.nothing", {}))
    assert agent.expect(6, Error).kind == "unsupported_message_type"


@pytest.mark.parametrize("body", [b"", b"\xff", b"\xa0", b"garbage", b"\x9b" + b"\xff" * 8, b"\x81" * 3000])
def test_no_envelope(agent: Peer, body: bytes) -> None:
    agent.send(5, Ping())
    agent.expect(5, Pong)
    raw(agent, 6, body)
    assert agent.expect(6, Error).kind == "malformed_message"
    assert agent.run("echo", "alive").stdout == b"alive\n"


def test_messages_in_the_wrong_direction_are_ignored(agent: Peer) -> None:
    raw(agent, 6, envelope("core.exec.exited", {"code": 0}), flags=1)
    assert agent.silent(6, 0.1)


def test_id_zero_starts_nothing(agent: Peer) -> None:
    agent.send(0, ExecRequest(cmd="true"))
    assert agent.expect(0, Error).kind == "invalid_session"


@pytest.mark.parametrize("length", [0, 4, 4_194_305, 2**32 - 1])
def test_broken_framing_ends_the_agent(agent: Peer, length: int) -> None:
    agent.sock.sendall(struct.pack(">I", length) + b"x" * 8)
    assert agent.process.wait(30) == 1


def test_random_frames(agent: Peer) -> None:
    source = random.Random(7)
    names = ["core.exec.request", "core.fs.request", "core.exec.stdin", "core.bulk.credit", "core.tcp.data", "x"]
    for _ in range(500):
        payload = source.choice([source.randbytes(20), cbor.encode({"cmd": "\0", "data": b"", "op": {}, "kind": 1})])
        body = cbor.encode({"v": 10, "t": source.choice(names), "p": payload})
        raw(agent, source.randrange(1, 50), body, flags=source.choice([0, 2, 8, 255]))
        raw(agent, source.randrange(1, 50), source.randbytes(source.randrange(40)), flags=source.randrange(256))
    agent.send(60, Ping())
    agent.expect(60, Pong)
    agent.start_with(61, "echo", "alive")
    assert agent.finish(61).stdout == b"alive\n"


def test_a_host_that_only_asks(agent: Peer) -> None:
    pings = agent.connection.encode(Ping(), 70) * 5_000_000
    agent.sock.settimeout(3)
    with pytest.raises(TimeoutError):
        agent.sock.sendall(pings)
    status = Path(f"/proc/{agent.process.pid}/status").read_text()
    memory = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    assert memory < 100_000


# Relay clients


def disconnect(peer: Peer, slot: int = 0) -> None:
    """Tell the agent that a client is gone."""
    peer.send(0, RelayClientDisconnected(id_start=slot * STEP + 1, id_end_exclusive=(slot + 1) * STEP))


def gone(pid: int) -> bool:
    """Whether a process ends within a moment."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


def test_execs_die_with_their_client_and_free_their_ids(agent: Peer) -> None:
    agent.start_with(1, "sleep", "100")
    pid = agent.expect(1, ExecStarted).pid
    agent.start_with(STEP + 1, "cat")
    agent.expect(STEP + 1, ExecStarted)
    disconnect(agent)
    agent.start_with(1, "echo", "new client")
    outcome = agent.finish(1)
    assert outcome.stdout == b"new client\n"
    assert outcome.exited.code == 0
    assert gone(pid)
    agent.send(STEP + 1, ExecStdin(data=b"other client"))
    assert agent.expect(STEP + 1, ExecStdout).data == b"other client"


def test_output_nobody_reads_any_more_does_not_stop_the_program(agent: Peer) -> None:
    agent.start_with(1, "yes")
    pid = agent.expect(1, ExecStarted).pid
    time.sleep(0.2)
    disconnect(agent)
    assert gone(pid)
    assert agent.run("echo", "fine", stdin=None).stdout.endswith(b"fine\n")


def test_handles_and_transfers_go_with_their_client(agent: Peer, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * (8 << 20))
    handle = agent.open(tmp_path / "file", read=True, write=True)
    agent.send(900, FsRequest(op=fs.Read(handle=handle, offset=0)))
    agent.send(901, FsRequest(op=fs.Write(handle=handle, offset=0)))
    descriptors = Path(f"/proc/{agent.process.pid}/fd")
    before = len(os.listdir(descriptors))
    disconnect(agent)
    agent.send(902, FsRequest(op=fs.FStat(handle=handle)))
    assert agent.expect(902, FsResponse).error == f"unknown handle: {handle}"
    assert len(os.listdir(descriptors)) == before - 1


def test_connections_go_with_their_client(agent: Peer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        agent.send(1, TcpConnect(host="127.0.0.1", port=server.getsockname()[1]))
        agent.expect(1, TcpConnected)
        connection, _ = server.accept()
        with connection:
            connection.settimeout(30)
            disconnect(agent)
            assert connection.recv(10) == b""
    assert agent.silent(1, 0.1)


# The end


def test_shutdown_of_an_idle_agent(agent: Peer) -> None:
    agent.send(0, Shutdown())
    assert agent.process.wait(30) == 0


def test_shutdown_asks_programs_first(agent: Peer, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    id = agent.sh(f"trap 'echo bye > {marker}; exit 0' TERM; echo ready; while :; do sleep 0.05; done")
    agent.expect(id, ExecStarted)
    agent.expect(id, ExecStdout)
    agent.send(0, Shutdown())
    assert agent.finish(id).exited.code == 0
    assert agent.process.wait(30) == 0
    assert marker.read_text() == "bye\n"


def test_shutdown_kills_what_does_not_listen(agent: Peer) -> None:
    id = agent.sh("trap '' TERM; echo ready; while :; do sleep 0.05; done")
    pid = agent.expect(id, ExecStarted).pid
    agent.expect(id, ExecStdout)
    before = time.monotonic()
    agent.send(0, Shutdown())
    assert agent.process.wait(30) == 0
    assert time.monotonic() - before < 20
    assert gone(pid)


def test_a_host_that_is_gone_takes_the_programs_along(python: str) -> None:
    with running(python) as peer:
        id = peer.start("sleep", "100")
        pid = peer.expect(id, ExecStarted).pid
        peer.sock.close()
        assert peer.process.wait(30) == 0
    assert gone(pid)


# The command line


def test_socket_path(python: str, tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    process = subprocess.Popen(
        [python, "-S", "-m", "tidebox.agent", "--socket", str(path), "--no-bootstrap"],
        env={"PYTHONPATH": str(SOURCE)},
    )
    try:
        deadline = time.monotonic() + 30
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(30)
            while True:
                try:
                    client.connect(str(path))
                    break
                except OSError:
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
            assert client.recv(9)[4:8] == b"\0\0\0\0"
            assert not path.exists()
        assert process.wait(30) == 0
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()


@pytest.mark.parametrize("arguments", [[], ["--fd"], ["--fd", "x"], ["--generation", "99", "--fd", "0"], ["--what"]])
def test_wrong_command_line(python: str, arguments: list[str]) -> None:
    answer = subprocess.run(
        [python, "-S", "-m", "tidebox.agent", *arguments],
        env={"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        check=False,
    )
    assert answer.returncode == 2
    assert answer.stderr.startswith(b"usage:")
    assert b"Traceback" not in answer.stderr

"""Many bytes, slow readers, programs that do not read: nothing lost, nothing reordered, nobody else held up."""

from __future__ import annotations

import hashlib
import sys
import time
from pathlib import Path

import pytest

from tests.agent.peer import Peer, running
from tidebox.wire.messages import (
    OUTPUT_ACK_OVERHEAD,
    ExecOutputAck,
    ExecStarted,
    ExecStdin,
    ExecStdinAck,
    ExecStdinError,
    ExecStdout,
    Ping,
    Pong,
)

MIB = 1 << 20
# Writes so many bytes of a pattern that shows every gap and every swap.
COUNTER = """
import sys
total = int(sys.argv[1]) // 16
for start in range(0, total, 4096):
    sys.stdout.buffer.write(b"".join(b"%015d\\n" % number for number in range(start, min(total, start + 4096))))
"""


def pattern(size: int) -> bytes:
    """What COUNTER writes."""
    return b"".join(b"%015d\n" % number for number in range(size // 16))


def agent_memory(peer: Peer) -> int:
    """Resident bytes of the agent."""
    status = Path(f"/proc/{peer.process.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) * 1024


@pytest.mark.parametrize("generation", [7, 10])
def test_large_output_to_a_slow_reader_is_exact(python: str, generation: int) -> None:
    with running(python, generation) as peer:
        id = peer.start(sys.executable, "-S", "-c", COUNTER, str(32 * MIB))
        time.sleep(0.5)  # everything on the way is full by now
        memory = agent_memory(peer)
        digest, size = hashlib.sha256(), 0
        while True:
            message = peer.next(id)
            if isinstance(message, ExecStdout):
                digest.update(message.data)
                size += len(message.data)
                peer.consumed(id, len(message.data))
                if size % (8 * MIB) < len(message.data):
                    time.sleep(0.02)
            elif not isinstance(message, ExecStarted):
                break
        assert message.code == 0
        assert size == 32 * MIB
        assert digest.digest() == hashlib.sha256(pattern(32 * MIB)).digest()
        assert memory < 32 * MIB


def test_a_host_that_does_not_read_holds_the_program_back(python: str, tmp_path: Path) -> None:
    progress = tmp_path / "progress"
    with running(python, 7) as peer:
        peer.sh(f"while :; do head -c 65536 /dev/zero; echo x >> {progress}; done")
        deadline, before, written = time.monotonic() + 30, -1, 0
        while written != before or not written:
            assert time.monotonic() < deadline
            before = written
            time.sleep(0.5)
            written = progress.stat().st_size // 2 * 65536 if progress.exists() else 0
            assert written < 8 * MIB


def test_output_within_the_window_only(agent: Peer) -> None:
    assert agent.connection.ready is not None
    limits = agent.connection.ready.exec_limits
    assert limits is not None
    id = agent.start("head", "-c", str(4 * MIB), "/dev/zero")
    agent.expect(id, ExecStarted)
    received = charged = 0
    while received <= limits.output_limit // 2 or not agent.silent(id, 0.3):
        message = agent.expect(id, ExecStdout)
        assert len(message.data) <= limits.output_chunk_size
        received += len(message.data)
        charged += len(message.data) + OUTPUT_ACK_OVERHEAD
        assert charged <= limits.output_limit
    agent.send(id, ExecOutputAck(consumed=charged))
    while received < 4 * MIB:
        message = agent.expect(id, ExecStdout)
        received += len(message.data)
        charged += len(message.data) + OUTPUT_ACK_OVERHEAD
        agent.send(id, ExecOutputAck(consumed=charged))
    assert agent.finish(id).exited.code == 0


def test_what_a_program_left_in_the_pipe_waits_for_the_window(agent: Peer) -> None:
    id = agent.start(sys.executable, "-S", "-c", COUNTER, str(MIB + 200_000))
    time.sleep(1)  # it has ended, and its end may not overtake its output
    assert agent.finish(id).stdout == pattern(MIB + 200_000)


def test_one_slow_reader_does_not_stall_its_neighbour(agent: Peer) -> None:
    agent.start("yes")
    time.sleep(0.2)
    assert agent.run("echo", "here").stdout == b"here\n"


def test_acknowledging_too_much_opens_nothing(agent: Peer) -> None:
    id = agent.start("yes")
    agent.expect(id, ExecStarted)
    agent.send(id, ExecOutputAck(consumed=2**64 - 1))
    received = 0
    while not agent.silent(id, 0.3):
        received += len(agent.expect(id, ExecStdout).data)
    assert received <= 2 * MIB


def test_large_input_is_exact(agent: Peer) -> None:
    data = pattern(8 * MIB)
    id = agent.start("sha256sum")
    sent = acknowledged = 0
    while sent < len(data):
        while sent - acknowledged + 65536 > MIB:
            message = agent.next(id)
            if isinstance(message, ExecStdinAck):
                assert acknowledged < message.consumed <= sent
                acknowledged = message.consumed
        agent.send(id, ExecStdin(data=data[sent : sent + 65536]))
        sent += 65536
    agent.send(id, ExecStdin(data=b""))
    assert agent.finish(id).stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()


def test_large_input_of_a_peer_without_flow_control(python: str) -> None:
    data = pattern(32 * MIB)
    with running(python, 7) as peer:
        id = peer.sh("sleep 0.2; sha256sum")
        for start in range(0, len(data), 65536):
            peer.send(id, ExecStdin(data=data[start : start + 65536]))
        peer.send(id, ExecStdin(data=b""))
        assert peer.finish(id).stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()


def test_input_and_output_at_once_do_not_deadlock(python: str) -> None:
    with running(python, 7) as peer:
        id = peer.start("cat")
        for _ in range(48):  # 3 MiB, without reading: what the way in and the way out hold together
            peer.send(id, ExecStdin(data=b"x" * 65536))
        peer.send(id, ExecStdin(data=b""))
        assert len(peer.finish(id).stdout) == 48 * 65536


def test_a_flood_to_a_program_that_never_reads(python: str) -> None:
    with running(python, 7) as peer:
        neighbour = peer.start("cat")
        peer.expect(neighbour, ExecStarted)
        flooded = peer.start("sleep", "100")
        peer.expect(flooded, ExecStarted)
        for _ in range(512):  # 32 MiB
            peer.send(flooded, ExecStdin(data=b"x" * 65536))
        peer.send(neighbour, ExecStdin(data=b"still there"))
        assert peer.expect(neighbour, ExecStdout).data == b"still there"
        error = peer.expect(flooded, ExecStdinError)
        assert error.errno_name == "ENOBUFS"
        assert peer.silent(flooded, 0.2)
        assert agent_memory(peer) < 64 * MIB


def test_more_input_than_allowed(agent: Peer) -> None:
    id = agent.start("sleep", "100")
    agent.expect(id, ExecStarted)
    for _ in range(32):
        agent.send(id, ExecStdin(data=b"x" * 65536))
    messages = [agent.next(id), agent.next(id)]
    assert {type(message).__name__ for message in messages} >= {"ExecStdinError"}
    assert agent.run("echo", "fine").stdout == b"fine\n"


def test_input_in_single_bytes_costs_what_it_holds(agent: Peer) -> None:
    id = agent.start("sleep", "100")
    agent.expect(id, ExecStarted)
    one = agent.connection.encode(ExecStdin(data=b"x"), id)
    before = agent_memory(agent)
    agent.sock.sendall(one * 400_000)
    probe = agent.new_id()
    agent.send(probe, Ping())
    agent.expect(probe, Pong)
    assert agent_memory(agent) - before < 8 * MIB


def test_a_program_that_closes_its_input(agent: Peer) -> None:
    id = agent.sh("exec <&-; echo closed; sleep 1; echo end")
    agent.expect(id, ExecStarted)
    assert agent.expect(id, ExecStdout).data == b"closed\n"
    agent.send(id, ExecStdin(data=b"x"), ExecStdin(data=b"y"))
    assert agent.expect(id, ExecStdinError).errno_name == "EPIPE"
    outcome = agent.finish(id)
    assert outcome.kinds == ["ExecStdout", "ExecExited"]


def test_both_streams_of_many_programs(agent: Peer) -> None:
    script = "import sys\nfor n in range(20000):\n print(n); print(n, file=sys.stderr)"
    ids = [agent.start(sys.executable, "-S", "-c", script) for _ in range(6)]
    expected = b"".join(b"%d\n" % number for number in range(20000))
    for id in ids:
        outcome = agent.finish(id)
        assert outcome.stdout == expected
        assert outcome.stderr == expected

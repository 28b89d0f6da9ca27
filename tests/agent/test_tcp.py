"""Connections from inside the box, forwarded."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.agent.peer import PATIENCE, Peer, offer
from tidebox.wire.bulk import (
    FLOW_GUEST_TO_HOST,
    FLOW_HOST_TO_GUEST,
    KIND_TCP,
    BulkAccepted,
    BulkCancel,
    BulkCredit,
    BulkFinish,
    BulkRecord,
    record_pieces,
)
from tidebox.wire.messages import Error, TcpClose, TcpClosed, TcpConnect, TcpConnected, TcpData, TcpEof, TcpFailed

MIB = 1 << 20


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A server of the box."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE)
        yield server


def connect(peer: Peer, listener: socket.socket, host: str = "127.0.0.1") -> tuple[int, socket.socket]:
    """A connection: its id, and the server's end."""
    id = peer.new_id()
    peer.send(id, TcpConnect(host=host, port=listener.getsockname()[1]))
    peer.expect(id, TcpConnected)
    server, _ = listener.accept()
    server.settimeout(PATIENCE)
    return id, server


def test_both_directions_and_both_ends(agent: Peer, listener: socket.socket) -> None:
    id, server = connect(agent, listener)
    with server:
        agent.send(id, TcpData(data=b"to the server"))
        assert server.recv(100) == b"to the server"
        server.sendall(b"to the host")
        assert agent.expect(id, TcpData).data == b"to the host"
        agent.send(id, TcpEof())
        assert server.recv(100) == b""
    agent.expect(id, TcpEof)
    agent.expect(id, TcpClosed)


def test_half_close_by_the_server(agent: Peer, listener: socket.socket) -> None:
    id, server = connect(agent, listener)
    with server:
        server.sendall(b"bye")
        server.shutdown(socket.SHUT_WR)
        assert agent.expect(id, TcpData).data == b"bye"
        agent.expect(id, TcpEof)
        agent.send(id, TcpData(data=b"still open"), TcpEof())
        assert server.recv(100) == b"still open"
        assert server.recv(100) == b""
    agent.expect(id, TcpClosed)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_names_without_a_name_service(agent: Peer, listener: socket.socket, host: str) -> None:
    _, server = connect(agent, listener, host)
    server.close()


def test_localhost_tries_both_families(agent: Peer) -> None:
    try:
        server = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 here")
    with server:
        server.settimeout(PATIENCE)
        id = agent.new_id()
        agent.send(id, TcpConnect(host="localhost", port=server.getsockname()[1]))
        agent.expect(id, TcpConnected)


def test_refused(agent: Peer, listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    listener.close()
    id = agent.new_id()
    agent.send(id, TcpConnect(host="127.0.0.1", port=port))
    assert agent.expect(id, TcpFailed).error == f"connect 127.0.0.1:{port}: Connection refused (os error 111)"


@pytest.mark.parametrize("host", ["no-such-host.invalid", "", "999.1.1.1", "a\0b", "::1%eth9", "x" * 70000])
def test_unknown_hosts(agent: Peer, host: str) -> None:
    id = agent.new_id()
    agent.send(id, TcpConnect(host=host, port=80))
    assert "connect" in agent.expect(id, TcpFailed).error
    assert agent.run("echo", "alive").stdout == b"alive\n"


def test_close_is_silent(agent: Peer, listener: socket.socket) -> None:
    id, server = connect(agent, listener)
    with server:
        agent.send(id, TcpClose())
        assert server.recv(10) == b""
    assert agent.silent(id, 0.1)


def test_close_while_connecting(agent: Peer) -> None:
    id = agent.new_id()
    agent.send(id, TcpConnect(host="192.0.2.1", port=9), TcpClose())
    agent.silent(id, 0.1)
    assert agent.run("echo", "alive").stdout == b"alive\n"


def test_data_for_no_connection(agent: Peer) -> None:
    agent.send(31, TcpData(data=b"x"))
    assert agent.expect(31, TcpFailed).error == "unknown TCP session: 31"
    agent.send(31, TcpEof(), TcpClose())
    assert agent.silent(31, 0.1)


def test_reset_by_the_server(agent: Peer, listener: socket.socket) -> None:
    id, server = connect(agent, listener)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    server.close()
    assert "Connection reset" in agent.expect(id, TcpFailed).error


def test_id_in_use(agent: Peer, listener: socket.socket) -> None:
    id, server = connect(agent, listener)
    agent.send(id, TcpConnect(host="127.0.0.1", port=listener.getsockname()[1]))
    assert agent.expect(id, Error).kind == "invalid_session"
    server.close()


def test_large_echo(agent: Peer, listener: socket.socket) -> None:
    id, server = connect(agent, listener)
    data = os.urandom(4 * MIB)

    def echo() -> None:
        with server:
            received = b""
            while part := server.recv(MIB):
                received += part
            server.sendall(received)

    thread = threading.Thread(target=echo)
    thread.start()
    for start in range(0, len(data), 65536):
        agent.send(id, TcpData(data=data[start : start + 65536]))
    agent.send(id, TcpEof())
    received = b""
    while isinstance(message := agent.next(id), TcpData):
        assert len(message.data) <= 65536
        received += message.data
    thread.join()
    assert isinstance(message, TcpEof)
    agent.expect(id, TcpClosed)
    assert hashlib.sha256(received).digest() == hashlib.sha256(data).digest()


def test_a_server_that_never_reads_stalls_nobody(agent: Peer, listener: socket.socket) -> None:
    id, server = connect(agent, listener)
    with server:
        for _ in range(512):  # 32 MiB
            agent.send(id, TcpData(data=b"x" * 65536))
        assert agent.run("echo", "alive").stdout == b"alive\n"
        assert agent.expect(id, TcpFailed).error == "write: the peer does not read"


def test_bulk_both_ways(agent: Peer, listener: socket.socket) -> None:
    id = agent.new_id()
    request = TcpConnect(host="127.0.0.1", port=listener.getsockname()[1], bulk=offer(payload=262144))
    agent.send(id, request)
    agent.expect(id, TcpConnected)
    accepted = agent.expect(id, BulkAccepted)
    assert (accepted.kind, accepted.flows, accepted.max_record_payload) == (KIND_TCP, 3, 262144)
    server, _ = listener.accept()
    server.settimeout(PATIENCE)
    with server:
        agent.sock.sendall(b"".join(record_pieces(id, KIND_TCP, FLOW_HOST_TO_GUEST, 0, b"hello")))
        assert server.recv(100) == b"hello"
        server.sendall(b"world!")
        record = agent.next(id)
        assert isinstance(record, BulkRecord)
        assert (record.flow, record.offset, bytes(record.payload)) == (FLOW_GUEST_TO_HOST, 0, b"world!")
        agent.send(id, BulkFinish(kind=KIND_TCP, flow=FLOW_HOST_TO_GUEST, final_offset=5))
        assert server.recv(100) == b""
    assert agent.expect(id, BulkFinish).final_offset == 6
    agent.expect(id, TcpClosed)


def test_bulk_credit(agent: Peer, listener: socket.socket) -> None:
    id = agent.new_id()
    request = TcpConnect(host="127.0.0.1", port=listener.getsockname()[1], bulk=offer(credit=100_000, payload=16384))
    agent.send(id, request)
    agent.expect(id, TcpConnected)
    agent.expect(id, BulkAccepted)
    server, _ = listener.accept()
    with server:
        server.sendall(b"x" * 200_000)
        received = 0
        while not agent.silent(id, 0.2):
            received += len(agent.next(id).payload)
        assert received == 100_000
        agent.send(
            id,
            BulkCredit(kind=KIND_TCP, flow=FLOW_GUEST_TO_HOST, consumed_offset=received, credit_limit=200_000),
        )
        while received < 200_000:
            received += len(agent.next(id).payload)


def test_bulk_cancel_gets_its_terminal(agent: Peer, listener: socket.socket) -> None:
    id = agent.new_id()
    agent.send(id, TcpConnect(host="127.0.0.1", port=listener.getsockname()[1], bulk=offer(payload=262144)))
    agent.expect(id, TcpConnected)
    agent.expect(id, BulkAccepted)
    agent.send(id, BulkCancel(kind=KIND_TCP, reason=1, message="enough"))
    agent.expect(id, TcpClosed)
    assert agent.silent(id, 0.1)


def test_bulk_against_the_rules(agent: Peer, listener: socket.socket) -> None:
    id = agent.new_id()
    agent.send(id, TcpConnect(host="127.0.0.1", port=listener.getsockname()[1], bulk=offer(payload=262144)))
    agent.expect(id, TcpConnected)
    agent.expect(id, BulkAccepted)
    agent.sock.sendall(b"".join(record_pieces(id, KIND_TCP, FLOW_HOST_TO_GUEST, 7, b"hello")))
    assert agent.expect(id, BulkCancel).reason == 5
    agent.expect(id, TcpFailed)

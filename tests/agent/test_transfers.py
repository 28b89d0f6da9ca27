"""Streamed reads and writes, as messages and as bulk records."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.agent.peer import Peer, offer, running
from tidebox.wire import files as fs
from tidebox.wire.bulk import (
    DEFAULT_WINDOW,
    FLOW_GUEST_TO_HOST,
    FLOW_HOST_TO_GUEST,
    KIND_FS,
    BulkAccepted,
    BulkCancel,
    BulkCredit,
    BulkFinish,
    BulkOffer,
    BulkRecord,
    record_pieces,
)
from tidebox.wire.files import FsData, FsRequest, FsResponse
from tidebox.wire.messages import Error, Ping, Pong

MIB = 1 << 20


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A file of 20 MiB and a bit."""
    path = tmp_path / "large"
    path.write_bytes(os.urandom(20 * MIB + 123))
    return path


def digest(data: bytes) -> str:
    """To compare without showing megabytes."""
    return hashlib.sha256(data).hexdigest()


def begin_read(peer: Peer, handle: int, bulk: BulkOffer | None, **fields: Any) -> int:
    """Start a read; its id."""
    id = peer.new_id()
    peer.send(id, FsRequest(op=fs.Read(handle=handle, offset=fields.pop("offset", 0), **fields), bulk=bulk))
    return id


def begin_write(peer: Peer, handle: int, **fields: Any) -> int:
    """Start a bulk write; its id."""
    id = peer.new_id()
    operation = fs.Write(handle=handle, offset=fields.pop("offset", 0), **fields)
    peer.send(id, FsRequest(op=operation, bulk=offer(credit=0)))
    return id


def send_record(peer: Peer, id: int, offset: int, data: bytes) -> None:
    """One record of a write."""
    peer.sock.sendall(b"".join(record_pieces(id, KIND_FS, FLOW_HOST_TO_GUEST, offset, data)))


def finish(offset: int) -> BulkFinish:
    """The host's end of a write."""
    return BulkFinish(kind=KIND_FS, flow=FLOW_HOST_TO_GUEST, final_offset=offset)


# Messages


def test_read_a_whole_file(agent: Peer, large: Path) -> None:
    assert digest(agent.read(agent.open(large, read=True))) == digest(large.read_bytes())


@pytest.mark.parametrize(("offset", "length"), [(0, 10), (5, 7), (0, 0), (100, None), (2**40, None), (90, 50)])
def test_read_a_part(agent: Peer, tmp_path: Path, offset: int, length: int | None) -> None:
    data = bytes(range(120))
    (tmp_path / "file").write_bytes(data)
    end = None if length is None else offset + length
    assert agent.read(agent.open(tmp_path / "file", read=True), offset, length) == data[offset:end]


def test_read_an_empty_file(agent: Peer, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert agent.read(agent.open(tmp_path / "file", read=True)) == b""


def test_chunks_fit_the_protocol(agent: Peer, large: Path) -> None:
    id = begin_read(agent, agent.open(large, read=True), None)
    while isinstance(message := agent.next(id), FsData):
        assert 0 < len(message.data) <= fs.MAX_DATA_SIZE
    assert message.ok


def test_read_what_is_open_for_writing(agent: Peer, tmp_path: Path) -> None:
    handle = agent.open(tmp_path / "file", write=True, create=True)
    response = agent.fs(fs.Read(handle=handle, offset=0))
    assert (response.error, response.errno) == ("read: Bad file descriptor (os error 9)", 9)


@pytest.mark.parametrize("operation", [fs.Read, fs.Write])
def test_offset_out_of_range(agent: Peer, tmp_path: Path, operation: Any) -> None:
    handle = agent.open(tmp_path / "file", read=True, write=True, create=True)
    assert "Invalid argument" in (agent.fs(operation(handle=handle, offset=2**64 - 1)).error or "")


def test_read_of_a_directory_handle(agent: Peer, tmp_path: Path) -> None:
    response = agent.fs(fs.OpenDir(path=str(tmp_path)))
    assert isinstance(response.data, fs.HandleData)
    assert not agent.fs(fs.Read(handle=response.data.handle, offset=0)).ok


def test_a_large_read_does_not_starve_others(agent: Peer, large: Path) -> None:
    begin_read(agent, agent.open(large, read=True), None)
    probe = agent.new_id()
    agent.send(probe, Ping())
    before = time.monotonic()
    agent.expect(probe, Pong)
    assert time.monotonic() - before < 20
    assert agent.run("echo", "meanwhile").stdout == b"meanwhile\n"


def test_two_reads_at_once(agent: Peer, large: Path) -> None:
    handle = agent.open(large, read=True)
    ids = [begin_read(agent, handle, None) for _ in range(2)]
    for id in ids:
        data = b""
        while isinstance(message := agent.next(id), FsData):
            data += message.data
        assert digest(data) == digest(large.read_bytes())


def test_closing_the_handle_ends_the_read(agent: Peer, large: Path) -> None:
    handle = agent.open(large, read=True)
    id = begin_read(agent, handle, None)
    closing = agent.new_id()
    agent.send(closing, FsRequest(op=fs.CloseHandle(handle=handle)))
    while isinstance(message := agent.next(id), FsData):
        pass
    assert message.error == "read: the handle was closed"


def test_write(agent: Peer, tmp_path: Path) -> None:
    handle = agent.open(tmp_path / "file", write=True, create=True)
    assert agent.write(handle, b"one", b"two", b"three", length=11).ok
    assert (tmp_path / "file").read_bytes() == b"onetwothree"


def test_write_at_an_offset(agent: Peer, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    assert agent.write(agent.open(tmp_path / "file", write=True), b"xy", offset=4).ok
    assert (tmp_path / "file").read_bytes() == b"0123xy6789"


def test_append(agent: Peer, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    assert agent.write(agent.open(tmp_path / "file", append=True), b"def").ok
    assert (tmp_path / "file").read_bytes() == b"abcdef"


def test_large_write(agent: Peer, tmp_path: Path) -> None:
    data = os.urandom(20 * MIB)
    chunks = [data[start : start + 3 * MIB] for start in range(0, len(data), 3 * MIB)]
    assert agent.write(agent.open(tmp_path / "file", write=True, create=True), *chunks).ok
    assert digest((tmp_path / "file").read_bytes()) == digest(data)


def test_write_length_mismatch(agent: Peer, tmp_path: Path) -> None:
    handle = agent.open(tmp_path / "file", write=True, create=True)
    assert agent.write(handle, b"abc", length=5).error == "write length mismatch: expected 5, wrote 3"


def test_write_error_is_told_once(agent: Peer, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    handle = agent.open(tmp_path / "file", read=True)
    id = agent.new_id()
    agent.send(
        id, FsRequest(op=fs.Write(handle=handle, offset=0)), FsData(data=b"a"), FsData(data=b"b"), FsData(data=b"")
    )
    response = agent.expect(id, FsResponse)
    assert (response.error, response.errno) == ("write: Bad file descriptor (os error 9)", 9)
    assert agent.silent(id, 0.1)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_disk_full_fails_alone(python: str, tmp_path: Path) -> None:
    with running(python) as peer:
        handle = peer.open(tmp_path / "file", write=True, create=True)
        id = peer.new_id()
        # No file system holds an offset like this.
        peer.send(id, FsRequest(op=fs.Write(handle=handle, offset=2**63 - 10)), FsData(data=b"x" * 5), FsData(data=b""))
        assert not peer.expect(id, FsResponse).ok
        assert peer.write(handle, b"fine").ok


def test_data_for_no_write(agent: Peer) -> None:
    agent.send(9, FsData(data=b"x"))
    assert agent.expect(9, FsResponse).error == "unknown write session: 9"


def test_id_of_a_running_write_is_taken(agent: Peer, tmp_path: Path) -> None:
    handle = agent.open(tmp_path / "file", write=True, create=True)
    id = agent.new_id()
    agent.send(id, FsRequest(op=fs.Write(handle=handle, offset=0)), FsRequest(op=fs.FStat(handle=handle)))
    assert agent.expect(id, Error).kind == "invalid_session"
    agent.send(id, FsData(data=b""))
    assert agent.expect(id, FsResponse).ok


# Bulk


def test_bulk_read(agent: Peer, large: Path) -> None:
    id = begin_read(agent, agent.open(large, read=True), offer())
    accepted = agent.expect(id, BulkAccepted)
    assert (accepted.kind, accepted.flows, accepted.format) == (KIND_FS, FLOW_GUEST_TO_HOST, 1)
    assert (accepted.host_to_guest_credit_limit, accepted.guest_to_host_credit_limit) == (0, DEFAULT_WINDOW)
    data, limit = b"", DEFAULT_WINDOW
    while isinstance(record := agent.next(id), BulkRecord):
        assert (record.kind, record.flow, record.offset) == (KIND_FS, FLOW_GUEST_TO_HOST, len(data))
        data += record.payload
        assert len(data) <= limit
        if limit - len(data) <= DEFAULT_WINDOW // 2:
            limit = len(data) + DEFAULT_WINDOW
            credit = BulkCredit(kind=KIND_FS, flow=FLOW_GUEST_TO_HOST, consumed_offset=len(data), credit_limit=limit)
            agent.send(id, credit)
    assert isinstance(record, BulkFinish)
    assert record.final_offset == len(data)
    assert agent.expect(id, FsResponse).ok
    assert digest(data) == digest(large.read_bytes())


def test_bulk_read_stops_at_its_credit(agent: Peer, large: Path) -> None:
    id = begin_read(agent, agent.open(large, read=True), offer(credit=MIB, payload=16384))
    assert agent.expect(id, BulkAccepted).max_record_payload == 16384
    received = 0
    while received < MIB:
        received += len(agent.next(id).payload)
    assert received == MIB
    assert agent.silent(id, 0.2)
    agent.send(id, BulkCredit(kind=KIND_FS, flow=FLOW_GUEST_TO_HOST, consumed_offset=MIB, credit_limit=MIB + 1000))
    assert len(agent.next(id).payload) == 1000
    assert agent.silent(id, 0.2)


def test_bulk_read_of_an_empty_file(agent: Peer, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    id = begin_read(agent, agent.open(tmp_path / "file", read=True), offer())
    agent.expect(id, BulkAccepted)
    assert agent.expect(id, BulkFinish).final_offset == 0
    assert agent.expect(id, FsResponse).ok


def test_bulk_read_that_ends_with_its_credit(agent: Peer, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * MIB)
    id = begin_read(agent, agent.open(tmp_path / "file", read=True), offer(credit=MIB), len=MIB)
    agent.expect(id, BulkAccepted)
    received = 0
    while isinstance(record := agent.next(id), BulkRecord):
        received += len(record.payload)
    assert received == record.final_offset == MIB
    assert agent.expect(id, FsResponse).ok


def test_bulk_read_cancelled(agent: Peer, large: Path) -> None:
    id = begin_read(agent, agent.open(large, read=True), offer(credit=MIB))
    agent.expect(id, BulkAccepted)
    agent.send(id, BulkCancel(kind=KIND_FS, reason=1, message="enough"))
    while isinstance(message := agent.next(id), BulkRecord):
        pass
    assert isinstance(message, FsResponse)
    assert not message.ok
    assert agent.silent(id, 0.1)


def test_bulk_write(agent: Peer, tmp_path: Path) -> None:
    data = os.urandom(30 * MIB)
    id = begin_write(agent, agent.open(tmp_path / "file", write=True, create=True))
    accepted = agent.expect(id, BulkAccepted)
    assert (accepted.flows, accepted.guest_to_host_credit_limit) == (FLOW_HOST_TO_GUEST, 0)
    sent, limit = 0, accepted.host_to_guest_credit_limit
    while sent < len(data):
        size = min(accepted.max_record_payload, len(data) - sent)
        while sent + size > limit:
            credit = agent.expect(id, BulkCredit)
            assert credit.consumed_offset <= sent
            assert credit.credit_limit > limit
            limit = credit.credit_limit
        send_record(agent, id, sent, data[sent : sent + size])
        sent += size
    agent.send(id, finish(sent))
    while isinstance(message := agent.next(id), BulkCredit):
        pass
    assert isinstance(message, FsResponse)
    assert message.ok
    assert digest((tmp_path / "file").read_bytes()) == digest(data)


@pytest.mark.parametrize("violation", ["gap", "over credit", "wrong finish", "message"])
def test_bulk_write_against_the_rules(agent: Peer, tmp_path: Path, violation: str) -> None:
    id = begin_write(agent, agent.open(tmp_path / "file", write=True, create=True))
    accepted = agent.expect(id, BulkAccepted)
    send_record(agent, id, 0, b"abc")
    if violation == "gap":
        send_record(agent, id, 5, b"def")
    elif violation == "over credit":
        send_record(agent, id, accepted.host_to_guest_credit_limit, b"def")
    elif violation == "wrong finish":
        agent.send(id, finish(4))
    else:
        agent.send(id, FsData(data=b"def"))
    assert agent.expect(id, BulkCancel).reason == 5
    assert not agent.expect(id, FsResponse).ok
    send_record(agent, id, 3, b"late")
    agent.send(id, finish(7))
    assert agent.silent(id, 0.1)
    assert agent.run("echo", "alive").stdout == b"alive\n"


def test_bulk_write_length_mismatch(agent: Peer, tmp_path: Path) -> None:
    id = begin_write(agent, agent.open(tmp_path / "file", write=True, create=True), len=5)
    agent.expect(id, BulkAccepted)
    send_record(agent, id, 0, b"abc")
    agent.send(id, finish(3))
    assert agent.expect(id, FsResponse).error == "write length mismatch: expected 5, wrote 3"


@pytest.mark.parametrize(
    "bad",
    [
        BulkOffer(format=2, max_record_payload=MIB, guest_to_host_credit_limit=MIB),
        BulkOffer(format=1, max_record_payload=100, guest_to_host_credit_limit=MIB),
        BulkOffer(format=1, max_record_payload=MIB, guest_to_host_credit_limit=0),
        BulkOffer(format=1, max_record_payload=MIB, guest_to_host_credit_limit=2**40),
    ],
    ids=["format", "payload", "no credit", "too much credit"],
)
def test_bad_offers(agent: Peer, large: Path, bad: BulkOffer) -> None:
    id = begin_read(agent, agent.open(large, read=True), bad)
    assert agent.expect(id, FsResponse).error == "invalid bulk offer"


def test_records_for_nobody(agent: Peer) -> None:
    send_record(agent, 42, 0, b"x")
    agent.send(42, finish(1))
    assert agent.run("echo", "alive").stdout == b"alive\n"


def test_an_older_agent_answers_an_offer_with_messages(python: str, large: Path) -> None:
    with running(python, 7) as peer:
        id = begin_read(peer, peer.open(large, read=True), offer())
        assert isinstance(peer.next(id), FsData)

"""Message types: presence rules, checks, and what a peer of another age may send."""

from __future__ import annotations

from typing import Any

import pytest

from tidebox.wire import bulk, cbor, files
from tidebox.wire.envelope import data_pieces, encode_message, open_envelope
from tidebox.wire.errors import InvalidBulkRecord, InvalidPayload, MalformedMessage
from tidebox.wire.fields import Message
from tidebox.wire.files import FsRequest, FsResponse
from tidebox.wire.frames import FrameReader, encode_frame
from tidebox.wire.messages import (
    BY_WIRE_NAME,
    MESSAGE_TYPES,
    Bootstrap,
    Error,
    ExecExited,
    ExecFailed,
    ExecRequest,
    ExecStarted,
    ExecStdout,
    InitAck,
    Ready,
    Rlimit,
    Shutdown,
    TcpConnect,
)


def through_the_wire(message: Message) -> Message:
    [frame] = FrameReader().feed(encode_message(message, 3, 10))
    envelope = open_envelope(frame)
    return envelope.decode(envelope.message_type())


def test_wire_names_are_unique() -> None:
    assert len(BY_WIRE_NAME) == len(MESSAGE_TYPES)


@pytest.mark.parametrize(
    ("message", "item"),
    [
        (ExecStarted(pid=3), {"pid": 3}),
        (ExecStarted(pid=3, leaf="e7"), {"pid": 3, "leaf": "e7"}),
        (ExecExited(code=0), {"code": 0}),
        (ExecExited(code=-1, signal=9, usage={"cpu_us": 5}), {"code": -1, "signal": 9, "usage": {"cpu_us": 5}}),
        (
            ExecFailed(kind="not_found", message="m"),
            {"kind": "not_found", "errno": None, "errno_name": None, "message": "m", "stage": None},
        ),
        (
            Ready(boot_time_ns=1, init_time_ns=2, ready_time_ns=3),
            {"boot_time_ns": 1, "init_time_ns": 2, "ready_time_ns": 3},
        ),
        (InitAck(), {}),
        (InitAck(failure=True), {"failure": True}),
        (Shutdown(), None),
        (Bootstrap(), {"security_profile": "default"}),
        (
            Bootstrap(rlimits=[Rlimit(resource="core", soft=0, hard=0)]),
            {"rlimits": [{"resource": "core", "soft": 0, "hard": 0}], "security_profile": "default"},
        ),
        (Error(kind="k", message="m"), {"kind": "k", "message": "m"}),
        (TcpConnect(host="h", port=1), {"host": "h", "port": 1}),
        (FsRequest(op=files.Mkdir(path="/a")), {"op": {"Mkdir": {"path": "/a", "mode": None}}}),
        (FsRequest(op=files.Mkdir(path="/a", user="u")), {"op": {"Mkdir": {"path": "/a", "mode": None, "user": "u"}}}),
        (FsResponse(ok=True, data=files.PathData(path="/a")), {"ok": True, "error": None, "data": {"Path": "/a"}}),
        (FsResponse(ok=True, data=files.ListData(entries=[])), {"ok": True, "error": None, "data": {"List": []}}),
    ],
    ids=repr,
)
def test_presence_rules(message: Message, item: Any) -> None:
    assert message.to_item() == item
    assert through_the_wire(message) == message


@pytest.mark.parametrize(
    "operation",
    [
        files.RealPath(path="/a"),
        files.Stat(path="/a", follow_symlink=True),
        files.SetStat(path="/a", follow_symlink=False, attrs=files.Attributes(mode=0o600, mtime=-1)),
        files.List(path="/"),
        files.ReadLink(path="/a"),
        files.Symlink(target="b", link_path="/a"),
        files.Mkdir(path="/a", mode=0o700),
        files.Remove(path="/a"),
        files.RemoveDir(path="/a", recursive=True),
        files.Copy(src="/a", dst="/b"),
        files.Rename(src="/a", dst="/b"),
        files.OpenFile(path="/a", options=files.OpenOptions(write=True, create=True)),
        files.OpenDir(path="/"),
        files.CloseHandle(handle=2**63),
        files.Read(handle=1, offset=0),
        files.Write(handle=1, offset=5, len=3),
        files.ReadDir(handle=1),
        files.FStat(handle=1),
        files.FSetStat(handle=1, attrs=files.Attributes(size=0)),
    ],
    ids=lambda operation: operation.TAG,
)
def test_every_file_operation_survives_the_wire(operation: files.Operation) -> None:
    request = FsRequest(op=operation)
    assert through_the_wire(request) == request


@pytest.mark.parametrize(
    ("wire_name", "item", "complaint"),
    [
        ("core.ready", {"boot_time_ns": 1, "ready_time_ns": 1}, "missing field `init_time_ns`"),
        ("core.exec.request", {}, "missing field `cmd`"),
        ("core.exec.request", {"cmd": None}, "null in field `cmd`"),
        ("core.exec.request", {"cmd": 5}, "expected text"),
        ("core.exec.request", {"cmd": "a", "args": "b"}, "expected an array"),
        ("core.exec.request", {"cmd": "a", "args": [1]}, "expected text"),
        ("core.exec.request", {"cmd": "a", "tty": 1}, "expected a boolean"),
        ("core.exec.request", {"cmd": "a", "rows": 65536}, "out of range"),
        ("core.exec.request", {"cmd": "a", "rows": True}, "expected an integer"),
        ("core.exec.request", {"cmd": "a", "rows": -1}, "out of range"),
        ("core.exec.request", [], "expected a map"),
        ("core.exec.stdin", {}, "missing field `data`"),
        ("core.exec.stdin", {"data": "text"}, "expected bytes"),
        ("core.exec.stdin", None, "missing field `data`"),
        ("core.fs.request", {"op": {}}, "one variant"),
        ("core.fs.request", {"op": {"Stat": {}, "List": {}}}, "one variant"),
        ("core.fs.request", {"op": {"Explode": {}}}, "unknown variant"),
        ("core.fs.request", {"op": {5: {}}}, "unknown variant"),
        ("core.relay.client.disconnected", {"id_start": 1, "id_end_exclusive": 2, "incarnation": [1]}, "16 members"),
        ("core.shutdown", 5, "expected null"),
    ],
)
def test_payloads_are_checked(wire_name: str, item: Any, complaint: str) -> None:
    body = cbor.encode({"v": 7, "t": wire_name, "p": cbor.encode(item)})
    [frame] = FrameReader().feed(encode_frame(1, 0, body))
    envelope = open_envelope(frame)
    with pytest.raises(InvalidPayload, match=complaint):
        envelope.decode(envelope.message_type())


def test_undecodable_payload_is_invalid() -> None:
    [frame] = FrameReader().feed(encode_frame(1, 0, cbor.encode({"v": 7, "t": "core.ping", "p": b"\xff"})))
    envelope = open_envelope(frame)
    with pytest.raises(InvalidPayload):
        envelope.decode(envelope.message_type())


def test_unknown_keys_and_key_order_do_not_matter() -> None:
    payload = cbor.encode({"future": [1], 7: 8, "cols": 100, "cmd": "ls"})
    [frame] = FrameReader().feed(
        encode_frame(1, 2, cbor.encode({"p": payload, "x": 1, "t": "core.exec.request", "v": 200}))
    )
    envelope = open_envelope(frame)
    assert envelope.generation == 200
    assert envelope.decode(envelope.message_type()) == ExecRequest(cmd="ls", cols=100)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xa3\x61v",
        cbor.encode([]),
        cbor.encode({"t": "core.ping", "p": b"\xa0"}),
        cbor.encode({"v": 256, "t": "core.ping", "p": b"\xa0"}),
        cbor.encode({"v": True, "t": "core.ping", "p": b"\xa0"}),
        cbor.encode({"v": 7, "t": 5, "p": b"\xa0"}),
        cbor.encode({"v": 7, "t": "core.ping", "p": {}}),
        cbor.encode({"v": 7, "t": "core.ping"}),
        cbor.encode({"v": 7, "t": "core.ping", "p": b"\xa0"}) + b"\x00",
    ],
)
def test_broken_envelopes(body: bytes) -> None:
    [frame] = FrameReader().feed(encode_frame(1, 0, body))
    with pytest.raises(MalformedMessage):
        open_envelope(frame)


def test_data_is_not_copied_on_its_way() -> None:
    data = bytearray(3_000_000)
    lead, piece = data_pieces(ExecStdout, data, 9, 7)
    assert piece is data
    [frame] = FrameReader().feed(lead + bytes(piece))
    envelope = open_envelope(frame)
    message = envelope.decode(envelope.message_type())
    assert isinstance(message, ExecStdout)
    assert isinstance(message.data, memoryview)
    assert message.data.obj is memoryview(frame.raw).obj


def test_bulk_records_survive_the_wire() -> None:
    header, payload = bulk.record_pieces(4, bulk.KIND_FS, bulk.FLOW_GUEST_TO_HOST, 77, b"bytes")
    assert header[:13].hex() == "0000001600000004" + "08" + "0102" + "0000"
    [frame] = FrameReader().feed(header + bytes(payload))
    record = bulk.decode_record(frame)
    assert (record.id, record.kind, record.flow, record.offset, bytes(record.payload)) == (4, 1, 2, 77, b"bytes")


@pytest.mark.parametrize(
    ("flags", "body"),
    [
        (9, b"\x01\x01\x00\x00" + bytes(8) + b"x"),
        (8, b"\x01\x01\x00\x00" + bytes(8)),
        (8, b""),
        (8, b"\x03\x01\x00\x00" + bytes(8) + b"x"),
        (8, b"\x01\x03\x00\x00" + bytes(8) + b"x"),
        (8, b"\x01\x01\x00\x01" + bytes(8) + b"x"),
        (8, b"\x01\x01\x00\x00" + b"\xff" * 8 + b"x"),
        (8, b"\x01\x01\x00\x00" + bytes(8) + bytes(bulk.MAX_RECORD_PAYLOAD + 1)),
    ],
)
def test_broken_bulk_records(flags: int, body: bytes) -> None:
    [frame] = FrameReader().feed(encode_frame(1, flags, body))
    with pytest.raises(InvalidBulkRecord):
        bulk.decode_record(frame)


def test_constructors_take_only_declared_fields() -> None:
    with pytest.raises(TypeError, match="needs pid"):
        ExecStarted()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="has no field"):
        ExecStarted(pid=1, colour=2)  # type: ignore[call-arg]


def test_a_repr_shows_no_contents() -> None:
    shown = repr(ExecRequest(cmd="secret-command", env=["TOKEN=secret"], args=["-c", "secret code"]))
    assert "secret" not in shown
    assert "rows=24" in shown

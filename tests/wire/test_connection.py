"""Handshake, negotiation, gates and what an agent makes of wrong frames."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidebox.wire import bulk, cbor
from tidebox.wire.connection import AgentConnection, HostConnection, Inbound, Invalid
from tidebox.wire.envelope import encode_message
from tidebox.wire.errors import (
    FrameError,
    IdsExhausted,
    InvalidBulkRecord,
    InvalidIdRange,
    InvalidPayload,
    MalformedMessage,
    PeerTooOld,
    UnexpectedMessage,
    UnsupportedByPeer,
    WireError,
)
from tidebox.wire.fields import Message
from tidebox.wire.frames import FrameReader, encode_frame
from tidebox.wire.ids import LEGACY_STEP, MAX_CLIENTS, STEP, IdRange, slot_of, slot_range
from tidebox.wire.messages import (
    MESSAGE_TYPES,
    Bootstrap,
    DefaultUser,
    ExecExited,
    ExecRequest,
    ExecStdin,
    ExecStdout,
    InitAck,
    InitResolved,
    Ping,
    Pong,
    Ready,
    Shutdown,
    TcpConnect,
)

READY = Ready(boot_time_ns=1, init_time_ns=2, ready_time_ns=3)


def push(connection: HostConnection | AgentConnection, data: bytes) -> list[Inbound | Invalid | bulk.BulkRecord]:
    items: list[Inbound | Invalid | bulk.BulkRecord] = []
    while data:
        space = connection.reader.buffer()
        count = min(len(space), len(data))
        space[:count] = data[:count]
        connection.reader.received(count)
        data = data[count:]
        while (item := connection.next_item()) is not None:
            items.append(item)
    return items


def open_host(theirs: int, ours: int = 10) -> HostConnection:
    host = HostConnection(ours)
    push(host, encode_message(READY, 0, theirs))
    return host


def test_the_boot_sequence_of_both_ends() -> None:
    host, agent = HostConnection(10), AgentConnection(7)
    first, second = push(agent, host.boot(Bootstrap(user="u")))
    assert isinstance(first, Inbound)
    assert first.message == Bootstrap(user="u")
    assert isinstance(second, Inbound)
    assert second.message == InitAck()
    resolved = InitResolved(default_user=DefaultUser(uid=1, gid=2))
    push(host, agent.encode(resolved, 0) + agent.encode(READY, 0))
    assert host.resolved == resolved
    assert host.ready == READY
    assert host.negotiated == 7
    assert host.ready_frame is not None
    assert bytes(host.ready_frame.raw) == agent.encode(READY, 0)


@pytest.mark.parametrize(("theirs", "ours", "negotiated"), [(7, 10, 7), (10, 7, 7), (255, 10, 10), (1, 10, 1)])
def test_the_lower_generation_is_spoken(theirs: int, ours: int, negotiated: int) -> None:
    assert open_host(theirs, ours).negotiated == negotiated


def test_a_peer_below_the_horizon_is_refused() -> None:
    with pytest.raises(PeerTooOld, match="recreate the sandbox"):
        open_host(0)


@pytest.mark.parametrize("message", [ExecStdout(data=b"x"), ExecExited(code=0)])
def test_nothing_else_comes_before_ready(message: Message) -> None:
    with pytest.raises(UnexpectedMessage, match=f"expected core.ready frame, got {message.WIRE}"):
        push(HostConnection(), encode_message(message, 0, 7))


def test_an_unknown_type_before_ready_is_named() -> None:
    body = cbor.encode({"v": 7, "t": "core.novel", "p": b"\xa0"})
    with pytest.raises(UnexpectedMessage, match=r"got core\.novel"):
        push(HostConnection(), encode_frame(0, 0, body))


def test_the_gate_fails_one_operation_and_the_session_goes_on() -> None:
    host = open_host(5)
    assert host.supports(TcpConnect)
    assert not host.supports(Ping)
    with pytest.raises(UnsupportedByPeer) as caught:
        host.encode(Ping(), 1)
    assert str(caught.value) == (
        "the sandbox runtime is too old for 'core.ping' (needs protocol generation 6, the sandbox speaks 5); "
        "restart the sandbox to update its runtime"
    )
    assert (caught.value.needs, caught.value.speaks) == (6, 5)
    assert host.encode(ExecRequest(cmd="ls"), 1)


def test_every_type_is_sendable_to_a_current_peer() -> None:
    host = open_host(10)
    assert all(host.supports(message_type) for message_type in MESSAGE_TYPES)


def test_the_gate_needs_a_handshake() -> None:
    with pytest.raises(UnexpectedMessage):
        HostConnection().encode(Ping(), 1)


@pytest.mark.parametrize("chunk", [1, 3, 1000])
def test_the_relay_prologue(chunk: int) -> None:
    stream = struct.pack(">II", STEP + 1, 2 * STEP) + encode_message(READY, 0, 7)
    host = HostConnection(through_relay=True)
    for start in range(0, len(stream), chunk):
        push(host, stream[start : start + chunk])
    assert host.negotiated == 7
    assert (host.ids.start, host.ids.end) == (STEP + 1, 2 * STEP)


@pytest.mark.parametrize("offset", [0, LEGACY_STEP * 3])
def test_the_legacy_prologue(offset: int) -> None:
    host = HostConnection(10, through_relay=True)
    push(host, struct.pack(">I", offset) + encode_message(READY, 0, 1))
    assert host.negotiated == 1
    assert (host.ids.start, host.ids.end) == (offset + 1, offset + LEGACY_STEP)
    [sent] = FrameReader().feed(host.encode(ExecStdin(data=b"x"), host.ids.start))
    assert sent.body[3] == 1  # v


@pytest.mark.parametrize(("start", "end"), [(5_000_000, 5_000_000), (9_000_000, 5_000_000), (3, 3), (1, 0)])
def test_an_inverted_id_range_is_refused(start: int, end: int) -> None:
    with pytest.raises(InvalidIdRange, match="invalid relay id range"):
        push(HostConnection(through_relay=True), struct.pack(">II", start, end))


def test_a_host_drops_what_it_does_not_know() -> None:
    host = open_host(10)
    novel = encode_frame(1, 0, cbor.encode({"v": 11, "t": "core.novel", "p": b"\xa0"}))
    wrong_way = encode_message(Ping(), 1, 10)
    assert [type(item) for item in push(host, novel + wrong_way + encode_message(Pong(), 1, 10))] == [Inbound]


@pytest.mark.parametrize(
    ("frame", "error"),
    [
        (encode_frame(1, 0, b"\xff"), MalformedMessage),
        (encode_frame(1, 1, cbor.encode({"v": 7, "t": "core.exec.exited", "p": b"\xa0"})), InvalidPayload),
        (encode_frame(1, 8, b"\x01\x02\x00\x00" + bytes(8)), InvalidBulkRecord),
        (bytes(4), FrameError),
    ],
)
def test_a_host_refuses_an_agent_that_breaks_the_protocol(frame: bytes, error: type[WireError]) -> None:
    with pytest.raises(error):
        push(open_host(10), frame)


def test_bulk_needs_generation_eight() -> None:
    record = b"".join(bulk.record_pieces(1, 1, 2, 0, b"x"))
    with pytest.raises(InvalidBulkRecord):
        push(open_host(7), record)
    [item] = push(open_host(8), record)
    assert isinstance(item, bulk.BulkRecord)
    [refused] = push(AgentConnection(7), record)
    assert isinstance(refused, Invalid)
    [taken] = push(AgentConnection(8), record)
    assert isinstance(taken, bulk.BulkRecord)


def envelope(wire_name: str, payload: bytes = b"\xa0", v: int = 7, flags: int = 0) -> bytes:
    return encode_frame(9, flags, cbor.encode({"v": v, "t": wire_name, "p": payload}))


@pytest.mark.parametrize(
    ("frame", "kind", "offending"),
    [
        (encode_frame(9, 0, b"garbage"), "malformed_message", None),
        (encode_frame(9, 8, b"garbage"), "malformed_message", None),
        (envelope("core.novel"), "unsupported_message_type", "core.novel"),
        (envelope("core.ping", flags=1), "invalid_flags", "core.ping"),
        (envelope("core.exec.request"), "invalid_flags", "core.exec.request"),
        (envelope("core.exec.request", flags=2), "invalid_payload", "core.exec.request"),
        (envelope("core.exec.stdin", payload=b"\x9f"), "invalid_payload", "core.exec.stdin"),
        (envelope("core.bulk.credit"), "unsupported_message_type", "core.bulk.credit"),
    ],
)
def test_an_agent_answers_wrong_frames_with_a_reason(frame: bytes, kind: str, offending: str | None) -> None:
    agent = AgentConnection(7)
    ping = encode_message(Ping(), 3, 10)
    _, invalid, after = push(agent, ping + frame + ping)
    assert isinstance(invalid, Invalid)
    assert (invalid.id, invalid.kind, invalid.offending_type) == (9, kind, offending)
    assert invalid.answerable
    answer = invalid.answer()
    assert (answer.kind, answer.offending_type) == (kind, offending)
    assert isinstance(after, Inbound)


def test_an_old_peer_has_no_error_message() -> None:
    [invalid] = push(AgentConnection(), envelope("core.novel", v=4))
    assert isinstance(invalid, Invalid)
    assert not invalid.answerable


def test_an_agent_ignores_messages_that_only_agents_send() -> None:
    assert push(AgentConnection(), encode_message(Pong(), 1, 7)) == []


def test_a_higher_generation_is_never_rejected() -> None:
    [item] = push(AgentConnection(5), encode_message(Shutdown(), 0, 255))
    assert isinstance(item, Inbound)
    assert item.generation == 255


def test_a_pinned_agent_does_not_know_newer_types() -> None:
    [invalid] = push(AgentConnection(5), encode_message(Ping(), 1, 5))
    assert isinstance(invalid, Invalid)
    assert invalid.kind == "unsupported_message_type"


@given(
    st.lists(st.binary(max_size=60) | st.sampled_from([encode_message(Ping(), 1, 7), bytes(9), b"\x00\x00\x00\x09"]))
)
def test_neither_end_dies_of_garbage(chunks: list[bytes]) -> None:
    for connection in (AgentConnection(10), open_host(10), HostConnection(), HostConnection(through_relay=True)):
        try:
            for chunk in chunks:
                push(connection, chunk)
        except WireError:
            pass


messages = st.sampled_from([Ping(), ExecStdin(data=b"x" * 5000), ExecRequest(cmd="ls", args=["a"] * 30), Shutdown()])


@given(st.lists(messages, max_size=12), st.lists(st.integers(1, 4000), min_size=1))
def test_messages_survive_any_splitting(sent: list[Message], sizes: list[int]) -> None:
    stream = b"".join(encode_message(message, 1, 7) for message in sent)
    agent = AgentConnection()
    got: list[Message] = []
    turn = 0
    while stream:
        size = sizes[turn % len(sizes)]
        got += [item.message for item in push(agent, stream[:size]) if isinstance(item, Inbound)]
        stream = stream[size:]
        turn += 1
    assert got == sent


def test_ids_wrap_and_skip_pending() -> None:
    ids = IdRange(0, 4)
    assert [ids.allocate({2}) for _ in range(4)] == [1, 3, 1, 3]
    with pytest.raises(IdsExhausted):
        ids.allocate({1, 2, 3})


def test_slots_are_the_relays() -> None:
    assert STEP == 33_554_431
    assert (slot_range(0).start, slot_range(0).end) == (1, STEP)
    assert (slot_range(1).start, slot_range(1).end) == (STEP + 1, 2 * STEP)
    for slot in (0, 1, 77, MAX_CLIENTS - 1):
        ids = slot_range(slot)
        assert slot_of(ids.start) == slot_of(ids.end - 1) == slot
        assert ids.start in ids
        assert ids.end not in ids
    assert slot_of(0xFFFFFFFF) == MAX_CLIENTS - 1

"""Byte compatibility with the clients on PyPI: recorded frames decode, and re-encode to the same bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tidebox.wire.connection import AgentConnection, HostConnection, Inbound
from tidebox.wire.envelope import encode_message, open_envelope
from tidebox.wire.frames import FrameReader
from tidebox.wire.messages import BY_WIRE_NAME, ExecRequest, Ready

VECTORS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("vectors.json").read_text())


def vector_name(vector: dict[str, Any]) -> str:
    return f"{vector['direction']}-{vector['t']}"


@pytest.mark.parametrize("vector", VECTORS, ids=vector_name)
def test_a_recorded_frame_decodes_and_re_encodes_identically(vector: dict[str, Any]) -> None:
    raw = bytes.fromhex(vector["hex"])
    [frame] = FrameReader().feed(raw)
    envelope = open_envelope(frame)
    assert (frame.id, frame.flags) == (vector["id"], vector["flags"])
    assert (envelope.generation, envelope.wire_name) == (vector["v"], vector["t"])
    message_type = envelope.message_type()
    assert message_type is BY_WIRE_NAME[vector["t"]]
    assert frame.flags == message_type.FLAGS
    assert encode_message(envelope.decode(message_type), frame.id, envelope.generation) == raw


@pytest.mark.parametrize("vector", [v for v in VECTORS if v["direction"] == "C->S"], ids=vector_name)
def test_an_agent_takes_every_recorded_client_frame(vector: dict[str, Any]) -> None:
    connection = AgentConnection(generation=10)
    raw = bytes.fromhex(vector["hex"])
    connection.reader.buffer()[: len(raw)] = raw
    connection.reader.received(len(raw))
    item = connection.next_item()
    assert isinstance(item, Inbound)
    assert vector["t"] == item.message.WIRE
    assert item.generation == vector["v"]


def test_a_host_reads_the_recorded_ready_with_exec_limits() -> None:
    raw = bytes.fromhex(next(v["hex"] for v in VECTORS if v["t"] == "core.ready" and v["v"] == 10))
    connection = HostConnection(generation=10)
    connection.reader.buffer()[: len(raw)] = raw
    connection.reader.received(len(raw))
    item = connection.next_item()
    assert isinstance(item, Inbound)
    assert isinstance(item.message, Ready)
    assert item.message.exec_limits is not None
    assert item.message.exec_limits.output_limit == 1 << 20
    assert connection.negotiated == 10


def test_the_typescript_client_is_understood() -> None:
    """cbor-x writes map16 heads and wraps byte strings in tag 64."""
    payload = b"\xb9\x00\x01\x63cmd\x62ls"
    body = b"\xb9\x00\x03\x61v\x05\x61t\x71core.exec.request\x61p\xd8\x40" + bytes((0x40 + len(payload),)) + payload
    raw = (5 + len(body)).to_bytes(4, "big") + (7).to_bytes(4, "big") + b"\x02" + body
    connection = AgentConnection()
    connection.reader.buffer()[: len(raw)] = raw
    connection.reader.received(len(raw))
    item = connection.next_item()
    assert isinstance(item, Inbound)
    assert item.message == ExecRequest(cmd="ls")

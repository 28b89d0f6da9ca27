"""Entries of a run's log, decoded from the frames of its stream. No I/O."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Literal, TypeVar

import msgspec

from tidebox.model.events import EgressSeen, StreamName
from tidebox.model.run import Phase
from tidebox.sdk.errors import ServerProtocolError
from tidebox.sdk.interpreter.results import Moment, RunState

Told = TypeVar("Told")


class LogChunk(msgspec.Struct, frozen=True):
    """A piece of output, byte by byte as the program wrote it."""

    stream: StreamName
    data: bytes
    seq: int


class PhaseChange(msgspec.Struct, frozen=True):
    """The run is in another phase now."""

    phase: Phase
    seq: int


class Progress(msgspec.Struct, frozen=True):
    """Progress of the preparation before the program can be started."""

    message: str
    seq: int


class Reached(msgspec.Struct, frozen=True):
    """The program made a connection of a new kind, or was denied one."""

    seen: EgressSeen
    seq: int


class ProgramStart(msgspec.Struct, frozen=True):
    """The program runs."""

    at: datetime | None
    seq: int


class LogTruncated(msgspec.Struct, frozen=True):
    """The log ends here: later output of the program is not in it."""

    reason: str
    seq: int


class InputClosed(msgspec.Struct, frozen=True):
    """The program's input was closed for breaking a rule."""

    reason: str
    seq: int


class LogGap(msgspec.Struct, frozen=True):
    """Entries that the server does not have any more: ``lost`` of them, in front of number ``seq``."""

    lost: int
    seq: int


class RunEnd(RunState, frozen=True, kw_only=True):
    """The run is over: the last entry."""

    log_bytes: int | None = None
    log_truncated: bool = False
    artifact_bytes: int | None = None
    """How much it left in artifacts; None where the server does not say."""
    wall_time_sec: float | None = None
    cpu_time_sec: float | None = None
    peak_rss_mb: float | None = None
    seq: int = 0


LogEntry = LogChunk | PhaseChange | Progress | Reached | ProgramStart | LogTruncated | InputClosed | LogGap | RunEnd


class LogHeartbeat(msgspec.Struct, frozen=True):
    """A heartbeat, or another frame without news, with its sequence number."""

    seq: int


class Resumed(msgspec.Struct, frozen=True):
    """The stream goes on with number ``seq``: ``lost`` entries before that are not there."""

    seq: int
    lost: int


class StreamError(msgspec.Struct, frozen=True):
    """An error frame: a message of this client was refused, or the server stops."""

    code: str
    message: str
    details: dict[str, Any] = {}


LogFrame = LogEntry | LogHeartbeat | Resumed | StreamError


class _Message(msgspec.Struct):
    type: str
    seq: int
    data: msgspec.Raw = msgspec.Raw()
    encoding: Literal["utf8", "base64"] = "utf8"
    event: str = ""
    reason: str = ""


class _PhaseData(msgspec.Struct):
    phase: Phase


class _StartData(msgspec.Struct):
    ts: Moment | None = None


class _MessageData(msgspec.Struct):
    message: str


class _EgressData(msgspec.Struct):
    host: str | None = None
    ip: str | None = None
    port: int | None = None
    matched_rule: str | None = None
    reason: str | None = None


class _ReasonData(msgspec.Struct):
    reason: str


class _ResumeData(msgspec.Struct):
    delivered_from_seq: int
    lost_count: int = 0


_decode = msgspec.json.Decoder(_Message).decode
_decode_text = msgspec.json.Decoder(str).decode


def decode(message: bytes) -> LogFrame:
    """The frame in a message; one of a kind that a later server may know and we do not is a ``LogHeartbeat``."""
    try:
        return _frame(_decode(message))
    except (msgspec.DecodeError, UnicodeError, binascii.Error, RecursionError) as error:
        raise ServerProtocolError(f"the server sent a frame that is not in the protocol: {error}") from None


def _frame(message: _Message) -> LogFrame:
    seq = message.seq
    if message.type == "stdout":
        return LogChunk("stdout", _output(message), seq)
    if message.type == "stderr":
        return LogChunk("stderr", _output(message), seq)
    if message.type == "truncated":
        return LogTruncated(message.reason, seq)
    return _event(message, seq) if message.type == "event" else LogHeartbeat(seq)


def _output(message: _Message) -> bytes:
    text = _decode_text(message.data)
    return text.encode() if message.encoding == "utf8" else base64.b64decode(text, validate=True)


def _event(message: _Message, seq: int) -> LogFrame:
    match message.event:
        case "phase":
            return PhaseChange(_data(message, _PhaseData).phase, seq)
        case "progress":
            return Progress(_data(message, _MessageData).message, seq)
        case "egress_allowed" | "egress_denied" as event:
            seen = _data(message, _EgressData)
            return Reached(EgressSeen(allowed=event == "egress_allowed", **msgspec.structs.asdict(seen)), seq)
        case "start":
            return ProgramStart(_data(message, _StartData).ts, seq)
        case "stdin_closed":
            return InputClosed(_data(message, _ReasonData).reason, seq)
        case "resume":
            resumed = _data(message, _ResumeData)
            return Resumed(resumed.delivered_from_seq, resumed.lost_count)
        case "error":
            return _data(message, StreamError)
        case "end":
            return msgspec.structs.replace(_data(message, RunEnd), seq=seq)
    return LogHeartbeat(seq)


def _data(message: _Message, kind: type[Told]) -> Told:
    return msgspec.json.decode(message.data, type=kind)


def decode_lines(body: bytes) -> Iterator[LogEntry]:
    """The entries of a log that came as lines."""
    for line in body.splitlines():
        frame = decode(line)
        if isinstance(frame, Resumed):
            if frame.lost:
                yield LogGap(frame.lost, frame.seq)
        elif not isinstance(frame, LogHeartbeat | StreamError):
            yield frame


def encode_input(data: bytes) -> bytes:
    """The message that brings input to the program."""
    try:
        return msgspec.json.encode({"type": "stdin", "data": data.decode()})
    except UnicodeDecodeError:
        text = base64.b64encode(data).decode("ascii")
        return msgspec.json.encode({"type": "stdin", "encoding": "base64", "data": text})


INPUT_END = msgspec.json.encode({"type": "stdin_close"})

"""Encoding of log stream frames: every entry of a run's log as the JSON that goes on the wire."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import msgspec

from tidebox.broker.storage.log_frames import Gap, LogFrame
from tidebox.errors import TideboxError
from tidebox.model.events import EgressSeen, OutputEvent, Preparing
from tidebox.model.limits import MIB
from tidebox.model.log import Began, Ended, Heartbeat, InputClosed, PhaseChanged, Truncated
from tidebox.model.run import Run
from tidebox.model.timestamps import moment

MAX_MESSAGE_BYTES = 64 * 1024
"""The longest frame."""

_encode = msgspec.json.Encoder().encode


class _OutputFrame(msgspec.Struct):
    type: str
    encoding: str
    data: str
    seq: int


class _EventFrame(msgspec.Struct):
    type: str
    event: str
    data: Mapping[str, Any]
    seq: int


class _HeartbeatFrame(msgspec.Struct):
    type: str
    ts: str | None
    seq: int


class _TruncatedFrame(msgspec.Struct):
    type: str
    reason: str
    seq: int


def render(item: LogFrame | Gap) -> bytes:
    """The frame of an entry, or the note that entries are missing."""
    if isinstance(item, Gap):
        data = {
            "requested_from_seq": item.requested,
            "delivered_from_seq": item.delivered,
            "lost_count": item.lost,
        }
        return _event("resume", data, item.delivered)
    entry, seq = item.entry, item.seq
    if isinstance(entry, OutputEvent):
        return _output(entry, seq)
    if isinstance(entry, Heartbeat):
        return _encode(_HeartbeatFrame("heartbeat", moment(entry.at), seq))
    if isinstance(entry, Truncated):
        return _encode(_TruncatedFrame("truncated", entry.reason, seq))
    if isinstance(entry, PhaseChanged):
        return _event("phase", {"phase": entry.phase.value}, seq)
    if isinstance(entry, Preparing):
        return _event("progress", {"message": entry.message}, seq)
    if isinstance(entry, Began):
        return _event("start", {"ts": moment(entry.at)}, seq)
    if isinstance(entry, EgressSeen):
        return _event("egress_allowed" if entry.allowed else "egress_denied", entry.shown(), seq)
    if isinstance(entry, InputClosed):
        return _event("stdin_closed", {"reason": entry.reason}, seq)
    assert isinstance(entry, Ended)
    return _event("end", outcome(entry.run), seq)


def error(failure: TideboxError, seq: int) -> bytes:
    """Encode an error for one client alone; it has the number of the frame that was sent to it last."""
    data = {"code": failure.code, "message": failure.message, "details": failure.details}
    return _event("error", data, seq)


def outcome(run: Run) -> dict[str, Any]:
    """Return the outcome of a run in the fields of its ``end`` event."""
    usage = run.usage
    found: dict[str, Any] = {
        "run_id": run.id,
        "phase": run.phase.value,
        "exit_code": run.exit_status,
        "signal": run.signal,
        "reason_code": run.reason.value if run.reason is not None else None,
        "message": run.message,
        "started_at": moment(run.started_at),
        "finished_at": moment(run.finished_at),
        "log_bytes": run.log_bytes,
        "log_truncated": run.log_truncated,
        "artifact_bytes": run.artifact_bytes,
    }
    if usage is not None:
        found["wall_time_sec"] = usage.wall_seconds
        found["cpu_time_sec"] = usage.cpu_seconds
        found["peak_rss_mb"] = round(usage.memory_peak / MIB, 2) if usage.memory_peak is not None else None
    return found


def _event(name: str, data: Mapping[str, Any], seq: int) -> bytes:
    try:
        return _encode(_EventFrame("event", name, data, seq))
    except UnicodeEncodeError:
        # A message may quote half a surrogate pair of a request.
        clean = {
            key: value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
            for key, value in data.items()
        }
        return _encode(_EventFrame("event", name, clean, seq))


def _output(entry: OutputEvent, seq: int) -> bytes:
    try:
        text = _encode(_OutputFrame(entry.stream, "utf8", entry.data.decode(), seq))
        if len(text) <= MAX_MESSAGE_BYTES:
            return text
    except UnicodeDecodeError:
        pass
    # Also text that JSON would make too long: control characters are six times as long there.
    return _encode(_OutputFrame(entry.stream, "base64", base64.b64encode(entry.data).decode("ascii"), seq))

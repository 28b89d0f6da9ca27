"""The messages of the Fathom protocol, version 1, as a client sees them."""

from __future__ import annotations

import enum
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from tidebox.errors import InvalidRequest
from tidebox.sdk.errors import ServerProtocolError

VERSION = 1


class Status(enum.StrEnum):
    """The states of an execution."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    OOM = "oom"

    @property
    def terminal(self) -> bool:
        """Whether nothing but the result follows."""
        return self is not Status.RUNNING


class Limits(msgspec.Struct, omit_defaults=True):
    """What an execution may use."""

    timeout_ms: int
    memory_mb: int
    cpu_shares: int | None = None
    max_output_bytes: int | None = None


class _Sent(msgspec.Struct, tag_field="type", omit_defaults=True, kw_only=True):
    # Made by a factory, because a plain default would be omitted.
    v: int = msgspec.field(default_factory=lambda: VERSION)
    ts: str = msgspec.field(default_factory=lambda: _now())


class Execute(_Sent, tag="execute", kw_only=True):
    """Run this."""

    id: str
    language: str
    code: str
    limits: Limits
    stdin: str | None = None
    env: dict[str, str] | None = None


class Cancel(_Sent, tag="cancel", kw_only=True):
    """Stop it."""

    id: str


class Ping(_Sent, tag="ping"):
    """Are you there."""


class _Received(msgspec.Struct, tag_field="type", kw_only=True):
    v: Literal[1]


class Ack(_Received, tag="ack", kw_only=True):
    """The request was received and waits for its turn."""

    id: str


class StatusChange(_Received, tag="status", kw_only=True):
    """The execution is in another state now."""

    id: str
    status: Status


class Stdout(_Received, tag="stdout", kw_only=True):
    """A piece of standard output."""

    id: str
    data: str


class Stderr(_Received, tag="stderr", kw_only=True):
    """A piece of standard error."""

    id: str
    data: str


class ResourceUsage(msgspec.Struct):
    """What the execution used, as far as the server knows."""

    peak_memory_mb: float | None = None
    cpu_time_ms: float | None = None


class Finished(_Received, tag="result", kw_only=True):
    """The execution is over."""

    id: str
    exit_code: int | None
    duration_ms: float
    resource_usage: ResourceUsage | None = None


class Error(_Received, tag="error", kw_only=True):
    """Something could not be done; without an id it is about a message that had none."""

    code: str
    message: str
    retryable: bool
    id: str | None = None


class Load(msgspec.Struct, frozen=True):
    """How much a server has to do."""

    active_executions: int
    queue_depth: int


class Pong(_Received, tag="pong", kw_only=True):
    """Here I am."""

    load: Load | None = None


Received = Ack | StatusChange | Stdout | Stderr | Finished | Error | Pong

_KNOWN = frozenset(kind.__struct_config__.tag for kind in Received.__args__)
_decoder: msgspec.json.Decoder[Received] = msgspec.json.Decoder(Received)
_encode = msgspec.json.Encoder().encode


class _Envelope(msgspec.Struct):
    type: str


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def make_execute(**fields: Any) -> Execute:
    """An ``execute`` message; a field of a wrong type is refused here, before anything is sent."""
    try:
        return msgspec.convert({"type": "execute", "v": VERSION, "ts": _now(), **fields}, Execute)
    except msgspec.ValidationError as error:
        raise InvalidRequest(str(error)) from None


def encode(message: Execute | Cancel | Ping) -> bytes:
    """The text frame of a message."""
    try:
        return _encode(message)
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"not text that can be sent: {error.reason}") from None


def decode(data: bytes | str) -> Received | None:
    """The message in a text frame; None for a type that a later server may know and we do not."""
    try:
        return _decoder.decode(data)
    except msgspec.ValidationError as error:
        try:
            if msgspec.json.decode(data, type=_Envelope).type not in _KNOWN:
                return None
        except msgspec.ValidationError:
            pass
        raise ServerProtocolError(f"the server sent a message that is not in the protocol: {error}") from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ServerProtocolError(f"the server sent something that is not JSON: {error}") from None

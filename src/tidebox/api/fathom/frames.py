"""What the sandbox says: every frame it sends, as the text that goes on the wire."""

from __future__ import annotations

import time
from typing import Literal

import msgspec

from tidebox.model.events import StreamName

VERSION = 1

Status = Literal["running", "completed", "failed", "cancelled", "timeout", "oom"]
Code = Literal[
    "TIMEOUT",
    "OOM",
    "OUTPUT_LIMIT",
    "LANGUAGE_NOT_SUPPORTED",
    "INVALID_REQUEST",
    "UNKNOWN_EXECUTION",
    "SANDBOX_OVERLOADED",
    "INTERNAL_ERROR",
    "NETWORK_ERROR",
]
RETRYABLE: frozenset[Code] = frozenset({"SANDBOX_OVERLOADED", "INTERNAL_ERROR", "NETWORK_ERROR"})


class _Frame(msgspec.Struct):
    """The envelope; a frame that belongs to no execution has no id."""

    v: int
    type: str
    id: str | msgspec.UnsetType
    ts: str


class _Status(_Frame):
    status: Status


class _Output(_Frame):
    data: str


class ResourceUsage(msgspec.Struct, omit_defaults=True):
    """What an execution used, as far as it could be counted."""

    peak_memory_mb: int | None = None
    cpu_time_ms: int | None = None


class _Result(_Frame):
    exit_code: int | None
    duration_ms: int
    resource_usage: ResourceUsage


class _Error(_Frame):
    code: Code
    message: str
    retryable: bool


class _Load(msgspec.Struct):
    active_executions: int
    queue_depth: int


class _Pong(_Frame):
    load: _Load


_encode = msgspec.json.Encoder().encode


class _Clock:
    """Timestamps with milliseconds. The part before them is made once a second."""

    def __init__(self) -> None:
        self._second = -1
        self._text = ""

    def __call__(self) -> str:
        milliseconds = time.time_ns() // 1_000_000
        second, rest = divmod(milliseconds, 1000)
        if second != self._second:
            self._text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
            self._second = second
        return f"{self._text}.{rest:03d}Z"


timestamp = _Clock()


def ack(id: str) -> str:
    """The request was received; nothing of it has started."""
    return _encode(_Frame(VERSION, "ack", id, timestamp())).decode()


def status(id: str, status: Status) -> str:
    """The execution is in another state now."""
    return _encode(_Status(VERSION, "status", id, timestamp(), status)).decode()


def output(id: str, stream: StreamName, data: str) -> str:
    """What the program wrote."""
    return _encode(_Output(VERSION, stream, id, timestamp(), data)).decode()


def result(id: str, exit_code: int | None, duration_ms: int, usage: ResourceUsage) -> str:
    """The execution is over; nothing follows."""
    return _encode(_Result(VERSION, "result", id, timestamp(), exit_code, duration_ms, usage)).decode()


def error(id: str | None, code: Code, message: str) -> str:
    """A request was refused, or its execution cannot be completed."""
    name = msgspec.UNSET if id is None else id
    # A message of ours may quote a file name, and that may be anything.
    text = message.encode("utf-8", "backslashreplace").decode()
    return _encode(_Error(VERSION, "error", name, timestamp(), code, text, code in RETRYABLE)).decode()


def pong(active: int, queued: int) -> str:
    """The sandbox lives, and this is what it has to do."""
    return _encode(_Pong(VERSION, "pong", msgspec.UNSET, timestamp(), _Load(active, queued))).decode()

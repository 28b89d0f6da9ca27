"""Messages of the Fathom execute protocol, version 1, in both directions.

A message that a peer sends may have fields that are not here: they are ignored. What a text must be beyond its types is
checked by who receives it.
"""

from __future__ import annotations

import enum
from typing import Final, Literal

import msgspec

VERSION: Final = 1

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


# From the client


class Limits(msgspec.Struct, omit_defaults=True):
    """The limits of an execution."""

    timeout_ms: int
    memory_mb: int
    cpu_shares: int | None = None
    max_output_bytes: int | None = None


class Execute(msgspec.Struct, tag_field="type", tag="execute", omit_defaults=True, kw_only=True):
    """Run ``code``."""

    v: int
    ts: str | None = None
    id: str
    language: str
    code: str
    limits: Limits
    stdin: str | None = None
    # As it is in the text: a server looks at its length before it reads it, because a great many small variables take
    # long to read.
    env: msgspec.Raw = msgspec.Raw(b"null")


class Cancel(msgspec.Struct, tag_field="type", tag="cancel", kw_only=True):
    """Stop an execution."""

    v: int
    ts: str | None = None
    id: str


class Ping(msgspec.Struct, tag_field="type", tag="ping", kw_only=True):
    """Ask whether the server is there, and how busy."""

    v: int
    ts: str | None = None


Request = Execute | Cancel | Ping

# From the server


class Ack(msgspec.Struct, tag_field="type", tag="ack"):
    """The request was received; nothing of it has started."""

    v: Literal[1]
    id: str
    ts: str = ""


class StatusChange(msgspec.Struct, tag_field="type", tag="status"):
    """The execution is in another state."""

    v: Literal[1]
    id: str
    status: Status
    ts: str = ""


class Stdout(msgspec.Struct, tag_field="type", tag="stdout"):
    """A piece of standard output."""

    v: Literal[1]
    id: str
    data: str
    ts: str = ""


class Stderr(msgspec.Struct, tag_field="type", tag="stderr"):
    """A piece of standard error."""

    v: Literal[1]
    id: str
    data: str
    ts: str = ""


class FathomUsage(msgspec.Struct, omit_defaults=True):
    """The resources an execution used, as far as they could be counted."""

    peak_memory_mb: float | None = None
    cpu_time_ms: float | None = None


class Result(msgspec.Struct, tag_field="type", tag="result"):
    """The execution is over; nothing follows."""

    v: Literal[1]
    id: str
    exit_code: int | None
    duration_ms: float
    resource_usage: FathomUsage | None = None
    ts: str = ""


class Error(msgspec.Struct, tag_field="type", tag="error"):
    """A request was refused, or its execution cannot be completed; without an id its message had none."""

    v: Literal[1]
    code: str
    message: str
    retryable: bool
    id: str | msgspec.UnsetType = msgspec.UNSET
    ts: str = ""


class Load(msgspec.Struct, frozen=True):
    """How much a server has to do."""

    active_executions: int
    queue_depth: int


class Pong(msgspec.Struct, tag_field="type", tag="pong"):
    """The answer to a ping."""

    v: Literal[1]
    load: Load | None = None
    ts: str = ""


Answer = Ack | StatusChange | Stdout | Stderr | Result | Error | Pong

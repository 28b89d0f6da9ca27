"""Results of programs in a sandbox, and metadata of its files."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from tidebox.model.events import StreamName
from tidebox.model.limits import MIB
from tidebox.model.result import Outcome, Usage, conclude
from tidebox.protocols.dataplane import frames, routes
from tidebox.sdk.interpreter.results import Moment


class Chunk(NamedTuple):
    """A piece of output, byte by byte as the program wrote it."""

    stream: StreamName
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a program ended."""

    outcome: Outcome
    exit_code: int | None
    """None if a signal ended it."""
    signal: str | None
    """``KILL``, say."""
    usage: Usage

    @property
    def ok(self) -> bool:
        """Whether the program ended by itself with exit code 0."""
        return self.outcome is Outcome.EXITED and self.exit_code == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult(Ending):
    """How a program ended, and all it printed."""

    stdout: bytes
    stderr: bytes
    truncated: bool
    """Whether output beyond the bound was dropped."""

    @property
    def text(self) -> str:
        """Standard output as text; bytes that are not UTF-8 are replaced."""
        return self.stdout.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """A file, a directory or something else that has a path."""

    path: str
    name: str
    type: routes.FileType
    size: int
    mode: int
    """Its permissions."""
    modified_at: datetime | None
    """None for a time that no calendar has."""


class ScopeInfo(msgspec.Struct, frozen=True):
    """The scope that a sandbox belongs to."""

    type: str
    id: str


class SandboxInfo(msgspec.Struct, frozen=True):
    """A sandbox in a list."""

    session_id: str = msgspec.field(name="id")
    scope: ScopeInfo
    state: str
    sandbox_id: str | None = None
    provider: str | None = None
    created_at: Moment | None = None
    lease_expires_at: Moment | None = None
    expires_at: Moment | None = None
    idle_seconds: float | None = None


def ending_of(said: frames.Exit | routes.ExecAnswer) -> dict[str, Any]:
    """The fields of an ``Ending``."""
    used = said.resource_usage
    kills = used.oom_kills or 0
    outcome = Outcome.TIMEOUT
    if not said.timed_out:
        # Which signal does not matter to it.
        outcome = conclude(exit_code=said.exit_code, signal=None if said.signal is None else 0, oom_kills=kills)
    return {
        "outcome": outcome,
        "exit_code": said.exit_code,
        "signal": said.signal,
        "usage": Usage(
            wall_seconds=said.duration_ms / 1000,
            cpu_seconds=None if used.cpu_time_ms is None else used.cpu_time_ms / 1000,
            memory_peak=None if used.peak_memory_mb is None else round(used.peak_memory_mb * MIB),
            oom_kills=kills,
        ),
    }


def executed(said: routes.ExecAnswer) -> ExecResult:
    """The result in an answer to ``exec``."""
    stdout, stderr = said.output()
    return ExecResult(**ending_of(said), stdout=stdout, stderr=stderr, truncated=said.truncated)


def file_info(entry: routes.FileEntry) -> FileInfo:
    """The file in an answer."""
    return FileInfo(
        path=entry.path,
        name=entry.name,
        type=entry.type,
        size=entry.size,
        mode=int(entry.mode, 8),
        modified_at=entry.modified(),
    )

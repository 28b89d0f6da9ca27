"""How an execution ended."""

from __future__ import annotations

import enum
import errno
import os
from dataclasses import dataclass, field


class Outcome(enum.Enum):
    """Why an execution is over."""

    EXITED = "exited"
    SIGNALED = "signaled"
    TIMEOUT = "timeout"
    OOM = "oom"
    OUTPUT_LIMIT = "output_limit"
    CANCELLED = "cancelled"
    COMPILE_FAILED = "compile_failed"
    COMPILE_TIMEOUT = "compile_timeout"


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressUsage:
    """The network use of a box: connections and bytes through egress."""

    connections: int = 0
    denied: int = 0
    """Connections, and names that were not resolved."""
    sent: int = 0
    received: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The resources a box used, counted from the moment it was given its program until its last process was gone."""

    wall_seconds: float
    cpu_seconds: float | None = None
    memory_peak: int | None = None
    pids_peak: int | None = None
    oom_kills: int = 0
    egress: EgressUsage | None = None
    """None where there was no way out."""


@dataclass(frozen=True, slots=True)
class ExecError:
    """A command that could not be executed: the program never started."""

    command: str
    errno: int
    cwd: str | None = None
    """Where given, the working directory that could not be entered; the command was not even looked for."""

    @property
    def reason(self) -> str:
        """The system's words for it."""
        said = os.strerror(self.errno)
        return said if self.cwd is None else f"cannot change directory to {self.cwd!r}: {said}"

    @property
    def exit_code(self) -> int:
        """The exit code that every shell gives: not found, or found and not executable."""
        return 127 if self.cwd is None and self.errno in (errno.ENOENT, errno.ENOTDIR) else 126

    @property
    def stderr(self) -> bytes:
        """The line that a shell would write to standard error."""
        subject = f"{self.command}: " if self.cwd is None else ""
        return f"{subject}{self.reason}\n".encode("utf-8", "surrogateescape")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The outcome of one execution with all it printed."""

    outcome: Outcome
    exit_code: int | None
    signal: int | None
    stdout: bytes
    stderr: bytes
    usage: Usage
    artifacts: dict[str, bytes] = field(default_factory=dict, repr=False)
    skipped_artifacts: int = 0

    @property
    def ok(self) -> bool:
        """Whether the program ended by itself with exit code 0."""
        return self.outcome is Outcome.EXITED and self.exit_code == 0

    @property
    def truncated(self) -> bool:
        """Whether output was cut at the limit."""
        return self.outcome is Outcome.OUTPUT_LIMIT

    @property
    def text(self) -> str:
        """Standard output as text; bytes that are not UTF-8 are replaced."""
        return self.stdout.decode("utf-8", "replace")


def exit_status(exit_code: int | None, signal: int | None) -> int | None:
    """One number for how a program ended, as a shell tells it: its exit code, or 128 and the signal that killed it."""
    return exit_code if exit_code is not None or signal is None else 128 + signal


def conclude(*, exit_code: int | None, signal: int | None, oom_kills: int) -> Outcome:
    """The outcome of a program that was not stopped from outside.

    The cgroup counts OOM kills for the whole box: a program that lost a child to it and still ended with 0 coped,
    and is not called ``oom``.
    """
    if oom_kills and exit_code != 0:
        return Outcome.OOM
    return Outcome.SIGNALED if signal is not None else Outcome.EXITED

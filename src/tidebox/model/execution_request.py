"""A request to execute one program in a fresh box, and its outcome: exit code, signal, usage, captured files."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from tidebox.model.box import BoxSpec, Captured, CaptureRule
from tidebox.model.events import EgressSeen, Event
from tidebox.model.launch import Launch
from tidebox.model.one_shot_flag import OneShotFlag
from tidebox.model.result import ExecError, Outcome, Usage

CANCEL_GRACE_SECONDS = 2.0
STARTUP_SECONDS = 20.0

Sink = Callable[[Event], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionRequest:
    """A program with its box's specification, input and files, as a runner is given it."""

    launch: Launch
    spec: BoxSpec
    stdin: bytes | AsyncIterator[bytes] | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    capture: CaptureRule | None = None
    cancel_grace: float = CANCEL_GRACE_SECONDS
    """Seconds between telling the program to end (SIGTERM) and SIGKILL."""
    kill: OneShotFlag | None = None
    """When set, the program is killed at once, without that grace."""
    startup_timeout: float = STARTUP_SECONDS
    """Seconds until the program must have started."""
    on_egress: Callable[[EgressSeen], None] | None = None
    """Called with each egress connection that was made or denied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionOutcome:
    """How the execution of a program ended."""

    outcome: Outcome
    exit_code: int | None
    signal: int | None
    usage: Usage
    captured: Captured | None
    not_started: ExecError | None = None
    """Why the command could not be executed; the exit code is the one a shell gives for that."""
    image_digest: str | None = None
    """The digest of the image it ran in."""
    place: str | None = None
    """The file and line of the first compiler error, where the program could not be compiled."""

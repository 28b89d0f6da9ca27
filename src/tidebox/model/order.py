"""One program to run in a fresh box, and how it ended."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from tidebox.model.box import BoxSpec, Captured, CaptureRule
from tidebox.model.events import EgressSeen, Event
from tidebox.model.launch import Launch
from tidebox.model.result import ExecError, Outcome, Usage
from tidebox.model.switch import Switch

CANCEL_GRACE_SECONDS = 2.0
STARTUP_SECONDS = 20.0

Sink = Callable[[Event], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to run."""

    launch: Launch
    spec: BoxSpec
    stdin: bytes | AsyncIterator[bytes] | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    capture: CaptureRule | None = None
    cancel_grace: float = CANCEL_GRACE_SECONDS
    """How long the program may go on after it was told to end."""
    kill: Switch | None = None
    """When set, the program is ended at once, without that grace."""
    startup_timeout: float = STARTUP_SECONDS
    """How long it may take until the program is started."""
    on_egress: Callable[[EgressSeen], None] | None = None
    """Hears of the connections that its programs make and are denied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How it ended."""

    outcome: Outcome
    exit_code: int | None
    signal: int | None
    usage: Usage
    captured: Captured | None
    not_started: ExecError | None = None
    """Why the command could not be executed; the exit code is the one a shell gives for that."""
    image_digest: str | None = None
    """Of what it ran in."""
    place: str | None = None
    """Where in its code a program that could not be compiled is wrong: the file and the line."""

"""One program to run in a fresh box, and how it ended."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidebox.model.box import BoxSpec, Captured, CaptureRule
from tidebox.model.events import Event
from tidebox.model.launch import Launch
from tidebox.model.result import ExecError, Outcome, Usage
from tidebox.model.switch import Switch

CANCEL_GRACE_SECONDS = 2.0
STARTUP_SECONDS = 20.0

Sink = Callable[[Event], Awaitable[None]]
# The argument is the runtime's Box, which the model does not know.
BoxHook = Callable[[Any], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to run."""

    launch: Launch
    spec: BoxSpec
    stdin: bytes | AsyncIterator[bytes] | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    capture: CaptureRule | None = None
    prepare: BoxHook | None = None
    """Called with the box before the program is started."""
    harvest: BoxHook | None = None
    """Called with the box when every process in it is dead and before it is closed."""
    cancel_grace: float = CANCEL_GRACE_SECONDS
    """How long the program may go on after it was told to end."""
    kill: Switch | None = None
    """When set, the program is ended at once, without that grace."""
    startup_timeout: float = STARTUP_SECONDS
    """How long it may take until the program is started."""


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

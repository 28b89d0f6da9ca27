"""Log entries of a run besides the program's own output: phases, truncation, heartbeats, the end."""

from __future__ import annotations

from dataclasses import dataclass

from tidebox.model.events import EgressSeen, OutputEvent, Preparing
from tidebox.model.run import Phase, Run


@dataclass(frozen=True, slots=True)
class PhaseChanged:
    """The run is in another phase now, and will be in more."""

    phase: Phase


@dataclass(frozen=True, slots=True)
class Began:
    """The program runs."""

    at: float


@dataclass(frozen=True, slots=True)
class Truncated:
    """The log is full: output from here on is not recorded."""

    reason: str


@dataclass(frozen=True, slots=True)
class InputClosed:
    """The program's input was closed for breaking a rule."""

    reason: str


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Nothing happened for a while, and the run is still there."""

    at: float


@dataclass(frozen=True, slots=True)
class Ended:
    """The run is over; the last entry of every log."""

    run: Run


LogEntry = OutputEvent | Preparing | PhaseChanged | Began | Truncated | InputClosed | Heartbeat | EgressSeen | Ended

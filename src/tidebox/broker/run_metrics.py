"""Counters of the broker: a base that counts nothing, which the metrics surface implements."""

from __future__ import annotations

from tidebox.errors import TideboxError
from tidebox.model.events import EgressSeen
from tidebox.model.result import EgressUsage
from tidebox.model.run import Conclusion


class RunMetrics:
    """Told of each step of every run, journaled or not; called on the event loop, so it must be quick."""

    def for_runtime(self, runtime: str | None) -> RunMetrics:
        """Return the counters for the runs of one runtime; None is the default one."""
        return self

    def accepted(self) -> None:
        """A run or execution was accepted."""

    def refused(self, error: TideboxError) -> None:
        """A run or execution was refused."""

    def started(self, waited: float) -> None:
        """A run or execution got its slot after ``waited`` seconds."""

    def running(self, seconds: float) -> None:
        """A program started, ``seconds`` after its run was accepted."""

    def ended(self, conclusion: Conclusion, seconds: float) -> None:
        """A run or execution ended, ``seconds`` after it got its slot; 0 without one."""

    def reached(self, seen: EgressSeen) -> None:
        """A program made a connection of a new kind, or was denied one."""

    def transferred(self, usage: EgressUsage) -> None:
        """The network traffic of a program that ended."""

    def session_created(self) -> None:
        """A session was created."""

    def logged(self, size: int) -> None:
        """``size`` bytes of output were logged."""

    def truncated(self, reason: str) -> None:
        """A log was truncated."""

    def dropped(self, frames: int) -> None:
        """A slow reader of a log missed ``frames`` frames."""

    def uploaded(self, kind: str, size: int, files: int) -> None:
        """Files were uploaded."""

    def artifacts_kept(self, size: int) -> None:
        """``size`` bytes of artifacts were captured."""

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
        """One was accepted."""

    def refused(self, error: TideboxError) -> None:
        """One was not accepted."""

    def started(self, waited: float) -> None:
        """One was given a slot after so many seconds."""

    def running(self, seconds: float) -> None:
        """The program of one runs, so many seconds after it was accepted."""

    def ended(self, conclusion: Conclusion, seconds: float) -> None:
        """One is over, so many seconds after it was given a slot; 0 if it never was."""

    def reached(self, seen: EgressSeen) -> None:
        """A program made a connection of a new kind, or was denied one."""

    def transferred(self, usage: EgressUsage) -> None:
        """So much went over the network for a program that is over."""

    def session_created(self) -> None:
        """A session was made."""

    def logged(self, size: int) -> None:
        """So many bytes of output were put into a log."""

    def truncated(self, reason: str) -> None:
        """A log is not continued."""

    def dropped(self, frames: int) -> None:
        """A reader of a log was too slow for so many frames."""

    def uploaded(self, kind: str, size: int, files: int) -> None:
        """Files came in."""

    def artifacts_kept(self, size: int) -> None:
        """So many bytes of artifacts were kept."""

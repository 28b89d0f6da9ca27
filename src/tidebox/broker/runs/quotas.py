"""Quotas of one user: pure rules. The store counts, inside the transaction that creates a run or session."""

from __future__ import annotations

from dataclasses import dataclass

from tidebox.errors import QuotaExceeded
from tidebox.store.base import Holdings

DAY_SECONDS = 24 * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """Quotas of one user; None is no limit."""

    unfinished_runs: int | None = None
    runs_per_session: int | None = None
    cpu_seconds_per_day: float | None = None
    sessions: int | None = None

    @property
    def limited(self) -> bool:
        """Whether there is anything to check for a run."""
        limits = (self.unfinished_runs, self.runs_per_session, self.cpu_seconds_per_day)
        return any(limit is not None for limit in limits)

    def check(self, holdings: Holdings) -> None:
        """Raise ``QuotaExceeded`` if one more run is one too many."""
        for name, limit, held in (
            ("unfinished_runs", self.unfinished_runs, holdings.unfinished),
            ("runs_per_session", self.runs_per_session, holdings.in_session),
            ("cpu_seconds_per_day", self.cpu_seconds_per_day, holdings.cpu_seconds),
        ):
            _check(name, limit, held)

    def check_sessions(self, held: int) -> None:
        """Raise ``QuotaExceeded`` if one more session is one too many."""
        _check("sessions", self.sessions, held)


def _check(name: str, limit: float | None, held: float) -> None:
    if limit is not None and held >= limit:
        raise QuotaExceeded(f"the quota {name} of {limit:g} is used up", quota=name, limit=limit, held=held)


def day_of(now: float) -> float:
    """When the day (UTC) began that ``now`` is in."""
    return now - now % DAY_SECONDS

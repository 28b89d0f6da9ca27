"""Time series of runs for charts: active, queued, ended, waits, durations, usage by day and user."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from tidebox.model.run import Phase

PERCENTILES = (50, 95, 99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """The facts about one run that the time series need."""

    user: str
    phase: Phase
    reason: str | None
    created_at: float
    started_at: float | None
    finished_at: float | None
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class DayOfUser:
    """The runs of one user on one day, counted."""

    day: str
    user: str
    runs: int
    cpu_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSeries:
    """Figures for as many times as asked for; ``None`` where there was nothing to measure."""

    times: tuple[float, ...]
    active: tuple[int, ...]
    """Runs that had a slot at these times."""
    queued: tuple[int, ...]
    """Runs that waited for one."""
    ended: tuple[int, ...]
    """Runs that ended since the time before."""
    unsuccessful: tuple[int, ...]
    """Those of them that did not complete."""
    waits: tuple[tuple[float | None, ...], ...]
    """Seconds from the order to the slot, for each percentile."""
    durations: tuple[tuple[float | None, ...], ...]
    """Seconds from the slot to the end, for each percentile."""
    reasons: tuple[tuple[str, int], ...]
    """Why runs did not complete, most frequent first."""
    days: tuple[DayOfUser, ...]


def make_series(courses: Iterable[Course], begin: float, end: float, points: int) -> RunSeries:
    """The figures of some runs at ``points`` times after ``begin``, the last of them ``end``."""
    times = tuple(begin + (end - begin) * (number + 1) / points for number in range(points))
    active, queued = [0] * (points + 1), [0] * (points + 1)
    ended, unsuccessful = [0] * points, [0] * points
    waits: list[list[float]] = [[] for _ in times]
    durations: list[list[float]] = [[] for _ in times]
    reasons: Counter[str] = Counter()
    days: defaultdict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0.0])
    for run in courses:
        gone = math.inf if run.finished_at is None else run.finished_at
        slot = gone if run.started_at is None else run.started_at
        _count_between(queued, times, run.created_at, slot)
        _count_between(active, times, slot, gone)
        of_day = days[datetime.fromtimestamp(run.created_at, UTC).date().isoformat(), run.user]
        of_day[0] += 1
        of_day[1] += run.cpu_seconds
        if run.finished_at is None or not begin < run.finished_at <= end:
            continue
        at = bisect_left(times, run.finished_at)
        ended[at] += 1
        if run.phase is not Phase.COMPLETED:
            unsuccessful[at] += 1
            reasons[run.reason or run.phase.value] += 1
        if run.started_at is not None:
            waits[at].append(run.started_at - run.created_at)
            durations[at].append(run.finished_at - run.started_at)
    return RunSeries(
        times=times,
        active=tuple(itertools.accumulate(active[:-1])),
        queued=tuple(itertools.accumulate(queued[:-1])),
        ended=tuple(ended),
        unsuccessful=tuple(unsuccessful),
        waits=_percentiles(waits),
        durations=_percentiles(durations),
        reasons=tuple(reasons.most_common()),
        days=tuple(
            DayOfUser(day, user, int(runs), cpu) for (day, user), (runs, cpu) in sorted(days.items(), reverse=True)
        ),
    )


def _count_between(changes: list[int], times: Sequence[float], since: float, until: float) -> None:
    """Count one more at the times from ``since`` on, until before ``until``."""
    changes[bisect_left(times, since)] += 1
    changes[bisect_left(times, until)] -= 1


def _percentiles(samples: Iterable[list[float]]) -> tuple[tuple[float | None, ...], ...]:
    ordered = [sorted(each) for each in samples]
    return tuple(tuple(_percentile(each, percent) for each in ordered) for percent in PERCENTILES)


def _percentile(ordered: Sequence[float], percent: int) -> float | None:
    """The value that so many of a hundred do not exceed."""
    return ordered[math.ceil(len(ordered) * percent / 100) - 1] if ordered else None

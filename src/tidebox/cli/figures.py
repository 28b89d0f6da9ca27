"""Results of a measurement: samples, ours and the yardstick's, and whether what was promised holds."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Literal

from tidebox.model.limits import MIB


@dataclass(frozen=True, slots=True)
class Effort:
    """The amount of measuring: samples, rounds, runs, transfers."""

    samples: int
    idle_samples: int
    rounds: int
    runs_per_round: int
    transfers: int
    transfer_bytes: int
    stream_bytes: int
    connections: int


FULL = Effort(
    samples=100,
    idle_samples=20,
    rounds=4,
    runs_per_round=480,
    transfers=5,
    transfer_bytes=128 * MIB,
    stream_bytes=64 * MIB,
    connections=1000,
)
QUICK = Effort(
    samples=3,
    idle_samples=1,
    rounds=1,
    runs_per_round=16,
    transfers=1,
    transfer_bytes=16 * MIB,
    stream_bytes=8 * MIB,
    connections=20,
)


@dataclass(frozen=True, slots=True)
class Samples:
    """A series of measurements, in the row's unit."""

    p50: float
    p95: float
    p99: float
    n: int

    @classmethod
    def of(cls, values: list[float]) -> Samples:
        ordered = sorted(values)
        p95, p99 = (ordered[math.ceil(part * len(ordered)) - 1] for part in (0.95, 0.99))
        return cls(statistics.median(ordered), p95, p99, len(ordered))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure: ours, the yardstick's, their ratio, and what was promised of it."""

    what: str
    yardstick: str
    hold: str
    unit: str
    met: bool | None = None
    ratio: float | None = None
    value: float | None = None
    """The figure that the promise is about where nothing is compared."""
    ours: Samples | None = None
    theirs: Samples | None = None
    skipped: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Title:
    """Names of a figure and its yardstick, and the ratio to the yardstick's median that must hold."""

    what: str
    yardstick: str
    hold: float
    better: Literal["lower", "higher"]
    unit: str
    ours: Literal["p50", "p95"] = "p50"
    enough: float | None = None
    """A median that is met without a comparison, where more is better."""

    def row(self, ours: list[float], theirs: list[float]) -> Row:
        """The row for these measurements."""
        mine, other = Samples.of(ours), Samples.of(theirs)
        ratio = getattr(mine, self.ours) / other.p50
        met = ratio <= self.hold if self.better == "lower" else ratio >= self.hold
        met = met or (self.enough is not None and mine.p50 >= self.enough)
        return Row(
            what=self.what,
            yardstick=self.yardstick,
            hold=self._promise(),
            unit=self.unit,
            met=met,
            ratio=ratio,
            ours=mine,
            theirs=other,
        )

    def skipped(self, reason: str) -> Row:
        """The row that could not be measured."""
        return Row(what=self.what, yardstick=self.yardstick, hold=self._promise(), unit=self.unit, skipped=reason)

    def _promise(self) -> str:
        ratio = f"{'<=' if self.better == 'lower' else '>='} {self.hold:g}"
        return ratio if self.enough is None else f"{ratio} or {self.enough:g} {self.unit}"

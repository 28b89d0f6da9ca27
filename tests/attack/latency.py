"""Readings of the probe, and which of them are stalls that the machine itself does not explain."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field

from tests.attack.target import NEIGHBOUR, Target, bearer
from tests.boxes import ROOT

STALL_SECONDS = 1.0
# Which controls do what a neighbour's reading does, apart from the server.
CONTROLS = {"healthz": frozenset({"sleep", "echo"}), "hello": frozenset({"sleep", "echo", "bare"})}
# Starting an interpreter is seldom done, so one a little earlier or later counts as well.
_NEAR_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Reading:
    """How long one thing took, from when on."""

    kind: str
    start: float
    seconds: float
    wrong: str | None = None

    @property
    def end(self) -> float:
        """When it was over."""
        return self.start + self.seconds


@dataclass(frozen=True, slots=True)
class Stall:
    """A neighbour who waited, or was not served at all."""

    reading: Reading
    control: float
    """The longest that something comparable took at that time."""

    def __str__(self) -> str:
        if self.reading.wrong:
            return f"neighbour's {self.reading.kind} failed: {self.reading.wrong}"
        return f"neighbour's {self.reading.kind} took {self.reading.seconds:.2f} s (control {self.control:.2f} s)"


def stalls(readings: Iterable[Reading], most: float = STALL_SECONDS) -> list[Stall]:
    """Neighbours' readings ``most`` seconds longer than the controls' at the same time, or that went wrong."""
    readings = list(readings)
    found = []
    for reading in readings:
        controls = CONTROLS.get(reading.kind)
        if controls is None or (reading.seconds <= most and not reading.wrong):
            continue
        near = [
            other.seconds
            for other in readings
            if other.kind in controls
            and other.end > reading.start - _NEAR_SECONDS * (other.kind == "bare")
            and other.start < reading.end + _NEAR_SECONDS * (other.kind == "bare")
        ]
        control = max(near, default=0.0)
        if reading.wrong or reading.seconds - control > most:
            found.append(Stall(reading, control))
    return found


@dataclass(slots=True)
class Prober:
    """The probe's process and what it has read so far."""

    process: asyncio.subprocess.Process
    readings: list[Reading] = field(default_factory=list)
    _paused: asyncio.Event = field(default_factory=asyncio.Event)

    async def read(self) -> None:
        """Take readings until the probe ends."""
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            reading = Reading(**json.loads(line))
            if reading.kind == "paused":
                self._paused.set()
            else:
                self.readings.append(reading)

    async def go(self) -> None:
        """Begin to read, or go on."""
        await self._say(b"go\n")

    async def pause(self) -> None:
        """Read nothing more for now; returns when what was under way is over."""
        self._paused.clear()
        await self._say(b"pause\n")
        await self._paused.wait()

    def taken(self) -> list[Reading]:
        """The readings since this was last asked."""
        new, self.readings = self.readings, []
        return new

    async def _say(self, word: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word)
        await self.process.stdin.drain()


@contextlib.asynccontextmanager
async def probing(target: Target) -> AsyncIterator[Prober]:
    """A probe of the server, paused."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.attack.probe", target.server.url),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    prober = Prober(process)
    await prober._say(bearer(NEIGHBOUR).encode() + b"\n")
    reading = asyncio.create_task(prober.read())
    try:
        yield prober
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()
        await reading

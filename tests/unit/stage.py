"""A runner that does what a test tells it, for rules that are not about boxes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tidebox.broker.run_metrics import RunMetrics
from tidebox.errors import TideboxError
from tidebox.model.box import BoxSpec
from tidebox.model.events import Event, Exited, OutputEvent, Started
from tidebox.model.execution_request import ExecutionOutcome, ExecutionRequest, Sink
from tidebox.model.launch import plan_code
from tidebox.model.one_shot_flag import OneShotFlag
from tidebox.model.principal import Caller, Principal
from tidebox.model.result import Outcome, Usage
from tidebox.model.run import Conclusion
from tidebox.runtime.base import NO_FILES, BoxFiles, Runner

ADA = Caller(Principal("ada"), "192.0.2.1", "req-a", "test")
BOB = Caller(Principal("bob"), "192.0.2.2", "req-b", "test")
ROOT = Caller(Principal("root", frozenset({"sandbox_admin"})), "192.0.2.3", "req-r", "test")


def make_order(code: str = "") -> ExecutionRequest:
    return ExecutionRequest(launch=plan_code("python", code), spec=BoxSpec())


def make_ending(outcome: Outcome = Outcome.EXITED, exit_code: int | None = 0) -> ExecutionOutcome:
    usage = Usage(wall_seconds=0.5, cpu_seconds=0.25)
    return ExecutionOutcome(outcome=outcome, exit_code=exit_code, signal=None, usage=usage, captured=None)


class Play:
    """One program on the stage."""

    def __init__(self, order: ExecutionRequest, sink: Sink, cancel: OneShotFlag | None) -> None:
        self.order = order
        self.cancel = cancel
        self._sink = sink
        self._end: asyncio.Future[ExecutionOutcome | Exception] = asyncio.get_running_loop().create_future()

    async def show(self, event: Event) -> None:
        """Let something happen in it."""
        await self._sink(event)

    async def say(self, data: bytes) -> None:
        """Let it write to standard output."""
        await self.show(OutputEvent("stdout", data))

    def finish(self, ending: ExecutionOutcome | None = None) -> None:
        """Let it end."""
        self._end.set_result(ending or make_ending())

    def fail(self, error: Exception) -> None:
        """Let what carries it break."""
        self._end.set_result(error)

    @property
    def over(self) -> bool:
        """Whether it was told to end."""
        return self._end.done()

    async def watch(self) -> ExecutionOutcome:
        """The part of the runner: as a real one it ends the program soon after it was asked to."""
        assert self.cancel is not None
        canceled = asyncio.ensure_future(self.cancel.wait())
        try:
            waited_for: set[asyncio.Future[Any]] = {canceled, self._end}
            await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
            if not self._end.done():
                return make_ending(Outcome.CANCELLED, None)
            ending = self._end.result()
            if isinstance(ending, Exception):
                raise ending
            await self._sink(Exited(ending.exit_code))
            return ending
        finally:
            canceled.cancel()


class Stage(Runner):
    """Runs plays; those it is told to hold do not even start."""

    def __init__(self) -> None:
        self.plays: list[Play] = []
        self.on_stage = 0
        self.most_on_stage = 0
        self.announces = True
        self.doors_open = asyncio.Event()
        self.doors_open.set()
        self._arrived = asyncio.Condition()

    async def run(
        self, order: ExecutionRequest, sink: Sink, cancel: OneShotFlag | None = None, files: BoxFiles = NO_FILES
    ) -> ExecutionOutcome:
        play = Play(order, sink, cancel)
        self.plays.append(play)
        self.on_stage += 1
        self.most_on_stage = max(self.most_on_stage, self.on_stage)
        try:
            await self.doors_open.wait()
            if self.announces:
                await sink(Started(1))
            async with self._arrived:
                self._arrived.notify_all()
            return await play.watch()
        finally:
            self.on_stage -= 1

    async def play(self, number: int) -> Play:
        """The play of that number, once it has started."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self.plays) > number)
        return self.plays[number]


class Tally(RunMetrics):
    """A meter that remembers."""

    def __init__(self) -> None:
        self.refusals: list[str] = []
        self.waits: list[float] = []
        self.ends: list[str] = []

    def refused(self, error: TideboxError) -> None:
        self.refusals.append(error.code)

    def started(self, waited: float) -> None:
        self.waits.append(waited)

    def ended(self, conclusion: Conclusion, seconds: float) -> None:
        self.ends.append(conclusion.reason.value)


async def ignore(event: Event) -> None:
    """A sink for those who do not listen."""


async def until(condition: Callable[[], bool], interval: float = 0.0) -> None:
    """Wait until something has happened."""
    while not condition():  # noqa: ASYNC110 # what is waited for does not know of being waited for
        await asyncio.sleep(interval)


def audited(directory: Path) -> list[dict[str, Any]]:
    """Every event of a closed audit log."""
    return [json.loads(line) for path in sorted(directory.iterdir()) for line in path.read_text().splitlines()]

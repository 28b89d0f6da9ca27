"""A bounded, seeded attack on a server of its own, watched from the side.

Steps are carried out in batches. After a batch the server settles and everything is counted. What grew, and every
stall, is put down to a step by carrying out the steps of the batch again, one by one; a step is the same whenever its
seed, grammar and number are.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.load import control_groups, descendants
from tests.attack.counts import Counts, Growth, count, grown, rule_of
from tests.attack.grammars import GRAMMARS, Grammar, chance_of
from tests.attack.latency import STALL_SECONDS, Prober, Reading, Stall, probing, stalls
from tests.attack.target import HEARTBEAT_SECONDS, Held, Target, attacked_server
from tidebox.errors import TideboxError

STEP_SECONDS = 60.0
SETTLE_SECONDS = 30.0
_STEPS_TOLD = 5
_REPEATS = 2
# How many times as much a count of the machine may grow while others are at work there.
_BESIDE_OTHERS = 16
_WARM_UP = -1
"""The number of the steps that are made before anything is counted."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to try."""

    seed: int
    seconds: float
    grammars: tuple[str, ...]
    most_programs: int
    batch_seconds: float = 10.0
    patience: float = 1.0
    """How many times slower than a real processor the machine is."""
    only_step: int | None = None
    """Of the one grammar, carried out again and again."""
    alone: bool = True
    """Whether nobody else is at work on the machine: what it counts for everybody says more then."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step that was carried out."""

    grammar: str
    number: int
    start: float
    end: float

    def covers(self, reading: Reading) -> bool:
        """Whether a reading was taken meanwhile."""
        return reading.start < self.end and reading.end > self.start


@dataclass(frozen=True, slots=True)
class Finding:
    """What went wrong, and what did it."""

    what: str
    steps: tuple[tuple[str, int], ...]
    certain: bool = True
    """Whether it came again when the step was carried out alone."""

    def lines(self, seed: int) -> list[str]:
        """What to print."""
        said = [f"FOUND{'' if self.certain else ' (did not come again)'}: {self.what}"]
        for grammar, number in self.steps[:_STEPS_TOLD]:
            arguments = f"--seed {seed} --only {grammar} --step {number}"
            said.append(f"    seed {seed}, {grammar} step {number}; again: make attack ATTACK_ARGS='{arguments}'")
        if len(self.steps) > _STEPS_TOLD:
            said.append(f"    or one of {len(self.steps) - _STEPS_TOLD} more steps of the same batch")
        return said


@dataclass(slots=True)
class Report:
    """How a campaign ended."""

    seed: int
    steps: dict[str, int] = field(default_factory=dict)
    programs: int = 0
    findings: list[Finding] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Whether something is surely wrong, or too often perhaps."""
        certain = [finding for finding in self.findings if finding.certain]
        return bool(certain) or len(self.findings) > 2


class Campaign:
    """The attack on one server."""

    def __init__(self, plan: Plan, target: Target, prober: Prober, tell: Callable[[str], None]) -> None:
        self._plan = plan
        self._target = target
        self._prober = prober
        self._tell = tell
        self._numbers = dict.fromkeys(plan.grammars, 0)
        self._baseline: Counts = {}
        self._held = Held()
        self._last = (plan.grammars[0], _WARM_UP)
        self._told: set[str] = set()
        self.report = Report(plan.seed)

    async def run(self) -> None:
        """Attack until the time is over."""
        # What is made once and kept is there before the first count.
        await self._target.warm()
        for name in self._plan.grammars:
            await self._carry_out(GRAMMARS[name], _WARM_UP)
        self._target.logged()
        await self._prober.go()
        await asyncio.sleep(1.0)
        await self._prober.pause()
        self._prober.taken()
        await asyncio.sleep(2 * HEARTBEAT_SECONDS + 1)
        self._baseline = await self._counted({})
        self._held = await self._target.held()
        deadline = time.monotonic() + self._plan.seconds
        while time.monotonic() < deadline:
            steps = await self._batch(min(deadline, time.monotonic() + self._plan.batch_seconds))
            await self._judge(steps)
            if not self._is_alive():
                self._found("the server ended", steps)
                return

    async def _batch(self, deadline: float) -> list[Step]:
        await self._target.equip()
        await self._prober.go()
        steps: list[Step] = []
        while not steps or time.monotonic() < deadline:
            allowed = self._allowed(await asyncio.to_thread(self._target.programs_started))
            if not allowed:
                await asyncio.sleep(max(0.0, deadline - time.monotonic()))
                break
            # The one that has had the fewest steps, so that each has its share whatever the time.
            name = min(allowed, key=lambda name: (self._numbers[name], name))
            number = self._numbers[name] if self._plan.only_step is None else self._plan.only_step
            self._numbers[name] += 1
            steps.append(await self._carry_out(GRAMMARS[name], number))
            self.report.steps[name] = self._numbers[name]
        await self._prober.pause()
        return steps

    def _allowed(self, started: int) -> list[str]:
        left = self._plan.most_programs - started
        return [name for name in self._plan.grammars if GRAMMARS[name].boxes == 0 or GRAMMARS[name].boxes <= left]

    async def _carry_out(self, grammar: Grammar, number: int) -> Step:
        start = time.monotonic()
        step = (grammar.name, number)
        try:
            async with asyncio.timeout(STEP_SECONDS * self._plan.patience):
                wrong = await grammar.step(chance_of(self._plan.seed, *step), self._target)
        except TimeoutError:
            wrong = [f"the step took longer than {STEP_SECONDS * self._plan.patience:g} s"]
        for what in wrong:
            self._add(Finding(what, (step,)))
        # A line may be written a moment after the step that caused it, when the next one is under way.
        for line in self._target.logged():
            self._add(Finding(f"logged: {line}", tuple(dict.fromkeys((step, self._last)))))
        self._last = step
        return Step(*step, start, time.monotonic())

    async def _judge(self, steps: Sequence[Step]) -> None:
        """Find out what a batch did."""
        readings = self._prober.taken()
        self.report.readings += readings
        for stall in self._stalls(readings):
            await self._put_down(stall, [step for step in steps if step.covers(stall.reading)] or steps)
        after = await self._counted(self._baseline)
        if not (growths := [growth for growth in grown(self._baseline, after) if self._matters(growth)]):
            return
        before, self._held = self._held, await self._target.held()
        self._baseline = after
        if self._held.keeps_more_than(before):
            # Each takes processes, descriptors and mounts; how many there may be is bounded.
            self._tell(
                f"  grown: {', '.join(map(str, growths))}; the server keeps more ready: {before} -> {self._held}"
            )
            return
        self._tell(f"  grown: {', '.join(map(str, growths))}; looking for the step")
        self._tell(f"  the server has {self._held}")
        for growth in growths:
            await self._put_down_growth(growth, steps)

    def _matters(self, growth: Growth) -> bool:
        if self._plan.alone or not growth.of_the_machine:
            return True
        return growth.after - growth.before > _BESIDE_OTHERS * rule_of(growth.name).tolerance

    def _stalls(self, readings: list[Reading]) -> list[Stall]:
        return stalls(readings, STALL_SECONDS * self._plan.patience)

    async def _put_down(self, stall: Stall, suspects: Sequence[Step]) -> None:
        """Which step makes the neighbour wait again."""
        self._tell(f"  {stall}; looking for the step")
        for step in _distinct(suspects):
            for _ in range(_REPEATS):
                await self._prober.go()
                await self._carry_out(GRAMMARS[step[0]], step[1])
                await self._prober.pause()
                again = self._stalls(self._prober.taken())
                if again:
                    return self._add(Finding(str(again[0]), (step,)))
        self._add(Finding(str(stall), tuple(_distinct(suspects)), certain=False))

    async def _put_down_growth(self, growth: Growth, steps: Sequence[Step]) -> None:
        """Which step makes it grow again: by half as much as a whole batch did, or beyond what is tolerated."""
        for step in _distinct(steps):
            start = time.monotonic()
            before = await self._counted({})
            for _ in range(_REPEATS):
                await self._carry_out(GRAMMARS[step[0]], step[1])
            after = await self._counted(before)
            gained = after.get(growth.name, 0.0) - before.get(growth.name, 0.0)
            self._baseline = after
            if gained <= min(rule_of(growth.name).tolerance, (growth.after - growth.before) / 2):
                continue
            if growth.of_the_machine and await self._grows_by_itself(growth.name, gained, time.monotonic() - start):
                break
            return self._add(Finding(f"{growth}, and by {gained:g} more by this step alone", (step,)))
        # What belongs to this server alone was caused by this attack, whichever step it was.
        self._add(Finding(str(growth), tuple(_distinct(steps)), certain=not growth.of_the_machine))

    async def _grows_by_itself(self, name: str, gained: float, seconds: float) -> bool:
        """Whether a count of the machine grows without us by half as much in the same time."""
        before = await self._counted({})
        await asyncio.sleep(seconds)
        self._baseline = await self._counted({})
        return self._baseline.get(name, 0.0) - before.get(name, 0.0) > gained / 2

    async def _counted(self, before: Counts) -> Counts:
        """Count when everything has come to rest and, if it can, gone back to what it was."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            try:
                await self._target.settle()
            except TideboxError as error:
                self._add(Finding(error.message, ()))
            now = await asyncio.to_thread(count, self._target)
            if not before or not grown(before, now) or time.monotonic() > deadline:
                return now
            await asyncio.sleep(1.0)

    def _is_alive(self) -> bool:
        return Path(f"/proc/{self._target.server.pid}/exe").exists()

    def _found(self, what: str, steps: Sequence[Step]) -> None:
        self._add(Finding(what, tuple(_distinct(steps))))

    def _add(self, finding: Finding) -> None:
        # The same is told once, whichever step came upon it.
        if finding.what not in self._told:
            self._told.add(finding.what)
            self.report.findings.append(finding)
            for line in finding.lines(self._plan.seed):
                self._tell(line)


def _distinct(steps: Sequence[Step]) -> list[tuple[str, int]]:
    return list(dict.fromkeys((step.grammar, step.number) for step in steps))


async def attack(plan: Plan, data_dir: Path, tell: Callable[[str], None]) -> Report:
    """Start a server, attack it, stop it, and look for what it left."""
    async with attacked_server(data_dir) as target:
        async with probing(target) as prober:
            campaign = Campaign(plan, target, prober, tell)
            await campaign.run()
        report = campaign.report
        report.programs = target.programs_started()
        below = descendants(target.server.pid)
    for what in left_behind(below, data_dir):
        report.findings.append(Finding(f"left when the server had ended: {what}", ()))
        tell(f"FOUND: left when the server had ended: {what}")
    return report


def left_behind(pids: Sequence[int], data_dir: Path) -> list[str]:
    """What still exists of a server that has ended: processes, control groups, sockets."""
    left = [f"process {pid}" for pid in pids if Path(f"/proc/{pid}/exe").exists() and _is_ours(pid)]
    left += [str(group) for group in control_groups(pids)]
    run = data_dir / "run" / "agents"
    return left + ([str(path) for path in run.iterdir()] if run.exists() else [])


def _is_ours(pid: int) -> bool:
    """Whether it is still the process that was below the server; its number may have been given to another."""
    try:
        return b"tidebox" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False

"""Run boxes for a long time, all kinds at once, and look for anything that grows or stays behind.

    python -m benchmarks.soak --minutes 30 --at-once 8

Prints a line per interval and ends with exit code 1 if something was left.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidebox.config import load_settings
from tidebox.embedded import Engine, run_on
from tidebox.model.limits import MIB
from tidebox.model.result import Outcome
from tidebox.runtime.native.runtime import NativeRuntime

WARM_UP_SECONDS = 15.0
SETTLING_SECONDS = 2.0
PATIENCE_SECONDS = 60.0
# So many programs at once fill every cache of descriptors, before each look, so that two looks find the same.
RUSH = 16
RUSH_PROGRAM = "import time; time.sleep(0.5)"
# Files of one control group, which may just be made or removed.
SPARE_DESCRIPTORS = 5

FORK_BOMB = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
LEAVE_BEHIND = "import subprocess, os\nsubprocess.Popen(['sleep', '60'])\nopen('/tmp/f', 'w').write('x')\nprint('left')"

# (what to run, how it must end)
PROGRAMS: list[tuple[dict[str, Any], Outcome]] = [
    ({"code": "print('hello')"}, Outcome.EXITED),
    ({"code": "print(input())", "stdin": "in\n"}, Outcome.EXITED),
    ({"code": "echo hello", "language": "shell"}, Outcome.EXITED),
    ({"code": "console.log('hello')", "language": "javascript"}, Outcome.EXITED),
    ({"command": ["ls", "-la", "/"]}, Outcome.EXITED),
    ({"code": LEAVE_BEHIND}, Outcome.EXITED),
    (
        {"code": "open('o', 'wb').write(bytes(1 << 20))", "artifacts": ["o"], "files": {"i": b"x" * 10_000}},
        Outcome.EXITED,
    ),
    ({"code": "import os; os.kill(os.getpid(), 9)"}, Outcome.SIGNALED),
    ({"code": "while True: pass", "timeout": 0.3}, Outcome.TIMEOUT),
    ({"code": "x = bytearray(b'x') * (1 << 30)", "memory": 64 * MIB}, Outcome.OOM),
    ({"code": FORK_BOMB, "timeout": 0.5, "pids": 32}, Outcome.TIMEOUT),
    ({"code": "while True: print('x' * 1000)", "output": 1 * MIB}, Outcome.OUTPUT_LIMIT),
]


@dataclass
class Tally:
    """What happened so far."""

    ended: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)


async def run_until(engine: Engine, deadline: float, tally: Tally, seed: int) -> None:
    """One user who keeps asking."""
    chance = random.Random(seed)
    while time.monotonic() < deadline:
        program, expected = chance.choice(PROGRAMS)
        result = await run_on(engine, **program)
        tally.ended[result.outcome.value] += 1
        if result.outcome is not expected:
            what = str(program.get("code") or program["command"]).splitlines()[0]
            tally.wrong[f"{what}: {result.outcome.value} instead of {expected.value}"] += 1


def footprint(engine: Engine) -> dict[str, int]:
    """What of the machine is in use for this engine."""
    assert isinstance(engine.runtime, NativeRuntime)
    spawner = engine.runtime.spawner_pid()
    status = Path("/proc/self/status").read_text()
    groups = [Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory")]
    return {
        "boxes": engine.runtime.live_boxes(),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "memory_mib": int(status.partition("VmRSS:")[2].split()[0]) // 1024,
        "cgroups": sum(len(list(base.glob("b*"))) for root in groups for base in root.glob(f"tidebox-{spawner}-*")),
        "spawner_descriptors": len(os.listdir(f"/proc/{spawner}/fd")),
    }


async def settled(engine: Engine) -> dict[str, int]:
    """What is in use after a rush, when that does not change any more: spare parts that it left go one by one."""
    await asyncio.gather(*(run_on(engine, RUSH_PROGRAM) for _ in range(RUSH)))
    await engine.driver.close()
    await engine.pool.filled()
    deadline = time.monotonic() + PATIENCE_SECONDS
    before: dict[str, int] = {}
    while (now := footprint(engine)) != before and time.monotonic() < deadline:
        before = now
        await asyncio.sleep(SETTLING_SECONDS)
    return now


async def soak(minutes: float, at_once: int, data_dir: Path) -> bool:
    """Whether all went well."""
    engine = Engine(load_settings(data_dir=data_dir))
    tally = Tally()
    try:
        # A machine that cannot do it says why here; a pool would only try again and again.
        await run_on(engine, "print('hello')")
        engine.start()
        # Once around first, so that what is made only once is there in the first footprint.
        deadline = time.monotonic() + WARM_UP_SECONDS
        await asyncio.gather(*(run_until(engine, deadline, tally, -seed) for seed in range(1, at_once + 1)))
        before = await settled(engine)
        deadline = time.monotonic() + minutes * 60
        users = [asyncio.create_task(run_until(engine, deadline, tally, seed)) for seed in range(1, at_once + 1)]
        while any(not user.done() for user in users):
            await asyncio.wait(users, timeout=min(30, minutes * 60))
            print(f"{sum(tally.ended.values()):8} runs, {dict(tally.ended)}, {footprint(engine)}", flush=True)
        await asyncio.gather(*users)
        after = await settled(engine)
    finally:
        await engine.close()
    print(f"before: {before}\nafter:  {after}")
    for what, count in tally.wrong.items():
        print(f"wrong, {count} times: {what}")
    left = grown(before, after)
    for name in left:
        print(f"left behind: {name} {before[name]} -> {after[name]}")
    return not left and not tally.wrong


def grown(before: dict[str, int], after: dict[str, int]) -> list[str]:
    """What is in use of more than can be explained."""
    # The allocator keeps some of the memory it once needed; a leak goes on growing.
    allowed = before | {
        "memory_mib": before["memory_mib"] * 2,
        "descriptors": before["descriptors"] + SPARE_DESCRIPTORS,
        "spawner_descriptors": before["spawner_descriptors"] + SPARE_DESCRIPTORS,
    }
    return [name for name in before if after[name] > allowed[name]]


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(description="Run boxes for a long time and look for anything left behind.")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--at-once", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidebox-soak-") as directory:
        return 0 if asyncio.run(soak(options.minutes, options.at_once, Path(directory))) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Many clients at once, each with many executions, all answered rightly, and nothing left behind.

    python -m benchmarks.load [--connections 200] [--executions 20] [--rounds 2]

Starts a server of its own on the loopback interface. Prints what the server holds at the start and after each round,
and ends with exit code 1 if an answer was wrong or something stayed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from tidebox.cli.served import PROGRAM, Served
from tidebox.errors import TideboxError
from tidebox.model.result import Outcome
from tidebox.sdk import AsyncClient, Result
from tidebox.sdk.fathom_session import ExecuteOptions

# The server tells how many tasks and objects it has when it is asked by a signal.
TELLING = f"""
import asyncio, gc, os, signal, sys
def tell(*_):
    gc.collect()
    with open(sys.argv[-1] + '/told.new', 'w') as file:
        objects = len(gc.get_objects()) + gc.get_freeze_count()
        print(len(asyncio.all_tasks(asyncio.get_running_loop())), objects, file=file)
    os.rename(file.name, file.name.removesuffix('.new'))
signal.signal(signal.SIGUSR1, tell)
{PROGRAM}
"""
# A connection to SQLite has a few files.
_STORE_DESCRIPTORS = 6
_SETTLING_SECONDS = 2.0
_PATIENCE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Program:
    """Something to run, and how one sees that it was run rightly."""

    code: str
    right: Callable[[Result], bool]
    language: str = "python"
    options: ExecuteOptions = field(default_factory=ExecuteOptions)


def prints(text: str) -> Callable[[Result], bool]:
    """Whether it printed just this."""
    return lambda result: result.ok and result.stdout == text


def ends(outcome: Outcome) -> Callable[[Result], bool]:
    """Whether it ended this way."""
    return lambda result: result.outcome is outcome


PROGRAMS = [
    *[Program("print('hello')", prints("hello\n"))] * 12,
    Program("print(input()[::-1])", prints("tide\n"), options={"stdin": "edit"}),
    Program("import os; print(os.environ['WHO'])", prints("crab\n"), options={"env": {"WHO": "crab"}}),
    Program("echo hello", prints("hello\n"), "shell"),
    Program("console.log('hello')", prints("hello\n"), "javascript"),
    Program("import sys; sys.exit(3)", lambda result: result.exit_code == 3),
    Program("print('tide' * 50_000, end='')", prints("tide" * 50_000)),
    Program("while True: print('tide')", ends(Outcome.OUTPUT_LIMIT), options={"output": 10_000}),
    Program("while True: pass", ends(Outcome.TIMEOUT), options={"timeout": 0.2}),
]


@dataclass(frozen=True, slots=True)
class Footprint:
    """What of the machine a server holds."""

    tasks: int
    objects: int
    processes: int
    descriptors: int
    below_descriptors: int
    cgroups: int
    threads: int
    memory_mib: int


def footprint(server: Served, data_dir: Path) -> Footprint:
    """What it holds when that does not change any more: spare parts that a rush left go one by one."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    before, now = None, _look(server, data_dir)
    while before != replace(now, objects=0, memory_mib=0) and time.monotonic() < deadline:
        before = replace(now, objects=0, memory_mib=0)
        time.sleep(_SETTLING_SECONDS)
        now = _look(server, data_dir)
    return now


def _look(server: Served, data_dir: Path) -> Footprint:
    server.rest()
    below = descendants(server.pid)
    status = Path(f"/proc/{server.pid}/status").read_text()
    tasks, objects = ask(server, data_dir)
    return Footprint(
        tasks=tasks,
        objects=objects,
        processes=len(below),
        descriptors=descriptors(server.pid),
        below_descriptors=sum(descriptors(pid) for pid in below),
        cgroups=len(control_groups(below)),
        threads=int(status.partition("Threads:")[2].split()[0]),
        memory_mib=int(status.partition("VmRSS:")[2].split()[0]) // 1024,
    )


def ask(server: Served, data_dir: Path) -> tuple[int, int]:
    """How many asyncio tasks and how many objects the server has."""
    told = data_dir / "told"
    told.unlink(missing_ok=True)
    server.signal(signal.SIGUSR1)
    deadline = time.monotonic() + 10
    while not told.exists():
        if time.monotonic() > deadline:
            raise TideboxError("the server does not tell what it has")
        time.sleep(0.01)
    tasks, objects = map(int, told.read_text().split())
    return tasks, objects


def descriptors(pid: int) -> int:
    """How many a process has open."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except PermissionError:
        return 0  # a box's own process, when we are not root


def descendants(pid: int) -> list[int]:
    """Every process below another."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it ended while we looked
        parents.setdefault(parent, []).append(int(entry.parent.name))
    found: list[int] = []
    todo = [pid]
    while todo:
        found += (children := parents.get(todo.pop(), []))
        todo += children
    return found


def cgroup_roots() -> list[Path]:
    """Where a spawner makes its groups, in both versions of control groups."""
    own = [line.split(":")[2] for line in Path("/proc/self/cgroup").read_text().splitlines()]
    base = Path("/sys/fs/cgroup")
    mounts = [base, *(entry for entry in base.iterdir() if entry.is_dir())]
    return [path for path in {mount / group.lstrip("/") for mount in mounts for group in {"", *own}} if path.is_dir()]


def control_groups(pids: Sequence[int]) -> list[Path]:
    """Every control group of these spawners; those that are removed meanwhile are left out."""
    bases = [base for root in cgroup_roots() for pid in pids for base in root.glob(f"tidebox-{pid}-*")]
    return [Path(place) for base in bases for place, _, _ in os.walk(base)]


async def one_round(server: Served, connections: int, executions: int, seed: int) -> Counter[str]:
    """All clients at once; what went wrong, counted."""
    wrong: Counter[str] = Counter()
    opening = asyncio.Semaphore(50)

    async def one(number: int) -> None:
        chance = random.Random(seed * connections + number)
        async with opening:
            client = AsyncClient(server.url, api_key=server.key, connect_timeout=60)
            await client.connect()
        try:
            for _ in range(executions):
                program = chance.choice(PROGRAMS)
                try:
                    result = await client.run(program.code, program.language, **program.options)
                except TideboxError as error:
                    wrong[f"{type(error).__name__}: {error.message}"] += 1
                else:
                    if not program.right(result):
                        wrong[f"{program.code}: {replace(result, stdout=result.stdout[:40])}"] += 1
        finally:
            await client.close()

    await asyncio.gather(*(one(number) for number in range(connections)))
    return wrong


def run(connections: int, executions: int, rounds: int, data_dir: Path) -> bool:
    """Whether all went well."""
    settings = {
        "rate_limit": "off",
        "queue_max_length": str(connections * executions),
        "queue_ttl_sec": "600",
    }
    wrong: Counter[str] = Counter()
    with Served(data_dir, TELLING, **settings) as server:
        # Every kind of program and every slot, so that what is made once and kept is there in the first footprint.
        wrong += asyncio.run(one_round(server, connections=40, executions=5, seed=0))
        prints_of = [footprint(server, data_dir)]
        show("at the start", prints_of[0])
        for number in range(1, rounds + 1):
            start = time.perf_counter()
            wrong += asyncio.run(one_round(server, connections, executions, seed=number))
            seconds = time.perf_counter() - start
            prints_of.append(footprint(server, data_dir))
            count = connections * executions
            show(f"{connections} x {executions} in {seconds:.1f} s ({count / seconds:.0f}/s)", prints_of[-1])
        log = (data_dir / "server.log").read_text()
    for what, count in wrong.most_common(20):
        print(f"WRONG, {count} times: {what}")
    bad_lines = re.findall(r'.*"level": ?"(?:error|critical)".*|^Traceback.*', log, re.MULTILINE)
    for line in bad_lines[:20]:
        print(f"LOGGED: {line[:300]}")
    left = grown(prints_of)
    for what in left:
        print(f"LEFT: {what}")
    verdict = not (wrong or left or bad_lines)
    print("PASSED: every answer right, nothing left" if verdict else "FAILED")
    return verdict


def grown(seen: list[Footprint]) -> list[str]:
    """What stayed.

    A few objects are caches, and the store opens another connection when two are needed at once. What was once needed
    may be kept for the next time (memory by the allocator, the counters of some control groups, the threads of
    asyncio's pool), but must not be needed anew each time.
    """
    first, last, before = asdict(seen[0]), asdict(seen[-1]), seen[-2]
    allowed = first | {
        "objects": first["objects"] * 1.01,
        "descriptors": before.descriptors + _STORE_DESCRIPTORS,
        "threads": first["threads"] + min(32, (os.cpu_count() or 1) + 4),
        "memory_mib": before.memory_mib * 1.1 + 4,
    }
    if len(seen) == 2:
        del allowed["memory_mib"]
    return [f"{name} {first[name]} -> {last[name]}" for name in allowed if last[name] > allowed[name]]


def show(when: str, held: Footprint) -> None:
    """One line."""
    print(f"{when + ':':40} " + ", ".join(f"{name} {value}" for name, value in asdict(held).items()), flush=True)


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(description="Many clients with many executions each; nothing may be left.")
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--executions", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory(prefix="tidebox-load-") as directory:
        return 0 if run(options.connections, options.executions, options.rounds, Path(directory)) else 1


if __name__ == "__main__":
    sys.exit(main())

"""How long the SQLite store takes: lists over many runs, many artifacts, and the steps of one run.

    python -m benchmarks.store [--runs 100000] [--rounds 15] [--json]

Each figure is the median of some rounds through the store's own interface, threads included.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tidebox.model.artifact import Artifact
from tidebox.model.principal import Caller, Principal
from tidebox.model.result import Usage
from tidebox.model.run import Conclusion, Phase, Reason, Run, RunFacts, Transition, ended
from tidebox.model.run_query import RunQuery
from tidebox.store.base import Creation
from tidebox.store.sql.store import SqliteStore

HOLD_SECONDS = 0.05
ARTIFACTS = 1000
_DAY = 24 * 3600
_START = 1_760_000_000.0
_IMAGES = ("host", "python:3.11-slim", "python:3.12", "node:20-alpine", "debian:12", "busybox")
_ENDS = (
    *[(Phase.COMPLETED, Reason.EXIT_ZERO, None)] * 80,
    *[(Phase.FAILED, Reason.EXIT_NONZERO, None)] * 12,
    *[(Phase.FAILED, Reason.OOM_KILLED, "the program needed more memory than it may have")] * 3,
    *[(Phase.TIMED_OUT, Reason.EXECUTION_TIMEOUT, "the program took too long")] * 3,
    *[(Phase.KILLED, Reason.CANCELED_BY_USER, "canceled_by_user")] * 2,
)


def some_run(number: int, dice: random.Random, spread: float) -> Run:
    """A run as a busy server would have it, most of them over."""
    created = _START + number * spread
    image = dice.choice(_IMAGES)
    run = Run(
        id=f"run-{dice.getrandbits(100):025x}",
        caller=Caller(Principal(f"user-{min(int(dice.expovariate(0.05)), 500)}"), "192.0.2.1", "req", "interpreter"),
        facts=RunFacts(
            runtime="native",
            base_image=image,
            spec_version="1.0",
            policy_hash=f"{number % 3:064x}",
            image_digest=f"sha256:{_IMAGES.index(image):064x}",
            labels={"team": "one"},
            limits={"cpu": 1.0, "memory_mb": 512, "timeout_sec": 60},
        ),
        created_at=created,
    )
    if number % 1000 == 0:
        return run
    phase, reason, message = dice.choice(_ENDS)
    return replace(
        run,
        phase=phase,
        reason=reason,
        message=message,
        exit_code=0 if phase is Phase.COMPLETED else 1,
        started_at=created + 0.01,
        finished_at=created + dice.random() * 60,
        usage=Usage(wall_seconds=1.0, cpu_seconds=dice.random(), memory_peak=9_000_000, pids_peak=2),
        log_bytes=dice.randrange(10_000),
    )


def fill(path: Path, runs: int) -> None:
    """Put many runs into the file of a store."""
    import sqlalchemy as sa

    from tidebox.store.sql.rows import record_of, run_row
    from tidebox.store.sql.schema import run_records
    from tidebox.store.sql.schema import runs as table

    dice = random.Random(1)
    made = [some_run(number, dice, 30 * _DAY / runs) for number in range(runs)]
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        connection.execute(sa.insert(table), list(map(run_row, made)))
        records = [{"run_id": run.id, "record": record_of(run)} for run in made]
        connection.execute(sa.insert(run_records), records)
    engine.dispose()


QUERIES: dict[str, RunQuery] = {
    "newest by start": RunQuery(sort="started_at"),
    "oldest by start": RunQuery(sort="started_at", descending=False),
    "newest by end, 200": RunQuery(sort="finished_at", limit=200),
    "last page by start": RunQuery(sort="started_at", offset=99_950),
    "middle page by end, oldest first": RunQuery(sort="finished_at", descending=False, offset=50_000),
    "one phase that is rare": RunQuery(phase=Phase.KILLED, sort="started_at"),
    "one phase that is common": RunQuery(phase=Phase.COMPLETED, sort="started_at"),
    "one runtime, which all have": RunQuery(runtime="native", sort="started_at"),
    "runtime and phase": RunQuery(runtime="native", phase=Phase.COMPLETED, sort="finished_at"),
    "one user": RunQuery(user="user-3", sort="started_at"),
    "one user and phase": RunQuery(user="user-3", phase=Phase.FAILED, sort="finished_at"),
    "one image": RunQuery(base_image="python:3.12", sort="started_at"),
    "one digest in a week": RunQuery(
        image_digest=f"sha256:{2:064x}", started_from=_START, started_to=_START + 7 * _DAY, sort="started_at"
    ),
    "phase in a week": RunQuery(
        phase=Phase.COMPLETED, started_from=_START + 7 * _DAY, started_to=_START + 14 * _DAY, sort="finished_at"
    ),
    "ended in a day": RunQuery(finished_from=_START + 7 * _DAY, finished_to=_START + 8 * _DAY, sort="finished_at"),
    "text that is common": RunQuery(text="PYTHON", sort="started_at"),
    "text that is rare": RunQuery(text="canceled", sort="started_at"),
    "text that nothing has": RunQuery(text="no such thing", sort="started_at"),
}


async def timed(rounds: int, work: Callable[[], Awaitable[Any]]) -> float:
    """The median of how long some work takes."""
    await work()
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        await work()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


async def life(store: SqliteStore, rounds: int) -> dict[str, float]:
    """What one run costs in the store: its creation, its beginning, its end, and a look at it."""
    times: dict[str, list[float]] = {}
    over = Conclusion(phase=Phase.COMPLETED, reason=Reason.EXIT_ZERO, exit_code=0, usage=Usage(wall_seconds=0.1))

    async def take(name: str, work: Awaitable[Any]) -> None:
        begun = time.perf_counter()
        await work
        times.setdefault(name, []).append(time.perf_counter() - begun)

    for number in range(rounds):
        run = some_run(0, random.Random(f"life {number}"), 1.0)
        await take("create a run", store.create_run(Creation(run=run, work=b"x" * 500)))
        await take("a run is given a slot", store.advance_run(run, Transition(to=Phase.STARTING, at=1.0)))
        await take("a run begins", store.advance_run(run, Transition(to=Phase.RUNNING, at=1.0)))
        await take("a run ends", store.advance_run(run, ended(over, 2.0)))
        await take("read a run", store.run(run.id))
    return {name: statistics.median(found) for name, found in times.items()}


async def artifacts(store: SqliteStore, rounds: int) -> dict[str, float]:
    """What many artifacts of one run cost."""
    run = some_run(0, random.Random("artifacts"), 1.0)
    await store.create_run(Creation(run=run, work=b""))
    found = [
        Artifact(
            run_id=run.id,
            path=f"out/{number:05}.json",
            size=number,
            content_type="application/json",
            created_at=1.0,
            expires_at=2.0,
        )
        for number in range(ARTIFACTS)
    ]
    await store.add_artifacts(run.id, found)
    return {f"list {ARTIFACTS} artifacts": await timed(rounds, lambda: store.artifacts(run.id))}


async def measure(runs: int, rounds: int) -> tuple[dict[str, float], dict[str, float]]:
    """Lists, which have a time to hold, and the steps of a run, which depend on the disk."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "store.db"
        store = SqliteStore(path)
        await store.start()
        await store.run("none")
        await asyncio.to_thread(fill, path, runs)
        await store.close()
        store = SqliteStore(path)
        await store.start()
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(store.close)
            lists = {
                name: await timed(rounds, functools.partial(store.list_runs, query)) for name, query in QUERIES.items()
            }
            lists |= await artifacts(store, rounds)
            return lists, await life(store, rounds * 10)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    lists, steps = asyncio.run(measure(options.runs, options.rounds))
    found = {name: round(seconds * 1000, 2) for name, seconds in (lists | steps).items()}
    holds = max(lists.values()) <= HOLD_SECONDS
    if options.json:
        print(json.dumps({"milliseconds": found, "hold_ms": HOLD_SECONDS * 1000, "holds": holds}))
    else:
        for name, milliseconds in found.items():
            print(f"{name:34} {milliseconds:8.2f} ms")
        print(f"lists within {HOLD_SECONDS * 1000:.0f} ms: {'yes' if holds else 'NO'}")
    sys.exit(not holds)


if __name__ == "__main__":
    main()

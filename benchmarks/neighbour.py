"""How long a neighbour waits while another box attacks a resource, against a harmless loop in that box.

    python -m benchmarks.neighbour [--samples 500] [--only NAME]

Starts a server of its own on the loopback interface. Attack and loop have the same limits and take turns, so that what
else happens on the machine happens to both. Prints a Markdown table, and ends with exit code 1 if the p99 beside an
attack is more than three times that beside the loop.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.attacks import ATTACKS, PRELUDE, SPIN
from tidebox.cli.figures import Samples
from tidebox.cli.served import Served
from tidebox.errors import TideboxError
from tidebox.sdk import AsyncClient
from tidebox.sdk.fathom_session import ExecuteOptions

MOST = 3.0
_TURNS = 5
# The attack is to be under way, and what it holds to be held, when the first sample is taken.
_AHEAD_SECONDS = 0.3
_LIMITS: ExecuteOptions = {"timeout": 60.0, "memory": 256 * 1024 * 1024, "output": 1 << 34}
_SETTINGS = {"rate_limit": "off", "pool_node": "0", "pool_sandboxes": "0"}


@dataclass(slots=True)
class Row:
    """What was measured beside one attack and, in turns, beside the loop."""

    name: str
    attacked: list[float] = field(default_factory=list)
    calm: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """How much longer the neighbour waits beside the attack."""
        return Samples.of(self.attacked).p99 / Samples.of(self.calm).p99

    def line(self) -> str:
        """As a row of the table."""
        here, there = Samples.of(self.attacked), Samples.of(self.calm)
        return f"| {self.name} | {here.p50:.1f} ms | {here.p99:.1f} ms | {there.p99:.1f} ms | {self.ratio:.1f} |"


async def measure(server: Served, name: str, samples: int) -> Row:
    """One row."""
    row = Row(name)
    async with _client(server) as neighbour, _client(server) as attacker:
        for _ in range(_TURNS):
            for program, times in ((SPIN, row.calm), (PRELUDE + ATTACKS[name], row.attacked)):
                attack = asyncio.create_task(_keep_running(attacker, program))
                try:
                    await asyncio.sleep(_AHEAD_SECONDS)
                    times += [await _hello(neighbour) for _ in range(samples // _TURNS)]
                    if attack.done():
                        attack.result()
                finally:
                    attack.cancel()
                    await asyncio.gather(attack, return_exceptions=True)
                server.rest()
    return row


async def _keep_running(client: AsyncClient, program: str) -> None:
    while True:
        # Leaving an execution cancels it, and a cancelled one is killed after a while; none of an attack is to be left.
        async with await client.start(program, "python", **_LIMITS) as execution:
            async for _ in execution:
                pass
            result = await execution.result()
        if result.exit_code is not None:
            raise TideboxError(f"the attack ended by itself: {result.stderr[-300:]}")


async def _hello(client: AsyncClient) -> float:
    start = time.perf_counter()
    result = await client.run("print('hello')", "python")
    if result.stdout != "hello\n":
        raise TideboxError(f"the neighbour's program said {result.stdout[:80]!r}: {result.outcome}")
    return (time.perf_counter() - start) * 1000


@contextlib.asynccontextmanager
async def _client(server: Served) -> AsyncIterator[AsyncClient]:
    client = AsyncClient(server.url, api_key=server.key, connect_timeout=60)
    await client.connect()
    try:
        yield client
    finally:
        await client.close()


def run(names: list[str], samples: int, data_dir: Path) -> bool:
    """Whether no attack makes the neighbour wait too long."""
    rows = []
    print("| attack | p50 | p99 | p99 beside a loop | ratio |\n|---|---|---|---|---|", flush=True)
    with Served(data_dir, **_SETTINGS) as server:
        for name in names:
            rows.append(asyncio.run(measure(server, name, samples)))
            print(rows[-1].line(), flush=True)
    slow = [row for row in rows if row.ratio > MOST]
    for row in slow:
        print(f"SLOW: beside {row.name} the p99 is {row.ratio:.1f} times that beside a loop, more than {MOST:g}")
    print("FAILED" if slow else f"PASSED: no attack makes the p99 more than {MOST:g} times as long")
    return not slow


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(description="A neighbour's latency beside attacks on resources.")
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--only", choices=sorted(ATTACKS), action="append")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidebox-neighbour-") as directory:
        return 0 if run(options.only or list(ATTACKS), options.samples, Path(directory)) else 1


if __name__ == "__main__":
    sys.exit(main())

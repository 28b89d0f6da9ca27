"""How fast the gvisor runtime is, against runsc by itself and against the bare interpreter.

    python -m benchmarks.gvisor [--samples 20] [--json]

``runsc run`` is given a bundle like that of our boxes, with the program in place of the agent. All rows are measured in
turns in one run: their ratios hold on a busy machine, their milliseconds do not.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidebox.cli.yardsticks import CLEAN_ENVIRONMENT
from tidebox.config import load_settings
from tidebox.embedded import Engine, run_on
from tidebox.errors import RuntimeUnavailable
from tidebox.model.box import BoxSpec, Command
from tidebox.model.events import OutputEvent
from tidebox.runtime.gvisor import runsc
from tidebox.runtime.gvisor.bundle import configuration
from tidebox.runtime.gvisor.places import Places
from tidebox.runtime.native import host

HELLO = "print('hello')"
COMMAND = ["python3", "-c", HELLO]
HOLD_ONE_SHOT, HOLD_PARKED = 2.0, 2.0
SECONDS = 60.0


@dataclass
class Row:
    """One ratio: ours to the yardstick."""

    what: str
    yardstick: str
    hold: float | None
    """The most that it may be; None for one that is only told."""
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Of the medians."""
        return statistics.median(self.ours) / statistics.median(self.theirs)

    @property
    def holds(self) -> bool:
        """Whether it is not more."""
        return self.hold is None or self.ratio <= self.hold


class RawRunsc:
    """``runsc`` as one would use it who needs nothing but a result."""

    def __init__(self, found: runsc.Runsc, platform: str, directory: Path) -> None:
        self._places = Places(directory)
        interpreters = host.find_interpreters(None, os.environ.get("PATH"))
        content = configuration(
            BoxSpec(),
            self._places.host(interpreters),
            tools=self._places.tools(),
            command=[interpreters.python, "-c", HELLO],
        )
        self._bundle = self._places.write_bundle("raw", content)
        self._images = directory / "checkpoint"
        self._command = found.command(self._places.state, platform, os.geteuid() != 0)
        self._numbers = itertools.count(1)

    def one_shot(self) -> float:
        """Run, read the output, wait."""
        began = time.perf_counter()
        name = f"raw-{os.getpid()}-{next(self._numbers)}"
        done = subprocess.run(
            [*self._command, "run", f"--bundle={self._bundle}", name],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=SECONDS,
            check=True,
        )
        assert done.stdout == b"hello\n", done
        return time.perf_counter() - began

    def restored(self) -> float | None:
        """How long a warm interpreter takes from its checkpoint to its answer; None where that does not work."""
        warm = "import sys; print('ready', flush=True); sys.stdin.readline(); print('hello', flush=True)"
        bundle = self._bundle.with_name("warm")
        bundle.mkdir(exist_ok=True)
        content = json.loads((self._bundle / "config.json").read_text())
        content["process"]["args"][2] = warm
        (bundle / "config.json").write_text(json.dumps(content))
        name, again = (f"warm-{os.getpid()}-{next(self._numbers)}" for _ in range(2))
        self._images.mkdir(exist_ok=True)
        with subprocess.Popen(
            [*self._command, "run", f"--bundle={bundle}", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as running:
            assert running.stdout is not None
            assert running.stdout.readline() == b"ready\n"
            saved = subprocess.run(
                [*self._command, "checkpoint", f"--image-path={self._images}", name],
                capture_output=True,
                timeout=SECONDS,
                check=False,
            )
            running.kill()
        subprocess.run([*self._command, "delete", "--force", name], capture_output=True, timeout=SECONDS, check=False)
        if saved.returncode:
            return None
        began = time.perf_counter()
        done = subprocess.run(
            [*self._command, "restore", f"--bundle={bundle}", f"--image-path={self._images}", again],
            input=b"go\n",
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
        took = time.perf_counter() - began
        for file in self._images.iterdir():
            file.unlink()
        return took if done.stdout == b"hello\n" else None

    def close(self) -> None:
        """Leave nothing."""
        self._places.close(nothing_left=True)


def bare() -> float:
    """The same program by the machine's own interpreter."""
    began = time.perf_counter()
    subprocess.run(["/usr/bin/python3", "-c", HELLO], env=CLEAN_ENVIRONMENT, stdout=subprocess.PIPE, check=True)
    return time.perf_counter() - began


async def timed(work: Callable[[], Awaitable[Any]]) -> float:
    """How long something takes."""
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


async def measure(path: str, samples: int, directory: Path) -> list[Row]:
    """The rows."""
    settings = load_settings(data_dir=directory / "cold", default_runtime="gvisor", gvisor_runsc=path)
    cold = Engine(settings, pool=False)
    warm = Engine(
        load_settings(data_dir=directory / "warm", default_runtime="gvisor", gvisor_runsc=path, gvisor_warm=2)
    )
    one_shot = Row("one-shot hello, library, to the result", "runsc run of the same bundle", HOLD_ONE_SHOT)
    parked = Row("hello from a parked sandbox, library", "bare python3 -c", HOLD_PARKED)
    inside = Row("exec in a live sandbox", "bare python3 -c", None)
    restored = Row("runsc restore of a warm interpreter", "runsc run of the same bundle", None)
    box = raw = None

    async def hello(engine: Engine) -> None:
        result = await run_on(engine, command=COMMAND)
        assert result.stdout == b"hello\n", result

    try:
        report = await cold.probe()
        if not report.available:
            raise RuntimeUnavailable(str(report.reason))
        raw = RawRunsc(await asyncio.to_thread(runsc.look, path), report.facts["platform"], directory / "raw")
        warm.start()
        await hello(cold)
        await hello(warm)
        box = await cold.runtime.open(BoxSpec(kind="sandbox"))

        async def run_inside() -> None:
            program = await box.exec(Command(argv=COMMAND))
            await program.end_input()
            output = b"".join([event.data async for event in program.events() if isinstance(event, OutputEvent)])
            assert output == b"hello\n"

        for _ in range(samples):
            one_shot.theirs.append(await asyncio.to_thread(raw.one_shot))
            one_shot.ours.append(await timed(lambda: hello(cold)))
            await warm.pool.filled()
            parked.theirs.append(await asyncio.to_thread(bare))
            parked.ours.append(await timed(lambda: hello(warm)))
            inside.theirs.append(parked.theirs[-1])
            inside.ours.append(await timed(run_inside))
            if (took := await asyncio.to_thread(raw.restored)) is not None:
                restored.ours.append(took)
                restored.theirs.append(one_shot.theirs[-1])
    finally:
        if box is not None:
            await box.close()
        if raw is not None:
            raw.close()
        await cold.close()
        await warm.close()
    return [one_shot, parked, inside, *([restored] if restored.ours else [])]


def main() -> int:
    """Measure, print, and tell by the exit code whether every row holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        path = runsc.find(None, os.environ)
        with tempfile.TemporaryDirectory() as directory:
            rows = asyncio.run(measure(path, options.samples, Path(directory)))
    except RuntimeUnavailable as error:
        print(f"skipped: {error.message}", file=sys.stderr)
        return 0
    found = [
        {
            "what": row.what,
            "yardstick": row.yardstick,
            "ratio": round(row.ratio, 3),
            "hold": row.hold,
            "holds": row.holds,
            "ours_ms": round(statistics.median(row.ours) * 1000, 1),
            "yardstick_ms": round(statistics.median(row.theirs) * 1000, 1),
        }
        for row in rows
    ]
    if options.json:
        print(json.dumps(found))
    else:
        for told in found:
            print("  ".join(f"{name}: {value}" for name, value in told.items()))
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())

"""How fast programs that import are, against the same interpreter bare with the same packages.

    python -m benchmarks.real_programs [--samples 15] [--only pandas] [--json]

Each row is a program that people write: its ratio warm (what it imports was loaded before it came) and cold (a box of
its own, the interpreter started in it). Ours and the bare interpreter take turns, and before each sample the pool comes
to rest. What a row needs and this machine has not is skipped, and said.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.boxes import descendants
from tests.images import import_python
from tidebox.cli.yardsticks import CLEAN_ENVIRONMENT
from tidebox.config import load_settings
from tidebox.embedded import Engine, ImageStore, run_on
from tidebox.errors import TideboxError
from tidebox.model.limits import MIB
from tidebox.runtime.images import IMAGES

HOLD_MEAN = 0.3
HOLD_PANDAS_MIB = 12.0
# Until what a program imports is loaded, and its cells are parked: some fonts take a while to be looked at.
WARM_UP_SECONDS = 30.0


@dataclass(frozen=True)
class Program:
    """A row: the program, and the most that its ratio may be."""

    name: str
    source: str
    hold: float | None = None
    language: str = "python"
    image: str = "host"
    packages: tuple[str, ...] = ()
    """Of Node, from the registry that npm is set to use."""


PROGRAMS = (
    Program("hello", "print('hello')"),
    Program(
        "standard library",
        "import csv, dataclasses, io, json, re\n"
        "@dataclasses.dataclass\n"
        "class Item:\n    name: str\n    count: int\n"
        "rows = [Item(name, int(count)) for name, count in csv.reader(io.StringIO('a,1\\nb,2\\n'))]\n"
        "print(json.dumps([dataclasses.asdict(row) for row in rows]), re.findall(r'[a-z]+', 'ab cd'))",
    ),
    Program(
        "asyncio",
        "import asyncio\n"
        "async def work(number):\n    await asyncio.sleep(0)\n    return number * number\n"
        "async def main():\n    return sum(await asyncio.gather(*map(work, range(100))))\n"
        "print(asyncio.run(main()))",
    ),
    Program(
        "http on loopback",
        "import http.server, threading, urllib.request\n"
        "class Handler(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200)\n        self.end_headers()\n        self.wfile.write(b'ok')\n"
        "    def log_message(self, *arguments): pass\n"
        "server = http.server.HTTPServer(('127.0.0.1', 0), Handler)\n"
        "threading.Thread(target=server.serve_forever, args=(0.001,), daemon=True).start()\n"
        "print(urllib.request.urlopen(f'http://127.0.0.1:{server.server_port}/').read())\n"
        "server.shutdown()",
    ),
    Program(
        "unittest",
        "import unittest\n"
        "class Tests(unittest.TestCase):\n"
        "    def test_sum(self): self.assertEqual(sum(range(5)), 10)\n"
        "    def test_text(self): self.assertIn('a', 'abc')\n"
        "unittest.main()",
    ),
    Program(
        "subprocess",
        "import subprocess\nprint(subprocess.run(['echo', 'from below'], capture_output=True, text=True).stdout)",
    ),
    Program(
        "sqlite",
        "import sqlite3\n"
        "db = sqlite3.connect(':memory:')\n"
        "db.execute('create table t (a int)')\n"
        "db.executemany('insert into t values (?)', [(n,) for n in range(100)])\n"
        "print(db.execute('select sum(a) from t').fetchone())",
    ),
    Program("numpy", "import numpy as np\nprint(np.linalg.norm(np.arange(1000.0).reshape(10, 100)))", hold=0.2),
    Program(
        "pandas",
        "import pandas as pd\n"
        "frame = pd.DataFrame({'key': list('abab'), 'value': range(4)})\n"
        "print(frame.groupby('key').sum())",
        hold=0.1,
    ),
    Program(
        "matplotlib",
        "import matplotlib\nmatplotlib.use('Agg')\nimport matplotlib.pyplot as plt\n"
        "plt.plot([1, 4, 9])\nplt.savefig('plot.png')\nprint('saved')",
        hold=0.35,
    ),
    Program(
        "node with two packages",
        "const { z } = require('zod'), dayjs = require('dayjs')\n"
        "const tide = z.object({ at: z.string(), height: z.number() }).parse({ at: '2026-01-02', height: 7 })\n"
        "console.log(dayjs(tide.at).add(tide.height, 'day').format('D MMMM'))",
        language="javascript",
        packages=("zod@3", "dayjs@1"),
    ),
    Program("hello in an imported image", "print('hello')", hold=0.3, image="imported"),
)
_MAIN = {"python": "main.py", "javascript": "main.js"}
_COMMAND = {"python": "python3", "javascript": "node"}


class Bench:
    """One engine and a directory for bare programs."""

    def __init__(self, engine: Engine, directory: Path, samples: int) -> None:
        self._engine = engine
        self._directory = directory
        self._samples = samples
        (directory / "home").mkdir()

    async def row(self, program: Program) -> dict[str, object]:
        """Measure one program in turns with its bare interpreter."""
        interpreter = self._engine.runtime.interpreters.get(_COMMAND[program.language])
        found: dict[str, object] = {"what": program.name, "hold": program.hold}
        if interpreter is None:
            return {**found, "skipped": f"no {_COMMAND[program.language]} on this machine"}
        place = Path(tempfile.mkdtemp(dir=self._directory))
        (place / _MAIN[program.language]).write_text(program.source)
        if program.packages:
            try:
                await self._ours(program, cold=False)
            except TideboxError as error:
                return {**found, "skipped": error.message}
            # The very files that the box has.
            [layer] = ImageStore(self._directory / IMAGES).layers.list()
            (place / "node_modules").symlink_to(layer.path / "node_modules")
        argv = [interpreter, str(place / _MAIN[program.language])]
        if self._bare(argv, place) is None:
            return {**found, "skipped": "the bare interpreter cannot run it: a package is missing"}
        await self._warm_up(program)
        series: dict[str, list[float]] = {"warm": [], "cold": [], "bare": []}
        for number in range(self._samples + 1):
            times = {"warm": await self._ours(program, cold=False)}
            times["cold"] = await self._ours(program, cold=True)
            await self._rest()
            bare = self._bare(argv, place)
            assert bare is not None
            times["bare"] = bare
            for name, value in times.items() if number else ():
                series[name].append(value)
        middle = {name: statistics.median(values) for name, values in series.items()}
        ratio = middle["warm"] / middle["bare"]
        return {
            **found,
            "ratio": round(ratio, 3),
            "cold": round(middle["cold"] / middle["bare"], 2),
            "warm_ms": round(middle["warm"] * 1000, 1),
            "bare_ms": round(middle["bare"] * 1000, 1),
            "holds": program.hold is None or ratio <= program.hold,
        }

    async def _warm_up(self, program: Program) -> None:
        """Until it is no colder than it gets: what it imports is loaded from its first run on."""
        best, since = math.inf, time.monotonic()
        while time.monotonic() - since < WARM_UP_SECONDS:
            seconds = await self._ours(program, cold=False)
            loading = self._engine.pool.warming()
            if not loading and seconds > best * 0.7:
                return
            best = min(best, seconds)
            await asyncio.sleep(0.5)

    async def _ours(self, program: Program, cold: bool) -> float:
        await self._rest()
        files: dict[str, bytes] = {}
        options: dict[str, Any] = {"image": program.image, "packages": {"node": program.packages}, "timeout": 30.0}
        start = time.perf_counter()
        if cold:
            # By its path: no parked interpreter stands in for that.
            files[_MAIN[program.language]] = program.source.encode()
            name = "/usr/bin/python3" if program.image != "host" else None
            interpreter = name or self._engine.runtime.interpreters[_COMMAND[program.language]]
            command = [interpreter, _MAIN[program.language]]
            result = await run_on(self._engine, command=command, files=files, **options)
        else:
            result = await run_on(self._engine, program.source, program.language, **options)
        seconds = time.perf_counter() - start
        if not result.ok:
            raise SystemExit(f"{program.name} failed: {result.stderr.decode(errors='replace')}")
        return seconds

    async def _rest(self) -> None:
        await self._engine.pool.filled()
        await asyncio.sleep(0.05)

    def _bare(self, argv: list[str], place: Path) -> float | None:
        environment = {**CLEAN_ENVIRONMENT, "HOME": str(self._directory / "home")}
        start = time.perf_counter()
        done = subprocess.run(argv, env=environment, cwd=place, capture_output=True, check=False)
        return time.perf_counter() - start if done.returncode == 0 else None

    async def parked_memory(self) -> dict[str, object]:
        """What a parked cell with pandas loaded has of its own, beside what it shares with its template."""
        await self._rest()
        with_pandas = [pid for pid in descendants(os.getpid()) if b"pandas" in _maps(pid)]
        # The template and its cells: those of its own come after it.
        sizes = sorted(_private(pid) for pid in with_pandas[1:])
        row: dict[str, object] = {"what": "memory of a parked pandas cell, MiB", "hold": HOLD_PANDAS_MIB}
        if not sizes:
            return {**row, "skipped": "no such cell is parked"}
        most = sizes[-1] / MIB
        return {**row, "ratio": round(most, 1), "holds": most <= HOLD_PANDAS_MIB}


def _maps(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/maps").read_bytes()
    except OSError:
        return b""  # gone meanwhile


def _private(pid: int) -> int:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Private_"))


async def measure(options: argparse.Namespace) -> list[dict[str, object]]:
    """All rows, the mean and the memory."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="tidebox-programs-") as directory:
        data_dir = Path(directory)
        engine = Engine(load_settings(data_dir=data_dir))
        try:
            import_python(data_dir, "imported", engine.runtime.interpreters["python3"])
            engine.start()
            bench = Bench(engine, Path(directory), options.samples)
            for program in PROGRAMS:
                if options.only is None or options.only in program.name:
                    rows.append(await bench.row(program))
                    show(rows[-1], options.json)
                    if program.name == "pandas":
                        rows.append(await bench.parked_memory())
                        show(rows[-1], options.json)
        finally:
            await engine.close()
    ratios = [row["ratio"] for row in rows if "cold" in row]
    if ratios:
        mean = math.exp(statistics.fmean(math.log(float(str(ratio))) for ratio in ratios))
        rows.append({"what": "geometric mean", "ratio": round(mean, 3), "hold": HOLD_MEAN, "holds": mean <= HOLD_MEAN})
        show(rows[-1], options.json)
    return rows


def show(row: Mapping[str, object], as_json: bool) -> None:
    """Print one row."""
    if as_json:
        print(json.dumps(row), flush=True)
    elif "skipped" in row:
        print(f"{row['what']:28} skipped: {row['skipped']}", flush=True)
    else:
        hold = "" if row["hold"] is None else f"hold {row['hold']}  {'yes' if row['holds'] else 'NO'}"
        times = f"cold {row['cold']}  {row['warm_ms']} ms of {row['bare_ms']}" if "cold" in row else ""
        print(f"{row['what']:28} {row['ratio']:<6} {times:36} {hold}", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=15)
    parser.add_argument("--only", help="rows whose name has this in it")
    parser.add_argument("--json", action="store_true")
    rows = asyncio.run(measure(parser.parse_args()))
    raise SystemExit(0 if all(row.get("holds", True) for row in rows) else 1)


if __name__ == "__main__":
    os.environ.pop("PYTHONPATH", None)
    main()

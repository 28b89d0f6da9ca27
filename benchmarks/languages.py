"""How long programs of compiled languages take in a box, against the bare tools outside of any.

    python -m benchmarks.languages [--samples 10] [--only go] [--json]

Each program is one that nobody has compiled before. Bare tools are those of this machine, with warm caches; boxes have
the image of the language's recipe where it was made in the data directory (SANDBOX_DATA_DIR), else the same tools. All
rows are measured in turns in one run: their ratios hold on a busy machine, their milliseconds do not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tidebox.cli.yardsticks import CLEAN_ENVIRONMENT
from tidebox.config import load_settings, package_environment
from tidebox.embedded import Engine, run_on
from tidebox.model.limits import GIB

GO = 'package main\n\nimport "fmt"\n\nfunc main() {{\n\tfmt.Println("hello", {number})\n}}\n'
JAVA = (
    "public class Main {{\n  public static void main(String[] words) {{\n"
    '    System.out.println("hello " + {number});\n  }}\n}}\n'
)
TYPESCRIPT = "const number: number = {number};\nconsole.log(`hello ${{number}}`);\n"
C = '#include <stdio.h>\n\nint main() {{\n  printf("hello %d\\n", {number});\n}}\n'


@dataclass
class Row:
    """One ratio: ours to the yardstick."""

    language: str
    yardstick: str
    hold: float | None
    file: str
    program: str
    bare: Callable[[Path], list[list[str]]]
    """The commands that run the program's file without a box."""
    needs: tuple[str, ...]
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Of the medians."""
        return statistics.median(self.ours) / statistics.median(self.theirs)


def _esbuild(directory: Path) -> list[list[str]]:
    out = str(directory / "main.js")
    options = ["--bundle", "--platform=node", "--sourcemap=inline", "--log-level=warning", f"--outfile={out}"]
    return [["npx", "--no-install", "esbuild", "main.ts", *options], ["node", "--enable-source-maps", out]]


ROWS = (
    Row("go", "go run", 1.1, "main.go", GO, lambda _: [["go", "run", "main.go"]], ("go",)),
    Row("java", "java Main.java", 1.0, "Main.java", JAVA, lambda _: [["java", "Main.java"]], ("java", "javac")),
    Row("typescript", "npx esbuild, node", 0.6, "main.ts", TYPESCRIPT, _esbuild, ("npx", "node")),
    Row(
        "c",
        "gcc, the program",
        None,
        "main.c",
        C,
        lambda at: [["gcc", "-O1", "-g", "main.c"], [f"{at}/a.out"]],
        ("gcc",),
    ),
)


def _bare(row: Row, directory: Path, number: int) -> float:
    (directory / row.file).write_text(row.program.format(number=number))
    environment = {**CLEAN_ENVIRONMENT, "HOME": str(directory), "GOPROXY": "off"}
    began = time.perf_counter()
    said = b""
    for command in row.bare(directory):
        said += subprocess.run(command, cwd=directory, env=environment, capture_output=True, check=True).stdout
    spent = time.perf_counter() - began
    assert said == f"hello {number}\n".encode(), said
    return spent


async def _boxed(engine: Engine, row: Row, number: int) -> float:
    began = time.perf_counter()
    done = await run_on(engine, row.program.format(number=number), row.language, memory=GIB, cpus=2.0, timeout=60)
    spent = time.perf_counter() - began
    assert done.stdout == f"hello {number}\n".encode(), done
    return spent


def _install(directory: Path) -> None:
    command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "esbuild"]
    subprocess.run(command, cwd=directory, env={**CLEAN_ENVIRONMENT, **package_environment()}, check=True)


async def _measure(rows: list[Row], samples: int) -> None:
    engine = Engine(load_settings())
    engine.start()
    with tempfile.TemporaryDirectory() as directory:
        places = {row.language: Path(directory, row.language) for row in rows}
        for place in places.values():
            place.mkdir()
        if "typescript" in places:
            await asyncio.to_thread(_install, places["typescript"])
        try:
            # The first round fills caches on both sides, and is not counted.
            for number in range(samples + 1):
                for row in rows:
                    theirs = await asyncio.to_thread(_bare, row, places[row.language], number)
                    ours = await _boxed(engine, row, number)
                    if number:
                        row.theirs.append(theirs)
                        row.ours.append(ours)
        finally:
            await engine.close()


def main() -> int:
    """Measure, print, and say whether every row holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=10)
    parser.add_argument("--only", action="append", metavar="LANGUAGE")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    for row in ROWS:
        missing = [command for command in row.needs if shutil.which(command) is None]
        if missing:
            print(f"{row.language}: not measured, for want of {', '.join(missing)}", file=sys.stderr)
        elif not options.only or row.language in options.only:
            rows.append(row)
    asyncio.run(_measure(rows, options.samples))
    if options.json:
        print(json.dumps([{"language": row.language, "ratio": row.ratio, "hold": row.hold} for row in rows]))
    else:
        for row in rows:
            ours, theirs = statistics.median(row.ours) * 1000, statistics.median(row.theirs) * 1000
            hold = "" if row.hold is None else f"  (<= {row.hold:g})"
            print(f"{row.language:<12}{ours:8.0f} ms  {row.yardstick:<20}{theirs:8.0f} ms  {row.ratio:5.2f}{hold}")
    return int(any(row.hold is not None and row.ratio > row.hold for row in rows))


if __name__ == "__main__":
    sys.exit(main())

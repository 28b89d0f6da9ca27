"""``tidebox bench``: how fast, against the bare interpreter, in ratios."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tidebox.cli.measures import Row, Samples

app = typer.Typer()


@app.command("bench")
def bench(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Few samples: shows that it works, not how fast.")] = False,
) -> None:
    """Measure Tidebox against what it is compared with, both in turns in the same run."""
    from tidebox.cli.measures import FULL, QUICK, measure

    rows = []
    for row in measure(QUICK if quick else FULL):
        rows.append(row)
        if sys.stderr.isatty():
            sys.stderr.write(f"{row.what}: {_ratio(row)}\n")
    if as_json:
        machine = {"kernel": os.uname().release, "machine": os.uname().machine, "processors": os.cpu_count()}
        typer.echo(json.dumps({"machine": machine, "quick": quick, "rows": [asdict(row) for row in rows]}))
    else:
        _print(rows)


def _print(rows: list[Row]) -> None:
    from rich.table import Table

    from tidebox.cli.output import wide_console

    columns = ("WHAT", "RATIO", "HOLD", "MET", "P50", "P95", "YARDSTICK", "P50", "P95", "UNIT", "N")
    table = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        ours, theirs = _numbers(row.ours), _numbers(row.theirs)
        met = "-" if row.met is None else "yes" if row.met else "NO"
        count = str(row.ours.n) if row.ours else "0"
        table.add_row(row.what, _ratio(row), row.hold, met, *ours, row.yardstick, *theirs, row.unit, count)
    wide_console().print(table)


def _ratio(row: Row) -> str:
    if row.skipped:
        return row.skipped
    return "" if row.ratio is None else f"{row.ratio:.3f}"


def _numbers(samples: Samples | None) -> tuple[str, str]:
    return ("", "") if samples is None else (f"{samples.p50:.4g}", f"{samples.p95:.4g}")

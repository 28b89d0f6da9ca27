"""``tidebox bench``: how fast, against the bare interpreter, in ratios."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from tidebox.cli.output import print_table
from tidebox.cli.remote import JsonCommand

if TYPE_CHECKING:
    from tidebox.cli.figures import Row, Samples


@click.command("bench", cls=JsonCommand)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--quick", is_flag=True, help="Few samples: shows that it works, not how fast.")
def command(as_json: bool, quick: bool) -> None:
    """Measure Tidebox against what it is compared with, both in turns in the same run."""
    from tidebox.cli.figures import FULL, QUICK
    from tidebox.cli.measures import measure

    rows = []
    for row in measure(QUICK if quick else FULL):
        rows.append(row)
        if sys.stderr.isatty():
            sys.stderr.write(f"{row.what}: {_ratio(row)}\n")
    if as_json:
        machine = {"kernel": os.uname().release, "machine": os.uname().machine, "processors": os.cpu_count()}
        click.echo(json.dumps({"machine": machine, "quick": quick, "rows": [asdict(row) for row in rows]}))
    else:
        _print(rows)


def _print(rows: list[Row]) -> None:
    columns = ("WHAT", "RATIO", "HOLD", "MET", "P50", "P95", "YARDSTICK", "P50", "P95", "UNIT", "N")
    table = []
    for row in rows:
        ours, theirs = _numbers(row.ours), _numbers(row.theirs)
        met = "-" if row.met is None else "yes" if row.met else "NO"
        count = str(row.ours.n) if row.ours else "0"
        table.append((row.what, _ratio(row), row.hold, met, *ours, row.yardstick, *theirs, row.unit, count))
    print_table(columns, table)


def _ratio(row: Row) -> str:
    if row.skipped:
        return row.skipped
    if row.ratio is None:
        return "" if row.value is None else f"{row.value:.4g} {row.unit}"
    return f"{row.ratio:.3f}"


def _numbers(samples: Samples | None) -> tuple[str, str]:
    return ("", "") if samples is None else (f"{samples.p50:.4g}", f"{samples.p95:.4g}")

"""``tidebox doctor``: what this machine can enforce, seen from inside a box and not only assumed."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from tidebox.cli.output import print_table

if TYPE_CHECKING:
    from tidebox.cli.examination import Examination

NOT_ALL_ENFORCED = 1


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(as_json: bool) -> int:
    """Show what this machine can enforce, and what helps where it cannot.

    The exit code is 0 only if every guarantee is enforced.
    """
    from tidebox.cli import signals
    from tidebox.cli.examination import examine

    found = signals.run(examine())
    if as_json:
        click.echo(json.dumps({"healthy": found.healthy, **asdict(found)}))
    else:
        _print(found)
    return 0 if found.healthy else NOT_ALL_ENFORCED


def _print(found: Examination) -> None:
    print_table(
        ("GUARANTEE", "STATE", "HOW", "SEEN IN A BOX"),
        [(check.guarantee, check.state, check.how, check.seen) for check in found.checks],
    )
    click.echo()
    if found.interpreters:
        print_table(
            ("INTERPRETER", "WHERE", "IN A BOX"),
            [(each.name, each.path or "not found", each.version or "") for each in found.interpreters],
        )
        click.echo()
    for name, value in found.facts.items():
        click.echo(f"{name}: {value}")
    for remedy in dict.fromkeys(check.remedy for check in found.checks if check.remedy):
        click.echo(f"what helps: {remedy}")
    click.echo(_verdict(found))


def _verdict(found: Examination) -> str:
    if found.healthy:
        return f"the {found.runtime} runtime enforces everything here"
    if found.problem:
        return f"the {found.runtime} runtime does not work here: {found.problem}"
    return (
        f"the {found.runtime} runtime does not enforce everything here, so boxes are refused; "
        "SANDBOX_ALLOW_WEAK_ISOLATION=1 accepts boxes without what is missing"
    )

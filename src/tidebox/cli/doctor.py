"""``tidebox doctor``: what this machine can enforce, seen from inside a box and not only assumed."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tidebox.cli.examination import Examination

app = typer.Typer()

NOT_ALL_ENFORCED = 1


@app.command("doctor")
def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Show what this machine can enforce, and what helps where it cannot.

    The exit code is 0 only if every guarantee is enforced.
    """
    from tidebox.cli.examination import examine

    found = asyncio.run(examine())
    if as_json:
        typer.echo(json.dumps({"healthy": found.healthy, **asdict(found)}))
    else:
        _print(found)
    raise typer.Exit(0 if found.healthy else NOT_ALL_ENFORCED)


def _print(found: Examination) -> None:
    from rich.table import Table

    from tidebox.cli.output import wide_console

    console = wide_console()
    guarantees = Table("GUARANTEE", "STATE", "HOW", "SEEN IN A BOX", box=None, pad_edge=False)
    for check in found.checks:
        guarantees.add_row(check.guarantee, check.state, check.how, check.seen)
    console.print(guarantees)
    console.print()
    if found.interpreters:
        interpreters = Table("INTERPRETER", "WHERE", "IN A BOX", box=None, pad_edge=False)
        for interpreter in found.interpreters:
            interpreters.add_row(interpreter.name, interpreter.path or "not found", interpreter.version or "")
        console.print(interpreters)
        console.print()
    for name, value in found.facts.items():
        console.print(f"{name}: {value}")
    for remedy in dict.fromkeys(check.remedy for check in found.checks if check.remedy):
        console.print(f"what helps: {remedy}", soft_wrap=True)
    console.print(_verdict(found), soft_wrap=True)


def _verdict(found: Examination) -> str:
    if found.healthy:
        return f"the {found.runtime} runtime enforces everything here"
    if found.problem:
        return f"the {found.runtime} runtime does not work here: {found.problem}"
    return (
        f"the {found.runtime} runtime does not enforce everything here, so boxes are refused; "
        "SANDBOX_ALLOW_WEAK_ISOLATION=1 accepts boxes without what is missing"
    )

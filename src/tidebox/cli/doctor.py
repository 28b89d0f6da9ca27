"""``tidebox doctor``: what this machine can enforce, seen from inside a box and not only assumed."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from tidebox.cli.output import print_fields, print_table, say
from tidebox.cli.remote import Server, ServerCommand, json_option, profile_option, server_option

if TYPE_CHECKING:
    from tidebox.cli.examination import Examination
    from tidebox.cli.server_examination import ServerExamination

NOT_ALL_ENFORCED = 1


@click.command("doctor", cls=ServerCommand)
@click.option("--runtime", metavar="NAME", help="Which runtime: native, docker or gvisor.", show_default="the default")
@server_option
@profile_option
@json_option
def command(runtime: str | None, server: str | None, profile: str | None, as_json: bool) -> int:
    """Show what this machine can enforce, and what helps where it cannot; with --server, what a server can.

    The exit code is 0 only if every guarantee is enforced.
    """
    if server is not None or profile is not None:
        if runtime is not None:
            raise click.UsageError("a server tells of all its runtimes: leave --runtime out")
        return _examine_server(Server(server or None, profile), as_json)
    from tidebox.cli import signals
    from tidebox.cli.examination import examine

    found = signals.run(examine(runtime))
    if as_json:
        click.echo(json.dumps({"healthy": found.healthy, **asdict(found)}))
    else:
        _print(found)
    return 0 if found.healthy else NOT_ALL_ENFORCED


def _examine_server(server: Server, as_json: bool) -> int:
    from tidebox.cli import signals
    from tidebox.cli.remote import print_json
    from tidebox.cli.server_examination import examine_server

    found = signals.run(examine_server(server))
    if as_json:
        print_json({"healthy": found.healthy, **found.fields()})
    else:
        _print_server(found)
    return 0 if found.healthy else NOT_ALL_ENFORCED


def _print_server(found: ServerExamination) -> None:
    from tidebox.cli.wording import PHASE_COLORS

    health = found.health
    print_fields(
        {
            "server": found.url,
            "answers in": f"{found.seconds * 1000:.0f} ms",
            "version": f"{health.version} (this is {found.client_version})",
            "state": health.status,
            "runs programs": "yes" if health.execution_enabled else "no",
            "store": f"{health.store.mode}, {'works' if health.store.ok else 'does not work'}"
            if health.store
            else None,
            "load": f"{health.load.active} running, {health.load.queued} waiting" if health.load else None,
            "default runtime": found.runtimes.default_runtime,
        }
    )
    click.echo()
    rows = [
        (runtime.name, "yes" if runtime.available else "no", guarantee.guarantee, state, guarantee.how)
        for runtime, guarantee, state in found.guarantees()
    ]
    print_table(("RUNTIME", "AVAILABLE", "GUARANTEE", "ENFORCED", "HOW"), rows, PHASE_COLORS)
    for runtime in found.runtimes.runtimes:
        if not runtime.available:
            say(f"{runtime.name}: not available{f', {runtime.notes}' if runtime.notes else ''}")


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
    if found.images:
        rows = [(each.image, each.language, each.start) for each in found.images]
        print_table(("IMAGE", "LANGUAGE", "START"), rows)
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

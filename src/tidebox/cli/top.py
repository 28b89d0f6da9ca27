"""``tidebox top``: what a server does, as it does it."""

from __future__ import annotations

import sys

import click

from tidebox.cli.remote import Server, ServerCommand, print_json, server_options


@click.command("top", cls=ServerCommand)
@click.option("--interval", default=2.0, type=click.FloatRange(0.2, 3600), metavar="SECONDS", help="Between two looks.")
@click.option("--once", is_flag=True, help="Look once, as where there is no terminal.")
@server_options
def command(interval: float, once: bool, server: Server, as_json: bool) -> None:
    """Show what a server does: runs, queue, pool, users.

    On a terminal it looks again and again until q or Ctrl-C; otherwise, and with --json, once. Who is no admin sees
    their own runs.
    """
    from tidebox.cli import signals
    from tidebox.cli.live import look, show, watch

    if as_json or once or not sys.stdout.isatty():
        seen = signals.run(look(server))
        if as_json:
            print_json(seen)
        else:
            click.echo("\n".join(show(seen)))
        return
    signals.run(watch(server, interval))

"""``tidebox profiles``: the servers that the user has logged in to."""

from __future__ import annotations

import click

from tidebox.cli.remote import ServerCommand, json_option


@click.command("profiles", cls=ServerCommand)
@click.option("--use", "chosen", metavar="NAME", help="Use this one from now on.")
@json_option
def command(chosen: str | None, as_json: bool) -> None:
    """Show the servers that you logged in to; the current one is marked."""
    from tidebox.cli.output import print_table
    from tidebox.cli.remote import print_json
    from tidebox.config import load_client_settings
    from tidebox.sdk.profiles import Profiles

    stored = Profiles.load(load_client_settings().config_dir)
    if chosen is not None:
        stored.put(chosen, stored.get(chosen))
    if as_json:
        known = [{"profile": name, "url": each.url} for name, each in sorted(stored.profiles.items())]
        print_json({"current": stored.current, "profiles": known})
        return
    rows = [(name, each.url, "*" if name == stored.current else "") for name, each in sorted(stored.profiles.items())]
    print_table(("PROFILE", "SERVER", "CURRENT"), rows)

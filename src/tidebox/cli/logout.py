"""``tidebox logout``: forget a server and its key."""

from __future__ import annotations

import click

from tidebox.cli.remote import ServerCommand, json_option, profile_option


@click.command("logout", cls=ServerCommand)
@profile_option
@json_option
def command(profile: str | None, as_json: bool) -> None:
    """Forget the address and the key of a server: of --profile, or of the last login."""
    from tidebox.cli.output import say
    from tidebox.cli.remote import print_json
    from tidebox.config import load_client_settings
    from tidebox.errors import NotFound
    from tidebox.sdk.profiles import Profiles

    settings = load_client_settings()
    stored = Profiles.load(settings.config_dir)
    name = profile or settings.profile or stored.current
    if name is None:
        raise NotFound("there is no login to forget; --profile NAME names one")
    stored.remove(name)
    if as_json:
        print_json({"profile": name})
    else:
        say(f"forgot profile {name}")

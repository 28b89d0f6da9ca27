"""``tidebox login``: a server and its key, stored for the next command."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from tidebox.cli.remote import ServerCommand, json_option, profile_option

if TYPE_CHECKING:
    from tidebox.sdk.interpreter.results import ServiceHealth


@click.command("login", cls=ServerCommand)
@click.argument("url", required=False, metavar="[URL]", help="The server, for example https://boxes.example.")
@profile_option
@json_option
def command(url: str | None, profile: str | None, as_json: bool) -> None:
    """Store the address of a server and the key for it.

    The key is asked for on a terminal, or read from standard input. A server on this machine needs none: its key is
    found. The server is asked whether the key is good before anything is stored. Commands then use this server, and
    --profile NAME tells several of them apart.
    """
    from tidebox.cli.output import say
    from tidebox.cli.remote import print_json
    from tidebox.config import load_client_settings
    from tidebox.errors import Unauthorized
    from tidebox.sdk.profiles import DEFAULT_PROFILE, Profile, Profiles
    from tidebox.sdk.server_target import DEFAULT_URL, find_target

    settings = load_client_settings()
    address = url or settings.url or DEFAULT_URL
    name = profile or settings.profile or DEFAULT_PROFILE
    stored = Profiles.load(settings.config_dir)
    target = find_target(address, "")
    key = settings.api_key
    if key is None and not target.local:
        key = _asked_key(target.http_url)
    try:
        health = _checked(address, key)
    except Unauthorized:
        # A local address may lead to a server elsewhere, whose key is not on this machine.
        if key is not None:
            raise
        key = _asked_key(target.http_url)
        health = _checked(address, key)
    stored.put(name, Profile(target.http_url, key))
    if as_json:
        print_json({"profile": name, "url": target.http_url, "version": health.version})
    else:
        say(f"logged in to {target.http_url} (Tidebox {health.version}), profile {name}")


def _asked_key(url: str) -> str:
    if sys.stdin.isatty():
        return str(click.prompt(f"Key for {url}", hide_input=True, err=True)).strip()
    return sys.stdin.readline().strip()


def _checked(url: str, key: str | None) -> ServiceHealth:
    """Return the server's health; raises if the key is not good."""
    from tidebox.cli import signals
    from tidebox.sdk.interpreter.client import AsyncInterpreter

    async def check() -> ServiceHealth:
        async with AsyncInterpreter(url, api_key=key, source="CLI") as client:
            return await client.health()

    return signals.run(check())

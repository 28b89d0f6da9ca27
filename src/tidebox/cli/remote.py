"""Parts that commands speaking to a server share: which server is meant, the client for it, errors as JSON."""

from __future__ import annotations

import functools
import os
import re
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tidebox.cli.advice import advise
from tidebox.errors import NotFound, TideboxError

if TYPE_CHECKING:
    from tidebox.sdk import AsyncAccess, AsyncInterpreter
    from tidebox.sdk.server_target import ServerTarget

Answer = TypeVar("Answer")

BROKEN_PIPE = 128 + signal.SIGPIPE
_OBEYED = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|[A-Za-z0-9.-]+:\d+(/|$)|\[")


@dataclass(frozen=True, slots=True)
class Server:
    """The server that the options name; what they leave out is looked for as every client does."""

    url: str | None = None
    profile: str | None = None

    def target(self) -> ServerTarget:
        """Its address and the key for it."""
        from tidebox.sdk.server_target import find_target

        return find_target(self.url, profile=self.profile)

    def interpreter(self) -> AsyncInterpreter:
        """A client of its interpreter service."""
        from tidebox.sdk.interpreter.client import AsyncInterpreter

        target = self.target()
        return AsyncInterpreter(target.http_url, api_key=target.key, source="CLI")

    def access(self) -> AsyncAccess:
        """A client of its sandboxes."""
        from tidebox.sdk.sandboxes.access import AsyncAccess

        target = self.target()
        return AsyncAccess(target.http_url, api_key=target.key, source="CLI")


class ServerOption(click.Option):
    """``--server [URL]``: the word behind it is its value only if it is an address, and else the next argument."""

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        super().add_to_parser(parser, ctx)
        option = parser._long_opt["--server"]
        process = option.process

        def process_address(value: Any, state: Any) -> None:
            if isinstance(value, str) and not _ADDRESS.match(value):
                state.rargs.insert(0, value)
                value = ""
            process(value, state)

        option.process = process_address


class JsonCommand(click.Command):
    """Says what went wrong as a JSON object, too, where JSON was asked for."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except TideboxError as error:
            if ctx.params.get("as_json"):
                print_error(error)
            raise


class ServerCommand(JsonCommand):
    """Ends quietly when its reader leaves; knows which list shows what was looked for in vain."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # As a program that is killed by it. What is still to be written goes nowhere.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            return BROKEN_PIPE
        except TideboxError as error:
            group = ctx.parent
            if isinstance(error, NotFound) and group is not None and isinstance(group.command, ServerGroup):
                advise(error, f"'{group.command_path} list' shows yours")
            elif isinstance(error, NotFound) and ctx.params.get("session") is not None:
                advise(error, "'tidebox sessions list' shows yours")
            raise


class ServerGroup(click.Group):
    """Shows its commands in the order in which one needs them."""

    command_class = ServerCommand

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


def _profile_names(ctx: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    from tidebox.config import load_client_settings
    from tidebox.sdk.profiles import Profiles

    try:
        known = Profiles.load(load_client_settings().config_dir).profiles
    except TideboxError:
        return []
    return sorted(name for name in known if name.startswith(begun))


server_option = click.option(
    "--server",
    cls=ServerOption,
    is_flag=False,
    flag_value="",
    metavar="[URL]",
    help="The server.",
    show_default="that of the profile, TIDEBOX_URL, the last login, or one on this machine",
)
profile_option = click.option(
    "--profile", metavar="NAME", help="A server that you logged in to.", shell_complete=_profile_names
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def server_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ``--server``, ``--profile`` and ``--json``; the function gets ``server`` and ``as_json``."""

    @server_option
    @profile_option
    @json_option
    @functools.wraps(function)
    def call(*arguments: Any, server: str | None, profile: str | None, **options: Any) -> Any:
        return function(*arguments, server=Server(server or None, profile), **options)

    return call


def ask(server: Server, work: Callable[[AsyncInterpreter], Awaitable[Answer]]) -> Answer:
    """Run ``work`` with a client of the interpreter service and return its answer."""
    from tidebox.cli import signals

    async def asking() -> Answer:
        async with server.interpreter() as client:
            return await work(client)

    return signals.run(asking())


def visit(server: Server, work: Callable[[AsyncAccess], Awaitable[Answer]]) -> Answer:
    """Run ``work`` with a client of the sandboxes and return its answer."""
    from tidebox.cli import signals

    async def visiting() -> Answer:
        async with server.access() as access:
            return await work(access)

    return signals.run(visiting())


def print_json(value: Any) -> None:
    """A result of the client library as one line of JSON."""
    import msgspec

    # msgspec leaves what is not ASCII as it is, also what a terminal obeys, or turns the direction of a text with.
    text = msgspec.json.encode(value).decode()
    click.echo(_OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def print_error(error: TideboxError) -> None:
    """An error in place of a result."""
    import json

    click.echo(json.dumps({"error": {"code": error.code, "message": error.message, "retryable": error.retryable}}))

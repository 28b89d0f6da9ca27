"""``tidebox mcp``: the Model Context Protocol on standard input and output."""

from __future__ import annotations

import click

from tidebox.cli.hosting import Guest, Host, serve_guest
from tidebox.cli.remote import profile_option, server_option
from tidebox.config import load_settings


@click.command("mcp")
@server_option
@profile_option
def command(server: str | None, profile: str | None) -> None:
    """Give an agent tools that run code: a server of the Model Context Protocol on standard input and output.

    Add it to a client's configuration as the command "tidebox mcp"; see docs/mcp.md. Programs run here, with nothing to
    start or set up, unless a server is named: by --server, --profile, TIDEBOX_URL or TIDEBOX_PROFILE.
    """
    serve_guest(server, profile, _load, "MCP")


def _load() -> Guest:
    from tidebox.mcp.server import Backend
    from tidebox.mcp.stdio import serve_stdio

    async def guest(host: Host) -> None:
        def backend(client: str | None) -> Backend:
            return Backend(host.interpreter(client), host.access(client))

        if not host.embedded:
            # Said now, in one line, rather than to a model.
            async with host.interpreter() as probe:
                await probe.health()
        await serve_stdio(backend, dotted_names=load_settings().mcp_dotted_names)

    return guest

"""``tidebox lsp``: the Language Server Protocol on standard input and output."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tidebox.cli.hosting import Guest, Host, serve_guest
from tidebox.cli.remote import profile_option, server_option
from tidebox.config import load_client_settings

if TYPE_CHECKING:
    from tidebox.lsp.server import EditorServer
    from tidebox.lsp.workbench import Workbench


@click.command("lsp")
@click.option("--stdio", is_flag=True, hidden=True, help="What some editors add; there is nothing else.")
@server_option
@profile_option
def command(stdio: bool, server: str | None, profile: str | None) -> int:
    """Run code from an editor and mark where it fails: a language server on standard input and output.

    Editors start it as the command "tidebox lsp"; see docs/lsp.md. Programs run here, with nothing to start or set up,
    unless a server is named: by --server, --profile, TIDEBOX_URL or TIDEBOX_PROFILE.
    """
    codes: list[int] = []
    # Go executes the tests that it has compiled. As with `tidebox run`, programs of one's own machine may do that.
    serve_guest(server, profile, lambda: _load(codes), "IDE", executable=True)
    return codes[0] if codes else 1


def _load(codes: list[int]) -> Guest:
    """A guest that leaves the exit code."""
    from tidebox.lsp.stdio import serve_stdio
    from tidebox.lsp.workbench import Workbench

    async def guest(host: Host) -> None:
        def page_url(run_id: str) -> str | None:
            return None if host.embedded else f"{host.url}/webui/sandbox/runs/{run_id}"

        def workbench(editor: EditorServer, client: str | None) -> Workbench:
            return Workbench(
                host.interpreter(client),
                editor,
                page_url=page_url,
                directory=host.directory,
                config_dir=load_client_settings().config_dir,
            )

        codes.append(await serve_stdio(workbench))

    return guest

"""``tidebox sandbox``: boxes on a server that live on between programs."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from tidebox.cli.finding import find
from tidebox.cli.output import print_table, say
from tidebox.cli.outward import egress_options
from tidebox.cli.remote import Server, ServerGroup, print_json, server_options, visit

if TYPE_CHECKING:
    from tidebox.model.requested_egress import RequestedEgress
    from tidebox.sdk import AsyncAccess, SandboxInfo

_name = click.argument("name", help="The sandbox: its name, or its id (sb-...).")


@click.group("sandbox", cls=ServerGroup)
def command() -> None:
    """Boxes on a server that live on: shells, files.

    In a shell Ctrl-] d leaves it running, and 'tidebox sandbox attach' comes back to it; Ctrl-] Ctrl-] types Ctrl-].
    """


@command.command("create")
@click.argument("name", required=False, metavar="[NAME]", help="What to call it.")
@egress_options
@server_options
def create(name: str | None, egress: RequestedEgress | None, server: Server, as_json: bool) -> None:
    """Make a sandbox and print its name; one of that name that is there already is taken."""

    async def work(access: AsyncAccess) -> SandboxInfo:
        wanted = name or f"box-{os.urandom(4).hex()}"
        async with await access.ensure(wanted, egress=None if egress is None else egress.shown(), keep=True):
            return await find(access, wanted)

    made = visit(server, work)
    if as_json:
        print_json(made)
    else:
        say(made.scope.id)


@command.command("list")
@click.option("--everybody", is_flag=True, help="Those of all users, for admins.")
@click.option("--limit", default=50, metavar="N", type=click.IntRange(1, 1000), help="How many.", show_default=True)
@server_options
def list_sandboxes(everybody: bool, limit: int, server: Server, as_json: bool) -> None:
    """Show your sandboxes, newest first."""
    page = visit(server, lambda access: access.list(everybody=everybody, limit=limit))
    if as_json:
        print_json(page)
        return
    from tidebox.cli.wording import PHASE_COLORS, moment, span

    rows = [
        (each.scope.id, each.sandbox_id or "", each.state, moment(each.created_at), span(each.idle_seconds))
        for each in page.items[:limit]
    ]
    print_table(("NAME", "ID", "STATE", "CREATED", "IDLE"), rows, PHASE_COLORS)


@command.command("exec", context_settings={"allow_interspersed_args": False})
@_name
@click.argument("words", metavar="COMMAND...", nargs=-1, required=True, help="A program with its arguments.")
@click.option("-t", "--tty", is_flag=True, help="Give it our terminal.")
@click.option("-d", "--detach", is_flag=True, help="Leave it running, and print its id.")
@click.option("--cwd", metavar="DIR", help="Where it runs.", show_default="/workspace")
@click.option("--env", multiple=True, metavar="K=V|K", help="Set a variable, or hand on ours (repeatable).")
@click.option("--timeout", type=float, metavar="SECONDS", help="How long it may run.", show_default="any time")
@server_options
def execute(
    name: str,
    words: tuple[str, ...],
    tty: bool,
    detach: bool,
    cwd: str | None,
    env: tuple[str, ...],
    timeout: float | None,
    server: Server,
    as_json: bool,
) -> int:
    """Run a program in a sandbox; its output, input and exit code are ours.

    Options come before NAME. With --json its output comes in one JSON object at its end.
    """
    from tidebox.cli.sandbox_programs import execute as run

    if words[0] == "--":
        # Kept by click behind a first argument; everybody types it between the sandbox and the program.
        words = words[1:]
        if not words:
            raise click.UsageError("Missing argument 'COMMAND...'.")
    terminal = tty and sys.stdin.isatty()
    return run(server, name, words, terminal=terminal, detach=detach, cwd=cwd, env=env, timeout=timeout, json=as_json)


@command.command("shell")
@_name
@click.option("--cwd", metavar="DIR", help="Where it begins.", show_default="/workspace")
@server_options
def shell(name: str, cwd: str | None, server: Server, as_json: bool) -> int:
    """Open a login shell in a sandbox, on our terminal; Ctrl-] d leaves it running."""
    from tidebox.cli.sandbox_programs import open_shell

    return open_shell(server, name, cwd=cwd, json=as_json)


@command.command("attach")
@_name
@click.argument("process_id", metavar="PROCESS", help="The id of a program that was left running.")
@server_options
def attach(name: str, process_id: str, server: Server, as_json: bool) -> int:
    """Come back to a shell or program that was left running, with what it printed meanwhile."""
    from tidebox.cli.sandbox_programs import attach as come_back

    return come_back(server, name, process_id, json=as_json)


@command.command("cp")
@click.argument("source", metavar="SRC", help="A file or directory: here, or NAME:PATH in a sandbox.")
@click.argument("target", metavar="DEST", help="Where it goes: here, or NAME:PATH in a sandbox.")
@click.option("--force", is_flag=True, help="Let files of a directory replace others here.")
@server_options
def copy(source: str, target: str, force: bool, server: Server, as_json: bool) -> int:
    """Copy files or directories into a sandbox, or out of one.

    - as the other side is our own input or output.
    """
    from tidebox.cli.copying import copy as run

    return run(server, source, target, replace=force, json=as_json)


@command.command("watch")
@_name
@click.argument("path", default=".", help="A directory of the workspace.")
@click.option("-r", "--recursive", is_flag=True, help="The directories below it, too.")
@server_options
def watch(name: str, path: str, recursive: bool, server: Server, as_json: bool) -> None:
    """Print what changes among the files of a sandbox, as it happens, until Ctrl-C."""

    from tidebox.cli.copying import no_file
    from tidebox.errors import NotFound

    async def work(access: AsyncAccess) -> None:
        found = await find(access, name)
        async with await access.get(found.scope.id) as sandbox:
            try:
                watching = await sandbox.files.watch(path, recursive=recursive)
            except NotFound:
                raise no_file(name, path) from None
            async with watching as changes:
                async for change in changes:
                    if as_json:
                        print_json(change._asdict())
                    else:
                        source = f" (from {change.source})" if change.source else ""
                        say(f"{change.kind} {change.path}{source}")
                    sys.stdout.flush()

    visit(server, work)


@command.command("rm")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, help="Sandboxes by name or id.")
@server_options
def remove(names: tuple[str, ...], server: Server, as_json: bool) -> None:
    """End sandboxes with all that is in them."""

    async def work(access: AsyncAccess) -> None:
        for name in names:
            await access.release((await find(access, name)).session_id)

    visit(server, work)
    if as_json:
        print_json({"removed": names})

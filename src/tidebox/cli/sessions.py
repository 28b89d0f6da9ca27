"""``tidebox sessions``: workspaces on a server that several runs share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tidebox.cli.advice import advise
from tidebox.cli.output import print_fields, print_table, say
from tidebox.cli.outward import egress_options
from tidebox.cli.remote import Server, ServerGroup, ask, print_json, server_options
from tidebox.errors import NotFound

if TYPE_CHECKING:
    from tidebox.model.requested_egress import RequestedEgress
    from tidebox.sdk import AsyncInterpreter
    from tidebox.sdk.interpreter.results import Session, UploadAnswer

_session = click.argument("session_id", metavar="SESSION", help="The id of a session.")


@click.group("sessions", cls=ServerGroup)
def command() -> None:
    """Workspaces on a server that several runs share.

    'tidebox run --server --session ID' runs a program in one.
    """


@command.command("create")
@click.option("--image", metavar="NAME", help="Root file system of its boxes.", show_default="host")
@click.option("--ttl", type=float, metavar="SECONDS", help="How long it lives.", show_default="as the server says")
@click.option("--label", "labels", multiple=True, metavar="K=V", help="Something to know it by (repeatable).")
@egress_options
@server_options
def create_session(
    image: str | None,
    ttl: float | None,
    labels: tuple[str, ...],
    egress: RequestedEgress | None,
    server: Server,
    as_json: bool,
) -> None:
    """Make a session and print its id."""
    named = dict(label.partition("=")[::2] for label in labels)
    reached = None if egress is None else egress.shown()
    session = ask(server, lambda client: client.create_session(base_image=image, ttl=ttl, labels=named, egress=reached))
    if as_json:
        print_json(session)
    else:
        say(session.id)


@command.command("list")
@click.option("--limit", default=20, metavar="N", type=click.IntRange(1, 1000), help="How many.", show_default=True)
@server_options
def list_sessions(limit: int, server: Server, as_json: bool) -> None:
    """Show your sessions, newest first."""
    page = ask(server, lambda client: client.list_sessions(limit=limit))
    if as_json:
        print_json(page)
        return
    from tidebox.cli.wording import PHASE_COLORS, moment

    rows = [
        (each.id, each.state or "", each.base_image or "", moment(each.created_at), moment(each.expires_at))
        for each in page.items[:limit]
    ]
    print_table(("SESSION", "STATE", "IMAGE", "CREATED", "ENDS"), rows, PHASE_COLORS)


@command.command("show")
@_session
@server_options
def show_session(session_id: str, server: Server, as_json: bool) -> None:
    """Show a session."""
    session = ask(server, lambda client: client.get_session(session_id))
    if as_json:
        print_json(session)
    else:
        _print_session(session)


@command.command("files")
@_session
@server_options
def list_files(session_id: str, server: Server, as_json: bool) -> None:
    """List the files of a session."""
    workspace = ask(server, lambda client: client.list_files(session_id))
    if as_json:
        print_json(workspace)
        return
    from tidebox.cli.wording import moment, size_text

    rows = [(each.path, size_text(each.size), moment(each.modified_at)) for each in workspace.items]
    print_table(("PATH", "SIZE", "MODIFIED"), rows)


@command.command("upload")
@_session
@click.argument(
    "sources", metavar="SRC[:DEST]...", nargs=-1, required=True, help="Files or directories, and where they go."
)
@server_options
def upload(session_id: str, sources: tuple[str, ...], server: Server, as_json: bool) -> None:
    """Copy files or directories into the workspace of a session: all of them or none.

    A link in a directory is left out.
    """
    from tidebox.cli.sending import Sources

    sent = Sources(sources)

    async def work(client: AsyncInterpreter) -> UploadAnswer:
        with sent.opened() as contents:
            return await client.upload_files(session_id, contents)

    uploaded = ask(server, work)
    if as_json:
        print_json(uploaded)
    else:
        say(f"{uploaded.file_count} files, {uploaded.bytes_received} bytes")


@command.command("download")
@_session
@click.argument("path", help="A file of the workspace.")
@click.argument("to", required=False, metavar="[TO]", help="Where it goes: a file, a directory, or - for our output.")
@server_options
def download(session_id: str, path: str, to: str | None, server: Server, as_json: bool) -> None:
    """Copy a file out of the workspace of a session."""
    from tidebox.cli.sending import receive, target_of

    target = target_of(path, to)

    async def work(client: AsyncInterpreter) -> int:
        sizes = {each.path: each.size for each in (await client.list_files(session_id)).items}
        try:
            return await receive(target, sizes.get(path), lambda file: client.download_file(session_id, path, file))
        except NotFound as error:
            advise(error, f"'tidebox sessions files {session_id}' shows those that it has")
            raise

    size = ask(server, work)
    if as_json and target is not None:
        print_json({"path": path, "size": size, "to": str(target)})


@command.command("rm")
@click.argument("session_ids", metavar="SESSION...", nargs=-1, required=True, help="Ids of sessions.")
@server_options
def remove_sessions(session_ids: tuple[str, ...], server: Server, as_json: bool) -> None:
    """Kill what runs in sessions, and remove them with their files."""

    async def work(client: AsyncInterpreter) -> None:
        for session_id in session_ids:
            try:
                await client.delete_session(session_id)
            except NotFound:
                raise NotFound(f"no such session: {session_id}", session_id=session_id) from None

    ask(server, work)
    if as_json:
        print_json({"removed": session_ids})


def _print_session(session: Session) -> None:
    from tidebox.cli.wording import moment

    print_fields(
        {
            "session": session.id,
            "state": session.state,
            "image": session.base_image,
            "runtime": session.runtime,
            "created": moment(session.created_at),
            "ends": moment(session.expires_at),
            "labels": ", ".join(f"{name}={value}" for name, value in session.labels.items()) or None,
        }
    )

"""``tidebox run``: one program in a fresh box, its output as it comes, its exit code as ours."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from tidebox.cli.outward import egress_options
from tidebox.cli.remote import Server, ServerCommand, profile_option, server_option

if TYPE_CHECKING:
    from tidebox.model.requested_egress import RequestedEgress

# What stands before the words decides what they are, and the parser takes it away.
_AFTER_DASHES = "tidebox.after_dashes"


class _RunCommand(ServerCommand):
    """Knows whether ``--`` stood before the words."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        rest = super().parse_args(ctx, args)
        count = len(ctx.params["words"])
        ctx.meta[_AFTER_DASHES] = 0 < count < len(given) and given[-count - 1] == "--"
        return rest

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return ["[OPTIONS]", "(FILE | -c CODE | -- COMMAND)", "[ARGUMENTS]..."]


@click.command("run", cls=_RunCommand, context_settings={"allow_interspersed_args": False})
@click.argument("words", nargs=-1)
@click.option("-c", "code", metavar="CODE", help="Code to run instead of a file.")
@click.option(
    "--language",
    metavar="NAME",
    help="python, javascript, typescript, go, java, c, ...",
    show_default="as FILE says, else python",
)
@click.option(
    "--stdin", metavar="FILE", help="A file, or - for our own.", show_default="our own, unless it is a terminal"
)
@click.option("--env", multiple=True, metavar="K=V|K", help="Set a variable, or hand on ours (repeatable).")
@click.option(
    "--file",
    "files",
    multiple=True,
    metavar="SRC[:DEST]",
    help="Copy into /workspace: a file or directory (repeatable).",
)
@click.option(
    "--artifact", "artifacts", multiple=True, metavar="GLOB", help="Copy matching files out afterwards (repeatable)."
)
@click.option("--artifacts-dir", default=".", metavar="DIR", help="Where artifacts go.", show_default=True)
@click.option("--force", is_flag=True, help="Let artifacts replace files.")
@click.option("--runtime", metavar="NAME", help="native, docker or gvisor.", show_default="the default")
@click.option("--image", default="host", metavar="NAME", help="Root file system of the box.", show_default=True)
@click.option("--with", "packages", multiple=True, metavar="PACKAGE", help="A package of its language (repeatable).")
@egress_options
@click.option("--timeout", type=float, metavar="SECONDS", help="How long it may run.", show_default="30")
@click.option("--compile-timeout", type=float, metavar="SECONDS", help="How long it may compile.", show_default="60")
@click.option("--memory", metavar="SIZE", help="Like 512M or 2G.", show_default="256M")
@click.option("--cpus", type=float, metavar="N", help="How many processors' time.", show_default="1")
@click.option("--pids", type=int, metavar="N", help="Processes and threads.", show_default="128")
@click.option("--output-limit", metavar="SIZE", help="Bytes it may print.", show_default="8M")
@click.option("--workspace", metavar="SIZE", help="Size of /workspace.", show_default="256M")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end instead of the output.")
@server_option
@profile_option
@click.option("--session", metavar="ID", help="Run it in the workspace of a session of the server.")
@click.option("--detach", is_flag=True, help="Leave it to the server, and print the id of its run.")
@click.pass_context
def command(
    context: click.Context,
    words: tuple[str, ...],
    code: str | None,
    language: str | None,
    stdin: str | None,
    env: tuple[str, ...],
    files: tuple[str, ...],
    artifacts: tuple[str, ...],
    artifacts_dir: str,
    force: bool,
    runtime: str | None,
    image: str,
    packages: tuple[str, ...],
    egress: RequestedEgress | None,
    timeout: float | None,
    compile_timeout: float | None,
    memory: str | None,
    cpus: float | None,
    pids: int | None,
    output_limit: str | None,
    workspace: str | None,
    as_json: bool,
    server: str | None,
    profile: str | None,
    session: str | None,
    detach: bool,
) -> int:
    """Run a program in a fresh box, here or with --server on a server.

    Everything after FILE, or after the code, is the program's own.
    """
    from tidebox.cli import report
    from tidebox.cli.running import Request, execute, start

    elsewhere = _server(server, profile, session, detach)
    if detach and stdin is not None:
        raise click.UsageError("--detach leaves the program alone, so it has no input: leave --stdin out")
    request = Request(
        words=words,
        is_command=context.meta[_AFTER_DASHES] and code is None,
        code=code,
        language=language,
        stdin=_open_stdin(stdin, taken=code is None and words[:1] == ("-",)),
        env=env,
        files=files,
        artifacts=artifacts,
        artifacts_dir=artifacts_dir,
        force=force,
        runtime=runtime,
        image=image,
        packages=packages,
        egress=egress,
        sizes={"memory": memory, "output": output_limit, "workspace": workspace},
        numbers={"timeout": timeout, "compile_timeout": compile_timeout, "cpus": cpus, "pids": pids},
        keep_output=as_json,
        server=elsewhere,
        session_id=session,
    )
    if detach:
        report.print_started(start(request), as_json=as_json)
        return 0
    finished = execute(request)
    if as_json:
        report.print_json(finished)
    return report.tell(finished)


def _server(server: str | None, profile: str | None, session: str | None, detach: bool) -> Server | None:
    """Return the server to run on; None to run here."""
    from tidebox.errors import InvalidRequest

    if server is not None or profile is not None:
        return Server(server or None, profile)
    if session is not None or detach:
        raise InvalidRequest("--session and --detach are for a server; give --server, too", field="server")
    return None


def _open_stdin(given: str | None, *, taken: bool) -> int | None:
    """The descriptor the program's input comes from, None for none."""
    from tidebox.errors import InvalidRequest

    if given is None:
        return None if taken or os.isatty(0) else 0
    if given == "-":
        if taken:
            raise InvalidRequest("standard input cannot be both the program and its input", field="stdin")
        return 0
    try:
        return os.open(given, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise InvalidRequest(f"{given}: {error.strerror}", field="stdin") from error

"""``tidebox run``: one program in a fresh box, its output as it comes, its exit code as ours."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from tidebox.cli.output import fail

app = typer.Typer()

# What stands before the words decides what they are, and the parser takes it away.
_AFTER_DASHES = "tidebox.after_dashes"


class _RunCommand(TyperCommand):
    """Knows whether ``--`` stood before the words."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = list(args)
        rest = super().parse_args(ctx, args)
        count = len(ctx.params["words"] or ())
        ctx.meta[_AFTER_DASHES] = 0 < count < len(given) and given[-count - 1] == "--"
        return rest

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return ["[OPTIONS]", "(FILE | -c CODE | -- COMMAND)", "[ARGUMENTS]..."]


def _list(text: str, metavar: str) -> Any:
    return typer.Option(help=text, metavar=metavar, show_default=False)


@app.command(
    "run",
    cls=_RunCommand,
    context_settings={"allow_interspersed_args": False},
)
def run(
    context: typer.Context,
    words: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    code: Annotated[str | None, typer.Option("-c", help="Code to run instead of a file.", metavar="CODE")] = None,
    language: Annotated[
        str | None,
        typer.Option(help="python, javascript, shell or elixir.", show_default="as FILE says, else python"),
    ] = None,
    stdin: Annotated[
        str | None,
        typer.Option(help="A file, or - for our own.", metavar="FILE", show_default="our own, unless it is a terminal"),
    ] = None,
    env: Annotated[list[str] | None, _list("Set a variable, or hand on ours (repeatable).", "K=V|K")] = None,
    file: Annotated[
        list[str] | None, _list("Copy into /workspace: a file or directory (repeatable).", "SRC[:DEST]")
    ] = None,
    artifact: Annotated[list[str] | None, _list("Copy matching files out afterwards (repeatable).", "GLOB")] = None,
    artifacts_dir: Annotated[str, typer.Option(help="Where artifacts go.", metavar="DIR")] = ".",
    force: Annotated[bool, typer.Option("--force", help="Let artifacts replace files.")] = False,
    image: Annotated[str, typer.Option(help="Root file system of the box.", metavar="NAME")] = "host",
    timeout: Annotated[float | None, typer.Option(help="Seconds.", show_default="30")] = None,
    memory: Annotated[str | None, typer.Option(help="Like 512M or 2G.", metavar="SIZE", show_default="256M")] = None,
    cpus: Annotated[float | None, typer.Option(help="How many processors' time.", show_default="1")] = None,
    pids: Annotated[int | None, typer.Option(help="Processes and threads.", show_default="128")] = None,
    output_limit: Annotated[
        str | None, typer.Option(help="Bytes it may print.", metavar="SIZE", show_default="8M")
    ] = None,
    workspace: Annotated[
        str | None, typer.Option(help="Size of /workspace.", metavar="SIZE", show_default="256M")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object at the end instead of the output.")
    ] = False,
) -> None:
    """Run a program in a fresh box.

    Everything after FILE, or after the code, is the program's own.
    """
    from tidebox.cli import report
    from tidebox.cli.running import Request, execute
    from tidebox.errors import TideboxError

    try:
        request = Request(
            words=words or [],
            is_command=context.meta[_AFTER_DASHES] and code is None,
            code=code,
            language=language,
            stdin=_open_stdin(stdin, taken=code is None and words == ["-"]),
            env=env or [],
            files=file or [],
            artifacts=artifact or [],
            artifacts_dir=artifacts_dir,
            force=force,
            image=image,
            sizes={"memory": memory, "output": output_limit, "workspace": workspace},
            numbers={"timeout": timeout, "cpus": cpus, "pids": pids},
            keep_output=as_json,
        )
        finished = execute(request)
    except asyncio.CancelledError:
        # Stopped twice: what was left to say is not awaited.
        raise typer.Exit(report.INTERRUPTED) from None
    except BrokenPipeError:
        # As a program that is killed by it; the reader has what he wanted.
        raise typer.Exit(report.BROKEN_PIPE) from None
    except TideboxError as error:
        if as_json:
            report.print_error(error)
        fail(error.message)
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}" if error.filename else f"{error.strerror or error}")
    if as_json:
        report.print_json(finished)
    raise typer.Exit(report.tell(finished))


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

"""``tidebox``: the command line. Each command is a module of its own, loaded only when it is the one that was typed."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Annotated

import typer

import tidebox
from tidebox.cli.output import FAILED, note
from tidebox.errors import TideboxError

# Command -> its module, whose ``app`` holds it.
COMMANDS = {
    "run": "tidebox.cli.run",
    "doctor": "tidebox.cli.doctor",
    "bench": "tidebox.cli.bench",
    "image": "tidebox.cli.image",
}
# These are groups with commands of their own.
GROUPS = frozenset({"image"})


def main() -> int:
    """The whole program: what was typed in, the exit code out."""
    _open_missing_streams()
    try:
        # Not standalone: errors of usage are told here, in one line like all others.
        return int(_app(sys.argv[1:])(standalone_mode=False) or 0)
    except typer.Abort:
        return 130
    except typer.TyperException as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            typer.echo(error.format_message(), err=True)
        else:
            note(error.format_message())
    except TideboxError as error:
        note(error.message)
    return FAILED


def _app(words: list[str]) -> typer.Typer:
    """The program with the command that was typed, or with all where it is a question for help or a mistake."""
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
    app.callback(invoke_without_command=True)(_root)
    named = next((word for word in words if not word.startswith("-")), "")
    needed = [named] if named in COMMANDS else [] if words == ["--version"] else list(COMMANDS)
    for command in needed:
        module = importlib.import_module(COMMANDS[command])
        app.add_typer(module.app, name=command if command in GROUPS else None)
    return app


def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.", is_eager=True)] = False,
) -> None:
    """Runs untrusted code in fresh, isolated boxes."""
    if version:
        typer.echo(f"tidebox {tidebox.__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit


def _open_missing_streams() -> None:
    """Put the null device where a standard stream was closed: else a socket of ours would get its number."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number is this one

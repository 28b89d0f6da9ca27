"""``tidebox``: the command line. Each command is a module of its own, loaded only when it is the one that was typed."""

from __future__ import annotations

import importlib
import os

import click

import tidebox
from tidebox.cli.output import FAILED, INTERRUPTED, note
from tidebox.cli.signals import Stopped, end_like_interrupted
from tidebox.errors import TideboxError

# Command -> its module, which holds it as ``command``.
COMMANDS = {
    "run": "tidebox.cli.run",
    "serve": "tidebox.cli.serve",
    "doctor": "tidebox.cli.doctor",
    "bench": "tidebox.cli.bench",
    "image": "tidebox.cli.image",
}


def main() -> int:
    """The whole program: what was typed in, the exit code out."""
    _open_missing_streams()
    came = end_like_interrupted()
    try:
        # Not standalone: errors of usage are told here, in one line like all others.
        return int(_program(standalone_mode=False) or 0)
    except click.Abort:
        return 128 + came[0] if came else INTERRUPTED
    except Stopped as stopped:
        return 128 + stopped.number
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
    except click.ClickException as error:
        note(error.format_message())
    except TideboxError as error:
        note(error.message)
    except OSError as error:
        note(f"{error.filename}: {error.strerror}" if error.filename else f"{error.strerror or error}")
    return FAILED


class _Commands(click.Group):
    """Loads a command when it is asked for. A command's exit code is what its function returns."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        if cmd_name not in COMMANDS:
            raise click.exceptions.NoSuchCommand(cmd_name, possibilities=COMMANDS, ctx=ctx)
        found = importlib.import_module(COMMANDS[cmd_name]).command
        assert isinstance(found, click.Command)
        return found


@click.group(cls=_Commands, invoke_without_command=True, subcommand_metavar="COMMAND [ARGS]...")
@click.version_option(tidebox.__version__, message="tidebox %(version)s")
@click.pass_context
def _program(context: click.Context) -> None:
    """Runs untrusted code in fresh, isolated boxes."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def _open_missing_streams() -> None:
    """Put the null device where a standard stream was closed: else a socket of ours would get its number."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number is this one

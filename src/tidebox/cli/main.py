"""``tidebox``: the command line. Each command is a module of its own, loaded only when it is the one that was typed."""

from __future__ import annotations

import importlib
import os

import click

import tidebox
from tidebox.cli.advice import advised
from tidebox.cli.output import FAILED, INTERRUPTED, note
from tidebox.cli.signals import Stopped, end_like_interrupted
from tidebox.errors import TideboxError

# Command -> its module, which holds it as ``command``, and what it does, so that a list of all loads none of them.
COMMANDS = {
    "run": ("tidebox.cli.run", "Run a program in a fresh box, here or on a server."),
    "serve": ("tidebox.cli.serve", "Serve every protocol on one port, until SIGTERM or Ctrl-C."),
    "mcp": ("tidebox.cli.mcp", "Give an agent tools that run code: the Model Context Protocol on stdio."),
    "lsp": ("tidebox.cli.lsp", "Run code from an editor and mark where it fails: a language server on stdio."),
    "doctor": ("tidebox.cli.doctor", "Show what this machine, or a server, can enforce."),
    "bench": ("tidebox.cli.bench", "Measure how fast boxes are, against the bare interpreter."),
    "image": ("tidebox.cli.image", "Root file systems for boxes."),
    "login": ("tidebox.cli.login", "Store the address of a server and the key for it."),
    "logout": ("tidebox.cli.logout", "Forget the address and the key of a server."),
    "profiles": ("tidebox.cli.profiles", "Show the servers that you logged in to."),
    "runs": ("tidebox.cli.runs", "Runs on a server: list, logs, artifacts."),
    "sessions": ("tidebox.cli.sessions", "Workspaces on a server that several runs share."),
    "sandbox": ("tidebox.cli.sandbox", "Boxes on a server that live on: shells, files."),
    "top": ("tidebox.cli.top", "Show what a server does: runs, queue, pool, users."),
    "completion": ("tidebox.cli.completion", "Print the completion script of a shell."),
}

_BEGINNING = """\
Tidebox runs code you do not trust, each time in a fresh, isolated box.

Here:
  tidebox run -c 'print("hello from a box")'    run code, a file or a command
  tidebox doctor                                what this machine can enforce

On a server:
  tidebox serve                                 start one
  tidebox login https://boxes.example           use one elsewhere
  tidebox run --server program.py               the same as here, over there
  tidebox sandbox create box                    a box that stays: tidebox sandbox shell box
"""


def main() -> int:
    """The whole program: what was typed in, the exit code out."""
    _open_missing_streams()
    came = end_like_interrupted()
    try:
        # Not standalone: errors of usage are told here, in one line like all others.
        return int(_program(prog_name="tidebox", standalone_mode=False) or 0)
    except click.Abort:
        return 128 + came[0] if came else INTERRUPTED
    except Stopped as stopped:
        return 128 + stopped.number
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
    except click.ClickException as error:
        note(error.format_message())
    except TideboxError as error:
        note(advised(error))
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
        found = importlib.import_module(COMMANDS[cmd_name][0]).command
        assert isinstance(found, click.Command)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in COMMANDS.items()])


@click.group(cls=_Commands, invoke_without_command=True, subcommand_metavar="COMMAND [ARGS]...")
@click.version_option(tidebox.__version__, message="tidebox %(version)s")
@click.pass_context
def _program(context: click.Context) -> None:
    """Runs untrusted code in fresh, isolated boxes, here or on a server."""
    if context.invoked_subcommand is None:
        click.echo(_BEGINNING)
        click.echo(context.get_help())


def _open_missing_streams() -> None:
    """Put the null device where a standard stream was closed: else a socket of ours would get its number."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number is this one

"""What every command says of itself. ``python -m tests.cli.test_help`` writes it down anew."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tidebox.cli.main import COMMANDS, _program

SNAPSHOT = Path(__file__).parent / "help.txt"


def all_helps() -> str:
    """The help of every command, one below the other."""
    return "\n".join(f"$ {path} --help\n{text}\n" for path, text in _helps(_program, None, "tidebox"))


def _helps(command: click.Command, parent: click.Context | None, name: str) -> Iterator[tuple[str, str]]:
    context = click.Context(command, parent=parent, info_name=name, terminal_width=80, max_content_width=80)
    yield context.command_path, context.get_help()
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            below = command.get_command(context, each)
            assert below is not None
            yield from _helps(below, context, each)


def test_nothing_changed_unnoticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert all_helps() == SNAPSHOT.read_text()


def test_the_list_says_what_the_commands_say() -> None:
    context = click.Context(_program)
    for name, (_, about) in COMMANDS.items():
        said = _program.get_command(context, name).get_short_help_str(200)
        assert about.split()[0] == said.split()[0], name


if __name__ == "__main__":
    os.environ["COLUMNS"] = "80"
    SNAPSHOT.write_text(all_helps())

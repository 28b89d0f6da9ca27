"""What every command says the same way: one line for what went wrong, text that cannot harm a terminal, sizes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NoReturn

import typer

from tidebox.model.limits import GIB, KIB, MIB

if TYPE_CHECKING:
    from rich.console import Console

TABLE_WIDTH = 130
FAILED = 2
"""The exit code for bad input, and for anything this machine cannot do."""


def one_line(text: str) -> str:
    """``text`` on one line, with everything a terminal might obey written as an escape."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text.strip().replace("\n", " ")
    )


def note(text: str) -> None:
    """Say one line on standard error."""
    # A reader of standard error who left must not keep the exit code from being the right one.
    try:
        sys.stderr.write(f"tidebox: {one_line(text)}\n")
        sys.stderr.flush()
    except OSError:
        pass


def fail(text: str) -> NoReturn:
    """Say what went wrong and leave with the exit code for it."""
    note(text)
    raise typer.Exit(FAILED)


def size_text(size: float) -> str:
    """A number of bytes as people read it."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size / unit:.4g} {name}"
    return f"{size:.0f} bytes"


def wide_console() -> Console:
    """A console for tables: as wide as the terminal, and wide enough to be read where there is none."""
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = TABLE_WIDTH
    return console

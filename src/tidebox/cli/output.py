"""What every command says the same way: one line for what went wrong, tables, text that cannot harm a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

import click

FAILED = 2
"""The exit code for bad input, and for anything this machine cannot do."""
INTERRUPTED = 130
"""The exit code after Ctrl-C."""

# Wide enough to be read where there is no terminal.
_TABLE_WIDTH = 130
_GAP = "  "


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


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows under the names of their columns, on as many lines as the width of the terminal makes necessary."""
    import shutil
    import textwrap

    lines = [columns, *([one_line(cell) for cell in row] for row in rows)]
    widths = _fit(lines, shutil.get_terminal_size((_TABLE_WIDTH, 0)).columns)
    for line in lines:
        cells = [
            textwrap.wrap(cell, width, break_long_words=False, break_on_hyphens=False)
            for cell, width in zip(line, widths, strict=True)
        ]
        for number in range(max(map(len, cells))):
            parts = [cell[number] if number < len(cell) else "" for cell in cells]
            padded = (part.ljust(width) for part, width in zip(parts, widths, strict=True))
            click.echo(_GAP.join(padded).rstrip())


def _fit(lines: Sequence[Sequence[str]], room: int) -> list[int]:
    """How wide each column is. The widest give way first, but no word is broken: a name is there to be copied."""
    columns = list(zip(*lines, strict=True))
    widths = [max(1, *map(len, cells)) for cells in columns]
    words = [max((len(word) for cell in cells for word in cell.split()), default=1) for cells in columns]
    room -= len(_GAP) * (len(columns) - 1)
    while sum(widths) > room and (wrappable := [i for i in range(len(widths)) if widths[i] > words[i]]):
        widths[max(wrappable, key=widths.__getitem__)] -= 1
    return widths

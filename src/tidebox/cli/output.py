"""Output that all commands share: one line for what went wrong, tables, text that cannot harm a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence

import click

FAILED = 2
"""The exit code for bad input, and for anything that cannot be done."""
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


def say(text: str) -> None:
    """Print one line, as everything that is not a table or the program's own output."""
    click.echo(one_line(text))


def note(text: str) -> None:
    """Say one line on standard error."""
    # A reader of standard error who left must not keep the exit code from being the right one.
    try:
        sys.stderr.write(f"tidebox: {one_line(text)}\n")
        sys.stderr.flush()
    except OSError:
        pass


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    colors: Mapping[str, str] | None = None,
    spare: Sequence[str] = (),
) -> None:
    """Print rows under the names of their columns, on as many lines as the width of the terminal makes necessary.

    On a terminal cells have the colour that ``colors`` has for their text. Where it is too narrow even so the columns
    in ``spare`` are left out, one after the other.
    """
    for line in table_lines(columns, rows, colors, spare):
        click.echo(line)


def table_lines(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    colors: Mapping[str, str] | None = None,
    spare: Sequence[str] = (),
) -> list[str]:
    """The lines of a table."""
    import shutil
    import textwrap

    lines = [list(columns), *([one_line(cell) for cell in row] for row in rows)]
    room = shutil.get_terminal_size((_TABLE_WIDTH, 0)).columns
    widths = _fit(lines, room)
    for name in spare:
        if sum(widths) + len(_GAP) * (len(widths) - 1) <= room:
            break
        left_out = lines[0].index(name)
        lines = [line[:left_out] + line[left_out + 1 :] for line in lines]
        widths = _fit(lines, room)
    shown = []
    colored = _shows_colors()
    for position, line in enumerate(lines):
        cells = [
            textwrap.wrap(cell, width, break_long_words=False, break_on_hyphens=False)
            for cell, width in zip(line, widths, strict=True)
        ]
        colored_line = [_color_of(cell, position, colors) if colored else None for cell in line]
        for number in range(max(map(len, cells))):
            parts = [cell[number] if number < len(cell) else "" for cell in cells]
            padded = [part.ljust(width) for part, width in zip(parts, widths, strict=True)]
            padded[-1] = padded[-1].rstrip()
            styled = [_styled(part, color) for part, color in zip(padded, colored_line, strict=True)]
            shown.append(_GAP.join(styled).rstrip())
    return shown


def _shows_colors() -> bool:
    from tidebox.config import wants_colors

    return sys.stdout.isatty() and wants_colors()


def _color_of(cell: str, position: int, colors: Mapping[str, str] | None) -> str | None:
    return "bold" if position == 0 else (colors or {}).get(cell)


def _styled(text: str, color: str | None) -> str:
    if color is None:
        return text
    return click.style(text, bold=True) if color == "bold" else click.style(text, fg=color)


def _fit(lines: Sequence[Sequence[str]], room: int) -> list[int]:
    """Return the columns' widths. The widest give way first, but no word is broken: a name is there to be copied."""
    columns = list(zip(*lines, strict=True))
    widths = [max(1, *map(len, cells)) for cells in columns]
    words = [max((len(word) for cell in cells for word in cell.split()), default=1) for cells in columns]
    room -= len(_GAP) * (len(columns) - 1)
    while sum(widths) > room and (wrappable := [i for i in range(len(widths)) if widths[i] > words[i]]):
        widths[max(wrappable, key=widths.__getitem__)] -= 1
    return widths


def print_fields(fields: Mapping[str, object]) -> None:
    """Print names and values, one below the other; what is None is left out."""
    known = {name: value for name, value in fields.items() if value is not None}
    width = max(map(len, known), default=0)
    for name, value in known.items():
        click.echo(f"{name.ljust(width)}  {one_line(str(value))}")

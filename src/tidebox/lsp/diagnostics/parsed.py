"""Problems and stack frames as the parsers read them from output, with the limits of what is read."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MAX_LINE = 1000
"""Characters of a line that are looked at."""
MAX_LINES = 20_000
MAX_CHARACTERS = 512 * 1024
"""Of an output that are looked at, from its end on."""
MAX_PROBLEMS = 50
MAX_FRAMES = 100
MAX_MESSAGE_LINES = 10
MAX_MESSAGE = 2000

# Colours and other orders to a terminal, also those that were cut off.
_CONTROLS = re.compile(r"\x1b(?:\[[0-9;?]{0,32}[ -/]{0,4}[@-~]?|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)?|[@-Z\\-_]?)")
# What an editor must not be made to show as something else: controls, and marks that reorder text.
_UNSHOWN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class ProblemKind(enum.Enum):
    """Role of a problem in the run."""

    CRASH = "crash"
    """The error that ended the program; it has one at most."""
    REPORT = "report"
    """One of many that a compiler or a test runner found."""
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class TraceFrame:
    """A place in a file, as the program named it. Numbers count from 1."""

    path: str
    line: int
    column: int | None = None
    function: str | None = None


@dataclass(frozen=True, slots=True)
class ParsedProblem:
    """An error or a warning with its stack frames, the most telling first."""

    message: str
    frames: tuple[TraceFrame, ...]
    kind: ProblemKind = ProblemKind.CRASH
    causes: tuple[ParsedProblem, ...] = ()


def without_controls(text: str) -> str:
    """An output without colours."""
    return _CONTROLS.sub("", text) if "\x1b" in text else text


def split_lines(text: str) -> list[str]:
    """The last lines of an output, none longer than is looked at."""
    return [line[:MAX_LINE].rstrip("\r") for line in text.split("\n")[-MAX_LINES:]]


def make_problem(
    message: str | Sequence[str],
    frames: Iterable[TraceFrame],
    kind: ProblemKind = ProblemKind.CRASH,
    causes: Iterable[ParsedProblem] = (),
) -> ParsedProblem:
    """A problem that an editor may show."""
    lines = [message] if isinstance(message, str) else message
    text = "\n".join(line.rstrip() for line in lines[:MAX_MESSAGE_LINES]).strip()
    return ParsedProblem(
        _UNSHOWN.sub("\N{REPLACEMENT CHARACTER}", text[:MAX_MESSAGE]) or "failed",
        tuple(frames)[:MAX_FRAMES],
        kind,
        tuple(dict.fromkeys(causes))[:MAX_FRAMES],
    )


def number(text: str | None) -> int | None:
    """A line or column, where it is one: a program may print any digits."""
    return int(text) if text and len(text) <= 9 and text.isascii() and text.isdigit() else None


def frame_of(found: re.Match[str], *, function: str | None = None) -> TraceFrame | None:
    """The place in a match with the groups ``path``, ``line`` and maybe ``column`` and ``function``."""
    groups = found.groupdict()
    line = number(groups["line"])
    if line is None or line < 1 or not groups["path"]:
        return None
    return TraceFrame(groups["path"], line, number(groups.get("column")), function or groups.get("function"))

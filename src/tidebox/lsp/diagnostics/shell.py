"""Shells: what they say of the line that they could not run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tidebox.lsp.diagnostics.parsed import ParsedProblem, ProblemKind, frame_of, make_problem

HINTS = (": ",)

# bash and busybox: "main.sh: line 3: foo: command not found"; dash: "main.sh: 3: foo: not found".
_PATTERNS = (
    re.compile(r"(?P<path>[^\s:][^:]{0,500}): line (?P<line>\d+): (?P<message>.+)$"),
    re.compile(r"(?P<path>[^\s:][^:]{0,500}): (?P<line>\d+): (?P<message>[^\s\d].*)$"),
)
# bash repeats the line of a syntax error.
_ECHO = re.compile(r"`.*'$")


def parse(lines: Sequence[str]) -> Iterator[ParsedProblem]:
    """The first line that could not be parsed, or else the last that failed."""
    last: ParsedProblem | None = None
    for line in lines:
        for pattern in _PATTERNS:
            if (found := pattern.match(line)) and (frame := frame_of(found)):
                if _ECHO.match(found["message"]):
                    break
                last = make_problem(found["message"], [frame], ProblemKind.CRASH)
                if "yntax error" in found["message"]:
                    yield last
                    return
                break
    if last is not None:
        yield last

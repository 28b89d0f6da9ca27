"""Java: exceptions with their causes, javac, and tests of JUnit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tidebox.lsp.diagnostics.parsed import (
    MAX_MESSAGE_LINES,
    ParsedProblem,
    ProblemKind,
    TraceFrame,
    frame_of,
    make_problem,
    number,
)

HINTS = (".java:", ".kt:")

_PLACE = r"(?P<where>[\w.$<>/@-]{1,400})\((?P<file>[\w$.-]{1,200}\.(?:java|kt|scala|groovy)):(?P<line>\d+)\)"
_FRAME = re.compile(r"\s+at " + _PLACE)
# JUnit's console shows frames without "at".
_BARE_FRAME = re.compile(r"\s+" + _PLACE + r"$")
_AT = re.compile(r"\s+at [\w.$<>/@-]{1,400}\(")
_MORE = re.compile(r"\s*\.\.\. \d+ more$|\s+\[\.\.\.\]$")
_THROWN = re.compile(r'(?:Exception in thread "[^"]{0,200}" )?(?P<message>[\w$]{1,200}(?:\.[\w$]{1,200})*(?:: .*)?)$')
_CAUSE = re.compile(r"\s*(?P<kind>Caused by|Suppressed): (?P<message>.*)$")
_JUNIT5 = re.compile(r"\s*=> (?P<message>.*)$")
_JUNIT4 = re.compile(r"\d+\) \S+\(\S+\)$")
_JAVAC = re.compile(r"(?P<path>[^\s:][^:]{0,500}\.java):(?P<line>\d+): (?P<kind>error|warning): (?P<message>.*)$")


@dataclass(slots=True)
class _Throwable:
    message: list[str]
    frames: list[TraceFrame] = field(default_factory=list)
    causes: list[_Throwable] = field(default_factory=list)


def parse(lines: Sequence[str]) -> Iterator[ParsedProblem]:
    """Yield errors of the compiler and of tests, or else the exception that ended the program."""
    for line in lines:
        if (found := _JAVAC.match(line)) and (frame := frame_of(found)):
            kind = ProblemKind.REPORT if found["kind"] == "error" else ProblemKind.WARNING
            yield make_problem(found["message"], [frame], kind)
    thrown, tests = _thrown(lines)
    for each in thrown if tests else thrown[-1:]:
        causes = [make_problem(cause.message, cause.frames) for cause in each.causes]
        yield make_problem(each.message, each.frames, ProblemKind.REPORT if tests else ProblemKind.CRASH, causes)


def _thrown(lines: Sequence[str]) -> tuple[list[_Throwable], bool]:
    """The exceptions whose stacks are there, and whether tests threw them."""
    found: list[_Throwable] = []
    paragraph: list[str] = []
    current: _Throwable | None = None
    tests = junit5 = False
    for line in lines:
        frame = _frame(line, bare=junit5)
        if frame is not None or _AT.match(line):
            if current is None and paragraph:
                current = _Throwable(paragraph)
                found.append(current)
            paragraph = []
            if current is not None and frame is not None:
                (current.causes[-1] if current.causes else current).frames.append(frame)
        elif _MORE.match(line):
            continue
        elif current is not None and (cause := _CAUSE.match(line)):
            current.causes.append(_Throwable([cause["message"]]))
        elif _JUNIT4.match(line):
            tests, current, paragraph = True, None, []
        elif begun := _JUNIT5.match(line):
            tests, junit5, current = True, True, None
            paragraph = [begun["message"]]
        elif not line.strip():
            current, paragraph, junit5 = None, [], False
        elif begun := _THROWN.match(line):
            current, paragraph, junit5 = None, [begun["message"]], False
        elif paragraph and len(paragraph) < MAX_MESSAGE_LINES:
            paragraph.append(line)
    return [each for each in found if each.frames], tests


def _frame(line: str, *, bare: bool) -> TraceFrame | None:
    found = _FRAME.match(line) or (_BARE_FRAME.match(line) if bare else None)
    if found is None or (at := number(found["line"])) is None or at < 1:
        return None
    # "module/com.acme.app.Main$Inner.run" of Main.java is com/acme/app/Main.java.
    where = found["where"].rpartition("/")[2]
    package = where.split(".")[:-2]
    return TraceFrame("/".join([*package, found["file"]]), at, None, where)

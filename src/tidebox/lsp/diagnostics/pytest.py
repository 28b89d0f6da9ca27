"""pytest: what it prints of each test that failed, in any of its styles but that of Python itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tidebox.lsp.diagnostics import python
from tidebox.lsp.diagnostics.parsed import (
    MAX_MESSAGE_LINES,
    ParsedProblem,
    ProblemKind,
    TraceFrame,
    frame_of,
    make_problem,
)

HINTS = ("=== FAILURES ===", "=== ERRORS ===", "short test summary info")

_BANNER = re.compile(r"={3,} (?P<title>.{1,200}?) ={3,}$")
_SECTION = re.compile(r"_{3,} (?P<title>.{1,400}) _{3,}$")
_SECTIONS = frozenset({"FAILURES", "ERRORS"})
# What a line of a section is -> how it looks; the first that matches counts.
_LINES = {
    "linked": re.compile(
        r"(?:The above exception was the direct cause of the following exception"
        r"|During handling of the above exception, another exception occurred):$"
    ),
    "error": re.compile(r"E(?:   (?P<text>.*))?$"),
    "frame": re.compile(r"(?P<path>[^\s:][^:]{0,500}):(?P<line>\d+): (?:in (?P<function>.{1,200})|[\w.]*)$"),
    "one_line": re.compile(r"(?P<path>[^\s:][^:]{0,500}):(?P<line>\d+): (?P<text>.+)$"),
    "fixture": re.compile(r"file (?P<path>.{1,500}), line (?P<line>\d+)$"),
    "python": re.compile(r'Traceback \(most recent call last\):$|  File "'),
}
_FAILED = re.compile(r"(?:FAILED|ERROR) (?P<path>[^\s:]{1,500})(?:::\S+)*(?: - (?P<text>.*))?$")


def parse(lines: Sequence[str]) -> Iterator[ParsedProblem]:
    """One problem for each test that failed."""
    found = False
    for headed, section in _sections(lines):
        for problem in _problems(section) if headed else _one_liners(section):
            found = True
            yield problem
    if not found:
        # There are no sections with --tb=no.
        for line in lines:
            if match := _FAILED.match(line):
                yield make_problem(match["text"] or "failed", [TraceFrame(match["path"], 1)], ProblemKind.REPORT)


def _sections(lines: Sequence[str]) -> Iterator[tuple[bool, list[str]]]:
    """Yield the section of each failed test, and whether it has a heading."""
    inside = headed = False
    section: list[str] = []
    for line in lines:
        banner = _BANNER.match(line)
        if banner is not None or _SECTION.match(line):
            if inside and section:
                yield headed, section
            section, headed = [], banner is None
            inside = banner["title"] in _SECTIONS if banner is not None else inside
        elif inside:
            section.append(line)
    if inside and section:
        yield headed, section


def _one_liners(lines: Sequence[str]) -> Iterator[ParsedProblem]:
    """The tests of --tb=line, one in a line."""
    for line in lines:
        if (found := _LINES["one_line"].match(line)) and (frame := frame_of(found)):
            yield make_problem(found["text"], [frame], ProblemKind.REPORT)


class _Part:
    """One exception of a section."""

    def __init__(self) -> None:
        self.frames: list[TraceFrame] = []
        self.errors: list[str] = []


def _problems(section: Sequence[str]) -> Iterator[ParsedProblem]:
    """The outermost exception of a section, with its causes."""
    parts = [_Part()]
    for line in section:
        kind, found = next(
            ((kind, found) for kind, pattern in _LINES.items() if (found := pattern.match(line))), ("", None)
        )
        if found is None or kind == "one_line":
            continue
        if kind == "python":
            # --tb=native
            yield from (_reported(problem) for problem in python.parse(section) if problem.kind is ProblemKind.CRASH)
            return
        if kind == "linked":
            parts.append(_Part())
        elif kind == "error":
            parts[-1].errors.append(found["text"] or "")
        elif frame := frame_of(found):
            parts[-1].frames.append(frame)
    problems = [_problem(part) for part in parts if part.errors or part.frames]
    if problems and problems[-1].frames:
        yield make_problem(problems[-1].message, problems[-1].frames, ProblemKind.REPORT, problems[-2::-1])


def _problem(part: _Part) -> ParsedProblem:
    margin = min((len(line) - len(line.lstrip()) for line in part.errors if line.strip()), default=0)
    errors = [line[margin:] for line in part.errors]
    frames = part.frames[::-1]
    # What could not be compiled is told as Python tells it.
    for compiled in python.parse(errors):
        if compiled.kind is ProblemKind.CRASH and compiled.message != "failed":
            return make_problem(compiled.message, (*compiled.frames, *frames))
    return make_problem(_first_paragraph(errors), frames)


def _first_paragraph(errors: Sequence[str]) -> list[str]:
    """The message of an exception, without the explanation of an assertion."""
    kept: list[str] = []
    for line in errors[:MAX_MESSAGE_LINES]:
        if kept and (not line.strip() or line.startswith(("assert ", "+", "-", "?", " "))):
            break
        kept.append(line)
    return kept


def _reported(problem: ParsedProblem) -> ParsedProblem:
    return make_problem(problem.message, problem.frames, ProblemKind.REPORT, problem.causes)

"""Go: panics, the compiler, and tests."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tidebox.lsp.diagnostics.parsed import (
    MAX_MESSAGE_LINES,
    ParsedProblem,
    ProblemKind,
    TraceFrame,
    frame_of,
    make_problem,
)

HINTS = (".go:",)

_PANIC = re.compile(r"\s*(?:panic: |fatal error: )(?P<message>.*)$")
_GOROUTINE = re.compile(r"goroutine \d+ (?:\S+ )*\[[^\]]{0,100}\]:$")
_FRAME = re.compile(r"\t(?P<path>[^\s:][^:]{0,500}\.go):(?P<line>\d+)(?: \+0x[0-9a-f]+)?$")
_CREATED = re.compile(r"created by ")
_FUNCTION = re.compile(r"(?P<function>[^\s(][^\t]{0,300})\(")
_COMPILER = re.compile(
    r"(?:vet: )?(?P<path>[^\s:][^:]{0,500}\.go):(?P<line>\d+)(?::(?P<column>\d+))?: (?P<message>.*)$"
)
_TEST = re.compile(r"\s*--- FAIL: ")
_PASSED = re.compile(r"\s*--- (?:PASS|SKIP): |=== RUN|ok  |PASS$|FAIL")
_TEST_LINE = re.compile(r"\s{4,40}(?P<path>[^\s:][^:]{0,300}\.go):(?P<line>\d+): (?P<message>.*)$")


def parse(lines: Sequence[str]) -> Iterator[ParsedProblem]:
    """Yield errors of the compiler, failed tests, and the panic that ended the program."""
    yield from _compiler(lines)
    yield from _tests(lines)
    if (panic := _panic(lines)) is not None:
        yield panic


def _compiler(lines: Sequence[str]) -> Iterator[ParsedProblem]:
    pending: tuple[list[str], TraceFrame] | None = None
    for line in (*lines, ""):
        if pending is not None:
            if line.startswith(("\t", "        ")) and line.strip() and len(pending[0]) < MAX_MESSAGE_LINES:
                pending[0].append(line.strip())
                continue
            yield make_problem(pending[0], [pending[1]], ProblemKind.REPORT)
            pending = None
        if (found := _COMPILER.match(line)) and (frame := frame_of(found)):
            pending = [found["message"]], frame


def _tests(lines: Sequence[str]) -> Iterator[ParsedProblem]:
    failing = False
    for line in lines:
        if _TEST.match(line):
            failing = True
        elif _PASSED.match(line):
            failing = False
        elif failing and (found := _TEST_LINE.match(line)) and (frame := frame_of(found)):
            yield make_problem(found["message"], [frame], ProblemKind.REPORT)


def _panic(lines: Sequence[str]) -> ParsedProblem | None:
    """The last of the panics that were going on, in the goroutine that is told of first."""
    messages: list[str] = []
    frames: list[TraceFrame] = []
    inside = created = False
    function: str | None = None
    for line in lines:
        if not inside and (found := _PANIC.match(line)):
            messages.append(found["message"])
        elif not messages:
            continue
        elif _GOROUTINE.match(line):
            if inside:
                break
            inside = True
        elif not inside:
            continue
        elif not line.strip():
            if frames:
                break
        elif _CREATED.match(line):
            created = True
        elif found := _FRAME.match(line):
            frame = frame_of(found, function=function)
            if frame is not None and not created:
                frames.append(frame)
            created = False
        elif found := _FUNCTION.match(line):
            function = found["function"]
    if not messages or not frames:
        return None
    *before, last = messages
    return make_problem(last, frames, ProblemKind.CRASH, [make_problem(message, ()) for message in reversed(before)])

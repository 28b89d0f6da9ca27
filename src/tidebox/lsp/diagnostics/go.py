"""Go: panics, the compiler, and tests."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tidebox.lsp.diagnostics.problems import MAX_MESSAGE_LINES, Frame, Kind, Problem, frame_of, make_problem

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


def parse(lines: Sequence[str]) -> Iterator[Problem]:
    """What the compiler and the tests report, and the panic that ended the program."""
    yield from _compiler(lines)
    yield from _tests(lines)
    if (panic := _panic(lines)) is not None:
        yield panic


def _compiler(lines: Sequence[str]) -> Iterator[Problem]:
    held: tuple[list[str], Frame] | None = None
    for line in (*lines, ""):
        if held is not None:
            if line.startswith(("\t", "        ")) and line.strip() and len(held[0]) < MAX_MESSAGE_LINES:
                held[0].append(line.strip())
                continue
            yield make_problem(held[0], [held[1]], Kind.REPORT)
            held = None
        if (found := _COMPILER.match(line)) and (frame := frame_of(found)):
            held = [found["message"]], frame


def _tests(lines: Sequence[str]) -> Iterator[Problem]:
    failing = False
    for line in lines:
        if _TEST.match(line):
            failing = True
        elif _PASSED.match(line):
            failing = False
        elif failing and (found := _TEST_LINE.match(line)) and (frame := frame_of(found)):
            yield make_problem(found["message"], [frame], Kind.REPORT)


def _panic(lines: Sequence[str]) -> Problem | None:
    """The last of the panics that were going on, in the goroutine that is told of first."""
    messages: list[str] = []
    frames: list[Frame] = []
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
    return make_problem(last, frames, Kind.CRASH, [make_problem(message, ()) for message in reversed(before)])

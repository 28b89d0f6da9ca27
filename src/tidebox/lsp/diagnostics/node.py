"""Node: errors with V8's stack traces, syntax errors, the two formats of its test runner, and tsc."""

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
)

HINTS = ("    at ", "Node.js v", "not ok ", "failing tests", ": error TS", " - error TS", "error TS")

_TSC = (
    re.compile(r"(?P<path>[^\s(][^(]{0,500})\((?P<line>\d+),(?P<column>\d+)\): error (?P<message>TS\d+: .*)$"),
    re.compile(r"(?P<path>[^\s:][^:]{0,500}):(?P<line>\d+):(?P<column>\d+) - error (?P<message>TS\d+: .*)$"),
)
_PLACE = r"(?P<path>(?:file://)?[^()\s][^()]{0,500}):(?P<line>\d+):(?P<column>\d+)"
_FRAME = re.compile(r"\s*at (?:async )?(?:(?P<function>[^(]{1,300}) \()?" + _PLACE + r"\)?[ {,]*$")
_AT = re.compile(r"\s*at \S")
# The place of an error that has no frame of the program's own, above its source and a caret.
_HEAD = re.compile(r"(?:(?P<path>(?:file://)?/[^()\s][^()]{0,500})|node:[\w/]{1,200}|<?[\w.]{1,100}>?):(?P<line>\d+)$")
_CARET = re.compile(r"\s*[~^]+\s*$")
_CAUSE = re.compile(r"\s+\[?(?:cause|errors)\]?: \[?(?P<message>.*)$")
_NESTED = re.compile(r"\s+(?P<message>[A-Z]\w*(?:Error|Exception)(?: \[\w+\])?: .*)$")
_VERSION = re.compile(r"Node\.js v\d")
_HINT = re.compile(r"\(Use `node --trace-")
_NOT_OK = re.compile(r"(?P<indent>\s*)not ok \d+ - (?P<name>.*)$")
_KEY = re.compile(r"\s+(?P<key>location|error|stack|failureType): (?P<value>.*)$")
_STACK_LINE = re.compile(r"\s+(?:async )?(?:(?P<function>[^(]{1,300}) \()?" + _PLACE + r"\)?$")
_FAILING = re.compile(r"\S? ?failing tests:$")
_TEST_AT = re.compile(r"test at (?P<path>[^\s:][^:]{0,500}):(?P<line>\d+):(?P<column>\d+)$")
_OF_SUITES = frozenset({"'subtestsFailed'", '"subtestsFailed"', "subtestsFailed"})


@dataclass(slots=True)
class _Error:
    message: list[str] = field(default_factory=list)
    frames: list[TraceFrame] = field(default_factory=list)
    head: TraceFrame | None = None

    def all_frames(self) -> list[TraceFrame]:
        if self.head is None:
            return self.frames
        # What cannot be compiled is where the head says; the frames are those of what wanted it.
        of_source = bool(self.message) and self.message[0].startswith("SyntaxError")
        return [self.head, *self.frames] if of_source else [*self.frames, self.head]


def parse(lines: Sequence[str]) -> Iterator[ParsedProblem]:
    """Yield errors of the compiler and failed tests, or else the error that ended the program."""
    found = False
    for problem in (*_compiler(lines), *_tap(lines), *_spec(lines)):
        found = True
        yield problem
    if not found and (crash := _crash(lines)) is not None:
        yield crash


def _compiler(lines: Sequence[str]) -> Iterator[ParsedProblem]:
    for line in lines:
        if "error TS" in line:
            for pattern in _TSC:
                if (found := pattern.match(line)) and (frame := frame_of(found)):
                    yield make_problem(found["message"], [frame], ProblemKind.REPORT)


class _Crashes:
    """Reads the errors that a program printed, one chain of causes after the other."""

    def __init__(self) -> None:
        self.chains: list[list[_Error]] = []
        self._head: TraceFrame | None = None
        self._source = False
        """Whether the next lines are the source below a head."""
        self._below_head = False
        self._paragraph: list[str] = []
        self._in_stack = False

    def read(self, line: str) -> None:
        """Take one more line."""
        if _AT.match(line):
            self._on_frame(line)
        elif self._in_stack and (found := _CAUSE.match(line) or _NESTED.match(line)):
            if found["message"].strip(" []{"):
                self.chains[-1].append(_Error([found["message"]]))
        elif _VERSION.match(line) or _HINT.match(line):
            self.finish()
        elif found := _HEAD.match(line):
            self.finish()
            self._head = frame_of(found) if found["path"] else None
            self._source = self._below_head = True
        elif self._source:
            self._source = bool(line.strip()) and not _CARET.match(line)
        elif not line.strip():
            self._in_stack = False
            # A message may have blank lines, where it is known that one is being told.
            if not (self._paragraph and self._below_head):
                self._paragraph = []
            elif len(self._paragraph) < MAX_MESSAGE_LINES:
                self._paragraph.append("")
        elif not self._in_stack or not line.startswith((" ", "}")):
            self._in_stack = False
            if len(self._paragraph) < MAX_MESSAGE_LINES:
                self._paragraph.append(line)

    def finish(self) -> None:
        """End the error that is being read."""
        if self._head is not None and self._paragraph:
            self.chains.append([_Error(self._paragraph, head=self._head)])
        self._head, self._paragraph, self._in_stack = None, [], False
        self._source = self._below_head = False

    def _on_frame(self, line: str) -> None:
        if not self._in_stack:
            self.chains.append([_Error(self._paragraph, head=self._head)])
            self._head, self._paragraph, self._in_stack = None, [], True
            self._source = self._below_head = False
        if (found := _FRAME.match(line)) and (frame := frame_of(found)):
            self.chains[-1][-1].frames.append(frame)


def _crash(lines: Sequence[str]) -> ParsedProblem | None:
    """The last error of the program, with what it wraps."""
    reader = _Crashes()
    for line in lines:
        reader.read(line)
    reader.finish()
    chains = [chain for chain in reader.chains if any(error.all_frames() for error in chain)]
    if not chains:
        return None
    outermost, *causes = chains[-1]
    return make_problem(
        outermost.message,
        outermost.all_frames(),
        ProblemKind.CRASH,
        [make_problem(e.message, e.frames) for e in causes],
    )


def _tap(lines: Sequence[str]) -> Iterator[ParsedProblem]:
    """Each test that is not ok, in the Test Anything Protocol."""
    position = 0
    while position < len(lines):
        found = _NOT_OK.match(lines[position])
        position += 1
        if found is None:
            continue
        error, place, suite, key = _Error(), None, False, ""
        message: list[str] = []
        while position < len(lines) and lines[position].strip() != "..." and not _NOT_OK.match(lines[position]):
            line = lines[position]
            position += 1
            if named := _KEY.match(line):
                key, value = named["key"], named["value"]
                if key == "location":
                    if at := re.match(r"'?" + _PLACE, value):
                        place = frame_of(at)
                elif key == "failureType":
                    suite = value in _OF_SUITES
                elif key == "error" and value not in ("|-", "|"):
                    message.append(value.strip("'\""))
            elif key == "error" and line.strip() and len(message) < MAX_MESSAGE_LINES and ": " not in line[:20]:
                message.append(line.strip())
            elif key == "stack" and (at := _STACK_LINE.match(line)) and (frame := frame_of(at)):
                error.frames.append(frame)
        frames = error.frames + ([place] if place is not None else [])
        if frames and not suite:
            yield make_problem([message[0] if message else found["name"]], frames, ProblemKind.REPORT)


def _spec(lines: Sequence[str]) -> Iterator[ParsedProblem]:
    """Each test below "failing tests:", in the format for people."""
    begin = next((index for index, line in enumerate(lines) if _FAILING.search(line)), None)
    if begin is None:
        return
    place: TraceFrame | None = None
    error: _Error | None = None
    for line in [*lines[begin + 1 :], "test at end:1:1"]:
        if found := _TEST_AT.match(line.strip()):
            if place is not None and error is not None and error.message:
                yield make_problem(error.message[:1], [*error.frames, place], ProblemKind.REPORT)
            place, error = frame_of(found), None
        elif place is None:
            continue
        elif error is None:
            error = _Error()  # the name of the test
        elif (at := _FRAME.match(line)) and (frame := frame_of(at)):
            error.frames.append(frame)
        elif line.strip() and not _AT.match(line) and not error.frames and len(error.message) < MAX_MESSAGE_LINES:
            error.message.append(line.strip())

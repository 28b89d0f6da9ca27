"""Python: tracebacks with their causes and groups, syntax errors, warnings, and what unittest prints around them."""

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

HINTS = ('File "', "Warning: ")

# What a line is -> how it looks; the first that matches counts. Lines of a group have lost their margin before.
_LINES = {
    "head": re.compile(r"\s*(?:Exception Group )?Traceback \(most recent call last\):$"),
    "frame": re.compile(r'\s{0,8}File "(?P<path>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.*))?$'),
    "linked": re.compile(
        r"(?:The above exception was the direct cause of the following exception"
        r"|During handling of the above exception, another exception occurred):$"
    ),
    "repeated": re.compile(r"\s+\[Previous line repeated \d+ more times?\]$"),
    "test": re.compile(r"(?:ERROR|FAIL): \S"),
    "rule": re.compile(r"={70}$|-{70}$"),
    "ignored": re.compile(r"Exception ignored in"),
    "blank": re.compile(r"\s*$"),
}
_MARGIN = re.compile(r"(?P<indent> *)(?P<mark>[|+])(?P<rest>.*)$")
_SEPARATOR = re.compile(r"[+-]*-{3,} (?:\d+|\.\.\.) -{3,}$|[+-]*-{10,}$")
_GROUP_HEAD = re.compile(r" *\+ Exception Group Traceback \(most recent call last\):$")
_WARNING = re.compile(r"\s{0,4}(?P<path>[^\s:][^:]{0,500}):(?P<line>\d+): (?P<message>[A-Za-z_.]{0,80}Warning: .*)$")
_QUOTES = '"""'


@dataclass(slots=True)
class _Trace:
    """One traceback, being read."""

    group: bool = False
    frames: list[TraceFrame] = field(default_factory=list)
    message: list[str] = field(default_factory=list)
    leaves: list[list[_Trace]] = field(default_factory=list)
    """Of a group: the chain of each exception in it."""


@dataclass(slots=True)
class _Chain:
    """Tracebacks of which each is the cause of the next."""

    traces: list[_Trace] = field(default_factory=list)
    ignored: bool = False


def parse(lines: Sequence[str]) -> Iterator[ParsedProblem]:
    """The problems in an output: those of a test runner, or else the last traceback; and warnings."""
    for line in lines:
        if "Warning: " in line and (found := _WARNING.match(line)) and (frame := frame_of(found)):
            yield make_problem(found["message"], [frame], ProblemKind.WARNING)
    reader = _Reader()
    for line in lines:
        reader.read(line)
    reader.finish()
    chains = [chain for chain in reader.chains if not chain.ignored and any(t.frames for t in chain.traces)]
    kind = ProblemKind.REPORT if reader.tests else ProblemKind.CRASH
    for chain in chains if reader.tests else chains[-1:]:
        yield from _problems(chain.traces, kind)


def _problems(chain: list[_Trace], kind: ProblemKind) -> Iterator[ParsedProblem]:
    """The outermost error with its causes; of a group its leaves."""
    *before, last = chain
    causes = tuple(_cause(trace) for trace in reversed(before))
    if not last.leaves:
        yield make_problem(last.message, _inner_first(last), kind, causes)
        return
    group = make_problem(last.message, _inner_first(last))
    for leaf in last.leaves:
        for problem in _problems(leaf, kind):
            frames = problem.frames or group.frames
            yield make_problem(problem.message, frames, kind, (*problem.causes, group, *causes))


def _cause(trace: _Trace) -> ParsedProblem:
    return make_problem(trace.message, _inner_first(trace))


def _inner_first(trace: _Trace) -> list[TraceFrame]:
    return trace.frames[::-1]


class _Reader:
    """Reads lines one by one."""

    def __init__(self) -> None:
        self.chains: list[_Chain] = []
        self.tests = False
        """Whether a test runner printed this."""
        self._trace: _Trace | None = None
        self._in_message = False
        self._linked = False
        self._ignored = False
        self._groups: list[tuple[int, _Trace]] = []
        """The groups that are open, with how far their margins are indented."""
        self._indent = 0
        """How far the margin of this line is."""

    def read(self, line: str) -> None:
        """Take one more line."""
        if self._groups or _GROUP_HEAD.match(line):
            found = _MARGIN.match(line)
            if found is not None:
                self._read_margin(len(found["indent"]), found["mark"], found["rest"])
                return
            self._close_groups(-1)
        self._read_plain(line)

    def finish(self) -> None:
        """The output ends."""
        self._trace = None

    def _read_margin(self, indent: int, mark: str, rest: str) -> None:
        """A line of a group: what is left of it belongs to the group, or to one of the exceptions in it."""
        self._indent = indent
        if mark == "+":
            if _SEPARATOR.match(rest):
                # "+-+---- 1 ----" opens the exceptions of a group, whose margin is two further to the right.
                opens = rest.startswith("-+")
                margin = indent + (2 if opens else 0)
                self._close_groups(margin - 2)
                if opens and self._groups and self._groups[-1][0] < indent and self._groups[-1][1].leaves:
                    # A group that was never raised has no head of its own.
                    self._groups.append((indent, self._groups[-1][1].leaves[-1][-1]))
                self._linked = False
                self._trace = None
                if self._groups and rest.strip("+-"):
                    self._groups[-1][1].leaves.append([_Trace()])
                    self._trace, self._in_message = self._groups[-1][1].leaves[-1][-1], True
                return
            self._begin(group=True)
            return
        self._read_plain(rest.removeprefix(" "))

    def _close_groups(self, indent: int) -> None:
        """End the groups whose margin is further to the right."""
        while self._groups and self._groups[-1][0] > indent:
            self._groups.pop()
            self._trace = None

    def _read_plain(self, line: str) -> None:
        kind = next((kind for kind, pattern in _LINES.items() if pattern.match(line)), "text")
        getattr(self, f"_on_{kind}")(line)

    def _begin(self, *, group: bool = False) -> None:
        trace = self._trace
        fresh = trace is not None and self._in_message and not trace.frames and not trace.message
        if fresh:
            # The traceback of a leaf, right behind its separator.
            assert trace is not None
            trace.group = group
        else:
            trace = _Trace(group)
            self._chain().append(trace)
        self._trace, self._in_message, self._linked = trace, False, False
        if group:
            self._close_groups(self._indent - 1)
            self._groups.append((self._indent, trace))

    def _chain(self) -> list[_Trace]:
        """The chain that the next traceback belongs to."""
        if self._groups:
            leaves = self._groups[-1][1].leaves
            if leaves:
                return leaves[-1]
        if not self._linked or not self.chains:
            self.chains.append(_Chain(ignored=self._ignored))
        self._ignored = False
        return self.chains[-1].traces

    def _on_head(self, line: str) -> None:
        self._begin(group=line.lstrip().startswith("Exception Group"))

    def _on_frame(self, line: str) -> None:
        found = _LINES["frame"].match(line)
        frame = frame_of(found) if found else None
        if frame is None:
            return
        if self._trace is None or (self._in_message and self._trace.message):
            # A syntax error has no head.
            self._begin()
        assert self._trace is not None
        self._in_message = False
        self._trace.frames.append(frame)

    def _on_linked(self, line: str) -> None:
        self._trace, self._linked = None, True

    def _on_repeated(self, line: str) -> None:
        pass

    def _on_test(self, line: str) -> None:
        self.tests = True
        self._trace = None

    def _on_rule(self, line: str) -> None:
        self._trace = None

    def _on_ignored(self, line: str) -> None:
        self._trace, self._ignored = None, True

    def _on_blank(self, line: str) -> None:
        if self._in_message and self._trace is not None and self._trace.message:
            self._trace = None

    def _on_text(self, line: str) -> None:
        trace = self._trace
        if trace is None:
            self._linked = self._ignored = False
        elif self._in_message:
            if len(trace.message) < MAX_MESSAGE_LINES and line.strip() != _QUOTES:
                trace.message.append(line)
        elif trace.frames and not line.startswith(" "):
            trace.message.append(line)
            self._in_message = True

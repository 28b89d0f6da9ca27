"""Languages that have no parser of their own: what tells of a place is the language table's, and what stands around it
is told here, as data again: C, C++, Rust, Ruby, Elixir, and TypeScript where it is compiled.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from tidebox.lsp.diagnostics.parsed import (
    MAX_MESSAGE_LINES,
    ParsedProblem,
    ProblemKind,
    TraceFrame,
    make_problem,
    number,
)
from tidebox.model.languages import BUILT_IN

# Patterns of the table may be squared in the length of a line, and no place is further to the right.
_MAX_LINE = 400

_KINDS = {"error": ProblemKind.REPORT, "warning": ProblemKind.WARNING}


class _At(NamedTuple):
    """A line that tells of a place."""

    frame: TraceFrame
    message: str


class _Places:
    """The lines of one language that tell of places in its files."""

    def __init__(self, name: str) -> None:
        language = BUILT_IN[name]
        self._pattern = re.compile(language.diagnostic)
        self._suffixes = language.suffixes

    def find(self, line: str) -> _At | None:
        """The place that a line tells of; those in files of other languages are for others."""
        found = self._pattern.search(line[:_MAX_LINE])
        if found is None or not found["file"].endswith(self._suffixes):
            return None
        at = number(found["line"])
        if at is None or at < 1:
            return None
        # The pattern saw the beginning of it; the message is all that follows.
        message = found.groupdict().get("message")
        text = "" if message is None else line[found.start("message") :].strip()
        return _At(TraceFrame(found["file"], at), text)


_GCC = re.compile(r"(?:fatal )?(?P<kind>error|warning): (?P<text>.*)$")
_UNDEFINED = re.compile(r"undefined reference to ")


def _same_line(places: _Places, lines: Sequence[str]) -> Iterator[ParsedProblem]:
    """Compilers that say what and where in one line."""
    for line in lines:
        if (at := places.find(line)) is None:
            continue
        if found := _GCC.match(at.message):
            yield make_problem(found["text"], [at.frame], _KINDS[found["kind"]])
        elif _UNDEFINED.match(at.message):
            yield make_problem(at.message, [at.frame], ProblemKind.REPORT)


_HEADS = (
    # rustc, Elixir from 1.15 on
    re.compile(r"\s*(?P<kind>error|warning)(?:\[\w+\])?: (?P<text>.*)$"),
    # esbuild
    re.compile(r"\W{0,4}\[(?P<kind>ERROR|WARNING)\] (?P<text>.*)$"),
)


def _headed(places: _Places, lines: Sequence[str]) -> Iterator[ParsedProblem]:
    """Compilers that say what in one line, and where in one of the next."""
    head: tuple[str, ProblemKind] | None = None
    for line in lines:
        if found := next((found for pattern in _HEADS if (found := pattern.match(line))), None):
            head = found["text"], _KINDS[found["kind"].lower()]
        elif head is not None and (at := places.find(line)) is not None:
            yield make_problem(head[0], [at.frame], head[1])
            head = None


_PANIC = re.compile(r"thread '.{0,100}' (?:\(\d{1,20}\) )?panicked at (?:'(?P<text>.*)', )?")


def _rust(places: _Places, lines: Sequence[str]) -> Iterator[ParsedProblem]:
    yield from _headed(places, lines)
    last: ParsedProblem | None = None
    for index, line in enumerate(lines):
        if (found := _PANIC.match(line)) and (at := places.find(_without_thread(line, found))) is not None:
            below = lines[index + 1] if index + 1 < len(lines) else ""
            last = make_problem(found["text"] or below, [at.frame])
    if last is not None:
        yield last


def _without_thread(line: str, found: re.Match[str]) -> str:
    """The place of a panic as a compiler writes one: newer versions also number the thread."""
    return " --> " + line[found.end() :].rstrip(":")


_RUBY_HEAD = re.compile(r"(?:in [`'](?P<function>[^']{0,200})': )?(?P<text>.*)$")
_FROM = re.compile(r"\s+(?:\d+: )?from ")


def _ruby(places: _Places, lines: Sequence[str]) -> Iterator[ParsedProblem]:
    """The last error with its causes, which follow it; syntax errors and warnings."""
    chain: list[tuple[list[str], list[TraceFrame]]] = []
    following = False
    for line in lines:
        at = places.find(line)
        if at is None:
            following = following and not line.strip()
        elif _FROM.match(line):
            if following:
                chain[-1][1].append(at.frame)
        elif at.message.startswith("warning: "):
            yield make_problem(at.message.removeprefix("warning: "), [at.frame], ProblemKind.WARNING)
        elif (found := _RUBY_HEAD.match(at.message)) and found["text"]:
            chain = chain if following else []
            chain.append(([found["text"]], [TraceFrame(at.frame.path, at.frame.line, None, found["function"])]))
            following = True
    if chain:
        (message, frames), *causes = chain
        yield make_problem(message, frames, ProblemKind.CRASH, [make_problem(*cause) for cause in causes])


_RAISED = re.compile(r"\*\* \((?P<name>[\w.]{1,200})\) (?P<text>.*)$")
_COLUMN = re.compile(r"\d{1,9}: ")


def _elixir(places: _Places, lines: Sequence[str]) -> Iterator[ParsedProblem]:
    """The last error: with its place in the first line, or in those below."""
    yield from _headed(places, lines)
    message: list[str] = []
    frames: list[TraceFrame] = []
    inside = False
    for line in lines:
        if found := _RAISED.match(line):
            at = places.find(found["text"])
            text = found["text"] if at is None else _COLUMN.sub("", at.message, count=1)
            message, frames, inside = [f"{found['name']}: {text}"], [] if at is None else [at.frame], True
        elif not inside:
            continue
        elif (at := places.find(line)) is not None:
            frames.append(TraceFrame(at.frame.path, at.frame.line, None, at.message or None))
        elif line.strip() and not line[0].isspace():
            if frames:
                inside = False
            elif len(message) < MAX_MESSAGE_LINES:
                message.append(line)
    if frames:
        yield make_problem(message, frames)


class _Row(NamedTuple):
    hints: tuple[str, ...]
    parse: Callable[[_Places, Sequence[str]], Iterator[ParsedProblem]]


_ROWS = {
    "c": _Row((".c:",), _same_line),
    "cpp": _Row((".cpp:", ".cc:", ".cxx:"), _same_line),
    "rust": _Row((".rs:",), _rust),
    "ruby": _Row((".rb:",), _ruby),
    "elixir": _Row((".exs:", ".ex:"), _elixir),
    "typescript": _Row((".ts:", ".mts:", ".cts:", ".tsx:"), _headed),
}


def _parser(name: str, row: _Row) -> Callable[[Sequence[str]], Iterator[ParsedProblem]]:
    places = _Places(name)
    return lambda lines: row.parse(places, lines)


PARSERS = tuple((name, row.hints, _parser(name, row)) for name, row in _ROWS.items())
"""(language, hints, parser) of each."""

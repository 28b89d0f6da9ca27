"""Path mapping: from frames in the sandbox to lines of files that were sent to it, and to no others."""

from __future__ import annotations

import functools
import posixpath
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from tidebox.lsp.diagnostics.parsed import ParsedProblem, ProblemKind, TraceFrame
from tidebox.model.launch import WORKSPACE

# Directories of code that is not the user's own, wherever they are.
VENDOR = frozenset(
    {"site-packages", "dist-packages", "node_modules", "vendor", "third_party", ".venv", "venv", ".tox", ".nox"}
)
MAX_RELATED = 20
_FILE_URI = "file://"


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """A line of a file that was sent; ``path`` is relative to the workspace, numbers count from 1."""

    path: str
    line: int
    column: int | None = None


@dataclass(frozen=True, slots=True)
class LocatedProblem:
    """A problem at a line of a file that was sent."""

    place: SourceLocation
    message: str
    warning: bool
    related: tuple[tuple[SourceLocation, str], ...] = ()


class SentFiles:
    """The files that a program was given; ``count_lines`` says how many lines one of them has."""

    def __init__(self, paths: Iterable[str], count_lines: Callable[[str], int]) -> None:
        self._paths = frozenset(paths)
        # A trace may name the same file any number of times.
        self._count_lines = functools.cache(count_lines)
        self._found: dict[TraceFrame, SourceLocation | None] = {}
        self._by_name: dict[str, list[str]] = {}
        for path in self._paths:
            self._by_name.setdefault(posixpath.basename(path), []).append(path)

    def find(self, frame: TraceFrame) -> SourceLocation | None:
        """Where that is; None if it is in no file that was sent."""
        if frame not in self._found:
            self._found[frame] = self._find(frame)
        return self._found[frame]

    def _find(self, frame: TraceFrame) -> SourceLocation | None:
        path = self._path(frame.path)
        if path is None:
            return None
        line = min(max(frame.line, 1), max(self._count_lines(path), 1))
        return SourceLocation(path, line, frame.column if line == frame.line else None)

    def _path(self, named: str) -> str | None:
        path = named
        if named.startswith(_FILE_URI):
            path = unquote(named.removeprefix(_FILE_URI))
            if not path.startswith("/"):
                return None  # on another machine
        path = path.replace("\\", "/")
        absolute = path.startswith("/")
        if absolute:
            if not path.startswith(WORKSPACE + "/"):
                return None
            path = path[len(WORKSPACE) + 1 :]
        path = posixpath.normpath(path)
        if path in self._paths:
            return path
        if absolute:
            return None  # a file that the program made, whatever else is called so
        # Some tools name a file relative to its package.
        matching = [each for each in self._by_name.get(posixpath.basename(path), ()) if each.endswith("/" + path)]
        return matching[0] if len(matching) == 1 else None


def locate_problems(problems: Iterable[ParsedProblem], sent: SentFiles) -> list[LocatedProblem]:
    """Locate problems in the files that were sent; each line and message once."""
    marks: dict[tuple[str, int, str], LocatedProblem] = {}
    for problem in problems:
        found = _locate(problem, sent)
        if found is not None:
            marks.setdefault((found.place.path, found.place.line, found.message), found)
    return list(marks.values())


def elsewhere(problems: Sequence[ParsedProblem]) -> tuple[str, TraceFrame] | None:
    """The message and the place in the box of the first error that has one."""
    for problem in problems:
        if problem.kind is not ProblemKind.WARNING and problem.frames:
            return problem.message, problem.frames[0]
    return None


def _locate(problem: ParsedProblem, sent: SentFiles) -> LocatedProblem | None:
    own = list(_own(problem.frames, sent))
    # An error in a library that the program wrapped may have the program's only place.
    of_causes = [(place, cause) for cause in problem.causes for place, _ in list(_own(cause.frames, sent))[:1]]
    if not own and not of_causes:
        return None
    place = own[0][0] if own else of_causes[0][0]
    related = [(at, f"called by {frame.function}" if frame.function else "called here") for at, frame in own[1:]]
    causes = []
    for cause in problem.causes:
        at = next((each for each, _ in _own(cause.frames, sent)), place)
        causes.append((at, f"caused by {cause.message}"))
    return LocatedProblem(
        place, problem.message, problem.kind is ProblemKind.WARNING, tuple((causes + related)[:MAX_RELATED])
    )


def _own(frames: Iterable[TraceFrame], sent: SentFiles) -> Iterator[tuple[SourceLocation, TraceFrame]]:
    """The places of frames in files that were sent and are the user's own; a recursion has each but once."""
    seen = set()
    for frame in frames:
        if VENDOR.isdisjoint(frame.path.replace("\\", "/").split("/")):
            place = sent.find(frame)
            if place is not None and place not in seen:
                seen.add(place)
                yield place, frame

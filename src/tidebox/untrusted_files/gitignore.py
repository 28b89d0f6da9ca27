"""Which files git would not track: ``.gitignore`` files, each for what lies below it.

Patterns and names are strangers' (a repository is soon cloned): each match takes a bounded time, by ``Glob``, and so do
all of them together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tidebox.errors import InvalidRequest
from tidebox.untrusted_files.globs import Glob, MatchBudget

FILE = ".gitignore"
MAX_BYTES = 64 * 1024
MAX_RULES = 1000
MAX_PATTERN_LENGTH = 512

_ESCAPED = re.compile(r"\\(.)")
_NEGATED_CLASS = re.compile(r"\[\^")
_TRAILING = re.compile(r"(?<!\\) +$")


class Gitignore:
    """The rules of one file; ``base`` is its directory, empty or ending in a slash."""

    def __init__(self, base: str, lines: Iterable[str]) -> None:
        self._base = base
        self._rules: list[tuple[Glob, bool, bool]] = []
        for line in lines:
            if len(self._rules) == MAX_RULES:
                break
            rule = _rule(line)
            if rule is not None:
                self._rules.append(rule)

    def decides(self, path: str, patience: MatchBudget, *, directory: bool) -> bool | None:
        """Whether a path is ignored; None if no rule is about it. The last rule counts."""
        below = path[len(self._base) :]
        for glob, ignored, only_directories in reversed(self._rules):
            if (directory or not only_directories) and patience.matches(glob, below):
                return ignored
            if patience.lost:
                return None
        return None


def ignores(files: Sequence[Gitignore], path: str, patience: MatchBudget, *, directory: bool) -> bool:
    """Whether a path is ignored by the files of the directories it is in, outermost first: the innermost counts."""
    for file in reversed(files):
        decided = file.decides(path, patience, directory=directory)
        if patience.lost:
            raise InvalidRequest(f"the patterns in {FILE} take too long to match", field="files")
        if decided is not None:
            return decided
    return False


def _rule(line: str) -> tuple[Glob, bool, bool] | None:
    pattern = _TRAILING.sub("", line.rstrip("\r\n"))
    if not pattern or pattern.startswith("#") or len(pattern) > MAX_PATTERN_LENGTH:
        return None
    ignored = not pattern.startswith("!")
    pattern = pattern if ignored else pattern[1:]
    only_directories = pattern.endswith("/")
    pattern = pattern.rstrip("/")
    if not pattern:
        return None
    # A slash anywhere but at the end ties a pattern to the directory of its file.
    anchored = "/" in pattern
    pattern = pattern.removeprefix("/")
    # "\#" is a "#", "\*" a star and nothing else; "[^a]" is what a Glob writes "[!a]".
    pattern = _ESCAPED.sub(lambda found: f"[{found[1]}]" if found[1] in "*?[" else found[1], pattern)
    pattern = _NEGATED_CLASS.sub("[!", pattern)
    return Glob(pattern if anchored else f"**/{pattern}"), ignored, only_directories

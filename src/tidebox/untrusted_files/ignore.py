"""Which files of an upload are left out: patterns as in a ``.dockerignore``.

Each line is a pattern relative to the root of the upload; it matches a file, or a directory with all that lies below
it. ``!`` takes back, the last line that matches counts, ``#`` begins a comment.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidebox.errors import InvalidRequest
from tidebox.untrusted_files.globs import Glob, MatchBudget

FILE = ".dockerignore"
ALWAYS = ("**/.git", "**/.hg", "**/.svn")
"""Histories are large, useless to a program that runs once, and known to hold credentials."""

MAX_PATTERNS = 200
MAX_PATTERN_LENGTH = 512
MAX_FILE_BYTES = 64 * 1024
_SECONDS = 2.0


class Ignore:
    """Patterns in the order in which they count."""

    def __init__(self, lines: Iterable[str] = ALWAYS) -> None:
        self._rules: list[tuple[Glob, bool]] = []
        self._directories: dict[str, bool] = {}
        self._patience = MatchBudget(_SECONDS)
        self.extend(lines)

    def extend(self, lines: Iterable[str]) -> None:
        """Add lines, which count after those there are."""
        for line in lines:
            pattern = line.strip()
            if not pattern or pattern.startswith("#"):
                continue
            taken_back = pattern.startswith("!")
            pattern = pattern.lstrip("!").strip().strip("/")
            if not pattern:
                continue
            if len(self._rules) >= MAX_PATTERNS or len(pattern) > MAX_PATTERN_LENGTH:
                raise InvalidRequest(
                    f"more than {MAX_PATTERNS} patterns of files to leave out, or one of more than "
                    f"{MAX_PATTERN_LENGTH} characters",
                    field="ignore",
                )
            self._rules.append((Glob(pattern), not taken_back))
        self._directories.clear()

    def leaves_out(self, path: str) -> bool:
        """Whether the file or directory at ``path`` is not wanted."""
        parent = path.rpartition("/")[0]
        left_out = self._of_directory(parent) if parent else False
        for glob, ignored in self._rules:
            if ignored != left_out and self._patience.matches(glob, path):
                left_out = ignored
        if self._patience.lost:
            raise InvalidRequest("the patterns of files to leave out take too long to match", field="ignore")
        return left_out

    def _of_directory(self, path: str) -> bool:
        known = self._directories.get(path)
        if known is None:
            known = self._directories[path] = self.leaves_out(path)
        return known

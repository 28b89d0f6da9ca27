"""The place (file and line) of a compile error in a program's code, as its compiler says."""

from __future__ import annotations

import re

from tidebox.model.launch import WORKSPACE

# A compiler says the first thing first, and its lines are the program's to shape.
_MOST_BYTES = 64 * 1024
_MOST_LINES = 500
_LONGEST_LINE = 1000
_MOST_NAME = 200


class Diagnostics:
    """Takes in what a compiler prints."""

    def __init__(self, pattern: str) -> None:
        """``pattern`` is that of a line that tells of a place, with groups ``file`` and ``line``; empty for none."""
        self._pattern = pattern
        self._kept = b""

    def add(self, data: bytes) -> None:
        """Take in more; only the beginning is kept."""
        if self._pattern and len(self._kept) < _MOST_BYTES:
            self._kept += data[: _MOST_BYTES - len(self._kept)]

    def first_place(self) -> str | None:
        """The first place that it tells of, as ``main.c:3``; nothing of the code itself."""
        if not self._pattern:
            return None
        pattern = re.compile(self._pattern)
        for line in self._kept.decode("utf-8", "replace").splitlines()[:_MOST_LINES]:
            if found := pattern.search(line[:_LONGEST_LINE]):
                name = found["file"].removeprefix(WORKSPACE + "/").removeprefix("./")
                return f"{name[:_MOST_NAME]}:{found['line']}" if name.isprintable() else None
        return None

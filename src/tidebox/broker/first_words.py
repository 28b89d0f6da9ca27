"""Whether a command was ever executed.

A parked process that cannot become the command says so as a shell does: one line on standard error, exit code 127 or
126. The command itself can be told from that only by what it writes, so the beginning of the output is looked at.
"""

from __future__ import annotations

import errno
import os

from tidebox.model.launch import Launch

_NOT_FOUND = 127
_NOT_EXECUTABLE = 126
_REASONS = frozenset(os.strerror(number) for number in errno.errorcode)
_LONGEST_REASON = max(map(len, _REASONS))


class FirstWords:
    """The beginning of what a run wrote, where it says whether its command could be executed."""

    def __init__(self, launch: Launch) -> None:
        self._name = launch.command[0] if launch.program.mode == "exec" else None
        self._room = 0 if self._name is None else len(self._name.encode("utf-8", "surrogateescape")) + _LONGEST_REASON
        self._words = b""

    def note(self, data: bytes) -> None:
        """Something was written."""
        if self._name is not None:
            # One more than there is room for tells that this was not all.
            self._words += data[: self._room + 4 - len(self._words)]

    def failure(self, exit_code: int | None) -> str | None:
        """Why the command could not be executed; None if it was."""
        if self._name is None or exit_code not in (_NOT_FOUND, _NOT_EXECUTABLE):
            return None
        text = self._words.decode("utf-8", "surrogateescape")
        name, _, reason = text.rpartition(": ")
        if name != self._name or not reason.endswith("\n") or reason[:-1] not in _REASONS:
            return None
        return f"the command could not be executed: {reason[:-1]}"

"""Log frames: numbered entries of a run log, as they are stored and read."""

from __future__ import annotations

from dataclasses import dataclass

from tidebox.model.events import OutputEvent
from tidebox.model.log import LogEntry

# What an entry costs besides the bytes of its output, about.
_ENTRY_BYTES = 256


@dataclass(frozen=True, slots=True)
class LogFrame:
    """An entry with its number, which is one more than that of the entry before."""

    seq: int
    entry: LogEntry

    @property
    def end(self) -> int:
        """Position in the log: its number."""
        return self.seq

    @property
    def size(self) -> int:
        """About how much memory it takes."""
        return _ENTRY_BYTES + (len(self.entry.data) if isinstance(self.entry, OutputEvent) else 0)


@dataclass(frozen=True, slots=True)
class Gap:
    """The log goes on with the number ``delivered``, not with ``requested``."""

    requested: int
    delivered: int
    first: int = 1
    """The first number that the log has used here: those before have no entry that could be missing."""

    @property
    def lost(self) -> int:
        """Number of lost entries."""
        return self.delivered - min(max(self.requested, self.first), self.delivered)

"""The contract of stores for run logs. ``log_files`` is the local disk."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import NamedTuple

from tidebox.broker.storage.log_frames import LogFrame


class KeptLog(NamedTuple):
    """The log of a run that is kept."""

    run_id: str
    modified: float
    size: int


class Extent(NamedTuple):
    """The position of the output of one entry in a stored log."""

    stream: str
    offset: int
    length: int


class LogSink(abc.ABC):
    """The log of a run that goes on, on its way to where it is kept."""

    @abc.abstractmethod
    def append(self, frame: LogFrame) -> None:
        """Write an entry soon."""

    @abc.abstractmethod
    def hurry(self) -> None:
        """Begin to write what was appended so far."""

    @abc.abstractmethod
    async def flush(self) -> None:
        """Wait until what was appended so far is written, as far as there is room for it."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Write the rest, and append no more."""


class StoredLog(abc.ABC):
    """A log that is read; it must be closed."""

    @abc.abstractmethod
    async def read_from(self, seq: int, size: int) -> list[LogFrame]:
        """The entries from ``seq`` on, about ``size`` bytes of them; successive calls must not go back."""

    @abc.abstractmethod
    async def last_seq(self) -> int:
        """The number of the last whole entry."""

    @abc.abstractmethod
    async def extents(self, stream: str | None = None, seq: int = 0) -> list[Extent]:
        """Return the extents of output, of one stream or of both, from an entry on, in the order written."""

    @abc.abstractmethod
    async def read(self, pieces: Sequence[tuple[int, int]]) -> bytes:
        """The bytes of some places, each an offset and a length."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Let go of it."""


class LogStore(abc.ABC):
    """The logs of all runs."""

    @abc.abstractmethod
    def new(self, run_id: str) -> LogSink:
        """The log of a run that begins."""

    @abc.abstractmethod
    async def resume(self, run_id: str) -> tuple[LogSink, int]:
        """The log of a run that an earlier server began, and the number of its last entry; 0 where there is none."""

    @abc.abstractmethod
    async def open(self, run_id: str) -> StoredLog | None:
        """The log of a run as far as it is written, if there is one."""

    @abc.abstractmethod
    async def kept(self) -> list[KeptLog]:
        """Every log there is, those first that were written last."""

    @abc.abstractmethod
    async def remove(self, run_id: str) -> None:
        """Remove the log of a run."""

    @abc.abstractmethod
    def close(self) -> None:
        """Let go of everything when what is under way is done."""

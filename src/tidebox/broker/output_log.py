"""Output at numbered positions, the newest of it kept, for any number of readers.

An entry covers the positions from the end of the one before it up to its own end: one for each entry in the log of a
run, one for each byte in the output of a process. A reader is a position: it costs the log nothing, and nothing is
taken from it when others read. Where the oldest entry kept is after a reader's position, the reader has missed what is
between the two.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from typing import Generic, Protocol, TypeVar


class Changes:
    """Lets tasks wait until something has changed."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], None] = {}

    @property
    def awaited(self) -> bool:
        """Whether a task waits."""
        return bool(self._waiting)

    async def wait(self, seconds: float | None = None) -> bool:
        """Wait for a change; False if none came in time."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = None
        try:
            if seconds is None:
                await waiter
            else:
                await asyncio.wait((waiter,), timeout=seconds)
            return waiter.done()
        finally:
            self._waiting.pop(waiter, None)

    def wake(self) -> None:
        """Let every task that waits look again."""
        if self._waiting:
            waiting, self._waiting = self._waiting, {}
            for waiter in waiting:
                if not waiter.done():
                    waiter.set_result(None)


class OutputEntry(Protocol):
    """A piece of output with its end position and size."""

    @property
    def end(self) -> int:
        """The position behind it."""

    @property
    def size(self) -> int:
        """About how many bytes of memory it takes."""


_E = TypeVar("_E", bound=OutputEntry)


class OutputLog(Generic[_E]):
    """Entries in their order, the newest within a number of bytes."""

    def __init__(self, max_bytes: int, start: int = 0) -> None:
        self.start = start
        """The position of the oldest entry kept, or of the next one."""
        self.stop = start
        """The position of the next entry."""
        self.size = 0
        self.over = False
        """Whether nothing more will come."""
        self.changes = Changes()
        self._max_bytes = max_bytes
        self._entries: dict[int, _E] = {}
        self._oldest = 0

    def append(self, entry: _E, unread: int | None = None) -> None:
        """Add an entry, and drop the oldest beyond the bound; but none that ends after ``unread``."""
        self._entries[self._oldest + len(self._entries)] = entry
        self.size += entry.size
        self.stop = entry.end
        self.trim(unread)
        self.changes.wake()

    def last(self) -> _E | None:
        """The newest entry, if it is kept."""
        return self._entries.get(self._oldest + len(self._entries) - 1)

    def extend_last(self, entry: _E, unread: int | None = None) -> None:
        """Put an entry in the place of the newest one, which it begins with."""
        number = self._oldest + len(self._entries) - 1
        self.size -= self._entries.pop(number).size
        self.append(entry, unread)

    def trim(self, unread: int | None = None) -> None:
        """Drop the oldest entries beyond the bound, but none that ends after ``unread``."""
        while self.size > self._max_bytes:
            oldest = self._entries[self._oldest]
            if unread is not None and oldest.end > unread:
                return
            del self._entries[self._oldest]
            self._oldest += 1
            self.size -= oldest.size
            self.start = oldest.end

    def finish(self) -> None:
        """Let readers know that nothing more will come."""
        self.over = True
        self.changes.wake()

    def read(self, position: int, max_bytes: int) -> list[_E]:
        """The entries that end after ``position``: about so many bytes, and at least one if there is any."""
        numbers = range(self._oldest, self._oldest + len(self._entries))
        found: list[_E] = []
        for number in numbers[bisect_right(numbers, position, key=lambda number: self._entries[number].end) :]:
            found.append(self._entries[number])
            max_bytes -= found[-1].size
            if max_bytes <= 0:
                break
        return found

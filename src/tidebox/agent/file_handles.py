"""File handles: the files and directories that relay clients have open, limited per client."""

from __future__ import annotations

import os

from tidebox.wire.ids import slot_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

MAX_HANDLES_PER_CLIENT = 1024


class HandleError(Exception):
    """A handle that the client does not have, or may not have."""


class Handle:
    """An open file, or an open directory and how far it was listed."""

    __slots__ = ("fd", "path", "listing")

    def __init__(self, fd: int, path: bytes) -> None:
        self.fd = fd
        self.path = path
        self.listing: Iterator[os.DirEntry[str]] | None = None

    def close(self) -> None:
        """Give the descriptor back; transfers that use the handle fail."""
        listing: Any = self.listing
        if listing is not None:
            listing.close()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Handles:
    """The handles of all clients, each its own."""

    def __init__(self) -> None:
        self._next = 1
        self._clients: dict[int, dict[int, Handle]] = {}

    def check_room(self, id: int) -> None:
        """HandleError when the client of that id has no handle left."""
        if len(self._clients.get(slot_of(id), ())) >= MAX_HANDLES_PER_CLIENT:
            raise HandleError(f"too many open handles (max {MAX_HANDLES_PER_CLIENT})")

    def add(self, id: int, handle: Handle) -> int:
        """The number of a new handle."""
        number = self._next
        self._next += 1
        self._clients.setdefault(slot_of(id), {})[number] = handle
        return number

    def get(self, id: int, number: int) -> Handle:
        """The client's handle of that number."""
        handle = self._clients.get(slot_of(id), {}).get(number)
        if handle is not None:
            return handle
        if any(number in handles for handles in self._clients.values()):
            raise HandleError(f"handle {number} is owned by a different relay client")
        raise HandleError(f"unknown handle: {number}")

    def close(self, id: int, number: int) -> None:
        """Close one handle."""
        self.get(id, number).close()
        del self._clients[slot_of(id)][number]

    def disconnected(self, first: int, end: int) -> None:
        """Close the handles of every client whose ids are in the range."""
        for slot in [slot for slot in self._clients if slot_of(max(first, 1)) <= slot <= slot_of(max(end - 1, 1))]:
            for handle in self._clients.pop(slot).values():
                handle.close()

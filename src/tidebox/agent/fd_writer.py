"""Buffered non-blocking writes to a descriptor: a program's stdin, a TCP connection."""

from __future__ import annotations

import os
from _collections import deque  # type: ignore[import-not-found]

from tidebox.agent.loop import WRITE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from tidebox.agent.loop import Loop
    from tidebox.wire.cbor import Buffer

# Small messages are joined up to this size, so that a queue of single bytes costs what it holds and not an object each.
_CHUNK_BYTES = 65_536


class FdWriter:
    """Writes at once what the descriptor takes, queues the rest, and closes the descriptor when told and empty.

    ``on_taken(count)`` is told what left the queue, ``on_error(error)`` once when the descriptor takes no more.
    """

    def __init__(
        self, loop: Loop, fd: int, on_taken: Callable[[int], None], on_error: Callable[[OSError], None]
    ) -> None:
        self._loop = loop
        self._fd = fd
        self._on_taken = on_taken
        self._on_error = on_error
        self._queue: deque[bytearray] = deque()
        self._offset = 0
        self._ending: Callable[[], None] | None = None
        self.size = 0

    @property
    def closed(self) -> bool:
        """Whether the descriptor was closed: nothing can be written any more."""
        return self._fd < 0

    def put(self, data: Buffer) -> None:
        """Write the bytes now, or queue what the descriptor does not take."""
        view = memoryview(data)
        if not self._queue:
            count = self._write(view)
            if count:
                self._on_taken(count)
            view = view[count:]
        if not view or self._fd < 0:
            return
        if not self._queue:
            self._loop.watch(self._fd, WRITE, self._on_writable)
        if self._queue and len(self._queue[-1]) < _CHUNK_BYTES:
            self._queue[-1] += view
        else:
            self._queue.append(bytearray(view))
        self.size += len(view)

    def finish(self, then: Callable[[], None]) -> None:
        """Call ``then`` once everything is written; nothing more will be put in."""
        if self._queue:
            self._ending = then
        else:
            then()

    def close(self) -> None:
        """Drop the queue and close the descriptor."""
        if self._fd < 0:
            return
        self._loop.forget(self._fd)
        os.close(self._fd)
        self._fd = -1
        self._queue.clear()
        self.size = 0

    def _write(self, view: memoryview) -> int:
        try:
            count = os.write(self._fd, view)
        except BlockingIOError:
            return 0
        except OSError as error:
            self.close()
            self._on_error(error)
            return 0
        return count

    def _on_writable(self, _events: int) -> None:
        while self._queue:
            with memoryview(self._queue[0]) as chunk, chunk[self._offset :] as rest:
                count = self._write(rest)
                left = len(rest) - count
            if not count:
                return
            self.size -= count
            self._offset += count
            if not left:
                self._queue.popleft()
                self._offset = 0
            self._on_taken(count)
            if left or self._fd < 0:
                return
        self._loop.forget(self._fd)
        if self._ending is not None:
            self._ending()

"""The descriptors of all boxes, watched as one by the event loop.

A run has four that are watched for a few milliseconds each. The loop takes several system calls and a handle of its own
for every one of them; the kernel's own set takes one call.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable

_MOST_AT_ONCE = 64


class Descriptors:
    """Calls the watcher of a descriptor while there is something to read from it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._first: set[int] = set()
        self._loop.add_reader(self._epoll.fileno(), self._on_readable)

    def watch(self, fd: int, callback: Callable[[], None], *, first: bool = False) -> None:
        """Begin; ``first`` is called before the others that are found ready at the same time."""
        self._epoll.register(fd, select.EPOLLIN)
        self._callbacks[fd] = callback
        if first:
            self._first.add(fd)

    def forget(self, fd: int) -> None:
        """End, if it was begun: always before the descriptor is closed."""
        if self._callbacks.pop(fd, None) is not None:
            self._epoll.unregister(fd)
            self._first.discard(fd)

    def _on_readable(self) -> None:
        ready = [(fd, self._callbacks.get(fd)) for fd, _ in self._epoll.poll(0, _MOST_AT_ONCE)]
        if len(ready) > 1:
            ready.sort(key=lambda item: item[0] not in self._first)
        for fd, callback in ready:
            # Another of the same round may have closed it, and the number may be another file's by now.
            if callback is not None and self._callbacks.get(fd) is callback:
                callback()

    def close(self) -> None:
        """Stop watching all descriptors; ``forget`` may still be called for them."""
        self._callbacks.clear()
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()

"""Orphan output: pipes that outlive their exec, because a background process holds them open."""

from __future__ import annotations

import os
from _collections import deque  # type: ignore[import-not-found]

from tidebox.agent.loop import READ

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tidebox.agent.loop import Loop

# When one more comes, the oldest is closed.
MAX_LEFTOVERS = 128
_READ_BYTES = 256 * 1024
# Pause between two reads of one output, so that a flood in the background does not cost the agent's time.
_PAUSE_SECONDS = 0.01


class OrphanOutput:
    """Reads and discards orphan output, so that a background process is not killed by SIGPIPE or blocked."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._fds: deque[int] = deque()

    def add(self, fd: int) -> None:
        """Take over a descriptor: read and discard until it ends."""
        if len(self._fds) >= MAX_LEFTOVERS:
            self._close(self._fds[0])
        self._fds.append(fd)
        self._watch(fd)

    def _watch(self, fd: int) -> None:
        self._loop.watch(fd, READ, lambda _events: self._swallow(fd))

    def _swallow(self, fd: int) -> None:
        try:
            ended = not os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            ended = True
        if ended:
            self._close(fd)
            return
        self._loop.forget(fd)
        self._loop.later(_PAUSE_SECONDS, lambda: self._resume(fd))

    def _resume(self, fd: int) -> None:
        # Closed meanwhile, its number may belong to somebody else, or to a newer leftover that is watched already.
        if fd in self._fds:
            self._loop.forget(fd)
            self._watch(fd)

    def _close(self, fd: int) -> None:
        self._loop.forget(fd)
        self._fds.remove(fd)
        os.close(fd)

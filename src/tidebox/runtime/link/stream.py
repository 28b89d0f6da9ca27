"""A connected socket on the running loop, without asyncio's transports: nothing is waited for when it is opened."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tidebox.wire.cbor import Buffer

# Unsent bytes above which the owner is asked to wait, and below which it may go on.
HIGH_WATER = 1 << 20
LOW_WATER = HIGH_WATER // 4


class StreamReceiver(Protocol):
    """Receiver of a stream's data and of the events in its life."""

    def get_buffer(self) -> memoryview:
        """Return the buffer to receive into next."""

    def received(self, count: int) -> None:
        """Take ``count`` bytes that were received into the buffer."""

    def disconnected(self) -> None:
        """The peer is gone, or ``abort`` was called; nothing follows."""

    def pause_writing(self) -> None:
        """The peer reads slower than we write."""

    def resume_writing(self) -> None:
        """It has caught up."""


class Stream(Protocol):
    """A connection as its owner sees it."""

    def write(self, data: Buffer) -> None:
        """Send, in order; what is not sent at once must not be changed by its owner."""

    def pause_reading(self) -> None:
        """Receive nothing until ``resume_reading``."""

    def resume_reading(self) -> None:
        """Receive again."""

    def abort(self) -> None:
        """Close now; what is unsent is dropped."""


Connect = Callable[[StreamReceiver], Stream]
"""Makes the stream of an owner out of a connection that is there."""


class SocketStream:
    """Sends at once what the socket takes and the rest when it can; owns the socket."""

    def __init__(self, sock: socket.socket, owner: StreamReceiver) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._fd = sock.fileno()
        self._owner = owner
        self._unsent: deque[memoryview] = deque()
        self._unsent_size = 0
        self._paused = False
        self._open = True
        sock.setblocking(False)
        self._loop.add_reader(self._fd, self._on_readable)

    def write(self, data: Buffer) -> None:
        """Send, in order; what is not sent at once must not be changed by its owner."""
        if not self._open:
            return
        view = memoryview(data)
        if not self._unsent:
            view = view[self._send(view) :]
            if not view or not self._open:
                return
            self._loop.add_writer(self._fd, self._on_writable)
        self._unsent.append(view)
        self._unsent_size += len(view)
        if self._unsent_size > HIGH_WATER and not self._paused:
            self._paused = True
            self._owner.pause_writing()

    def pause_reading(self) -> None:
        """Receive nothing until ``resume_reading``."""
        if self._open:
            self._loop.remove_reader(self._fd)

    def resume_reading(self) -> None:
        """Receive again."""
        if self._open:
            self._loop.add_reader(self._fd, self._on_readable)

    def abort(self) -> None:
        """Close now; what is unsent is dropped."""
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._sock.close()
        self._unsent.clear()
        self._loop.call_soon(self._owner.disconnected)

    def _send(self, view: memoryview) -> int:
        try:
            return self._sock.send(view)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            self.abort()
            return 0

    def _on_readable(self) -> None:
        try:
            count = self._sock.recv_into(self._owner.get_buffer())
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            count = 0
        if count:
            self._owner.received(count)
        else:
            self.abort()

    def _on_writable(self) -> None:
        while self._unsent:
            view = self._unsent[0]
            count = self._send(view)
            if not self._open:
                return
            self._unsent_size -= count
            if count < len(view):
                self._unsent[0] = view[count:]
                break
            self._unsent.popleft()
        else:
            self._loop.remove_writer(self._fd)
        if self._paused and self._unsent_size < LOW_WATER:
            self._paused = False
            self._owner.resume_writing()

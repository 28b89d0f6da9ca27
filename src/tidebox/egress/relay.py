"""Copies bytes between two sockets, both ways, until both are at their end.

What one side sends is read only when the other has taken what came before: so little waits here, and a side that does
not read holds back the other, as it would without anybody between them.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

_CHUNK, _LARGE_CHUNK, _SMALL_CHUNK = 1 << 16, 1 << 18, 1 << 12
_MOST_HELD = 256 << 20
"""Bytes that all relays may hold, before each takes only little at a time."""
_buffer = bytearray(_LARGE_CHUNK)
_view = memoryview(_buffer)
_held = 0

Count = Callable[[int, bool], float]
"""Counts bytes, and whether the box sent them; returns the seconds to wait, or raises ``ConnectionStopped``."""
Scan = Callable[[memoryview], None]
"""Shown what a box sends; raises ``ConnectionStopped``."""


class ConnectionStopped(Exception):
    """The connection must not go on."""


class _Way:
    """One direction."""

    __slots__ = ("source", "target", "outbound", "rest", "chunk", "over", "resume")

    def __init__(self, source: socket.socket, target: socket.socket, outbound: bool) -> None:
        self.source = source
        self.target = target
        self.outbound = outbound
        self.rest = b""
        self.chunk = _CHUNK
        self.over = False
        self.resume: asyncio.TimerHandle | None = None


class ByteRelay:
    """One connection of a box, and the one that was dialled for it."""

    def __init__(
        self,
        client: socket.socket,
        upstream: socket.socket,
        count: Count,
        on_over: Callable[[ConnectionStopped | None], None],
    ) -> None:
        """``on_over`` is called once, when no byte will go by any more; the sockets are the caller's to close."""
        self._loop = asyncio.get_running_loop()
        self._count = count
        self._on_over = on_over
        self._scan: Scan | None = None
        self._out = _Way(client, upstream, True)
        self._in = _Way(upstream, client, False)
        self._over = False
        self.last = self._loop.time()
        """When a byte went by."""

    def answer(self) -> None:
        """Begin to copy what the server sends."""
        self._read_on(self._in)

    def ask(self, scan: Scan | None = None) -> None:
        """Begin to copy what the program sends, of which there is something as a rule."""
        self._scan = scan
        self._read_on(self._out)
        self._on_readable(self._out)

    def close(self) -> None:
        """Copy nothing any more."""
        global _held
        self._over = True
        for way in (self._out, self._in):
            _held -= len(way.rest)
            way.rest = b""
            self._loop.remove_reader(way.source)
            self._loop.remove_writer(way.target)
            if way.resume is not None:
                way.resume.cancel()

    def _end(self, stop: ConnectionStopped | None) -> None:
        if not self._over:
            self.close()
            self._on_over(stop)

    def _read_on(self, way: _Way) -> None:
        way.resume = None
        self._loop.add_reader(way.source, self._on_readable, way)

    def _on_readable(self, way: _Way) -> None:
        global _held
        room = way.chunk if _held < _MOST_HELD else _SMALL_CHUNK
        try:
            size = way.source.recv_into(_view[:room])
        except BlockingIOError:
            return
        except OSError:
            return self._end(None)
        if not size:
            return self._finish(way)
        self.last = self._loop.time()
        data = _view[:size]
        try:
            if way.outbound and self._scan is not None:
                self._scan(data)
            pause = self._count(size, way.outbound)
        except ConnectionStopped as stop:
            return self._end(stop)
        try:
            sent = way.target.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            return self._end(None)
        if sent < size:
            way.chunk = max(way.chunk >> 1, _SMALL_CHUNK)
            way.rest = bytes(data[sent:])
            _held += len(way.rest)
            self._loop.remove_reader(way.source)
            self._loop.add_writer(way.target, self._on_writable, way)
        elif size == way.chunk and way.chunk < _LARGE_CHUNK:
            way.chunk <<= 1
        if pause > 0 and not way.rest:
            self._loop.remove_reader(way.source)
            way.resume = self._loop.call_later(pause, self._read_on, way)

    def _on_writable(self, way: _Way) -> None:
        global _held
        try:
            sent = way.target.send(way.rest)
        except BlockingIOError:
            return
        except OSError:
            return self._end(None)
        _held -= sent
        way.rest = way.rest[sent:]
        self.last = self._loop.time()
        if not way.rest:
            self._loop.remove_writer(way.target)
            self._read_on(way)

    def _finish(self, way: _Way) -> None:
        """One side has said all; the other may not have."""
        way.over = True
        self._loop.remove_reader(way.source)
        if self._out.over and self._in.over:
            return self._end(None)
        try:
            way.target.shutdown(socket.SHUT_WR)
        except OSError:
            self._end(None)


def held() -> int:
    """Return the bytes that all relays hold, waiting to be sent on."""
    return _held

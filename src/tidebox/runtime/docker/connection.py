"""One connection to an engine: a request and its answer, or what the connection is turned into."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, cast

from tidebox.errors import AgentProtocolError
from tidebox.runtime.docker.endpoint import Endpoint
from tidebox.runtime.link.stream import HIGH_WATER, StreamReceiver

if TYPE_CHECKING:
    from tidebox.wire.cbor import Buffer

# What an answer may hold besides its body, and what is read ahead of it.
MOST_HEAD = 65_536
_MOST_UNREAD = 1 << 20
# Before the payload of every piece: which stream, and how long.
_FRAME_HEADER = 8
_STDOUT, _STDERR = 1, 2
_MOST_FRAME = 1 << 26
_LAST_WORDS = 4096


class Lost(Exception):
    """The connection ended before the answer did."""


class Malformed(Exception):
    """The answer is no HTTP."""


class Connection(asyncio.Protocol):
    """Bytes as they come, until something else takes the connection over."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._ended = False
        self._paused = False
        self._waiter: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, endpoint: Endpoint) -> Connection:
        """Connect; raises OSError."""
        loop = asyncio.get_running_loop()
        connection = cls()
        if endpoint.path is None:
            await loop.create_connection(lambda: connection, endpoint.host, endpoint.port, ssl=endpoint.tls)
        elif endpoint.name.startswith("npipe:"):
            # Only the loop of Windows has it.
            await loop.create_pipe_connection(lambda: connection, endpoint.path)  # type: ignore[attr-defined]
        else:
            await loop.create_unix_connection(lambda: connection, endpoint.path)
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) > _MOST_UNREAD and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self._ended = True
        self._wake()

    def connection_lost(self, _error: Exception | None) -> None:
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _more(self) -> None:
        """Wait until there are more bytes; raises ``Lost`` where none will come."""
        if self._ended:
            raise Lost
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def write(self, data: bytes) -> None:
        """Send, in order."""
        assert self._transport is not None
        self._transport.write(data)

    async def line(self) -> bytes:
        """A line, without its end."""
        while (end := self._buffer.find(b"\r\n")) < 0:
            if len(self._buffer) > MOST_HEAD:
                raise Malformed("a line without end")
            await self._more()
        found = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return found

    async def exactly(self, count: int) -> AsyncIterator[bytes]:
        """Yield exactly ``count`` bytes, in pieces."""
        if count < 0:
            raise Malformed("a length below nothing")
        while count:
            if not self._buffer:
                await self._more()
                continue
            piece = bytes(self._buffer[:count])
            del self._buffer[: len(piece)]
            count -= len(piece)
            yield piece

    async def rest(self) -> AsyncIterator[bytes]:
        """Everything until the end of the connection."""
        while True:
            if self._buffer:
                piece = bytes(self._buffer)
                self._buffer.clear()
                yield piece
            try:
                await self._more()
            except Lost:
                return

    def close(self) -> None:
        """Drop the connection."""
        if self._transport is not None:
            self._transport.abort()

    def hand_over(self, owner: StreamReceiver) -> AttachedStream:
        """Turn it into the streams of a container."""
        assert self._transport is not None
        stream = AttachedStream(self._transport, owner)
        self._transport.set_protocol(stream)
        if self._paused:
            self._transport.resume_reading()
        if self._buffer:
            stream.data_received(bytes(self._buffer))
        if self._ended:
            stream.connection_lost(None)
        return stream


class AttachedStream(asyncio.Protocol):
    """Standard input and output of a container as one stream; the end of its standard error is kept."""

    def __init__(self, transport: asyncio.Transport, owner: StreamReceiver) -> None:
        self._transport = transport
        self._owner = owner
        self._open = True
        self._header = bytearray()
        self._left = 0
        self._kind = 0
        self.last_words = b""
        transport.set_write_buffer_limits(high=HIGH_WATER)

    # What its owner calls.

    def write(self, data: Buffer) -> None:
        """Send, in order."""
        if self._open:
            self._transport.write(data)

    def pause_reading(self) -> None:
        """Receive nothing until ``resume_reading``."""
        if self._open:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Receive again."""
        if self._open:
            self._transport.resume_reading()

    def abort(self) -> None:
        """Close now; what is unsent is dropped."""
        if self._open:
            self._open = False
            self._transport.abort()
            asyncio.get_running_loop().call_soon(self._owner.disconnected)

    # What the transport calls.

    def data_received(self, data: bytes) -> None:
        view = memoryview(data)
        while view and self._open:
            if not self._left:
                wanted = _FRAME_HEADER - len(self._header)
                self._header += view[:wanted]
                view = view[wanted:]
                if len(self._header) == _FRAME_HEADER:
                    self._kind = self._header[0]
                    self._left = int.from_bytes(self._header[4:], "big")
                    self._header.clear()
                    if self._left > _MOST_FRAME:
                        self.abort()
                continue
            payload = view[: self._left]
            view = view[len(payload) :]
            self._left -= len(payload)
            if self._kind == _STDOUT:
                self._deliver(payload)
            elif self._kind == _STDERR:
                self.last_words = (self.last_words + bytes(payload))[-_LAST_WORDS:]

    def _deliver(self, payload: memoryview) -> None:
        while payload and self._open:
            buffer = self._owner.get_buffer()
            count = min(len(buffer), len(payload))
            buffer[:count] = payload[:count]
            payload = payload[count:]
            try:
                self._owner.received(count)
            except AgentProtocolError:
                self.abort()

    def eof_received(self) -> None:
        self.abort()

    def connection_lost(self, _error: Exception | None) -> None:
        self.abort()

    def pause_writing(self) -> None:
        self._owner.pause_writing()

    def resume_writing(self) -> None:
        self._owner.resume_writing()

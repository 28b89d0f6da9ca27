"""The send queue of one client's connection.

Producers put frames here and go on; a task hands them to the transport, and waits while the client does not read.
Output that is put faster than it leaves is merged into longer frames instead of more. The queue is bounded because
producers wait while it is ``full``.
"""

from __future__ import annotations

import asyncio
from collections import deque

from tidebox.api.asgi import Send
from tidebox.api.fathom import answers
from tidebox.broker.output_log import Changes
from tidebox.model.events import StreamName

# Of a program's bytes in one frame; as JSON they may be six times as long.
MAX_DATA_BYTES = 65_536
# A program that writes byte by byte must not cost a string for each of them.
_MAX_PARTS = 256
# Frames are handed over with leave to write them together with the next, until they are this long: a write costs more
# than everything else that is done for a short frame.
MORE = "more"
WRITE_CHARACTERS = 65_536
# Beside the bound on the number of frames, which may be long ones.
_MAX_BYTES = 1 << 20


class _PendingOutput:
    """Output of one stream that waits to be sent."""

    __slots__ = ("id", "stream", "parts", "size")

    def __init__(self, id: str, stream: StreamName, text: str, size: int) -> None:
        self.id = id
        self.stream = stream
        self.parts = [text]
        self.size = size

    def add(self, text: str, size: int) -> None:
        self.parts.append(text)
        self.size += size
        if len(self.parts) >= _MAX_PARTS:
            self.parts = ["".join(self.parts)]

    def frame(self) -> str:
        return answers.output(self.id, self.stream, self.parts[0] if len(self.parts) == 1 else "".join(self.parts))


class FathomOutbox:
    """The outgoing side of one connection."""

    __slots__ = ("closed", "_send", "_max_frames", "_queue", "_size", "_writer", "_idle", "_changes")

    def __init__(self, send: Send, max_frames: int) -> None:
        self.closed = False
        self._send = send
        self._max_frames = max_frames
        self._queue: deque[str | _PendingOutput] = deque()
        self._size = 0
        self._writer: asyncio.Task[None] | None = None
        self._idle: asyncio.Future[None] | None = None
        self._changes = Changes()

    @property
    def full(self) -> bool:
        """Whether producers should wait."""
        return self._size >= _MAX_BYTES or len(self._queue) >= self._max_frames

    @property
    def flooded(self) -> bool:
        """Whether even answers should wait."""
        return len(self._queue) >= 2 * self._max_frames

    def put(self, frame: str) -> None:
        """Send a frame after those before it; dropped when nobody is there any more."""
        if self.closed:
            return
        self._queue.append(frame)
        self._size += len(frame)
        self._wake_writer()

    def put_output(self, id: str, stream: StreamName, text: str, size: int) -> None:
        """Send ``size`` bytes of output, together with what still waits of the same stream if nothing came between."""
        if self.closed:
            return
        self._size += size
        last = self._queue[-1] if self._queue else None
        if (
            isinstance(last, _PendingOutput)
            and last.id == id
            and last.stream == stream
            and last.size + size <= MAX_DATA_BYTES
        ):
            last.add(text, size)
            return
        self._queue.append(_PendingOutput(id, stream, text, size))
        self._wake_writer()

    def close(self) -> None:
        """Drop all frames of a client that is gone, and wake every waiter."""
        self.closed = True
        self._queue.clear()
        self._size = 0
        self.wake()
        self._wake_writer()

    async def changed(self, seconds: float | None = None) -> None:
        """Wait until something left, the client is gone, ``wake`` is called or the time is over."""
        await self._changes.wait(seconds)

    def wake(self) -> None:
        """Wake every waiter."""
        self._changes.wake()

    def _wake_writer(self) -> None:
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
        elif self._writer is None and not self.closed:
            self._writer = asyncio.get_running_loop().create_task(self._write(), name="fathom-writer")

    async def _write(self) -> None:
        held_back = 0
        try:
            while not self.closed:
                if not self._queue:
                    # Not a new task for each of a handful of frames.
                    self._idle = asyncio.get_running_loop().create_future()
                    await self._idle
                    continue
                entry = self._queue.popleft()
                frame = entry if isinstance(entry, str) else entry.frame()
                self._size -= len(entry) if isinstance(entry, str) else entry.size
                held_back += len(frame)
                more = bool(self._queue) and held_back < WRITE_CHARACTERS
                await self._send({"type": "websocket.send", "text": frame, MORE: more})
                if not more:
                    held_back = 0
                if self._changes.awaited and not self.full:
                    self.wake()
        except (OSError, RuntimeError):
            pass  # as a server says that the connection is gone, or is being closed; the reader is told so as well
        finally:
            # Close on any exit: without a writer, later frames would never be sent.
            self.close()

"""Output of a run: streamed to the editor up to a limit, with the tail kept for the parsers."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

from tidebox.model.events import StreamName
from tidebox.model.limits import KIB

SHOWN_BYTES = 100_000
"""Limit of each stream."""
_PARSED_BYTES = 512 * KIB
PAUSE_SECONDS = 0.02
"""Between two messages with output: often enough to watch, and never as many as a program can make."""

Show = Callable[[StreamName, str], Awaitable[None]]


class _StreamBuffer:
    def __init__(self, limit: int) -> None:
        self._left = limit
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.pending: list[str] = []
        self.total = 0
        self._tail: deque[bytes] = deque()
        self._kept = 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        self._tail.append(data)
        self._kept += len(data)
        while self._kept - len(self._tail[0]) >= _PARSED_BYTES:
            self._kept -= len(self._tail.popleft())
        shown = data[: self._left]
        self._left -= len(shown)
        text = self._decoder.decode(shown)
        if text:
            self.pending.append(text)

    @property
    def cut(self) -> bool:
        return self.total > SHOWN_BYTES

    def tail(self) -> str:
        return b"".join(self._tail)[-_PARSED_BYTES:].decode("utf-8", "replace")


class RunOutput:
    """Both streams of one run."""

    def __init__(self) -> None:
        self._streams: dict[StreamName, _StreamBuffer] = {
            "stdout": _StreamBuffer(SHOWN_BYTES),
            "stderr": _StreamBuffer(SHOWN_BYTES),
        }
        self._came = asyncio.Event()

    def add(self, stream: StreamName, data: bytes) -> None:
        """Append a piece of output."""
        self._streams[stream].add(data)
        self._came.set()

    def tail(self, stream: StreamName) -> str:
        """Return the end of a stream, for the parsers."""
        return self._streams[stream].tail()

    def cut(self) -> list[StreamName]:
        """Return the streams that were not shown in full."""
        return [name for name, stream in self._streams.items() if stream.cut]

    @contextlib.asynccontextmanager
    async def shown(self, show: Show) -> AsyncIterator[None]:
        """Pass on output as it comes within this context, all of it before the context ends."""
        showing = asyncio.get_running_loop().create_task(self._show_as_it_comes(show), name="lsp output")
        try:
            yield
        finally:
            showing.cancel()
            await asyncio.wait({showing})
        await self._show(show)

    async def _show_as_it_comes(self, show: Show) -> None:
        while True:
            await self._came.wait()
            self._came.clear()
            await self._show(show)
            await asyncio.sleep(PAUSE_SECONDS)

    async def _show(self, show: Show) -> None:
        for name, stream in self._streams.items():
            if stream.pending:
                text = "".join(stream.pending)
                stream.pending.clear()
                await show(name, text)

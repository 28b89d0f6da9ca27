"""Standard input and output as the two ends of one client, taken from everything else in the process.

Two threads move the bytes: any kind of file works, and a client that does not read or write holds up nobody else. They
are left behind when the process ends, since nothing can end a thread that waits for a pipe.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading

_READ_BYTES = 256 * 1024


class Streams:
    """The process's standard input and output, within a context."""

    def __enter__(self) -> Streams:
        self._loop = asyncio.get_running_loop()
        self._input, self._output = os.dup(0), os.dup(1)
        # What something else prints is for the log; what something else reads is nothing.
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        self._pieces: asyncio.Queue[bytes] = asyncio.Queue()
        self._ended = False
        self._wanted = threading.Semaphore(0)
        self._writes: queue.SimpleQueue[tuple[bytes, asyncio.Future[None]]] = queue.SimpleQueue()
        for target in (self._reader, self._writer):
            threading.Thread(target=target, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        os.dup2(self._output, 1)

    async def read(self) -> bytes:
        """The next piece of input; empty at its end. One task reads."""
        if not self._ended:
            self._wanted.release()
            piece = await self._pieces.get()
            self._ended = not piece
            return piece
        return b""

    def write(self, data: bytes) -> asyncio.Future[None]:
        """Write all of it; what is returned raises OSError if nobody will ever read it."""
        done: asyncio.Future[None] = self._loop.create_future()
        self._writes.put((data, done))
        return done

    def _reader(self) -> None:
        while self._wanted.acquire():
            try:
                piece = os.read(self._input, _READ_BYTES)
            except OSError:
                piece = b""
            try:
                self._loop.call_soon_threadsafe(self._pieces.put_nowait, piece)
            except RuntimeError:
                return  # the loop is closed
            if not piece:
                return

    def _writer(self) -> None:
        while True:
            data, done = self._writes.get()
            failure = None
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(self._output, view) :]
            except OSError as error:
                failure = error
            try:
                self._loop.call_soon_threadsafe(_settle, done, failure)
            except RuntimeError:
                return


def _settle(done: asyncio.Future[None], failure: OSError | None) -> None:
    if done.done():
        return
    if failure is None:
        done.set_result(None)
    else:
        done.set_exception(failure)

"""Standard input and output of the command itself, which may block for as long as the other end likes."""

from __future__ import annotations

import asyncio
import os
import queue
import select
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

CHUNK = 1 << 16

_Call = tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]


class BlockingCalls:
    """One thread that makes blocking calls for an event loop.

    The thread is a daemon: a call that never returns cannot hold up the end of the process, as one in asyncio's own
    executor would.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls: queue.SimpleQueue[_Call] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="streams", daemon=True).start()

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Make a blocking call in the thread; returns or raises what ``function`` does."""
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._calls.put((answer, function, arguments))
        return await answer

    def _work(self) -> None:
        while True:
            answer, function, arguments = self._calls.get()
            value, error = None, None
            try:
                value = function(*arguments)
            except OSError as failure:
                error = failure
            try:
                self._loop.call_soon_threadsafe(_settle, answer, value, error)
            except RuntimeError:
                return  # the loop is closed: nobody waits any more


def _settle(answer: asyncio.Future[Any], value: Any, error: OSError | None) -> None:
    if answer.done():
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(value)


async def read_chunks(descriptor: int) -> AsyncIterator[bytes]:
    """Yield the bytes that come in on a descriptor, until its end."""
    calls = BlockingCalls()
    while chunk := await calls.call(_read_some, descriptor):
        yield chunk


def write_all(descriptor: int, data: bytes) -> None:
    """Write every byte, also to a descriptor that someone made non-blocking."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            select.select([], [descriptor], [])


def is_null(descriptor: int) -> bool:
    """Whether a descriptor is the null device: there is nothing to read."""
    return os.path.samestat(os.fstat(descriptor), os.stat(os.devnull))


def _read_some(descriptor: int) -> bytes:
    while True:
        try:
            return os.read(descriptor, CHUNK)
        except BlockingIOError:
            select.select([descriptor], [], [])

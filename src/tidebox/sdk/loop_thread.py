"""Blocking facades of asynchronous objects: an event loop on a thread of its own, and calls that wait for it.

Everything is done by the asynchronous object, on an event loop that has a thread of its own: what it does in the
background goes on while nobody calls. Any number of threads may use one facade.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, overload

from tidebox.sdk.errors import ClientClosed

Answer = TypeVar("Answer")
Made = TypeVar("Made")
Arguments = ParamSpec("Arguments")
Inner = TypeVar("Inner")

# How long an interrupted call may take to leave nothing behind; a second interrupt ends that too.
_CANCEL_SECONDS = 15.0


class _EventLoopThread:
    """The thread and loop of a ``LoopThread``, without a reference to that: dropping that one ends the thread."""

    def __init__(self) -> None:
        self.started = threading.Event()
        # A daemon: a program that forgets to close must still be able to end.
        self.thread = threading.Thread(target=self._run, name="tidebox client", daemon=True)
        self.thread.start()
        self.started.wait()

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self.started.set()
        await self._over.wait()

    def end(self) -> None:
        """Let the thread end, and cancel what is still done on it."""
        with contextlib.suppress(RuntimeError):  # it has ended
            self.loop.call_soon_threadsafe(self._over.set)


class LoopThread:
    """An event loop on a thread of its own, of the process that made it."""

    def __init__(self) -> None:
        # Guards the end: whatever is begun before it is also ended by it.
        self._ending = threading.Lock()
        self._closed = False
        self._process = os.getpid()
        self._there = _EventLoopThread()
        self._loop = self._there.loop
        self._end = weakref.finalize(self, self._there.end)

    def _check_thread(self) -> None:
        """Raise where the thread does not run any more: a wait for it would be for ever."""
        if os.getpid() != self._process:
            raise ClientClosed("the client was made in another process: make one in this process")
        if sys.is_finalizing():
            raise ClientClosed("the interpreter ends")

    def call(self, work: Callable[[], Coroutine[Any, Any, Answer]], timeout: float | None = None) -> Answer:
        """Run a coroutine on the loop, and wait for it; an interrupt cancels it.

        By a bare lock: an event, or a future, makes the way there and back longer.
        """
        self._check_thread()
        over = threading.Lock()
        over.acquire()
        tasks: list[asyncio.Task[Answer]] = []

        async def in_time() -> Answer:
            if timeout is None:
                return await work()
            async with asyncio.timeout(timeout):
                return await work()

        def start() -> None:
            tasks.append(self._loop.create_task(in_time()))
            tasks[0].add_done_callback(lambda _: over.release())

        with self._ending:
            if self._closed:
                raise ClientClosed("the client was closed")
            self._loop.call_soon_threadsafe(start)
        try:
            over.acquire()
        except BaseException:
            with contextlib.suppress(RuntimeError):  # where the loop has ended meanwhile
                self._loop.call_soon_threadsafe(lambda: tasks[0].cancel())
            # What is done about it, such as to end a program, must not meet the end of the client.
            over.acquire(timeout=_CANCEL_SECONDS)
            raise
        try:
            return tasks[0].result()
        except asyncio.CancelledError:
            raise ClientClosed("the client was closed") from None

    def finish(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a closing coroutine on the loop; do nothing if the loop has ended already."""
        try:
            self.call(work)
        except ClientClosed:
            pass

    def close(self) -> None:
        """End the thread, and what is still done on it."""
        try:
            self._check_thread()
        except ClientClosed:
            return
        with self._ending:
            self._closed = True
            self._end()
        self._there.thread.join()


class BlockingFacade(Generic[Inner]):
    """The blocking facade of an asynchronous object, on its loop thread."""

    def __init__(self, thread: LoopThread, inner: Inner) -> None:
        self._thread = thread
        self._inner = inner


class Closeable(Protocol):
    """An object with an asynchronous ``close``."""

    async def close(self) -> None: ...


CloseableInner = TypeVar("CloseableInner", bound=Closeable)


class ClosingFacade(BlockingFacade[CloseableInner]):
    """The facade of an object that is closed after use: a context manager."""

    def close(self) -> None:
        """Close it; see the class for what that ends."""
        self._thread.finish(self._inner.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@overload
def blocking(
    method: Callable[Concatenate[Inner, Arguments], Coroutine[Any, Any, Answer]],
) -> Callable[Concatenate[BlockingFacade[Inner], Arguments], Answer]: ...


@overload
def blocking(
    method: Callable[Concatenate[Inner, Arguments], Coroutine[Any, Any, Answer]],
    shell: Callable[[LoopThread, Answer], Made],
) -> Callable[Concatenate[BlockingFacade[Inner], Arguments], Made]: ...


def blocking(
    method: Callable[..., Coroutine[Any, Any, Any]], shell: Callable[[LoopThread, Any], Any] | None = None
) -> Any:
    """Make the blocking method of a facade from a method of its inner object, with the same arguments.

    Where that returns another asynchronous object, ``shell`` makes the facade of it.
    """

    @functools.wraps(method)
    def call(self: BlockingFacade[Any], *arguments: Any, **options: Any) -> Any:
        answer = self._thread.call(lambda: method(self._inner, *arguments, **options))
        return answer if shell is None else shell(self._thread, answer)

    return call

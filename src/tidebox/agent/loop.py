"""The agent's event loop: descriptors, timers and slices of long work, on one thread."""

from __future__ import annotations

import select
import time
from _collections import deque  # type: ignore[import-not-found]  # the module around it is larger than this one
from _heapq import heappop, heappush

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

READ = select.EPOLLIN
WRITE = select.EPOLLOUT
HANGUP = select.EPOLLHUP | select.EPOLLERR


class Timer:
    """A call that will be made once, unless cancelled."""

    __slots__ = ("when", "call")

    def __init__(self, when: float, call: Callable[[], None]) -> None:
        self.when = when
        self.call: Callable[[], None] | None = call

    def __lt__(self, other: Timer) -> bool:
        return self.when < other.when

    def cancel(self) -> None:
        """Do not call; harmless when it has been called."""
        self.call = None


class Loop:
    """Calls handlers when their descriptor is ready, timers when they are due, slices when nothing else waits.

    Handlers get the event mask and must cope with a call for nothing: a descriptor closed and opened again within one
    round may get the event of its predecessor.
    """

    _epoll: select.epoll

    def __init__(self) -> None:
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._timers: list[Timer] = []
        self._slices: deque[Callable[[], None]] = deque()

    def open(self) -> None:
        """Before the first descriptor is watched; apart from the rest, which may be inherited by a fork."""
        self._epoll = select.epoll()

    def watch(self, fd: int, events: int, handler: Callable[[int], None]) -> None:
        """Call ``handler`` when ``fd`` is ready, from now on."""
        self._handlers[fd] = handler
        self._epoll.register(fd, events)

    def change(self, fd: int, events: int) -> None:
        """Wait for other events of a watched descriptor."""
        self._epoll.modify(fd, events)

    def forget(self, fd: int) -> None:
        """Stop watching; to be called before the descriptor is closed. Harmless when it is not watched."""
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def later(self, seconds: float, call: Callable[[], None]) -> Timer:
        """Call once after that time."""
        timer = Timer(time.monotonic() + seconds, call)
        heappush(self._timers, timer)
        return timer

    def soon(self, call: Callable[[], None]) -> None:
        """Call once in the next round, after the descriptors that are ready: for work cut into slices."""
        self._slices.append(call)

    def turn(self) -> None:
        """One round: wait for something to do, then do it."""
        slices = len(self._slices)
        for fd, events in self._epoll.poll(self._patience()):
            handler = self._handlers.get(fd)
            if handler is not None:
                handler(events)
        if self._timers:
            self._run_due()
        for _ in range(slices):
            self._slices.popleft()()

    def _patience(self) -> float:
        if self._slices:
            return 0
        while self._timers and self._timers[0].call is None:
            heappop(self._timers)
        if not self._timers:
            return -1
        return max(0.0, self._timers[0].when - time.monotonic())

    def _run_due(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0].when <= now:
            call = heappop(self._timers).call
            if call is not None:
                call()

    def close(self) -> None:
        """Give the epoll descriptor back."""
        self._epoll.close()

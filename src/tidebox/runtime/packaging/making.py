"""Layers that are being made: who waits for each, whose turn it is, and which are made for nobody.

A build that nobody waits for any more goes on for a while, for the next who asks, but only as long as it takes nobody's
turn: else those who ask and give up would keep all others waiting. Users take turns, however many builds one of them
wants.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator

from tidebox.errors import FetchFailed
from tidebox.model.events import Preparing
from tidebox.runtime.layers import Layer
from tidebox.runtime.packaging.tools import Stop

AT_ONCE = 2
MOST_WAITING = 32
MOST_WAITING_OF_ONE = 16
_FOR_NOBODY_SECONDS = 120.0
# Whose last turn is remembered.
_MOST_USERS = 1024

Tell = Callable[[Preparing], None]


class Making:
    """A layer that is being made, and those who wait for it."""

    def __init__(self, user: str) -> None:
        """``user`` is the one who asked first, whose turn it takes."""
        self.user = user
        self.task: asyncio.Task[Layer] | None = None
        self.stop = Stop()
        self.ended = False
        self._loop = asyncio.get_running_loop()
        self._listeners: list[Tell] = []
        self._last: Preparing | None = None

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody waits for it."""
        return not self._listeners

    def end(self) -> None:
        """Stop; it is over when its task is."""
        self.ended = True
        self.stop.set()
        if self.task is not None:
            self.task.cancel()

    def tell(self, message: Preparing) -> None:
        """Pass a message on; from any thread."""
        self._loop.call_soon_threadsafe(self._pass_on, message)

    def _pass_on(self, message: Preparing) -> None:
        self._last = message
        for listener in list(self._listeners):
            listener(message)

    @contextlib.contextmanager
    def heard_by(self, listener: Tell) -> Iterator[None]:
        """Pass messages on to ``listener``, beginning with the last one."""
        self._listeners.append(listener)
        if self._last is not None:
            listener(self._last)
        try:
            yield
        finally:
            self._listeners.remove(listener)


class Turns:
    """Lets a few be made at a time, and a few more wait for that."""

    def __init__(self) -> None:
        self._working: list[Making] = []
        self._waiting: dict[Making, asyncio.Future[None]] = {}
        self._last_turn: dict[str, None] = {}
        """Users, those who had a turn last at the end."""

    @contextlib.asynccontextmanager
    async def turn(self, making: Making) -> AsyncIterator[None]:
        """Wait for a turn; raises ``FetchFailed`` where too many wait already."""
        own = sum(other.user == making.user for other in self._waiting)
        if len(self._waiting) >= MOST_WAITING or own >= MOST_WAITING_OF_ONE:
            raise FetchFailed("too many other packages are being made ready; try again later", step="packages")
        turn = self._waiting[making] = asyncio.get_running_loop().create_future()
        self._make_room()
        try:
            self._give_turns()
            await turn
            yield
        finally:
            self._waiting.pop(making, None)
            if making in self._working:
                self._working.remove(making)
            self._give_turns()

    def _give_turns(self) -> None:
        while self._waiting and len(self._working) < AT_ONCE:
            turns = {user: number for number, user in enumerate(self._last_turn, 1)}
            # Of those who had none for the longest, the one who asked first.
            making = min(self._waiting, key=lambda waiting: turns.get(waiting.user, 0))
            turn = self._waiting.pop(making)
            if turn.cancelled():
                continue
            turn.set_result(None)
            self._working.append(making)
            self._last_turn.pop(making.user, None)
            self._last_turn[making.user] = None
            if len(self._last_turn) > _MOST_USERS:
                del self._last_turn[next(iter(self._last_turn))]

    def _make_room(self) -> None:
        for_nobody = [making for making in self._working if making.is_abandoned and not making.ended]
        if len(self._working) >= AT_ONCE and for_nobody:
            for_nobody[0].end()

    def leave(self, making: Making) -> None:
        """Note that one who waited for a layer does so no longer."""
        if not making.is_abandoned:
            return
        if self._waiting or making not in self._working:
            making.end()
        else:
            asyncio.get_running_loop().call_later(_FOR_NOBODY_SECONDS, self._end_if_abandoned, making)

    def _end_if_abandoned(self, making: Making) -> None:
        if making.is_abandoned:
            making.end()

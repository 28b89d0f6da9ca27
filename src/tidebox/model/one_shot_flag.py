"""A one-shot flag with callbacks: ``asyncio.Event`` without the task switch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class OneShotFlag:
    """Set once and for good; ``set`` calls the callbacks, and one that is added later is called at once."""

    __slots__ = ("_is_set", "_callbacks")

    def __init__(self) -> None:
        self._is_set = False
        self._callbacks: list[Callable[[], None]] = []

    def is_set(self) -> bool:
        """Whether it was set."""
        return self._is_set

    def set(self) -> None:
        """Set it and call the callbacks."""
        self._is_set = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def on_set(self, callback: Callable[[], None]) -> None:
        """Add a callback; it is called now if the switch is set."""
        if self._is_set:
            callback()
        else:
            self._callbacks.append(callback)

    def forget(self, callback: Callable[[], None]) -> None:
        """Remove a callback; nothing happens if it was called already."""
        if callback in self._callbacks:
            self._callbacks.remove(callback)

    async def wait(self) -> None:
        """Wait until it is set."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not waiter.done():
                waiter.set_result(None)

        self.on_set(wake)
        try:
            await waiter
        finally:
            self.forget(wake)

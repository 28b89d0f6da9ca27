"""An event loop whose clock stands still while anything can be done, and jumps to the next timer when nothing can."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("nothing is left to wait for")
        self.now += timeout
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """For programs that wait for timers only: hours pass in no time, and in the same way each time."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        # Timers are due when the clock reaches them; without this a jump could end just before one.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self._jumping.now

    def do(self, function: Any, *args: Any) -> Any:
        """Call a plain function on the loop, and let everything happen that follows from it at once."""

        async def call() -> Any:
            result = function(*args)
            await asyncio.sleep(0)
            return result

        return self.run_until_complete(call())

    def pass_time(self, seconds: float) -> None:
        """Let time pass."""
        self.run_until_complete(asyncio.sleep(seconds))

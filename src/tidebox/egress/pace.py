"""How much of something there may be in a second, or at one time."""

from __future__ import annotations

import asyncio


class Allowance:
    """So many in a second, some of them at once."""

    def __init__(self, per_second: float, at_once: float) -> None:
        self._rate, self._most = per_second, at_once
        self._left = at_once
        self._then = asyncio.get_running_loop().time()

    def take(self, amount: float) -> float:
        """Take so much; how long to wait before the next."""
        now = asyncio.get_running_loop().time()
        self._left = min(self._left + (now - self._then) * self._rate, self._most) - amount
        self._then = now
        return max(-self._left / self._rate, 0.0)


class Room:
    """So much at one time, of what has room for more."""

    def __init__(self, most: int, within: Room | None = None) -> None:
        self._left = most
        self._within = within

    def take(self, amount: int) -> bool:
        """Take so much, if there is as much."""
        if amount > self._left or (self._within is not None and not self._within.take(amount)):
            return False
        self._left -= amount
        return True

    def give(self, amount: int) -> None:
        """Give it back."""
        self._left += amount
        if self._within is not None:
            self._within.give(amount)

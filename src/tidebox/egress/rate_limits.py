"""A token bucket for rates, and a budget for bytes held at one time."""

from __future__ import annotations

import asyncio


class TokenBucket:
    """A rate limit: so many in a second, and a burst of some at once."""

    def __init__(self, per_second: float, at_once: float) -> None:
        self._rate, self._most = per_second, at_once
        self._left = at_once
        self._then = asyncio.get_running_loop().time()

    def take(self, amount: float) -> float:
        """Take an amount; return the seconds to wait before the next."""
        now = asyncio.get_running_loop().time()
        self._left = min(self._left + (now - self._then) * self._rate, self._most) - amount
        self._then = now
        return max(-self._left / self._rate, 0.0)


class ByteBudget:
    """A bound on bytes held at one time, within another bound where one is given."""

    def __init__(self, most: int, within: ByteBudget | None = None) -> None:
        self._left = most
        self._within = within

    def take(self, amount: int) -> bool:
        """Take an amount if it is free; return whether it was."""
        if amount > self._left or (self._within is not None and not self._within.take(amount)):
            return False
        self._left -= amount
        return True

    def give(self, amount: int) -> None:
        """Give it back."""
        self._left += amount
        if self._within is not None:
            self._within.give(amount)

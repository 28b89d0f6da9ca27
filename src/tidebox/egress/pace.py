"""How much of something there may be in a second."""

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

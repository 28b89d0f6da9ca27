"""Rate limiting of users' requests. Those with the single-user key are not counted."""

from __future__ import annotations

import time

from tidebox.api.auth import LOCAL_USER
from tidebox.errors import InvalidRequest, RateLimited
from tidebox.model.principal import Principal

OFF = "off"


class RateLimiter:
    """Counts the requests of each user in a window that slides."""

    def __init__(self, rule: str) -> None:
        """``rule`` is a number and a time, such as ``600/minute``, or ``off``."""
        self._limit = None
        if rule.strip().lower() == OFF:
            return
        # Loaded only where something is counted: it takes as long as the rest of the server's modules together.
        from limits import parse
        from limits.aio.storage import MemoryStorage
        from limits.aio.strategies import SlidingWindowCounterRateLimiter

        try:
            self._limit = parse(rule)
        except ValueError:
            raise InvalidRequest(
                f"SANDBOX_RATE_LIMIT: give a number and a time, such as 600/minute, or off, not {rule!r}"
            ) from None
        self._windows = SlidingWindowCounterRateLimiter(MemoryStorage())

    async def check(self, principal: Principal) -> None:
        """Count one request of ``principal``; raises RateLimited if it is one too many."""
        if self._limit is None or principal.user == LOCAL_USER or await self._windows.hit(self._limit, principal.user):
            return
        window = await self._windows.get_window_stats(self._limit, principal.user)
        seconds = max(1.0, window.reset_time - time.time())
        raise RateLimited(f"more than {self._limit}", retry_after=round(seconds, 1))

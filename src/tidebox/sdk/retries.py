"""Retries: after which errors, with what backoff, and for how long."""

from __future__ import annotations

import asyncio
import random

from tidebox.errors import TideboxError
from tidebox.sdk.errors import ConnectionLost, ServerUnreachable
from tidebox.sdk.reconnection import Reconnection

# Clients that lost the same server do not all come back at the same moment.
_JITTER = 0.1
# Whatever a server asks for: its word must not make a client ask without a pause.
_LEAST_SECONDS = 0.1


class RetryBudget:
    """The time that one call, or one stream, may still spend on retries.

    A connection that was lost is made again after pauses that double; a server that names a time (``Retry-After``) is
    asked again after that. One that cannot be reached in the first place is not waited for.
    """

    def __init__(self, seconds: float) -> None:
        """``seconds`` are counted from the first failure, or from the first one since there was progress."""
        self._seconds = seconds
        self._until: float | None = None
        self._reconnection = Reconnection()
        self._met = False

    def progress(self) -> None:
        """Something came: the server is there, and the next failure is a first one."""
        self._met = True
        if self._until is not None:
            self._until = None
            self._reconnection = Reconnection()

    async def overcome(self, error: TideboxError) -> None:
        """Wait until it is time to try again; raises ``error`` if that is of no use, or would be too late."""
        now = asyncio.get_running_loop().time()
        if self._until is None:
            self._until = now + self._seconds
        pause = self._pause(error, now)
        if pause is None or now + pause > self._until:
            # A caller that goes on all the same begins anew.
            self._until = None
            raise error
        await asyncio.sleep(pause)

    def _pause(self, error: TideboxError, now: float) -> float | None:
        asked = error.details.get("retry_after")
        if error.retryable and isinstance(asked, int | float) and asked >= 0:
            return max(asked, _LEAST_SECONDS) * (1 + random.random() * _JITTER)
        # An answer with a status and nothing else is that of a proxy: the server behind it may have been lost.
        lost = isinstance(error, ConnectionLost) or "status" in error.details
        if not isinstance(error, ConnectionLost | ServerUnreachable) or not (lost or self._met):
            return None
        self._met = True
        self._reconnection.failed(now)
        return self._reconnection.pause(now) * (1 + random.random() * _JITTER)

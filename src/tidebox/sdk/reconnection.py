"""Reconnection backoff: the first attempt at once, then pauses that double; reset by a success."""

from __future__ import annotations

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 30.0


class Reconnection:
    """Exponential backoff of connection attempts. Knows no clock: it is told the time."""

    def __init__(self) -> None:
        self._pause: float | None = None
        self._not_before = 0.0

    def connected(self, now: float) -> None:
        """Reset the backoff: a connection was made."""
        self._pause = None
        # A server that drops every connection as soon as it is made is not asked again without any pause.
        self._not_before = now + FIRST_PAUSE

    def failed(self, now: float) -> None:
        """Double the pause: an attempt failed."""
        self._pause = FIRST_PAUSE if self._pause is None else min(self._pause * 2, LONGEST_PAUSE)
        self._not_before = now + self._pause

    def pause(self, now: float) -> float:
        """Seconds to wait before the next attempt."""
        return max(0.0, self._not_before - now)

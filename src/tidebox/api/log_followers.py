"""The quota of logs that each user follows at a time, by WebSocket or HTTP: each keeps a connection of the server."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from tidebox.errors import QuotaExceeded


class LogFollowerQuota:
    """Counts the logs that each user follows, and refuses more than the quota."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: Counter[str] = Counter()

    @contextlib.contextmanager
    def following(self, user: str) -> Iterator[None]:
        """Count one followed log within this context; raises ``QuotaExceeded``."""
        held = self._open[user]
        if held >= self._limit:
            raise QuotaExceeded(
                f"the quota streams of {self._limit} is used up", quota="streams", limit=self._limit, held=held
            )
        self._open[user] += 1
        try:
            yield
        finally:
            self._open -= Counter([user])  # which forgets users who have none

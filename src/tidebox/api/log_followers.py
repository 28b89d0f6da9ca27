"""How many logs each user follows, over whatever connection: each costs the server one for as long as it lasts."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from tidebox.errors import QuotaExceeded


class LogFollowerQuota:
    """Counts them, and lets nobody have more than his share."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: Counter[str] = Counter()

    @contextlib.contextmanager
    def one_more(self, user: str) -> Iterator[None]:
        """One for as long as this lasts; raises ``QuotaExceeded``."""
        held = self._open[user]
        if held >= self._limit:
            raise QuotaExceeded(
                f"the quota streams of {self._limit} is used up", quota="streams", limit=self._limit, held=held
            )
        self._open[user] += 1
        try:
            yield
        finally:
            self._open -= Counter([user])  # which forgets whoever has none

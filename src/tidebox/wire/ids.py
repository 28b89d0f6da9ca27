"""Correlation ids: which ranges exist, and how a client takes ids out of its own."""

from __future__ import annotations

from tidebox.wire.errors import IdsExhausted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container

MAX_CLIENTS = 128
# Every relay client owns one slot of this size; slot k starts right after k * STEP.
STEP = 0xFFFFFFFF // MAX_CLIENTS
LEGACY_STEP = 0xFFFFFFFF // 16


class IdRange:
    """Ids ``start`` up to, not including, ``end``."""

    __slots__ = ("start", "end", "_next")

    def __init__(self, start: int, end: int) -> None:
        self.start = max(start, 1)  # 0 is for uncorrelated control
        self.end = end
        self._next = self.start

    def __contains__(self, id: int) -> bool:
        return self.start <= id < self.end

    def allocate(self, pending: Container[int]) -> int:
        """The next id that is not pending, wrapping inside the range."""
        candidate = self._next
        for _ in range(self.end - self.start):
            if candidate >= self.end:
                candidate = self.start
            if candidate not in pending:
                self._next = candidate + 1
                return candidate
            candidate += 1
        raise IdsExhausted("every id of the range is in use")


def slot_range(slot: int) -> IdRange:
    """The ids of a relay slot."""
    return IdRange(slot * STEP + 1, (slot + 1) * STEP)


def slot_of(id: int) -> int:
    """The relay slot that owns an id; the few ids above the last slot count to it."""
    return min((id - 1) // STEP, MAX_CLIENTS - 1)

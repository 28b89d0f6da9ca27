"""Boxes between two runs of one session: nothing runs in them, and the next run need not wait for another.

A box is kept for one session only, for a while, and never for more sessions than a few: each takes memory.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from tidebox.runtime.base import Box
from tidebox.runtime.pool import CellKey

IDLE_SECONDS = 300.0
MOST = 32


@dataclass(frozen=True, slots=True)
class _Kept:
    box: Box
    key: CellKey
    expiry: asyncio.TimerHandle


class KeptBoxes:
    """The boxes of one driver that wait for the next run of their session."""

    def __init__(self, close: Callable[[Box], None]) -> None:
        """``close`` is called with a box that waits no longer."""
        self._close = close
        self._boxes: OrderedDict[str, _Kept] = OrderedDict()

    def __len__(self) -> int:
        return len(self._boxes)

    def put(self, name: str, key: CellKey, box: Box) -> None:
        """Keep the box of a session; ``key`` says what of it cannot be changed."""
        self.drop(name)
        expiry = asyncio.get_running_loop().call_later(IDLE_SECONDS, self.drop, name)
        self._boxes[name] = _Kept(box, key, expiry)
        while len(self._boxes) > MOST:
            self.drop(next(iter(self._boxes)))

    def take(self, name: str, key: CellKey) -> Box | None:
        """The box of a session, where it lives and is of that kind; it waits no longer."""
        kept = self._boxes.get(name)
        if kept is None:
            return None
        if kept.box.gone or kept.key != key:
            self.drop(name)
            return None
        del self._boxes[name]
        kept.expiry.cancel()
        return kept.box

    def drop(self, name: str) -> None:
        """Close the box of a session, if it has one."""
        kept = self._boxes.pop(name, None)
        if kept is not None:
            kept.expiry.cancel()
            self._close(kept.box)

    def drop_all(self) -> None:
        """Close all of them."""
        for name in list(self._boxes):
            self.drop(name)

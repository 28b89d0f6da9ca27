"""The guard that ends boxes for kernel memory which no control group counts: whom it blames, and what it forgets."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable

import pytest

from tidebox.runtime.native import guard as guards
from tidebox.runtime.native import locks
from tidebox.runtime.native.guard import Guard, Guarded, Kind


class Box:
    """One that the guard may end."""

    def __init__(self, seconds: float = 0.0, count: int = 0) -> None:
        self.seconds = seconds
        self.count = count
        self.ended = asyncio.Event()

    def pids(self) -> list[int]:
        return []

    def init_pid(self) -> int | None:
        raise FileNotFoundError  # its descriptor was closed meanwhile

    def system_seconds(self) -> float:
        return self.seconds

    def exhaust(self) -> None:
        self.ended.set()


def count(box: Guarded) -> int:
    assert isinstance(box, Box)
    return box.count


def risen(count: Callable[[Guarded], int] = count) -> Kind:
    """A kind of which there is more each time one looks."""
    total = iter(range(0, 1 << 30, 1000))
    return Kind("things", lambda: next(total), 100, count, 10, None)


async def test_a_box_that_has_too_much_is_ended_while_others_are_still_asked() -> None:
    asked = threading.Event()

    def slow(box: Guarded) -> int:
        if box is other:
            asked.wait(20)
        return count(box)

    guilty, other = Box(seconds=1, count=11), Box()
    guard = Guard((risen(slow),))
    for box in (other, guilty):
        guard.watch(box)
    try:
        async with asyncio.timeout(5):
            await guilty.ended.wait()
    finally:
        asked.set()
        guard.close()
    assert not other.ended.is_set()


async def test_boxes_that_die_while_they_are_asked_do_not_end_the_search() -> None:
    dying, guilty = Box(seconds=2), Box(seconds=1, count=11)
    guard = Guard((risen(lambda box: guards._count_sockets(box) if box is dying else count(box)),))
    for box in (dying, guilty):
        guard.watch(box)
    try:
        async with asyncio.timeout(5):
            await guilty.ended.wait()
    finally:
        guard.close()


@pytest.mark.parametrize(
    ("counts", "all_seen", "blamed"),
    [
        ({}, True, False),  # the kernel made other objects of that size
        ({"8:1": 50_000}, True, False),  # a program of the machine locks
        ({"unnamed": 50_000}, True, True),
        ({"8:1": 50_000}, False, False),
    ],
    ids=["other objects", "files of the machine", "unnamed files", "not all seen"],
)
async def test_the_busiest_box_is_blamed_only_for_what_may_be_its(
    monkeypatch: pytest.MonkeyPatch, counts: dict[str, int], all_seen: bool, blamed: bool
) -> None:
    monkeypatch.setattr(locks, "count_by_device", lambda most, suspected, seconds: (Counter(counts), all_seen))
    monkeypatch.setattr(locks, "devices_of_unnamed_files", lambda: {"unnamed"})
    busiest = Box()
    assert guards._find_hidden_locks({busiest: 3.0, Box(): 1.0}, 1.0) == ([busiest] if blamed else [])


async def test_a_search_that_took_too_long_is_made_again_with_more_time() -> None:
    times: list[float] = []
    guilty = Box()

    def find(busy: dict[Guarded, float], seconds: float) -> list[Guarded] | None:
        times.append(seconds)
        return [guilty] if len(times) == 3 else None

    # It rises once, and then stays.
    total = iter([0, 1000])
    guard = Guard((Kind("things", lambda: next(total, 1000), 100, count, 10, find),))
    guard.watch(guilty)
    try:
        async with asyncio.timeout(5):
            await guilty.ended.wait()
    finally:
        guard.close()
    assert times == [2.0, 4.0, 8.0]


def test_too_few_of_the_newest_locks_tell_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "count_by_device", lambda most, suspected, seconds: (Counter({"8:1": 500}), False))
    assert guards._find_hidden_locks({Box(): 3.0}, 1.0) is None

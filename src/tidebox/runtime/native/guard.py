"""The guard: ends a box that takes kernel memory which no control group counts.

Two kinds of objects have neither a limit nor an account in any kernel: locks on files, and connections that nobody has
accepted yet, with what is sent to them. For each the kernel tells how much there is on the whole machine. While
programs run that is looked at ten times a second; only when it has grown by more than honest programs need is it asked
which box has it, and that one is killed as one whose memory ran out.

Both totals are read by root alone, or do not exist on some kernels: ``bounded`` says what holds here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from tidebox.runtime.native import locks

_SECONDS = 0.1
# How long the files of one box are searched for locks: it may have opened many to hide them.
_SEARCH_SECONDS = 0.1
# One of TCP, with what belongs to it.
_SOCKET_BYTES = 4096
# Whose locks cannot be told from their files: it must have kept the kernel busy for as long to make so many.
_LEAST_SECONDS = 0.05
# How long all locks of the machine are listed, at first and at most: where that was too short it is done again.
_LIST_SECONDS, _LONGEST_LIST_SECONDS = 2.0, 16.0
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Guarded(Protocol):
    """A box, as the guard needs it."""

    def pids(self) -> list[int]:
        """Its processes."""

    def init_pid(self) -> int | None:
        """Its init; None when it is dead."""

    def system_seconds(self) -> float:
        """Processor time that the kernel has spent for it."""

    def exhaust(self) -> None:
        """Kill it, for it has used up its memory."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of objects: how many there are on the machine, and how many a box has."""

    name: str
    total: Callable[[], int | None]
    rise: int
    """By how much the total may grow before boxes are looked at."""
    count: Callable[[Guarded], int]
    most: int
    """Number of these that a box may have then."""
    hidden: Callable[[dict[Guarded, float], float], list[Guarded] | None] | None
    """Search for what a box can hide: returns the boxes that have too many, of all with the time that the kernel has
    spent for them, the busiest first; None where so many seconds were not enough to tell."""


class Total:
    """A number that the kernel tells in a file, which is opened once."""

    def __init__(self, path: str, parse: Callable[[bytes], int]) -> None:
        self._parse = parse
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1

    def __call__(self) -> int | None:
        """Read the number; None where it is not told."""
        if self._fd < 0:
            return None
        try:
            return self._parse(os.pread(self._fd, 4096, 0))
        except (OSError, ValueError, IndexError):
            return None

    def close(self) -> None:
        """Let go of the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _first_number(text: bytes) -> int:
    return int(text.split(maxsplit=1)[0])


def _tcp_bytes(text: bytes) -> int:
    """Parse the bytes in TCP's buffers and in the sockets themselves."""
    for line in text.splitlines():
        words = line.split()
        if words[0] == b"TCP:":
            buffers, sockets = (int(words[words.index(name) + 1]) for name in (b"mem", b"alloc"))
            return buffers * _PAGE + sockets * _SOCKET_BYTES
    raise ValueError("no line for TCP")


def _count_sockets(box: Guarded) -> int:
    """Sockets of its network, with those that wait to be accepted."""
    try:
        init = box.init_pid()
        if init is None:
            return 0
        with open(f"/proc/{init}/net/sockstat", "rb") as file:
            return int(file.readline().split()[2])
    except (OSError, ValueError, IndexError, KeyError):
        return 0  # it died meanwhile


def _count_locks(box: Guarded) -> int:
    """Locks on files that its processes have open; no more than can be found in the time there is."""
    found = 0
    deadline = time.monotonic() + _SEARCH_SECONDS
    for path in _descriptor_files(box):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            found += file.read().count(b"\nlock:")
        if found > MOST_LOCKS or time.monotonic() > deadline:
            break
    return found


def _descriptor_files(box: Guarded) -> Iterator[str]:
    """Yield the file in which the kernel describes each descriptor; some of these may not be there.

    By number: to list the directory makes the kernel keep an entry for each of them, and takes as long as a program has
    opened files for.
    """
    for pid in box.pids():
        for number in range(_table_size(pid)):
            yield f"/proc/{pid}/fdinfo/{number}"


def _table_size(pid: int) -> int:
    """Return the number of descriptors that a process has room for; 0 when it is dead."""
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/status", "rb") as file:
        return int(file.read().partition(b"\nFDSize:")[2].split(maxsplit=1)[0])
    return 0


def _find_hidden_locks(busy: dict[Guarded, float], seconds: float) -> list[Guarded] | None:
    """Boxes whose files have too many locks, also if nobody has them open; None if that took too long."""
    ours = locks.devices_of("self")
    own = {box: _devices_of(box) - ours for box in busy}
    unnamed = locks.devices_of_unnamed_files()
    counts, all_seen = locks.count_by_device(MOST_LOCKS, unnamed.union(*own.values()), seconds)
    if all_seen and counts.total() <= MOST_LOCKS:
        return []  # the kernel counts other objects of the same size with them
    guilty = [box for box in busy if sum(counts[name] for name in own[box]) > MOST_LOCKS]
    if guilty:
        return guilty
    if sum(counts[name] for name in unnamed) > MOST_LOCKS:
        return [box for box in list(busy)[:1] if busy[box] >= _LEAST_SECONDS]
    # The newest are seen first: what was not reached is older than the rise, and others', if that was seen as a whole.
    return [] if all_seen or counts.total() > RISE_LOCKS else None


def _devices_of(box: Guarded) -> set[str]:
    with contextlib.suppress(OSError, ValueError, KeyError):
        if (init := box.init_pid()) is not None:
            return locks.devices_of(init)
    return set()


# A database with a thousand connections has a few thousand locks, of 192 bytes each.
RISE_LOCKS, MOST_LOCKS = 20_000, 10_000
RISE_TCP_BYTES, MOST_SOCKETS = 32 << 20, 4096


class Guard:
    """Looks after the boxes of one runtime."""

    def __init__(self, kinds: tuple[Kind, ...] = ()) -> None:
        """``kinds`` are what it looks at; all that are known unless told otherwise."""
        file_locks = Total("/sys/kernel/slab/file_lock_cache/total_objects", _first_number)
        sockets = Total("/proc/net/sockstat", _tcp_bytes)
        self._totals = (file_locks, sockets)
        kinds = kinds or (
            Kind("file locks", file_locks, RISE_LOCKS, _count_locks, MOST_LOCKS, _find_hidden_locks),
            Kind("unaccepted connections", sockets, RISE_TCP_BYTES, _count_sockets, MOST_SOCKETS, None),
        )
        self._least = {kind.name: total for kind in kinds if (total := kind.total()) is not None}
        self._kinds = [kind for kind in kinds if kind.name in self._least]
        self._list_seconds = _LIST_SECONDS
        self._times: dict[Guarded, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._search: asyncio.Task[None] | None = None

    @property
    def bounded(self) -> frozenset[str]:
        """Names of the kinds of kernel objects that are bounded on this machine."""
        return frozenset(kind.name for kind in self._kinds)

    def watch(self, box: Guarded) -> None:
        """A program is about to run in it."""
        self._times.setdefault(box, 0.0)
        if self._timer is None and self._kinds:
            self._timer = asyncio.get_running_loop().call_later(_SECONDS, self._look)

    def forget(self, box: Guarded) -> None:
        """It is dead."""
        self._times.pop(box, None)

    def close(self) -> None:
        """Look no more."""
        self._times.clear()
        if self._timer is not None:
            self._timer.cancel()
        if self._search is not None:
            self._search.cancel()
        for total in self._totals:
            total.close()

    def _look(self) -> None:
        self._timer = None
        if not self._times:
            return
        raised = [kind for kind in self._kinds if self._has_risen(kind)]
        if raised and self._search is None:
            self._search = asyncio.get_running_loop().create_task(self._find(raised))
            self._search.add_done_callback(self._searched)
        self._timer = asyncio.get_running_loop().call_later(_SECONDS, self._look)

    def _has_risen(self, kind: Kind) -> bool:
        now = kind.total()
        if now is None:
            return False
        least = self._least[kind.name] = min(now, self._least[kind.name])
        return now - least > kind.rise

    def _searched(self, task: asyncio.Task[None]) -> None:
        self._search = None

    async def _find(self, raised: list[Kind]) -> None:
        """End the boxes that have too much; the busiest are asked first."""
        busy = await self._busiest()
        for kind in raised:
            found = False
            for box in busy:
                if await asyncio.to_thread(kind.count, box) > kind.most:
                    # At once: to ask all the others may take long.
                    found = True
                    self._end(box)
            if not found and kind.hidden is not None:
                hidden = await asyncio.to_thread(kind.hidden, busy, self._list_seconds)
                if hidden is None and self._list_seconds < _LONGEST_LIST_SECONDS:
                    # Still risen, and so looked at again.
                    self._list_seconds *= 2
                    continue
                self._list_seconds = _LIST_SECONDS
                for box in hidden or ():
                    self._end(box)
            # What is left when they are gone is others'.
            self._least[kind.name] = kind.total() or 0

    def _end(self, box: Guarded) -> None:
        if box in self._times:
            box.exhaust()

    async def _busiest(self) -> dict[Guarded, float]:
        """Every box with the time that the kernel has spent for it since this was asked last, the most first."""
        boxes = list(self._times)
        times = await asyncio.to_thread(lambda: [box.system_seconds() for box in boxes])
        spent = {}
        for box, now in zip(boxes, times, strict=True):
            if box in self._times:
                spent[box] = now - self._times[box]
                self._times[box] = now
        return dict(sorted(spent.items(), key=lambda item: item[1], reverse=True))

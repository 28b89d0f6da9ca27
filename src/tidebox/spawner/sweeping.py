"""The sweep at the start of a spawner: removes the control groups of dead spawners, and touches nothing that may live.

A living spawner holds a lock (``flock``) on each of its directories. The lock belongs to the directory and not to a
number, so it tells the same to every container that shares the hierarchy: pid, mount and cgroup namespaces do not hide
it, and it goes with the last process that held it, however that ends. What nobody locks is removed only if it holds no
process at all, or only such as can be seen, and so killed, from here: on cgroup v1 ``cgroup.procs`` leaves out those of
other pid namespaces, while ``pids.current`` counts them.

Others wait for this spawner, so the whole sweep has a second. What it did not get to is left to the next one.
"""

from __future__ import annotations

import fcntl
import os
import select
import time

from tidebox.spawner import cgroups

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

BUDGET_SECONDS = 1.0
# For what cannot be seen, which may just be about to end.
_HIDDEN_SECONDS = 0.2
_PAUSE_SECONDS = 0.005
# Each has a few locks, and so descriptors.
_MOST_AT_ONCE = 64
# Told to the operator; the rest is a number.
_MOST_REASONS = 8


def sweep(roots: Iterable[str], own: str) -> tuple[list[str], list[str]]:
    """Remove what dead spawners left below ``roots``; returns those that live, and what else was left, with reasons.

    ``own`` is the name of the caller's own directories, which are passed over.
    """
    began = time.monotonic()
    deadline = began + BUDGET_SECONDS
    living = []
    leftovers: list[_Leftover] = []
    for name, paths in sorted(_directories(roots).items()):
        if name == own:
            continue
        if len(leftovers) == _MOST_AT_ONCE:
            break
        locks = None if cgroups.owner_is_alive(name) else _lock(paths)
        if locks is None:
            living.append(f"{name}: its spawner lives")
        else:
            leftovers.append(_Leftover(name, paths, locks))
    # Every one in every round: what one of them waits for must not take the time of the others.
    waiting = [leftover for leftover in leftovers if not leftover.is_cleared(deadline)]
    while waiting and time.monotonic() - began < _patience(waiting):
        select.select([], [], [], _PAUSE_SECONDS)
        waiting = [leftover for leftover in waiting if not leftover.is_cleared(deadline)]
    left = [f"{leftover.name}: {leftover.reason()}" for leftover in waiting]
    for leftover in leftovers:
        _unlock(leftover.locks)
    return _shortened(living), _shortened(left)


def _shortened(reasons: list[str]) -> list[str]:
    more = len(reasons) - _MOST_REASONS
    return reasons if more <= 0 else [*reasons[:_MOST_REASONS], f"and {more} more"]


def _patience(waiting: list[_Leftover]) -> float:
    return _HIDDEN_SECONDS if all(leftover.hidden for leftover in waiting) else BUDGET_SECONDS


def _directories(roots: Iterable[str]) -> dict[str, list[str]]:
    """The directories of every spawner, by their name, which is the same in each hierarchy."""
    found: dict[str, list[str]] = {}
    for root in roots:
        for name in os.listdir(root):
            if name.startswith(cgroups.PREFIX):
                found.setdefault(name, []).append(f"{root}/{name}")
    return found


def _lock(paths: list[str]) -> list[int] | None:
    """Locks on all of them; None if somebody else has one."""
    locks: list[int] = []
    for path in paths:
        try:
            locks.append(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            fcntl.flock(locks[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            continue  # another spawner sweeps too, and was faster
        except OSError:
            _unlock(locks)
            return None
    return locks


def _unlock(locks: list[int]) -> None:
    for lock in locks:
        os.close(lock)


class _Leftover:
    """The directories of one spawner that is dead."""

    def __init__(self, name: str, paths: list[str], locks: list[int]) -> None:
        self.name = name
        self._paths = paths
        self.locks = locks
        self.hidden = False

    def is_cleared(self, deadline: float) -> bool:
        """End what is in it, as far as that can be seen, or remove it; whether it is gone."""
        if time.monotonic() > deadline:
            return False
        try:
            if self._is_populated():
                visible = [pid for path in self._paths for pid in cgroups.processes(path)]
                self.hidden = not visible or 0 in visible
                if not self.hidden:
                    for path in self._paths:
                        cgroups.kill_all(path)
                return False
            return all([cgroups.remove(path, deadline) for path in self._paths])
        except OSError:
            return False  # it changes while we look; the next round sees more

    def _is_populated(self) -> bool:
        """Whether any process is in it, of any pid namespace."""
        counts = [f"{path}/{name}" for path in self._paths for name in ("pids.current", "cgroup.events")]
        return any(_counts_any(path) for path in counts)

    def reason(self) -> str:
        """Return the reason why it is still there."""
        if self.hidden:
            return "holds processes of another pid namespace"
        return f"could not be removed within {BUDGET_SECONDS:g} s"


def _counts_any(path: str) -> bool:
    """Whether such a file, of v1 or of v2, tells of processes."""
    try:
        with open(path) as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return False
    return "0" not in lines and "populated 0" not in lines

"""The control group of each sandbox, around sentry, gofer and what waits for them.

They are made as those of the native runtime's boxes are, below a directory that this process owns: a server that finds
one whose owner is dead removes it with all that is in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import Callable, Mapping

from tidebox.errors import ProvisionFailed
from tidebox.runtime.native.usage import Counters, Meter
from tidebox.spawner import cgroups, sweeping

_REMOVE_SECONDS = 10.0
_PAUSE_SECONDS = 0.005


class Group:
    """The cgroup of one sandbox."""

    def __init__(self, leaf: cgroups.Leaf) -> None:
        self._leaf = leaf
        self._notice = -1
        self.meter = Meter(Counters(leaf.name, leaf.edition, leaf.files()), own_processes=0)

    @property
    def entrances(self) -> list[str]:
        """The files by which a process of a single thread joins it, by writing 0."""
        name = "tasks" if isinstance(self._leaf, cgroups.LeafV1) else "cgroup.procs"
        return [f"{path}/{name}" for path in sorted(set(self._leaf.paths.values()))]

    def limit(self, limits: Mapping[str, int]) -> None:
        """Set its limits; raises ``ProvisionFailed``."""
        try:
            self._leaf.limit(**limits)
        except OSError as error:
            raise ProvisionFailed(
                f"the limits of a box could not be set: {error.strerror}", step="control group"
            ) from None

    def end_when_out_of_memory(self, tell: Callable[[], None]) -> None:
        """Have all in it end when the kernel ends one over memory, and ``tell`` before that where it can be.

        The one that the kernel takes need not be the sentry: it would wait for a dead process of its own for ever.
        Raises OSError.
        """
        if isinstance(self._leaf, cgroups.LeafV2):
            with open(f"{self._leaf.path}/memory.oom.group", "w") as file:
                file.write("1")
            return
        directory = self._leaf.paths["memory"]
        self._notice = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        control = os.open(f"{directory}/memory.oom_control", os.O_RDONLY | os.O_CLOEXEC)
        try:
            with open(f"{directory}/cgroup.event_control", "w") as file:
                file.write(f"{self._notice} {control}")
        finally:
            os.close(control)

        def ended() -> None:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._notice)
            self._stop_noticing()
            tell()
            self.kill()

        asyncio.get_running_loop().add_reader(self._notice, ended)

    def _stop_noticing(self) -> None:
        if self._notice >= 0:
            asyncio.get_running_loop().remove_reader(self._notice)
            os.close(self._notice)
            self._notice = -1

    def freeze(self, frozen: bool) -> None:
        """Stop every process in it, or let them go on."""
        self._leaf.freeze(frozen)

    def kill(self) -> None:
        """End every process in it."""
        for path in set(self._leaf.paths.values()):
            cgroups.kill_all(path)

    def discard(self) -> None:
        """Remove it, in which nothing was ever started."""
        self.meter.counters.close()
        self._leaf.remove()

    async def remove(self) -> bool:
        """End what is in it and remove it; False where that takes too long."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _REMOVE_SECONDS
        self._stop_noticing()
        self.meter.counters.close()
        pause = _PAUSE_SECONDS
        while True:
            self.kill()
            if self._leaf.remove():
                return True
            if loop.time() > until:
                return False
            # There is nothing to wait on: the kernel tells of the last process on v2 only.
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.1)


class Groups:
    """Those of one runtime."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._found: cgroups.Cgroups | None = None
        self.problem: str | None = "it was not tried"
        """Why there are none."""

    def open(self) -> None:
        """Look for them, once; what dead owners left is removed."""
        if self._found is not None:
            return
        if os.geteuid() != 0:
            self.problem = "control groups need root here"
            return
        try:
            self._found = cgroups.find()
        except cgroups.CgroupError as error:
            self.problem = str(error)
            return
        self.problem = None
        sweeping.sweep(self._found.sweep_roots(), self._found.name)

    @property
    def version(self) -> int:
        """Of the control groups; 0 where there are none."""
        return self._found.version if self._found is not None else 0

    def make(self) -> Group | None:
        """A new one without limits; None where there are none."""
        if self._found is None:
            return None
        try:
            return Group(self._found.make(f"b{next(self._numbers)}"))
        except OSError as error:
            raise ProvisionFailed(
                f"the control group of a box could not be made: {error.strerror}", step="control group"
            ) from None

    def close(self) -> bool:
        """Remove all; False while a process is left."""
        found, self._found = self._found, None
        if found is None:
            return True
        found.kill()
        return found.close()

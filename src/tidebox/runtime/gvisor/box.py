"""A box that is a sandbox of gVisor: its agent's link, and the control group around all of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from tidebox.errors import BoxGone, UnsupportedOperation
from tidebox.model.box import BoxSpec
from tidebox.model.limits import MIB, Limits
from tidebox.model.result import Usage
from tidebox.model.runtimes import Features
from tidebox.runtime.gvisor.bundle import group_limits
from tidebox.runtime.gvisor.groups import Group
from tidebox.runtime.gvisor.process import SandboxProcess
from tidebox.runtime.link import Link
from tidebox.runtime.shared.box import AgentBox

# What reading files takes in a box whose own files fill its memory.
_ROOM = 64 * MIB

Remove = Callable[["GvisorBox"], Awaitable[None]]


class GvisorBox(AgentBox):
    """One sandbox."""

    def __init__(
        self,
        name: str,
        image_digest: str,
        link: Link,
        spec: BoxSpec,
        features: Features,
        process: SandboxProcess,
        group: Group | None,
        remove: Remove,
    ) -> None:
        """``remove`` ends the sandbox's processes and removes what is left of it."""
        super().__init__(name, image_digest, link, spec, features)
        self.process = process
        self.group = group
        self._remove_sandbox = remove
        self._roomy = False
        self._last: Usage | None = None
        self._exhausted = False

    def exhaust(self) -> None:
        """It has used up its memory, and is about to be ended."""
        self._exhausted = True

    def begin_counting(self) -> None:
        """Start to count usage: what was used until now was used to make the box."""
        self._started = time.monotonic()
        if self.group is not None:
            self.group.meter.reset()

    def _on_lost(self) -> None:
        # The counters go with the box; the kernel may have ended it over its memory.
        self._last = self._measured()
        super()._on_lost()

    async def usage(self) -> Usage:
        return self._last if self._last is not None else self._measured()

    def _measured(self) -> Usage:
        meter = self.group.meter if self.group is not None else None
        return Usage(
            wall_seconds=time.monotonic() - self._started,
            cpu_seconds=meter.cpu_seconds() if meter is not None else None,
            memory_peak=meter.memory_peak() if meter is not None else None,
            # The sandbox's kernel bounds them and keeps no peak; those of the machine are not the program's.
            pids_peak=None,
            oom_kills=max(meter.oom_kills() if meter is not None else 0, int(self._exhausted)),
        )

    async def adjust(self, limits: Limits) -> None:
        if self.gone:
            raise BoxGone("the box is gone")
        if limits.pids != self._limits.pids:
            raise UnsupportedOperation("the number of processes of this box cannot be changed")
        self._limits = limits
        if self.group is not None:
            await asyncio.to_thread(self.group.limit, group_limits(limits, sandbox=self._sandbox))
        self.begin_counting()
        self._count_from_now()

    async def freeze(self) -> None:
        if self.group is None:
            await super().freeze()
        else:
            await asyncio.to_thread(self.group.freeze, True)
            self._frozen = True

    async def thaw(self) -> None:
        if self.group is None:
            await super().thaw()
        else:
            await asyncio.to_thread(self.group.freeze, False)
            self._frozen = False

    async def _make_room(self) -> None:
        if self.group is not None and not self._roomy and not self._sandbox:
            limits = group_limits(self._limits, sandbox=False)
            await asyncio.to_thread(self.group.limit, {**limits, "memory": limits["memory"] + _ROOM})
            self._roomy = True

    async def _remove(self) -> None:
        await self._remove_sandbox(self)

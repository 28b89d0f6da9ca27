"""A box that is a container: its agent's link, and the engine for what the agent cannot do."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from tidebox.errors import BoxGone, TideboxError
from tidebox.model.box import BoxSpec
from tidebox.model.limits import MIB, Limits
from tidebox.model.result import Usage
from tidebox.model.runtimes import Features
from tidebox.runtime.docker.containers import EngineFacts, limits_of
from tidebox.runtime.docker.engine import DockerEngine
from tidebox.runtime.docker.groups import Group
from tidebox.runtime.link import Link
from tidebox.runtime.shared.box import USAGE, AgentBox

# What reading files takes in a box whose own files fill its memory.
_ROOM = 64 * MIB

Seen = TypeVar("Seen")
Remove = Callable[[str], Awaitable[None]]
Bound = Callable[["DockerBox", int], Awaitable[None]]


class DockerBox(AgentBox):
    """One container."""

    def __init__(
        self,
        name: str,
        image_digest: str,
        engine: DockerEngine,
        facts: EngineFacts,
        link: Link,
        spec: BoxSpec,
        features: Features,
        remove: Remove,
        bound: Bound | None = None,
    ) -> None:
        """``remove`` sees to it that a container goes, now or when the engine is back; ``bound`` has limits hold that
        the engine does not set, for a container with so much memory."""
        super().__init__(name, image_digest, link, spec, features)
        self._engine = engine
        self._facts = facts
        self._applied = limits_of(spec.limits, facts, sandbox=self._sandbox, starting=not facts.podman)
        self._remove_container = remove
        self._bound = bound
        self._bounded = 0
        self.group: Group | None = None
        """Its control group, where this machine has it."""
        self._exhausted = False
        self._exhausting: asyncio.Task[None] | None = None
        self._peak_before = -1
        self._roomy = False

    def _engine_limits(self, limits: Limits) -> dict[str, Any]:
        return limits_of(limits, self._facts, sandbox=self._sandbox)

    async def usage(self) -> Usage:
        if not self._stopped:
            with contextlib.suppress(BoxGone):
                self._counted = await self._order(USAGE)
        cpu, pids = self._counted.get("cpu_us"), self._counted.get("pids_peak")
        if self._counted.get("pids_refused"):
            pids = self._limits.pids
        memory = self._counted.get("memory_peak_bytes")
        return Usage(
            wall_seconds=time.monotonic() - self._started,
            cpu_seconds=None if cpu is None else cpu / 1e6,
            # The kernel keeps one peak for all programs that a container serves one after the other.
            memory_peak=memory if memory != self._peak_before else None,
            pids_peak=pids,
            oom_kills=self._counted.get("oom_kills", 0) + self._exhausted,
        )

    # What the guard needs of it.

    def pids(self) -> list[int]:
        """Its processes, as this machine numbers them."""
        return self._looked_at(Group.pids, [])

    def init_pid(self) -> int | None:
        """Its agent; None when it is dead."""
        return self._looked_at(Group.init_pid, None)

    def system_seconds(self) -> float:
        """Processor time that the kernel has spent for it."""
        return self._looked_at(Group.system_seconds, 0.0)

    def _looked_at(self, look: Callable[[Group], Seen], otherwise: Seen) -> Seen:
        try:
            return look(self.group) if self.group is not None else otherwise
        except (OSError, ValueError):
            return otherwise  # it died meanwhile

    def exhaust(self) -> None:
        """End its programs, which have used up its memory; of a sandbox all."""
        self._exhausted = True
        if self._sandbox:
            self.begin_close()
        elif self._exhausting is None:
            self._exhausting = asyncio.get_running_loop().create_task(self._stop_quietly())

    async def _stop_quietly(self) -> None:
        with contextlib.suppress(TideboxError):
            await self.stop()

    @property
    def tight(self) -> bool:
        """Whether its limits hold."""
        wanted = self._engine_limits(self._limits)
        return wanted == self._applied and (self._bound is None or self._bounded == wanted["Memory"])

    async def tighten(self) -> None:
        """Have its limits hold."""
        wanted = self._engine_limits(self._limits)
        if wanted != self._applied:
            await self._update(wanted)
        if self._bound is not None and self._bounded != wanted["Memory"]:
            await self._bound(self, wanted["Memory"])
            self._bounded = wanted["Memory"]

    async def adjust(self, limits: Limits) -> None:
        self._limits = limits
        await self.tighten()
        self._count_from_now()

    async def renew(self, limits: Limits) -> None:
        await self.stop()
        peak = self._counted.get("memory_peak_bytes", -1)
        await self._workspace.leave_alone()
        self._stopped = self._roomy = self._exhausted = False
        self._exhausting = None
        self._counted, self._peak_before = {}, peak
        await self.adjust(limits)

    async def _update(self, limits: dict[str, Any]) -> None:
        await self._engine.call("POST", f"/containers/{self.id}/update", body=limits)
        self._applied = limits

    async def freeze(self) -> None:
        await self._engine.call("POST", f"/containers/{self.id}/pause")
        self._frozen = True

    async def thaw(self) -> None:
        await self._engine.call("POST", f"/containers/{self.id}/unpause")
        self._frozen = False

    async def _make_room(self) -> None:
        if self.features.adjusts and not self._roomy and not self._sandbox:
            memory = self._applied["Memory"] + _ROOM
            await self._update({**self._applied, "Memory": memory, "MemorySwap": memory})
            self._roomy = True

    async def _remove(self) -> None:
        await self._remove_container(self.id)

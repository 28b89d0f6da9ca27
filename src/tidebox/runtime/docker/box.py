"""A box that is a container: its agent's link, and the engine for what the agent cannot do."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from tidebox.errors import BoxGone, TideboxError
from tidebox.files.trees import Tally, TreeLimits
from tidebox.model.box import BoxSpec, Captured, CapturedTree, CaptureRule, Command
from tidebox.model.events import Exited
from tidebox.model.limits import MIB, Limits
from tidebox.model.result import Usage
from tidebox.model.runtimes import Features
from tidebox.runtime.base import Box, Exec, Files
from tidebox.runtime.docker.containers import EngineFacts, limits_of
from tidebox.runtime.docker.engine import Engine
from tidebox.runtime.docker.files import Workspace
from tidebox.runtime.docker.groups import Group
from tidebox.runtime.link import Link, LinkExec, exec_request
from tidebox.runtime.relay import Relay
from tidebox.wire.messages import ExecRequest

# What the agent does itself, for the whole box: see tidebox.agent.processes.
_STOP, _USAGE, _COUNT = "tidebox:stop", "tidebox:usage", "tidebox:count"
_DEATH_SECONDS = 10.0
# What reading files takes in a box whose own files fill its memory.
_ROOM = 64 * MIB

Seen = TypeVar("Seen")
Remove = Callable[[str], Awaitable[None]]
Bound = Callable[["DockerBox", int], Awaitable[None]]


class DockerBox(Box):
    """One container."""

    features: Features

    def __init__(
        self,
        name: str,
        image_digest: str,
        engine: Engine,
        facts: EngineFacts,
        link: Link,
        spec: BoxSpec,
        features: Features,
        remove: Remove,
        bound: Bound | None = None,
    ) -> None:
        """``remove`` sees to it that a container goes, now or when the engine is back; ``bound`` has limits hold that
        the engine does not set, for a container with so much memory."""
        self.id = name
        self.image_digest = image_digest
        self.features = features
        self.relay: Relay | None = None
        self._engine = engine
        self._facts = facts
        self._link = link
        self._limits = spec.limits
        self._sandbox = spec.kind == "sandbox"
        self._applied = limits_of(spec.limits, facts, sandbox=self._sandbox, starting=not facts.podman)
        self._remove = remove
        self._bound = bound
        self._bounded = 0
        self.group: Group | None = None
        """Its control group, where this machine has it."""
        self._exhausted = False
        self._exhausting: asyncio.Task[None] | None = None
        self._workspace = Workspace(link)
        self._started = time.monotonic()
        self._counted: dict[str, int] = {}
        self._peak_before = -1
        self._stopped = self._frozen = self._roomy = self._lost = False
        self._closing: asyncio.Task[None] | None = None
        self._callbacks: list[Callable[[], None]] = []
        link.on_lost = self._on_lost

    def _engine_limits(self, limits: Limits) -> dict[str, Any]:
        return limits_of(limits, self._facts, sandbox=self._sandbox)

    @property
    def link(self) -> Link:
        """The connection to the box's agent."""
        return self._link

    @property
    def gone(self) -> bool:
        return self._link.gone

    def on_gone(self, callback: Callable[[], None]) -> None:
        if self._lost:
            asyncio.get_running_loop().call_soon(callback)
        else:
            self._callbacks.append(callback)

    def _on_lost(self) -> None:
        self._lost = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    @property
    def files(self) -> Files:
        return self._link.files

    async def exec(self, command: Command) -> Exec:
        if self._stopped:
            raise BoxGone("the box was stopped")
        return self._link.open_exec(exec_request(command))

    async def stop(self) -> None:
        if self._stopped or self._link.gone:
            return
        try:
            async with asyncio.timeout(_DEATH_SECONDS):
                if self._frozen:
                    await self.thaw()
                self._counted = await self._order(_STOP)
        except BoxGone:
            return  # pid 1 is dead, and so is everything
        except TimeoutError:
            # What does not die of the agent's signal may of the engine's; who waits for a program waits no longer.
            self.begin_close()
            await self._link.close()
            raise BoxGone("the box was killed and does not end") from None
        self._stopped = True

    async def _order(self, name: str) -> dict[str, int]:
        """Have the agent do something for the whole box; what the box has used."""
        return await _answer_of(self._link.open_exec(ExecRequest(cmd=name, args=[])))

    async def usage(self) -> Usage:
        if not self._stopped:
            with contextlib.suppress(BoxGone):
                self._counted = await self._order(_USAGE)
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
        self._started = time.monotonic()
        # Nothing is waited for: it is done before what is sent next.
        self._link.open_exec(ExecRequest(cmd=_COUNT, args=[])).abandon()

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

    async def place(self, source: Path) -> Tally:
        limits = TreeLimits(max_bytes=self._limits.workspace, max_entries=self._limits.inodes)
        return await self._workspace.place(source, limits)

    async def put(self, files: Mapping[str, bytes]) -> None:
        await self._workspace.put(files, self._limits.workspace)

    async def capture(self, rule: CaptureRule) -> Captured:
        await self._stop_for_files()
        return await self._workspace.capture(rule)

    async def capture_into(self, target: Path, rule: CaptureRule) -> CapturedTree:
        await self._stop_for_files()
        return await self._workspace.capture_into(target, rule)

    async def collect(self, target: Path, limits: TreeLimits) -> Tally:
        await self._stop_for_files()
        return await self._workspace.collect(target, limits)

    async def _stop_for_files(self) -> None:
        await self.stop()
        if self.features.adjusts and not self._roomy and not self._sandbox:
            # Its files may have filled the memory that it has.
            memory = self._applied["Memory"] + _ROOM
            await self._update({**self._applied, "Memory": memory, "MemorySwap": memory})
            self._roomy = True

    def begin_close(self) -> asyncio.Task[None]:
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        return self._closing

    async def _close(self) -> None:
        if self.relay is not None:
            await self.relay.close()
        await self._link.close()
        await self._remove(self.id)


async def _answer_of(order: LinkExec) -> dict[str, int]:
    try:
        async for event in order.events():
            if isinstance(event, Exited):
                return event.usage or {}
    except BoxGone:
        raise
    except TideboxError as error:
        raise BoxGone(f"the agent of the box does not do as it is told: {error.message}") from None
    finally:
        order.abandon()
    raise BoxGone("the agent of the box does not answer")

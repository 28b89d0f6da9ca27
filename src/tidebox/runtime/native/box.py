"""A native box: its agent's link, its init's pidfd, its workspace's descriptor and its cgroup."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from tidebox.errors import BoxGone, ExecFailed, TideboxError, UnsupportedOperation
from tidebox.model.box import Captured, CapturedTree, CaptureRule, Command
from tidebox.model.events import EgressSeen
from tidebox.model.limits import MIB, Limits
from tidebox.model.result import Usage
from tidebox.model.runtimes import Features
from tidebox.runtime import workspaces
from tidebox.runtime.base import Box, BoxWatch, Exec, LiveFiles
from tidebox.runtime.capture import capture, capture_into
from tidebox.runtime.link import Link, exec_request
from tidebox.runtime.native.descriptors import Descriptors
from tidebox.runtime.native.outward import Outward
from tidebox.runtime.native.piped import PipedExec
from tidebox.runtime.native.spawner import SpawnerClient
from tidebox.runtime.native.usage import Meter
from tidebox.runtime.native.watch import Watches
from tidebox.runtime.relay import Relay
from tidebox.untrusted_files.trees import Tally, TreeLimits

if TYPE_CHECKING:
    from tidebox.model.requested_egress import BoxEgress

SHM_BYTES = 64 * MIB
# How long the processes of a box that was killed may take to go, and when something that was stopped may be why.
_DEATH_SECONDS = 10.0
_SLOW_DEATH_SECONDS = 1.0

_log = logging.getLogger(__name__)


class NativeBox(Box):
    """One box of the native runtime."""

    environment: Mapping[str, str] = MappingProxyType({})
    """Environment variables that every program of a ``sandbox`` has, unless it is given another value."""

    def __init__(
        self,
        id: str,
        image_digest: str,
        spawner: SpawnerClient,
        descriptors: Descriptors,
        link: Link | None,
        single: PipedExec | None,
        pidfd: int,
        workspace: int,
        meter: Meter,
        kind: str,
        limits: Limits,
        features: Features,
        on_use: Callable[[NativeBox], None],
        outward: Outward | None,
    ) -> None:
        """``on_use`` is called before a program runs in it; ``outward`` is where its network leads, if it leads out."""
        self.id = id
        self.image_digest = image_digest
        self._spawner = spawner
        self._descriptors = descriptors
        self._link = link
        self._single = single
        self.features = features
        self._on_use = on_use
        self._outward = outward
        self._pidfd = pidfd
        self._workspace = workspace
        self._watches = Watches(workspace)
        self._meter = meter
        self._kind = kind
        self._limits = limits
        self._applied = self._cgroup_limits(limits)
        self.relay: Relay | None = None
        self._started = time.monotonic()
        self._frozen = False
        self._stopped = False
        self._exhausted = 0
        self._dead = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None
        self._callbacks: list[Callable[[], None]] = []
        descriptors.watch(pidfd, self._on_death)

    @property
    def files(self) -> LiveFiles:
        return self.link.files

    @property
    def link(self) -> Link:
        """The connection to the box's agent."""
        if self._link is None:
            raise ExecFailed("this box is for one program, without an agent", kind="single")
        return self._link

    @property
    def gone(self) -> bool:
        # Boxes do not outlive their spawner, but a moment passes until the last of them is dead.
        # And one that died before it was told what to become never will be anything.
        return self._dead.is_set() or self._spawner.gone.is_set() or (self._single is not None and self._single.lost)

    def on_gone(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def _on_death(self) -> None:
        # The kernel reports the init's death only when every process of its pid namespace is gone.
        self._descriptors.forget(self._pidfd)
        self._dead.set()
        self._watches.lose()
        for callback in self._callbacks:
            callback()

    async def watch(self, path: str, recursive: bool) -> BoxWatch:
        if self._dead.is_set() or self._closing is not None:
            raise BoxGone("the box is gone")
        return await self._watches.open(path, recursive)

    async def exec(self, command: Command) -> Exec:
        if self._stopped:
            raise BoxGone("the box was stopped")
        if self._single is not None:
            await self._single.start(command)
            return self._single
        if self.environment:
            command = replace(command, env={**self.environment, **command.env})
        return self.link.open_exec(exec_request(command))

    async def adjust(self, limits: Limits) -> None:
        self._on_use(self)
        self._meter.reset()
        self._started = time.monotonic()
        wanted = self._cgroup_limits(limits)
        if wanted != self._applied:
            await self._spawner.request("limit", box=self.id, limits=wanted)
            self._applied = wanted
        self._limits = limits

    def _cgroup_limits(self, limits: Limits) -> dict[str, int]:
        return cgroup_limits(limits, self._kind, agent=self._single is None)

    async def freeze(self) -> None:
        if not self.features.freezes:
            raise UnsupportedOperation("nothing can be frozen without control groups")
        await self._spawner.request("freeze", box=self.id, frozen=True)
        self._frozen = True
        if self._outward is not None:
            # Nobody would answer the other side, for as long as that takes.
            await self._outward.usage(close=True)

    async def thaw(self) -> None:
        await self._spawner.request("freeze", box=self.id, frozen=False)
        self._frozen = False
        self._on_use(self)

    def pids(self) -> list[int]:
        """The processes in it."""
        return self._meter.pids()

    def init_pid(self) -> int | None:
        """Its init, as this process sees it; None when it is dead."""
        if self._dead.is_set() or self._closing is not None:
            return None
        with open(f"/proc/self/fdinfo/{self._pidfd}", "rb") as file:
            lines = dict(line.split(b":", 1) for line in file.read().splitlines() if b":" in line)
        pid = int(lines[b"Pid"])
        return pid if pid > 0 else None

    def system_seconds(self) -> float:
        """Processor time that the kernel has spent for it."""
        return self._meter.system_seconds()

    def exhaust(self) -> None:
        """Kill it for memory that is counted nowhere; told as what the kernel kills for memory."""
        if not self._dead.is_set() and self._closing is None:
            self._exhausted += 1
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    async def stop(self) -> None:
        await self._stop()
        if self._outward is not None:
            await self._outward.usage(close=True)

    async def _stop(self) -> None:
        if self._dead.is_set():
            return
        # What is ours forks nothing unasked: when the user's processes are gone there is nothing to kill.
        if self._meter.empty():
            self._stopped = True
            return
        await self._kill()

    async def _kill(self) -> None:
        try:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it is dead, which its descriptor tells
        slow = asyncio.get_running_loop().call_later(_SLOW_DEATH_SECONDS, self._spawner.continue_templates)
        try:
            async with asyncio.timeout(_DEATH_SECONDS):
                if self._frozen:
                    # A frozen process dies only when it runs again.
                    await self.thaw()
                await self._dead.wait()
        except TimeoutError:
            # The caller that waits for its program would wait as long as the kernel does.
            if self._single is not None:
                self._single.close()
            if self._link is not None:
                await self._link.close()
            raise BoxGone("the box was killed and does not end: a process of it is stuck in the kernel") from None
        finally:
            slow.cancel()

    async def usage(self) -> Usage:
        return Usage(
            wall_seconds=time.monotonic() - self._started,
            cpu_seconds=self._meter.cpu_seconds(),
            memory_peak=self._meter.memory_peak(),
            pids_peak=self._meter.pids_peak(),
            oom_kills=self._meter.oom_kills() + self._exhausted,
            egress=None if self._outward is None else await self._outward.usage(),
        )

    async def allow(self, egress: BoxEgress) -> None:
        if self._outward is None:
            raise UnsupportedOperation("this box was opened without a way out")
        if self._closing is None:
            await self._outward.allow(egress)

    def on_egress(self, callback: Callable[[EgressSeen], None]) -> None:
        if self._outward is None:
            raise UnsupportedOperation("this box was opened without a way out")
        self._outward.on_seen(callback)

    async def place(self, source: Path) -> Tally:
        limits = TreeLimits(max_bytes=self._limits.workspace, max_entries=self._limits.inodes)
        return await asyncio.to_thread(workspaces.place, source, self._workspace, limits)

    async def put(self, files: Mapping[str, bytes]) -> None:
        await asyncio.to_thread(workspaces.put, files, self._workspace, self._limits.workspace)

    async def capture(self, rule: CaptureRule) -> Captured:
        await self.stop()
        return await asyncio.to_thread(capture, self._workspace, rule)

    async def capture_into(self, target: Path, rule: CaptureRule) -> CapturedTree:
        await self.stop()
        return await asyncio.to_thread(capture_into, self._workspace, target, rule)

    async def collect(self, target: Path, limits: TreeLimits) -> Tally:
        await self.stop()
        return await asyncio.to_thread(workspaces.collect, self._workspace, target, limits)

    def begin_close(self) -> asyncio.Task[None]:
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        return self._closing

    async def _close(self) -> None:
        dead = True
        if not self._dead.is_set():
            try:
                async with self._spawner.closing:
                    await self._kill()
            except TideboxError as error:
                # What cannot be ended is not waited for.
                _log.warning("box %s is left: %s", self.id, error)
                dead = False
                self._on_death()
        if self.relay is not None:
            await self.relay.close()
        if self._link is not None:
            await self._link.close()
        if self._single is not None:
            self._single.close()
        await self._watches.close()
        os.close(self._pidfd)
        os.close(self._workspace)
        if self._outward is not None:
            self._outward.close()
        self._spawner.close_box(self.id, self._meter, dead=dead)


def cgroup_limits(limits: Limits, kind: str, *, agent: bool) -> dict[str, int]:
    """The limits a cgroup keeps, as the spawner takes them.

    In a box with an agent that comes on top of the user's processes, and so does the child that it keeps ready. Files
    of a box are memory. Those of a ``sandbox`` are written by the agent too, which must not die of a disk that is full:
    there is room for all that its file systems take.
    """
    files, ours = sum(file_systems(limits)) if kind == "sandbox" else 0, 2 if agent else 0
    return {
        "memory": limits.memory + files,
        "pids": limits.pids + ours,
        "quota": max(int(limits.cpus * 100_000), 1000),
        "shares": limits.cpu_shares,
    }


def file_systems(limits: Limits) -> tuple[int, int, int]:
    """The sizes of /workspace, /tmp and /dev/shm."""
    return limits.workspace, limits.workspace, SHM_BYTES

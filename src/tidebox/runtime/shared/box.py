"""A box as its agent serves it: what is alike wherever the agent is pid 1 and everything goes through its link."""

from __future__ import annotations

import abc
import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tidebox.errors import BoxGone, TideboxError
from tidebox.model.box import BoxSpec, Captured, CapturedTree, CaptureRule, Command
from tidebox.model.events import Exited
from tidebox.model.runtimes import Features
from tidebox.runtime.base import Box, Exec, LiveFiles
from tidebox.runtime.link import Link, LinkExec, exec_request
from tidebox.runtime.relay import Relay
from tidebox.runtime.shared.workspace import Workspace
from tidebox.untrusted_files.trees import Tally, TreeLimits
from tidebox.wire.messages import ExecRequest

# What the agent does itself, for the whole box: see tidebox.agent.processes.
STOP, USAGE, COUNT = "tidebox:stop", "tidebox:usage", "tidebox:count"
_DEATH_SECONDS = 10.0


class AgentBox(Box):
    """A box whose agent is connected, or about to be."""

    features: Features

    def __init__(self, name: str, image_digest: str, link: Link, spec: BoxSpec, features: Features) -> None:
        self.id = name
        self.image_digest = image_digest
        self.features = features
        self.relay: Relay | None = None
        self._link = link
        self._limits = spec.limits
        self._sandbox = spec.kind == "sandbox"
        self._workspace = Workspace(link)
        self._started = time.monotonic()
        self._counted: dict[str, int] = {}
        self._stopped = self._frozen = self._lost = False
        self._closing: asyncio.Task[None] | None = None
        self._callbacks: list[Callable[[], None]] = []
        link.on_lost = self._on_lost

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
    def files(self) -> LiveFiles:
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
                self._counted = await self._order(STOP)
        except BoxGone:
            return  # pid 1 is dead, and so is everything
        except TimeoutError:
            # What does not die of the agent's signal dies from outside; who waits for a program waits no longer.
            self.begin_close()
            await self._link.close()
            raise BoxGone("the box was killed and does not end") from None
        self._stopped = True

    async def _order(self, name: str) -> dict[str, int]:
        """Have the agent do something for the whole box; what the box has used."""
        return await _answer_of(self._link.open_exec(ExecRequest(cmd=name, args=[])))

    def _count_from_now(self) -> None:
        """Nothing is waited for: it is done before what is sent next."""
        self._started = time.monotonic()
        self._link.open_exec(ExecRequest(cmd=COUNT, args=[])).abandon()

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
        await self._make_room()

    @abc.abstractmethod
    async def _make_room(self) -> None:
        """Let reading its files take memory, in a stopped box whose files may have filled what it has."""

    def begin_close(self) -> asyncio.Task[None]:
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        return self._closing

    async def _close(self) -> None:
        if self.relay is not None:
            await self.relay.close()
        await self._link.close()
        await self._remove()

    @abc.abstractmethod
    async def _remove(self) -> None:
        """Leave nothing of the box, whose link is closed."""


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

"""Warm boxes: a pool of long-lived boxes opened before a sandbox is requested."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from tidebox.broker.sandboxes.providers.base import NO_EXTRAS, SandboxExtras
from tidebox.errors import RuntimeUnavailable, StartupTimeout, TideboxError
from tidebox.model.box import BoxSpec
from tidebox.model.events import Preparing
from tidebox.model.execution_request import STARTUP_SECONDS
from tidebox.model.ids import new_id
from tidebox.runtime.base import Box, Runtime

_log = logging.getLogger(__name__)

# The client that took a box needs the processors now.
_BREATH_SECONDS = 0.05
_RETRY_SECONDS = 1.0
_LONGEST_RETRY_SECONDS = 60.0

Provide = Callable[[BoxSpec, Callable[[Preparing], None]], Awaitable[BoxSpec]]


@dataclass(frozen=True, slots=True)
class WarmBox:
    """A box that nobody has used, and the id by which clients will know it."""

    sandbox_id: str
    box: Box


class WarmBoxes:
    """Opens long-lived boxes, and keeps some warm."""

    def __init__(self, runtime: Runtime, spec: BoxSpec, size: int, provide: Provide | None = None) -> None:
        """``provide`` puts the packages of a spec into its image."""
        self._runtime = runtime
        self._provide = provide
        self._spec = spec
        self._size = size
        self._ready: deque[WarmBox] = deque()
        self.opening = 0
        """How many boxes are being opened."""
        self._wanted = asyncio.Event()
        self._refill_task: asyncio.Task[None] | None = None
        self._discarding: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Start to fill the pool of warm boxes."""
        if self._size:
            self._wanted.set()
            self._refill_task = asyncio.get_running_loop().create_task(self._refill(), name="warm boxes")

    @property
    def ready(self) -> int:
        """Number of warm boxes."""
        return len(self._ready)

    def take(self) -> WarmBox | None:
        """Return a warm box, if there is one."""
        self._wanted.set()
        while self._ready:
            found = self._ready.popleft()
            if not found.box.gone:
                return found
            self._discard(found)
        return None

    def _discard(self, fresh: WarmBox) -> None:
        task = asyncio.get_running_loop().create_task(fresh.box.close())
        self._discarding.add(task)
        task.add_done_callback(self._discarding.discard)

    async def open(self, extras: SandboxExtras = NO_EXTRAS) -> WarmBox:
        """A new box; what is done for its packages does not count as its start."""
        sandbox_id = new_id("sb")
        relayed = sandbox_id if self._runtime.features.relays else None
        spec = replace(self._spec, sandbox_id=relayed, packages=extras.packages, egress=extras.egress)
        if extras.packages:
            spec = replace(spec, packages_for=extras.user)
            if self._provide is None:
                raise RuntimeUnavailable("sandboxes have no packages here")
            spec = await self._provide(spec, extras.on_preparing)
        limit = asyncio.timeout(STARTUP_SECONDS)
        self.opening += 1
        try:
            async with limit:
                box = await self._runtime.open(spec)
            if extras.egress is not None:
                box.on_egress(extras.on_egress)
            return WarmBox(sandbox_id, box)
        except TimeoutError:
            if not limit.expired():
                raise
            raise StartupTimeout(f"no sandbox could be made within {STARTUP_SECONDS:g} s", step="start") from None
        finally:
            self.opening -= 1

    async def _refill(self) -> None:
        pause = _RETRY_SECONDS
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            await asyncio.sleep(_BREATH_SECONDS)
            self._drop_dead()
            while len(self._ready) < self._size:
                try:
                    fresh = await self.open()
                except TideboxError as error:
                    _log.warning("no box could be made ready: %s", error)
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, _LONGEST_RETRY_SECONDS)
                    continue
                pause = _RETRY_SECONDS
                fresh.box.on_gone(self._wanted.set)
                self._ready.append(fresh)

    def _drop_dead(self) -> None:
        for fresh in [fresh for fresh in self._ready if fresh.box.gone]:
            self._ready.remove(fresh)
            self._discard(fresh)

    async def close(self) -> None:
        """Close the warm boxes."""
        if self._refill_task is not None:
            self._refill_task.cancel()
            await asyncio.wait([self._refill_task])
        while self._ready:
            self._discard(self._ready.popleft())
        if self._discarding:
            await asyncio.wait(self._discarding)

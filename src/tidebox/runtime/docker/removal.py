"""Removing containers: now, later when the engine is back, and those that a dead owner left."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass

from tidebox.errors import TideboxError
from tidebox.runtime.docker.engine import DockerEngine, EngineRefused
from tidebox.runtime.docker.tools import remove_scratch
from tidebox.runtime.shared.owners import INSTALLATION, OWNER, OwnerFile

_log = logging.getLogger(__name__)

_MISSING, _IN_PROGRESS = 404, 409
# Each that is removed frees a system call filter, and freeing many at once is what some kernels do not survive.
_AT_ONCE = 4
_SECONDS = 60.0
_RETRY_SECONDS = 1.0
_LONGEST_RETRY_SECONDS = 30.0
# How long an engine that was asked to make a container, and never answered, may still make it.
_LATE_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class _ListedContainer:
    """A container, as it is listed."""

    id: str
    names: tuple[str, ...]
    owner: str


class Removal:
    """Removes the containers of one owner."""

    def __init__(self, engine: DockerEngine, owner: OwnerFile) -> None:
        self._engine = engine
        self._owner = owner
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._owed: set[str] = set()
        self._late: dict[str, float] = {}
        self._paying: asyncio.Task[None] | None = None

    @property
    def owed(self) -> int:
        """Number of containers that could not be removed yet."""
        return len(self._owed)

    async def remove(self, name: str) -> None:
        """Remove a container; where the engine does not do it now, that is tried until it does."""
        if not await self._remove(name):
            self._owed.add(name)
            self._begin_to_pay()

    def remove_when_made(self, name: str) -> None:
        """Remove a container that the engine was asked for and that it may make later than anybody waits for it."""
        self._late[name] = asyncio.get_running_loop().time() + _LATE_SECONDS
        self._begin_to_pay()

    def _begin_to_pay(self) -> None:
        if self._paying is None or self._paying.done():
            self._paying = asyncio.get_running_loop().create_task(self._pay(), name="removal of containers")

    async def _remove(self, name: str) -> bool:
        try:
            async with self._slots:
                await self._engine.call(
                    "DELETE", f"/containers/{name}", query={"force": "1", "v": "1"}, seconds=_SECONDS
                )
        except EngineRefused as error:
            # It is gone, or goes by itself as soon as its agent has ended.
            return error.status in (_MISSING, _IN_PROGRESS)
        except TideboxError as error:
            _log.info("container %s could not be removed yet: %s", name, error.message)
            return False
        return True

    async def _pay(self) -> None:
        pause = _RETRY_SECONDS
        while self._owed or self._late:
            await asyncio.sleep(pause)
            owing = len(self._owed)
            if self._late:
                await self._look_for_late()
            await self._remove_owed()
            pause = _RETRY_SECONDS if len(self._owed) < owing else min(pause * 2, _LONGEST_RETRY_SECONDS)

    async def _remove_owed(self) -> None:
        """Each by itself: one that does not go keeps no other."""

        async def remove(name: str) -> None:
            if await self._remove(name):
                self._owed.discard(name)

        await asyncio.gather(*(remove(name) for name in list(self._owed)))

    async def _look_for_late(self) -> None:
        now = asyncio.get_running_loop().time()
        try:
            found = await self._labelled(f"{OWNER}={self._owner.name}")
        except TideboxError:
            return
        made = {name for container in found for name in container.names}
        for name, until in list(self._late.items()):
            if name in made:
                self._owed.add(name)
            if name in made or now > until:
                del self._late[name]

    async def _labelled(self, label: str) -> list[_ListedContainer]:
        filters = json.dumps({"label": [label]})
        found = await self._engine.call("GET", "/containers/json", query={"all": "1", "filters": filters})
        with self._engine.understood("the list of containers"):
            return [
                _ListedContainer(
                    id=str(item["Id"]),
                    names=tuple(str(name).lstrip("/") for name in item.get("Names") or ()),
                    owner=str(item["Labels"].get(OWNER, "")),
                )
                for item in found
            ]

    async def sweep(self) -> None:
        """Remove what dead owners of this installation left, as far as it goes now; the rest is owed."""
        try:
            await self._sweep()
        except TideboxError as error:
            _log.info("what servers that ended have left is still there: %s", error.message)

    async def _sweep(self) -> None:
        found = await self._labelled(f"{INSTALLATION}={self._owner.installation}")
        dead = await asyncio.to_thread(self._owner.dead)
        left = [each.id for each in found if not await asyncio.to_thread(self._owner.lives, each.owner)]
        self._owed.update(left)
        await self._remove_owed()
        for owner in dead:
            await remove_scratch(self._engine, owner)
        if self._owed.isdisjoint(left):
            for owner in dead:
                await asyncio.to_thread(self._owner.forget, owner)
        else:
            self._begin_to_pay()
        if left:
            _log.info("%d containers of servers that ended were found", len(left))

    async def close(self, seconds: float) -> bool:
        """Try once more, no longer than that; whether nothing is left."""
        if self._paying is not None:
            self._paying.cancel()
            await asyncio.gather(self._paying, return_exceptions=True)
        try:
            async with asyncio.timeout(seconds):
                if self._late:
                    await self._look_for_late()
                await self._remove_owed()
        except TimeoutError:
            return False
        return not self._late and not self._owed

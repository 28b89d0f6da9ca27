"""The tools that every container has at ``/.tidebox``, read-only: the agent with its own interpreter, and launchers.

It is a volume named after what is in it, made once for an engine and shared by all containers there. Images need no
interpreter for it, and nothing of this machine is mounted.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re

from tidebox.errors import StartupTimeout, TideboxError
from tidebox.runtime import launchers
from tidebox.runtime.docker import collecting
from tidebox.runtime.docker.engine import DockerEngine, EngineRefused
from tidebox.runtime.shared import tools
from tidebox.runtime.shared.archives import tar_of

_log = logging.getLogger(__name__)

VOLUME = "tidebox-tools-"
_NAME = re.compile(VOLUME + r"[0-9a-f]{16}\Z")
_COMPLETE = "complete"
_FILL_SECONDS = 120.0
_HOLD_SECONDS = 2 * _FILL_SECONDS
_MISSING, _IN_USE = 404, 409
# Volumes without a name that its image asks for, too; ours has one, and stays.
_WITH_ALL_OF_IT = {"force": "1", "v": "1"}


class AgentVolume:
    """The volume of one engine."""

    def __init__(self, engine: DockerEngine, machine: str, labels: dict[str, str], provide: collecting.Provide) -> None:
        """``provide`` gives an image with a Python, for where this machine's own would not run."""
        self._engine = engine
        self._provide = provide
        self._machine = machine
        self._labels = labels
        self._ready = False
        self.volume = VOLUME + tools.digest(machine)

    async def ensure(self, scratch: str) -> None:
        """See to it that the volume is there and whole; ``scratch`` is an image that a container can be made of."""
        if not self._ready:
            await self._make(scratch)
            self._ready = True

    def forget(self) -> None:
        """Somebody removed it, as it seems: look again before the next container."""
        self._ready = False

    async def remove_others(self) -> None:
        """Remove those of other versions that no container uses; a server that still needs one makes it again."""
        filters = json.dumps({"name": [VOLUME]})
        try:
            found = await self._engine.call("GET", "/volumes", query={"filters": filters})
            with self._engine.understood("the list of volumes"):
                names = [str(volume["Name"]) for volume in found.get("Volumes") or ()]
            for name in names:
                if _NAME.match(name) and name != self.volume:
                    await self._remove(name)
        except TideboxError as error:
            _log.info("older volumes of the agent are still there: %s", error.message)

    async def _remove(self, name: str) -> None:
        try:
            await self._engine.call("DELETE", f"/volumes/{name}")
        except EngineRefused as error:
            if error.status not in (_MISSING, _IN_USE):
                raise

    async def _make(self, scratch: str) -> None:
        labels = {"tidebox.tools": self.volume.removeprefix(VOLUME)}
        await self._engine.call("POST", "/volumes/create", body={"Name": self.volume, "Labels": labels})
        name = await self._hold(scratch)
        try:
            if not await self._is_complete(name):
                archive = await self._archive()
                # The mark goes last: what is only half there is not taken for whole.
                for part in (archive, tar_of({_COMPLETE: b""})):
                    await self._engine.call(
                        "PUT",
                        f"/containers/{name}/archive",
                        query={"path": launchers.DIRECTORY},
                        body=part,
                        seconds=_FILL_SECONDS,
                    )
        finally:
            await self._engine.call("DELETE", f"/containers/{name}", query=_WITH_ALL_OF_IT)

    async def _hold(self, scratch: str) -> str:
        """A container with the volume whose name only one can have at a time, of all who use the engine.

        Files that are written a second time while agents run from them would end those.
        """
        name = f"{self.volume}-filling"
        mount = {
            "Type": "volume",
            "Source": self.volume,
            "Target": launchers.DIRECTORY,
            "VolumeOptions": {"NoCopy": True},
        }
        body = {
            "Image": scratch,
            "Cmd": ["none"],
            "Labels": self._labels,
            "NetworkDisabled": True,
            "HostConfig": {"NetworkMode": "none", "Mounts": [mount]},
        }
        while True:
            try:
                await self._engine.call("POST", "/containers/create", query={"name": name}, body=body)
                return name
            except EngineRefused as error:
                if error.status != _IN_USE:
                    raise
            await self._wait_for(name)

    async def _wait_for(self, name: str) -> None:
        """Wait until another is done with it; one that is not done in time is dead."""
        try:
            await self._engine.call(
                "POST", f"/containers/{name}/wait", query={"condition": "removed"}, seconds=_HOLD_SECONDS
            )
        except EngineRefused as error:
            if error.status != _MISSING:
                raise
        except StartupTimeout:
            try:
                await self._engine.call("DELETE", f"/containers/{name}", query=_WITH_ALL_OF_IT)
            except EngineRefused as error:
                if error.status != _MISSING:
                    raise

    async def _is_complete(self, container: str) -> bool:
        return await self._engine.stat(container, f"{launchers.DIRECTORY}/{_COMPLETE}") is not None

    async def _archive(self) -> bytes:
        collected = await collecting.collect(self._engine, self._machine, self._labels, self._provide)
        return await asyncio.to_thread(tools.complete, collected, self._machine)


async def make_scratch(engine: DockerEngine, owner: str) -> str:
    """An image of nothing, to make containers of that need none; who made it removes it, or who comes after them."""
    name = _scratch(owner)
    empty = tar_of({".tidebox/empty": b""})
    # With the tag in the name: not every engine reads it from elsewhere.
    await engine.call("POST", "/images/create", query={"fromSrc": "-", "repo": name}, body=empty)
    return name


async def remove_scratch(engine: DockerEngine, owner: str) -> None:
    """Remove the image of that owner, if it is there."""
    try:
        await engine.call("DELETE", f"/images/{_scratch(owner)}", query={"force": "1"})
    except EngineRefused as error:
        if error.status != _MISSING:
            raise


def _scratch(owner: str) -> str:
    return f"tidebox-scratch:{owner}"

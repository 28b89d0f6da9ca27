"""The control groups of containers as this machine sees them, where the engine is on it and this process may look.

Two things that engines leave open are bounded by them. Buffers of sockets v1 counts apart from other memory, and by
default without a limit: a container that is found to have none lacks the guarantee of its memory. And kernel memory
that nothing counts is watched by the guard of the native runtime, which asks here whose it is.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tidebox.errors import ProvisionFailed
from tidebox.model.limits import MIB
from tidebox.runtime.docker.containers import EngineFacts
from tidebox.runtime.docker.engine import DockerEngine

# Of a container's memory, as in boxes of the native runtime.
_SHARE, _LEAST = 4, 8 * MIB
_ROOT = Path("/sys/fs/cgroup")
_MEMORY, _PROCESSOR = "memory", "cpuacct"
_ID = re.compile(r"[0-9a-f]{64}\Z")


def needs_socket_limit(facts: EngineFacts) -> bool:
    """Whether the engine's kernel counts buffers of sockets apart."""
    return facts.cgroup == "1"


def socket_limit(memory: int) -> int:
    """Return the limit on socket buffers of a container that has so much ``memory``, in bytes."""
    return max(memory // _SHARE, _LEAST)


@dataclass(frozen=True, slots=True)
class Group:
    """The directories of one container, by what they are for; with control groups v2 that is one."""

    memory: Path
    processor: Path
    unified: bool

    def limit_sockets(self, memory: int) -> None:
        """Bound the buffers of sockets that are made from now on."""
        (self.memory / "memory.kmem.tcp.limit_in_bytes").write_text(str(socket_limit(memory)))

    def pids(self) -> list[int]:
        """Its processes."""
        return [int(word) for word in (self.memory / "cgroup.procs").read_text().split()]

    def init_pid(self) -> int | None:
        """The first of them; None when all are dead."""
        return min(self.pids(), default=None)

    def system_seconds(self) -> float:
        """Processor time that the kernel has spent for them."""
        name, key, unit = (
            ("cpu.stat", "system_usec", 1e6) if self.unified else ("cpuacct.stat", "system", os.sysconf("SC_CLK_TCK"))
        )
        for line in (self.processor / name).read_text().splitlines():
            words = line.split()
            if words[0] == key:
                return int(words[1]) / unit
        return 0.0


class Groups:
    """Those of one engine's containers."""

    def __init__(self, engine: DockerEngine, facts: EngineFacts) -> None:
        self._engine = engine
        self._unified = not needs_socket_limit(facts)
        self._places: Mapping[str, str] | None = None
        """Where they are, with {} for a container's id; None until one was found."""
        self._reachable = engine.endpoint.local and _ROOT.is_dir() and os.access(_ROOT, os.W_OK)
        self._works = False

    async def of(self, container: str) -> Group | None:
        """Return the cgroup of a running container; None where it is out of reach."""
        if not self._reachable or not _ID.match(container):
            return None
        if self._places is None:
            try:
                self._places = await self._find(container)
            except OSError:
                return None
        if not self._places:
            return None
        memory, processor = (_ROOT / place.format(container) for place in self._places.values())
        return Group(memory, processor, self._unified)

    async def limit_sockets(self, group: Group | None, memory: int) -> None:
        """Bound the buffers of a container in which no program was started yet, where they are counted apart.

        Where that never worked nothing is done: who looks at a container from inside sees it.
        """
        if group is None or self._unified:
            return
        try:
            await asyncio.to_thread(group.limit_sockets, memory)
            self._works = True
        except OSError as error:
            if self._works and isinstance(error, FileNotFoundError):
                raise ProvisionFailed("the container ended while it was started", step="start") from None
            if self._works:
                raise ProvisionFailed(
                    f"the buffers of a container's sockets could not be bounded: {error.strerror}", step="sockets"
                ) from None

    async def _find(self, container: str) -> dict[str, str]:
        found = await self._engine.call("GET", f"/containers/{container}/json")
        with self._engine.understood("a container"):
            pid = int(found["State"]["Pid"])
        text = await asyncio.to_thread(Path(f"/proc/{pid}/cgroup").read_text)
        places: dict[str, str] = {}
        for line in text.splitlines():
            _, controllers, path = line.split(":", 2)
            # A process of that number on another machine, or in another namespace, is in no such group.
            if container not in path:
                continue
            place = path.replace("{", "{{").replace("}", "}}").replace(container, "{}")
            if self._unified and not controllers:
                places = {_MEMORY: place.lstrip("/"), _PROCESSOR: place.lstrip("/")}
            for name in {_MEMORY, _PROCESSOR} & set(controllers.split(",")):
                places[name] = name + place
        return {name: places[name] for name in (_MEMORY, _PROCESSOR)} if len(places) == 2 else {}

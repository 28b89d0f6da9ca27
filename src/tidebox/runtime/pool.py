"""Cells: single-use boxes whose interpreter is started and parked; and the pool that keeps some ready.

A cell serves one program. An empty pool is no error: the same cell is then made on the spot. The pool refills one
cell at a time in
the background, so that running work is never starved by cells that may not be needed, replaces cells that died or
grew old, and never hands one out twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tidebox.errors import TideboxError
from tidebox.model.limits import Limits
from tidebox.runtime.base import Box, BoxSpec, Exec, Runtime

if TYPE_CHECKING:
    from tidebox.model.launch import Cell as CellKind

# After a failed refill wait before the next attempt: a machine out of memory must not be asked in a loop.
_RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class CellKey:
    """What of a cell cannot be changed after it was parked."""

    kind: CellKind
    image: str
    executable: bool
    workspace: int
    inodes: int
    open_files: int
    file_size: int

    @classmethod
    def of(cls, runtime: Runtime, kind: CellKind, spec: BoxSpec) -> CellKey:
        """The key of the cell that can serve ``spec``; cells that are parked alike are one kind."""
        limits = spec.limits
        if kind == "any" and runtime.parking("any", spec.image) == runtime.parking("python", spec.image):
            kind = "python"
        return cls(
            kind,
            spec.image,
            spec.executable,
            limits.workspace,
            limits.inodes,
            limits.open_files,
            limits.file_size,
        )

    def spec(self, limits: Limits) -> BoxSpec:
        """The box this key describes, with ``limits`` for what can still be changed."""
        fixed = replace(
            limits, workspace=self.workspace, inodes=self.inodes, open_files=self.open_files, file_size=self.file_size
        )
        return BoxSpec(image=self.image, limits=fixed, executable=self.executable)


@dataclass(slots=True)
class Cell:
    """A box with its parked interpreter."""

    box: Box
    parked: Exec
    made: float

    @property
    def fit(self) -> bool:
        """Whether its interpreter still waits."""
        return not self.box.gone and not self.parked.ended


class Pool:
    """Keeps cells ready for the keys it was told to keep."""

    def __init__(self, runtime: Runtime, *, sizes: Mapping[CellKey, int], limits: Limits, max_age: float) -> None:
        self._runtime = runtime
        self._sizes = dict(sizes)
        self._limits = limits
        self._max_age = max_age
        self._ready: dict[CellKey, deque[Cell]] = {key: deque() for key in sizes}
        self._wake = asyncio.Event()
        self._full = asyncio.Event()
        self._making = 0
        self._keeper: asyncio.Task[None] | None = None
        self._discarding: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to fill."""
        self._wake.set()
        self._keeper = asyncio.get_running_loop().create_task(self._keep(), name="pool")

    async def filled(self) -> None:
        """Wait until every cell that was asked for is parked."""
        await self._full.wait()

    def parked(self, key: CellKey) -> int:
        """How many cells are ready for ``key``."""
        return len(self._ready.get(key, ()))

    def parked_total(self) -> int:
        """How many cells are ready or being made."""
        return sum(map(len, self._ready.values())) + self._making

    async def take(self, key: CellKey, limits: Limits, first_input: bytes = b"") -> tuple[Box, Exec]:
        """A cell under ``limits`` that has been sent ``first_input``: a parked one, or one made now."""
        ready = self._ready.get(key)
        while ready:
            cell = ready.popleft()
            self._full.clear()
            self._wake.set()
            if not cell.fit:
                self._discard(cell)
                continue
            await cell.box.adjust(limits)
            if first_input:
                await cell.parked.write(first_input)
            return cell.box, cell.parked
        box = await self._open(key, limits, first_input)
        assert box.first is not None
        return box, box.first

    async def _open(self, key: CellKey, limits: Limits, first_input: bytes = b"") -> Box:
        command = self._runtime.parking(key.kind, key.image)
        return await self._runtime.open(key.spec(limits), first=command, first_input=first_input)

    async def _keep(self) -> None:
        while True:
            self._replace_unfit()
            key = next((key for key, size in self._sizes.items() if len(self._ready[key]) < size), None)
            if key is None:
                self._wake.clear()
                self._full.set()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), self._next_expiry())
                continue
            self._making = 1
            try:
                box = await self._open(key, self._limits)
                assert box.first is not None
                self._ready[key].append(Cell(box, box.first, time.monotonic()))
                box.on_gone(self._wake.set)
            except TideboxError:
                await asyncio.sleep(_RETRY_SECONDS)
            finally:
                self._making = 0
            # Work that waits for the loop goes first.
            await asyncio.sleep(0)

    def _replace_unfit(self) -> None:
        oldest = time.monotonic() - self._max_age
        for cells in self._ready.values():
            for cell in list(cells):
                if not cell.fit or cell.made < oldest:
                    cells.remove(cell)
                    self._discard(cell)

    def _next_expiry(self) -> float | None:
        times = [cells[0].made for cells in self._ready.values() if cells]
        return max(min(times) + self._max_age - time.monotonic(), 0.01) if times else None

    def _discard(self, cell: Cell) -> None:
        task = asyncio.get_running_loop().create_task(cell.box.close())
        self._discarding.add(task)
        task.add_done_callback(self._discarding.discard)

    async def close(self) -> None:
        """Throw every cell away."""
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
        for cells in self._ready.values():
            while cells:
                self._discard(cells.popleft())
        if self._discarding:
            await asyncio.gather(*self._discarding)

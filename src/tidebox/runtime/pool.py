"""Cells: single-use boxes whose interpreter is started and parked; and the pool that keeps some ready.

Beside the cells the pool keeps a few blank boxes: whole boxes in which no interpreter was started yet. A blank one
serves any program of its shape when no cell is parked for it, at a fraction of the price of a new box.

A cell serves one program. An empty pool is no error: the same cell is then made on the spot. The pool refills one
cell at a time in the background, and not at all while as many programs were just started as there are processors: so
running work is never starved by cells that may not be needed. It replaces cells that died or grew old, and never hands
one out twice.

Beside what it was told to keep, the pool keeps a few cells of what is asked for besides: other images, programs that
want modules loaded before they start. There are as many of these guests as the settings say; the one that was not asked
for the longest goes first. Until a guest's first cell is there its programs are served as if there were no pool.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from tidebox.errors import TideboxError
from tidebox.model.box import BoxSpec, Command
from tidebox.model.limits import Limits
from tidebox.model.requested_egress import TRUST_VARIABLES
from tidebox.model.runtimes import Start
from tidebox.runtime.base import Box, Exec, Runtime
from tidebox.runtime.machine import processors

if TYPE_CHECKING:
    from tidebox.model.languages import Cell as CellKind

# After a failed refill wait before the next attempt: a machine out of memory must not be asked in a loop.
_RETRY_SECONDS = 1.0
_LONGEST_RETRY_SECONDS = 60.0
_BREATH_SECONDS = 0.01
# After so many cells of a guest ended before they were of use, it is not kept for a while.
_MOST_FAILURES = 2
# A program that runs longer than this is not taken for one that keeps a processor busy.
_BUSY_SECONDS = 0.25
# What looks for certificates when it connects; the others are told when they are started where they are.
_TRUST_LATER = ("python", "any")


class CellKey(NamedTuple):
    """The properties of a cell that cannot be changed after it was parked; looked up several times for each program."""

    kind: CellKind | None
    """None for a blank box."""
    image: str
    executable: bool
    workspace: int
    inodes: int
    open_files: int
    file_size: int
    processes: int
    preload: str = ""
    """The set of modules that its program finds loaded."""
    leads_out: bool = False
    """Whether it can be given a way out."""
    trusts: bool = False
    """Whether secrets can be put into its requests then."""

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
            max(limits.pids, runtime.max_processes),
            leads_out=spec.has_network,
            trusts=spec.has_authority,
        )

    @property
    def blank(self) -> CellKey:
        """The key of a blank box of the same shape."""
        return self._replace(kind=None)

    @property
    def plain(self) -> CellKey:
        """The key of a cell that serves the same programs with nothing loaded before."""
        return self._replace(preload="")

    def spec(self, limits: Limits) -> BoxSpec:
        """The box this key describes, with ``limits`` for what can still be changed."""
        return _spec(self, limits)


@lru_cache(maxsize=64)
def _spec(key: CellKey, limits: Limits) -> BoxSpec:
    # Kept: most programs have the same limits, and checking them anew costs as much as opening their pipes.
    fixed = replace(
        limits, workspace=key.workspace, inodes=key.inodes, open_files=key.open_files, file_size=key.file_size
    )
    return BoxSpec(
        image=key.image,
        limits=fixed,
        executable=key.executable,
        preload=key.preload,
        leads_out=key.leads_out,
        trusts=key.trusts,
    )


@dataclass(slots=True)
class Cell:
    """A box with its parked interpreter, or a blank one without."""

    box: Box
    parked: Exec | None
    made: float

    @property
    def fit(self) -> bool:
        """Whether it, and its interpreter if it has one, still waits."""
        return not self.box.gone and not (self.parked is not None and self.parked.ended)


class Pool:
    """Keeps cells ready for the keys it was told to keep."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        sizes: Mapping[CellKey, int],
        once_used: Iterable[CellKey] = (),
        limits: Limits,
        max_age: float,
        limits_of: Mapping[CellKey, Limits] = MappingProxyType({}),
        most_guests: int = 0,
        guest_sizes: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """``once_used`` are kept only from when one of them was asked for; ``guest_sizes`` says how many cells a guest
        has, by its kind.

        Cells wait under ``limits``, or those of their key: one that is asked for with the same needs no change.
        """
        self._runtime = runtime
        self._sizes = dict(sizes)
        self._unused = set(once_used)
        self._limits = limits
        self._limits_of = dict(limits_of)
        self._max_age = max_age
        self._most_guests = most_guests
        self._guest_sizes = guest_sizes
        self._guests: OrderedDict[CellKey, None] = OrderedDict()
        self._failures: dict[CellKey, int] = {}
        self._warming: dict[CellKey, asyncio.Task[None]] = {}
        self._not_before: dict[CellKey, float] = {}
        self._ready: dict[CellKey, deque[Cell]] = {key: deque() for key in sizes}
        self._wake = asyncio.Event()
        self._full = asyncio.Event()
        self._making = 0
        self._keeper: asyncio.Task[None] | None = None
        self._discarding: set[asyncio.Task[None]] = set()
        self._working: list[tuple[float, Box]] = []
        self._processors = processors()

    def start(self) -> None:
        """Begin to fill, if that was not begun before."""
        if self._keeper is None:
            self._wake.set()
            self._keeper = asyncio.get_running_loop().create_task(self._keep(), name="pool")

    async def filled(self) -> None:
        """Wait until every cell that was asked for is parked."""
        await self._full.wait()

    def parked(self, key: CellKey) -> int:
        """Return the number of cells that are ready for ``key``."""
        return len(self._ready.get(key, ()))

    def made(self) -> list[float]:
        """Return the time at which each ready cell was made, by the monotonic clock."""
        return [cell.made for cells in self._ready.values() for cell in cells]

    def starts(self) -> dict[tuple[str, str], Start]:
        """Return how interpreters start now, by image and kind, of all that were kept ready or asked for lately."""
        found: dict[tuple[str, str], Start] = {}
        for key in (*self._sizes, *self._not_before):
            if key.kind is None:
                continue
            try:
                found[key.image, key.kind] = self._runtime.start_of(key.kind, key.image)
            except TideboxError:
                continue  # the image was removed
        now = time.monotonic()
        # What cannot be parked is started for its program until it is tried again; what ended may not be noticed yet.
        cold = {key for key, until in self._not_before.items() if until > now and not key.preload}
        cold |= {key for key, cells in self._ready.items() if cells and not any(cell.fit for cell in cells)}
        return found | {(key.image, key.kind): "cold" for key in cold if key.kind is not None}

    def warming(self) -> bool:
        """Whether something is being loaded that cells will be forked from."""
        return bool(self._warming)

    def parked_total(self) -> int:
        """Return the number of cells that are ready or being made."""
        return sum(map(len, self._ready.values())) + self._making

    async def take(
        self, key: CellKey, limits: Limits, first_input: bytes = b"", plain: Command | None = None
    ) -> tuple[Box, Exec] | None:
        """A cell under ``limits`` that has been sent ``first_input``: a parked one, or one made now.

        Where no interpreter is parked and the program is a ``plain`` command, that is started instead of one. None
        where its interpreter cannot be parked at all.
        """
        self.want(key, limits)
        if key.preload and not self._runtime.is_warm(key.spec(limits)):
            key = key.plain
        while (cell := self._pop(key)) is not None:
            if (parked := await self._hand_over(cell, limits, None, first_input)) is not None:
                return cell.box, parked
        command = plain or self._parking(key, at_once=True)
        if command is None:
            return None
        if plain is not None:
            first_input = b""
        while (cell := self._pop(key.blank)) is not None:
            if (started := await self._hand_over(cell, limits, command, first_input)) is not None:
                return cell.box, started
        box = await self._runtime.open(key.spec(limits), first=command, first_input=first_input)
        assert box.first is not None
        box.on_gone(self._on_gone)
        self._taken(box)
        return box, box.first

    async def take_blank(self, key: CellKey, limits: Limits) -> Box | None:
        """A box of that shape in which nothing was started, where one is ready."""
        while (cell := self._pop(key.blank)) is not None:
            try:
                await cell.box.adjust(limits)
            except TideboxError:
                self._discard(cell)
                continue
            except BaseException:
                self._discard(cell)
                raise
            self._taken(cell.box)
            return cell.box
        return None

    def want(self, key: CellKey, limits: Limits) -> None:
        """Somebody asked for one: from now on there are some, where that is not so anyway."""
        if key in self._unused:
            self._unused.discard(key)
        elif key in self._guests:
            self._guests.move_to_end(key)
            return
        elif key in self._sizes or not self._most_guests or self._keeper is None:
            return
        elif key.kind is not None and self._parking(key) is None:
            # Its programs are started by their own commands, for which a box without an interpreter is ready.
            self.want(key.blank, limits)
            return
        else:
            size = self._guest_sizes.get(key.kind or "", 0)
            if not size or self._not_before.get(key, 0.0) > time.monotonic():
                return
            self._guests[key] = None
            self._sizes[key] = size
            self._limits_of[key] = limits
            self._ready.setdefault(key, deque())
            while len(self._guests) > self._most_guests:
                self._dismiss(next(iter(self._guests)))
        self._full.clear()
        self._wake.set()

    def _dismiss(self, key: CellKey) -> None:
        del self._guests[key], self._sizes[key], self._limits_of[key]
        for cell in self._ready.pop(key):
            self._discard(cell)

    def _warm(self, key: CellKey) -> None:
        """Have ready what the cells of a guest are made from; nothing else waits for that."""
        if key in self._warming or self._not_before.get(key, 0.0) > time.monotonic():
            return

        async def warm() -> None:
            try:
                await self._runtime.warm(key.spec(self._limits))
                self._not_before.pop(key, None)
            except TideboxError:
                # What cannot be had now is not asked for all the time; its programs are served without.
                self._not_now(key)
            finally:
                del self._warming[key]
                self._wake.set()

        self._warming[key] = asyncio.get_running_loop().create_task(warm(), name="warm")

    def _not_now(self, key: CellKey) -> None:
        """Keep none of these for a while."""
        now = time.monotonic()
        self._not_before = {other: until for other, until in self._not_before.items() if until > now}
        self._not_before[key] = now + _LONGEST_RETRY_SECONDS

    async def _hand_over(self, cell: Cell, limits: Limits, command: Command | None, first_input: bytes) -> Exec | None:
        """Hand over what is parked in a cell, or start ``command`` in a blank one; None where the cell is of no use."""
        try:
            await cell.box.adjust(limits)
            if cell.parked is not None:
                program = cell.parked
            else:
                assert command is not None
                program = await cell.box.exec(command)
            if first_input:
                await program.write(first_input)
        except TideboxError:
            # It died meanwhile, or what it already uses is more than it is to have.
            self._discard(cell)
            return None
        except BaseException:
            self._discard(cell)
            raise
        self._taken(cell.box)
        return program

    def _taken(self, box: Box) -> None:
        self._working.append((time.monotonic(), box))

    def _on_gone(self) -> None:
        # A keeper that waits for the processors looks by itself when they are free; one that has all it wants does not.
        if self._full.is_set() or not self._busy_for():
            self._wake.set()

    def _busy_for(self) -> float:
        """Return for how long, at most, the processors are taken by programs that were given a box just now."""
        since = time.monotonic() - _BUSY_SECONDS
        self._working = [(started, box) for started, box in self._working if started > since and not box.gone]
        if len(self._working) < self._processors:
            return 0.0
        return self._working[0][0] - since

    def _pop(self, key: CellKey) -> Cell | None:
        while ready := self._ready.get(key):
            cell = ready.popleft()
            self._full.clear()
            self._wake.set()
            if cell.fit:
                self._failures.pop(key, None)
                return cell
            self._discard(cell)
            if not cell.box.gone:
                self._note_failure(key)
        return None

    def _note_failure(self, key: CellKey) -> None:
        """Count a parked program that ended by itself: the image has no such interpreter or none that can be parked."""
        self._failures[key] = self._failures.get(key, 0) + 1
        if self._failures[key] >= _MOST_FAILURES and key in self._guests:
            del self._failures[key]
            self._not_now(key)
            self._dismiss(key)

    def _parking(self, key: CellKey, at_once: bool = False) -> Command | None:
        assert key.kind is not None
        command = self._runtime.parking(key.kind, key.image, at_once, key.preload)
        if command is not None and key.trusts and key.kind not in _TRUST_LATER:
            return replace(command, env={**command.env, **TRUST_VARIABLES})
        return command

    async def _keep(self) -> None:
        pause = _RETRY_SECONDS
        while True:
            self._replace_unfit()
            key = self._missing()
            if key is None:
                self._wake.clear()
                if not self._warming:
                    self._full.set()
                with contextlib.suppress(TimeoutError):
                    # Not wait_for: up to Python 3.11 it may swallow a cancellation.
                    async with asyncio.timeout(self._next_expiry()):
                        await self._wake.wait()
                    # The taker of a cell needs the processors now; a new one is made when the program is under way.
                    await asyncio.sleep(_BREATH_SECONDS)
                continue
            if (pause_for_work := self._busy_for()) > 0:
                self._wake.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_for_work):
                        await self._wake.wait()
                continue
            self._making = 1
            try:
                first = None if key.kind is None else self._parking(key)
                limits = self._limits_of.get(key, self._limits)
                box = await self._runtime.open(key.spec(limits), first=first, spare=True)
                cell = Cell(box, box.first, time.monotonic())
                if key in self._ready:
                    self._ready[key].append(cell)
                else:
                    self._discard(cell)  # a guest that was dismissed meanwhile
                box.on_gone(self._on_gone)
                pause = _RETRY_SECONDS
            except TideboxError:
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_RETRY_SECONDS)
            finally:
                self._making = 0
            # Work that waits for the loop goes first.
            await asyncio.sleep(0)

    def _missing(self) -> CellKey | None:
        """Of what there are too few."""
        for key, size in self._sizes.items():
            if key in self._unused or len(self._ready[key]) >= size:
                continue
            if self._runtime.is_warm(key.spec(self._limits)):
                return key
            self._warm(key)
        return None

    def _replace_unfit(self) -> None:
        oldest = time.monotonic() - self._max_age
        for key, cells in list(self._ready.items()):
            for cell in list(cells):
                if not cell.fit or cell.made < oldest:
                    cells.remove(cell)
                    self._discard(cell)
                    if not cell.fit and not cell.box.gone:
                        self._note_failure(key)

    def _next_expiry(self) -> float | None:
        times = [cells[0].made for cells in self._ready.values() if cells]
        return max(min(times) + self._max_age - time.monotonic(), 0.01) if times else None

    def _discard(self, cell: Cell) -> None:
        task = cell.box.begin_close()
        self._discarding.add(task)
        task.add_done_callback(self._discarding.discard)

    async def close(self) -> None:
        """Throw every cell away."""
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
        for task in list(self._warming.values()):
            task.cancel()
        await asyncio.gather(*self._warming.values(), return_exceptions=True)
        for cells in self._ready.values():
            while cells:
                self._discard(cells.popleft())
        if self._discarding:
            await asyncio.gather(*self._discarding)

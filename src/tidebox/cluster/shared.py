"""Membership of a server that shares its database with others."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from tidebox.cluster.lease import Lease, LeaseEvent, LeaseState, Pace
from tidebox.cluster.membership import Membership, Resident
from tidebox.errors import Conflict, StoreUnavailable
from tidebox.model.node import Owner
from tidebox.store.base import NodeBeat, Pulse, Store

_log = logging.getLogger(__name__)

# For the transactions of a node that are no beats: a connection that is dead, and not known to be, is not waited for.
_PATIENCE_SECONDS = 30.0


def _now() -> float:
    """Seconds that go on while the machine sleeps, and that nobody can set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SharedMembership(Membership):
    """A node among several: it beats, and takes over what lost nodes leave."""

    def __init__(self, store: Store, node_id: str, home: str, pace: Pace | None = None) -> None:
        """``home`` names what no other server can use while this one lives."""
        super().__init__(node_id)
        self._store = store
        self._home = home
        self._pace = pace or Pace()
        self._residents: list[Resident] = []
        self._owner: Owner | None = None
        self._lease: Lease | None = None
        self._lapsing: asyncio.TimerHandle | None = None
        self._beating: asyncio.Task[None] | None = None
        self._missing = False
        """Whether the last beat was not answered."""
        self._watching = False
        self._unsure = False
        """Whether something may have been taken over that nobody works on."""
        # What residents are told, one after the other, and beside the beats.
        self._telling = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def owner(self) -> Owner:
        """This node, as the owner of what it begins now."""
        self.check()
        assert self._owner is not None
        return self._owner

    def check(self) -> None:
        """Raise ``StoreUnavailable`` while others may have been told that this node is lost."""
        if self._lease is None or not self._lease.may_begin(_now()):
            raise StoreUnavailable("this server has lost touch with its database")

    def register(self, resident: Resident) -> None:
        """Tell ``resident`` what happens to this node."""
        self._residents.append(resident)

    async def join(self) -> None:
        """Become a node, and begin to beat."""
        self._lease = Lease(self._pace, await self._joined())
        self._arm()
        self._beating = asyncio.get_running_loop().create_task(self._beat(self._lease), name="node beat")

    async def _joined(self) -> float:
        """Join, and tell when that was at the earliest."""
        now = _now()
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                self._owner = await self._store.join_node(self.node_id, self._home, self._pace.lease)
        except TimeoutError:
            raise StoreUnavailable("the store does not answer") from None
        return now

    def watch(self) -> None:
        """Begin to look after other nodes."""
        self._watching = True

    def drain(self) -> None:
        """Take over nothing more: this server ends."""
        self._watching = False

    async def close(self) -> None:
        """Beat no more. The lease runs out by itself: a server that is started again in time finds its runs."""
        tasks = {*self._tasks, *([self._beating] if self._beating is not None else [])}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._lapsing is not None:
            self._lapsing.cancel()
        if self._owner is not None:
            try:
                await self._store.leave_node(self._owner)
            except StoreUnavailable as error:
                _log.warning("the node id %s is not free yet: %s", self.node_id, error)

    # The node's own lease.

    async def _beat(self, lease: Lease) -> None:
        while lease.state is not LeaseState.SUPERSEDED:
            sent_at = _now()
            # While it is forgotten it joins anew.
            if lease.state is not LeaseState.FORGOTTEN:
                await self._beat_once(lease, sent_at)
            await asyncio.sleep(sent_at + self._pace.beat - _now())

    async def _beat_once(self, lease: Lease, sent_at: float) -> None:
        assert self._owner is not None
        try:
            async with asyncio.timeout(self._pace.beat):
                pulse = await self._store.beat(self._owner)
        except Exception as error:
            lease.missed(_now())
            if not self._missing:
                _log.warning("this node cannot be heard of: %r", error)
            self._missing = True
        else:
            self._missing = False
            self._answered(lease, pulse, sent_at)

    def _answered(self, lease: Lease, pulse: Pulse, sent_at: float) -> None:
        now = _now()
        state = lease.answered(pulse, sent_at, now)
        if state is LeaseState.HELD:
            self._arm()
            silent = lease.silent(now)
            left = silent or pulse.left or self._unsure
            if self._watching and left and lease.may_judge(now) and not self._telling.locked():
                self._later(functools.partial(self._take_over, silent))
        elif state is LeaseState.FORGOTTEN:
            _log.error("this node was taken for lost: it lets go of its runs and joins anew")
            self._later(self._join_anew)
        else:
            self._give_way()

    def _arm(self) -> None:
        """Have it noticed when the lease lapses."""
        assert self._lease is not None
        if self._lapsing is not None:
            self._lapsing.cancel()
        loop = asyncio.get_running_loop()
        self._lapsing = loop.call_later(self._lease.lapses_at - _now(), self._lapse)

    def _lapse(self) -> None:
        lease = self._lease
        assert lease is not None
        if lease.overdue(_now()):
            lease.take(LeaseEvent.OVERDUE)
            _log.error("this node could not be heard of for %g seconds: it stops its runs", self._pace.lapse)
            # At once, whatever else is under way.
            self._start(self._safely(self._stop))

    async def _stop(self) -> None:
        for resident in self._residents:
            await resident.stop()

    async def _join_anew(self) -> None:
        lease = self._lease
        assert lease is not None
        while lease.state is LeaseState.FORGOTTEN:
            try:
                for resident in self._residents:
                    await resident.abandon()
                now = await self._joined()
                assert self._owner is not None
                # Nothing is begun before: it would be taken for something that was left.
                for resident in self._residents:
                    await resident.recover(self._owner)
            except Conflict:
                lease.take(LeaseEvent.SUPERSEDED)
                self._give_way()
            except Exception as error:
                _log.warning("this node could not join anew yet: %r", error)
                await asyncio.sleep(self._pace.beat)
            else:
                lease.joined(now)
                self._arm()

    def _give_way(self) -> None:
        _log.error("another server has joined as the node %s: this one ends", self.node_id)
        self._later(self._abandon)

    async def _abandon(self) -> None:
        for resident in self._residents:
            await resident.abandon()
        self.superseded.set()

    # What others leave.

    async def _take_over(self, silent: Sequence[NodeBeat]) -> None:
        self._unsure = True
        async with asyncio.timeout(_PATIENCE_SECONDS):
            estate = await self._store.take_over(self.owner, silent, time.time())
        if estate is not None:
            for resident in self._residents:
                await resident.inherit(estate)
            self._unsure = False

    def _later(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do something after what residents are being told now."""
        self._start(self._in_turn(work))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _in_turn(self, work: Callable[[], Awaitable[None]]) -> None:
        async with self._telling:
            await self._safely(work)

    async def _safely(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except (StoreUnavailable, TimeoutError) as error:
            _log.warning("what nodes leave could not be looked after: %s", str(error) or "the store does not answer")
        except Exception:
            _log.exception("what nodes leave could not be looked after")

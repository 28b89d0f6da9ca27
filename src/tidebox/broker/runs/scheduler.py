"""The scheduler: a fixed number of slots, and a bounded queue in which users take turns.

A ticket is in one of three states: queued, holding a slot, or gone. Whenever a slot is given back the next one goes
to the user whose turn it is, never to the one who asked most often. Tickets of one lane never hold slots at the same
time. Nothing here awaits: tickets are told by calls on the event loop, so a request that finds a slot free costs no
task and no wake-up.
"""

from __future__ import annotations

import asyncio
import enum
from collections import OrderedDict
from collections.abc import Callable

from tidebox.broker.runs.admission_control import AdmissionDecision, Capacity, Demand, admit, has_slot
from tidebox.errors import Overloaded

# How much the newest duration counts in the average from which waiting times are guessed.
_NEWEST = 0.2


class TicketState(enum.Enum):
    """The state of a ticket."""

    QUEUED = "queued"
    ACTIVE = "active"
    GONE = "gone"


class Ticket:
    """A claim to one slot; ``begin`` is called when it has one, ``expire`` when it waited too long."""

    __slots__ = ("user", "lane", "begin", "expire", "state", "entered", "began", "released", "timer")

    def __init__(
        self, user: str, begin: Callable[[], None], expire: Callable[[], None], lane: str | None = None
    ) -> None:
        self.user = user
        self.lane = lane
        """Tickets of one lane never hold slots at the same time; None is no lane."""
        self.begin = begin
        self.expire = expire
        self.state = TicketState.GONE
        self.entered = 0.0
        self.began: float | None = None
        self.released = 0.0
        self.timer: asyncio.TimerHandle | None = None

    @property
    def waited(self) -> float:
        """Seconds it waited for its slot."""
        return (self.began if self.began is not None else self.released) - self.entered

    @property
    def held(self) -> float:
        """Seconds it held its slot, once released; 0 without one."""
        return self.released - self.began if self.began is not None else 0.0


class Scheduler:
    """Hands out slots."""

    def __init__(self, capacity: Capacity) -> None:
        self.capacity = capacity
        self.active = 0
        self.queued = 0
        self._active_of: dict[str, int] = {}
        self._lanes: set[str] = set()
        # Users in the order of their turns, each with their waiting tickets, oldest first.
        self._waiting: OrderedDict[str, dict[Ticket, None]] = OrderedDict()
        self._mean_duration = 1.0

    def enter(self, ticket: Ticket) -> None:
        """Ask for a slot: ``begin`` is called before this returns if one is free; else it waits, or is refused."""
        user = ticket.user
        waiting = self._waiting.get(user, ())
        demand = Demand(self.active, self.queued, self._active_of.get(user, 0), len(waiting))
        try:
            decision = admit(self.capacity, demand, may_start=ticket.lane not in self._lanes)
        except Overloaded as error:
            error.details["retry_after"] = self.expected_wait()
            raise
        ticket.entered = asyncio.get_running_loop().time()
        if decision is AdmissionDecision.START:
            self._give_slot(ticket)
        else:
            self._queue(ticket)

    def reenter(self, ticket: Ticket) -> None:
        """Ask for a slot for one that was admitted before, by a server that is gone: it is never refused."""
        ticket.entered = asyncio.get_running_loop().time()
        self._queue(ticket)
        self._fill_slots()

    def _give_slot(self, ticket: Ticket) -> None:
        ticket.state = TicketState.ACTIVE
        ticket.began = asyncio.get_running_loop().time()
        self.active += 1
        self._active_of[ticket.user] = self._active_of.get(ticket.user, 0) + 1
        if ticket.lane is not None:
            self._lanes.add(ticket.lane)
        ticket.begin()

    def _queue(self, ticket: Ticket) -> None:
        ticket.state = TicketState.QUEUED
        self._waiting.setdefault(ticket.user, {})[ticket] = None
        self.queued += 1
        ticket.timer = asyncio.get_running_loop().call_later(self.capacity.queue_ttl, self._expire, ticket)

    def _unqueue(self, ticket: Ticket) -> None:
        waiting = self._waiting[ticket.user]
        del waiting[ticket]
        if not waiting:
            del self._waiting[ticket.user]
        self.queued -= 1
        assert ticket.timer is not None
        ticket.timer.cancel()

    def _expire(self, ticket: Ticket) -> None:
        self.release(ticket)
        ticket.expire()

    def release(self, ticket: Ticket) -> None:
        """Leave the queue, or give back a slot, which goes to the next ticket."""
        state, ticket.state = ticket.state, TicketState.GONE
        if state is not TicketState.GONE:
            ticket.released = asyncio.get_running_loop().time()
        if state is TicketState.QUEUED:
            self._unqueue(ticket)
        elif state is TicketState.ACTIVE:
            self._take_slot_back(ticket)
            self._fill_slots()

    def _take_slot_back(self, ticket: Ticket) -> None:
        self.active -= 1
        if ticket.lane is not None:
            self._lanes.remove(ticket.lane)
        remaining = self._active_of[ticket.user] - 1
        if remaining:
            self._active_of[ticket.user] = remaining
        else:
            del self._active_of[ticket.user]
        self._mean_duration += _NEWEST * (ticket.held - self._mean_duration)

    def _fill_slots(self) -> None:
        while (ticket := self._next()) is not None:
            self._unqueue(ticket)
            if ticket.user in self._waiting:
                self._waiting.move_to_end(ticket.user)
            self._give_slot(ticket)

    def _next(self) -> Ticket | None:
        for user, waiting in self._waiting.items():
            if has_slot(self.capacity, self.active, self._active_of.get(user, 0)):
                ticket = next((ticket for ticket in waiting if ticket.lane not in self._lanes), None)
                if ticket is not None:
                    return ticket
            if self.active >= self.capacity.max_concurrent:
                break
        return None

    def expected_wait(self) -> float:
        """About how long one that came now would wait, in seconds; never longer than anything may wait."""
        rounds = (self.queued + 1) / self.capacity.max_concurrent
        return round(min(max(rounds * self._mean_duration, 1.0), max(self.capacity.queue_ttl, 1.0)), 1)

"""Admission control: start now, queue, or refuse. Pure rules, no clock and no state."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tidebox.errors import Overloaded


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Bounds on what runs and waits at once; without bounds of its own a user may take all of it."""

    max_concurrent: int
    queue_max: int
    queue_ttl: float
    max_concurrent_per_user: int | None = None
    queue_max_per_user: int | None = None

    @property
    def own_slots(self) -> int:
        """Number of programs of one user that may run."""
        own = self.max_concurrent_per_user
        return self.max_concurrent if own is None else min(own, self.max_concurrent)

    @property
    def own_places(self) -> int:
        """Number of programs of one user that may wait."""
        own = self.queue_max_per_user
        return self.queue_max if own is None else min(own, self.queue_max)


@dataclass(frozen=True, slots=True)
class Demand:
    """How many programs run and wait now, in total and of the requesting user."""

    active: int
    queued: int
    user_active: int
    user_queued: int


class AdmissionDecision(enum.Enum):
    """The decision on a request that is not refused."""

    START = "start"
    QUEUE = "queue"


def slots_of_one(slots: int) -> int:
    """Return the slots of one user where there are several: the last one is for another user."""
    return max(1, slots - 1)


def places_of_one(places: int) -> int:
    """Return the queue places of one user where there are several."""
    return (places + 1) // 2


def has_slot(capacity: Capacity, active: int, user_active: int) -> bool:
    """Whether one more of this user may run beside what runs."""
    own = capacity.max_concurrent_per_user
    return active < capacity.max_concurrent and (own is None or user_active < own)


def admit(capacity: Capacity, demand: Demand, *, may_start: bool = True) -> AdmissionDecision:
    """Start, queue, or refuse with ``Overloaded``.

    A request with a free slot does not look at the queue: those who wait there wait for a slot they may not have yet.
    ``may_start`` is False for one that has to wait for another of its lane whatever is free.
    """
    if may_start and has_slot(capacity, demand.active, demand.user_active):
        return AdmissionDecision.START
    if demand.queued >= capacity.queue_max:
        raise Overloaded("every slot is taken and the queue is full", scope="server")
    if demand.user_queued >= capacity.own_places:
        raise Overloaded("you have as much waiting as one user may have", scope="user")
    return AdmissionDecision.QUEUE

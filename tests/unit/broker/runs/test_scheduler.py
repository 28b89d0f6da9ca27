"""The scheduler against its rules: caps, turns, order, time in the queue, whatever happens in whatever order."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.unit.virtual_time import VirtualTimeLoop
from tidebox.broker.runs.admission_control import Capacity
from tidebox.broker.runs.scheduler import Scheduler, Ticket, TicketState
from tidebox.errors import Overloaded

USERS = ("ada", "bob", "cyd", "dan")
TTL = 10.0


class Claimant:
    """A client of the scheduler, and the calls it got."""

    def __init__(self, machine: SchedulerMachine, user: str) -> None:
        self.machine = machine
        self.user = user
        self.told: list[str] = []
        self.asked = machine.loop.time()
        self.ticket = Ticket(user, self.begin, self.expire)

    def begin(self) -> None:
        self.told.append("begin")
        self.machine.check_turn(self)

    def expire(self) -> None:
        self.told.append("expire")
        assert self.machine.loop.time() - self.asked == pytest.approx(TTL)
        self.machine.gone(self)


class SchedulerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualTimeLoop()
        self.failures: list[object] = []
        self.loop.set_exception_handler(lambda _, context: self.failures.append(context))
        self.active: list[Claimant] = []
        self.waiting: list[Claimant] = []
        # For each pair: how often the second was served from the queue while the first waited and could have been.
        self.passed_over: Counter[tuple[str, str]] = Counter()

    @initialize(
        slots=st.integers(1, 4),
        queue=st.integers(0, 6),
        own_slots=st.none() | st.integers(1, 3),
        own_queue=st.none() | st.integers(1, 4),
    )
    def build(self, slots: int, queue: int, own_slots: int | None, own_queue: int | None) -> None:
        self.capacity = Capacity(
            max_concurrent=slots,
            queue_max=queue,
            queue_ttl=TTL,
            max_concurrent_per_user=own_slots,
            queue_max_per_user=own_queue,
        )
        self.scheduler = Scheduler(self.capacity)

    def teardown(self) -> None:
        if hasattr(self, "scheduler"):
            for claimant in self.waiting:
                self.loop.do(self.scheduler.release, claimant.ticket)
        self.loop.close()

    # What the rules say, written a second time and simply.

    def running(self, user: str | None = None) -> int:
        return sum(user in (None, claimant.user) for claimant in self.active)

    def queued(self, user: str | None = None) -> int:
        return sum(user in (None, claimant.user) for claimant in self.waiting)

    def may_run(self, user: str) -> bool:
        own = self.capacity.max_concurrent_per_user
        return self.running() < self.capacity.max_concurrent and (own is None or self.running(user) < own)

    def must_refuse(self, user: str) -> bool:
        own = self.capacity.queue_max_per_user
        full = self.queued() >= self.capacity.queue_max or (own is not None and self.queued(user) >= own)
        return full and not self.may_run(user)

    def check_turn(self, chosen: Claimant) -> None:
        """Check that the slot was free, the client the first of its user, and that it was the user's turn."""
        assert self.may_run(chosen.user)
        assert chosen.ticket.state is TicketState.ACTIVE
        if chosen in self.waiting:
            assert next(other for other in self.waiting if other.user == chosen.user) is chosen
            self.waiting.remove(chosen)
            others = {other.user for other in self.waiting} - {chosen.user}
            for other in others:
                if self.may_run(other):
                    self.passed_over[other, chosen.user] += 1
                    assert self.passed_over[other, chosen.user] <= 1, f"{other} waits while {chosen.user} is served"
        self.forget_passing_over(chosen.user)
        self.active.append(chosen)

    def gone(self, claimant: Claimant) -> None:
        self.waiting.remove(claimant)
        if not self.queued(claimant.user):
            self.forget_passing_over(claimant.user)

    def forget_passing_over(self, user: str) -> None:
        for other in USERS:
            self.passed_over[user, other] = 0

    # What happens.

    @rule(user=st.sampled_from(USERS))
    def ask(self, user: str) -> None:
        claimant = Claimant(self, user)
        refuse, at_once = self.must_refuse(user), self.may_run(user)
        try:
            # Within the call a ticket without a slot is not in the queue yet.
            self.loop.do(self.scheduler.enter, claimant.ticket)
        except Overloaded:
            assert refuse
            return
        assert not refuse
        assert (claimant.told == ["begin"]) == at_once
        if not at_once:
            self.waiting.append(claimant)

    @rule(user=st.sampled_from(USERS))
    def come_back(self, user: str) -> None:
        claimant = Claimant(self, user)
        self.waiting.append(claimant)
        self.loop.do(self.scheduler.reenter, claimant.ticket)

    @precondition(lambda self: self.active)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        claimant = data.draw(st.sampled_from(self.active))
        self.active.remove(claimant)
        self.loop.do(self.scheduler.release, claimant.ticket)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        claimant = data.draw(st.sampled_from(self.waiting))
        self.gone(claimant)
        self.loop.do(self.scheduler.release, claimant.ticket)
        self.loop.do(self.scheduler.release, claimant.ticket)
        assert claimant.told == []

    @rule(seconds=st.floats(0.1, 2 * TTL))
    def pass_time(self, seconds: float) -> None:
        self.loop.pass_time(seconds)

    # What holds at any time.

    @invariant()
    def nothing_failed_in_a_timer(self) -> None:
        assert self.failures == []

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        assert (self.scheduler.active, self.scheduler.queued) == (self.running(), self.queued())

    @invariant()
    def the_guess_is_within_bounds(self) -> None:
        assert not hasattr(self, "scheduler") or 1 <= self.scheduler.expected_wait() <= TTL

    @invariant()
    def nobody_waits_for_a_slot_that_is_free(self) -> None:
        assert not any(self.may_run(claimant.user) for claimant in self.waiting)

    @invariant()
    def nobody_waits_too_long(self) -> None:
        assert all(self.loop.time() - claimant.asked <= TTL + 1e-3 for claimant in self.waiting)

    @invariant()
    def everybody_is_told_once(self) -> None:
        assert all(claimant.told == ["begin"] for claimant in self.active)
        assert all(claimant.told == [] for claimant in self.waiting)


SchedulerMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
test_scheduler = SchedulerMachine.TestCase


def test_one_user_with_much_to_do_does_not_hold_up_another() -> None:
    loop = VirtualTimeLoop()
    scheduler = Scheduler(Capacity(max_concurrent=1, queue_max=100, queue_ttl=1000.0))
    served: list[str] = []
    tickets: dict[str, Ticket] = {}

    def ask(name: str, user: str) -> None:
        tickets[name] = Ticket(user, lambda: served.append(name), lambda: None)
        loop.do(scheduler.enter, tickets[name])

    for number in range(20):
        ask(f"ada-{number}", "ada")
    for number in range(3):
        ask(f"bob-{number}", "bob")
    for position in range(6):
        loop.do(scheduler.release, tickets[served[position]])
    assert served == ["ada-0", "ada-1", "bob-0", "ada-2", "bob-1", "ada-3", "bob-2"]
    loop.close()


def test_the_expected_wait_follows_what_is_seen() -> None:
    loop = VirtualTimeLoop()
    scheduler = Scheduler(Capacity(max_concurrent=1, queue_max=100, queue_ttl=500.0))
    for _ in range(40):
        ticket = Ticket("ada", lambda: None, lambda: None)
        loop.do(scheduler.enter, ticket)
        loop.pass_time(20.0)
        loop.do(scheduler.release, ticket)
        assert (ticket.waited, round(ticket.held)) == (0.0, 20)
    assert 19 <= scheduler.expected_wait() <= 21
    loop.close()

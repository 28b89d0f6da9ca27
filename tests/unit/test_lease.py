"""The lease of a node: how it stands, and when it may judge others."""

from __future__ import annotations

import pytest

from tidebox.cluster.lease import TRANSITIONS, Event, Lease, Pace, State
from tidebox.store.base import Pulse, Standing

PACE = Pace()
WAYS = {
    State.HELD: [],
    State.LAPSED: [Event.OVERDUE],
    State.FORGOTTEN: [Event.FORGOTTEN],
    State.SUPERSEDED: [Event.SUPERSEDED],
}
HELD = Pulse(Standing.HELD, alone=False)
ALONE = Pulse(Standing.HELD, alone=True)


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("event", list(Event))
def test_a_lease_follows_the_table_and_refuses_everything_else(state: State, event: Event) -> None:
    lease = Lease(PACE, 0.0)
    for step in WAYS[state]:
        lease.take(step)
    assert lease.state is state
    if event in TRANSITIONS[state]:
        assert lease.take(event) is TRANSITIONS[state][event]
    else:
        with pytest.raises(ValueError, match=f"{state.value} cannot be told {event.value}"):
            lease.take(event)
        assert lease.state is state


def beating(lease: Lease, start: float, end: float) -> None:
    """Let every beat be answered, from ``start`` until ``end``."""
    moment = start
    while moment <= end:
        lease.answered(HELD, moment)
        moment += PACE.beat


def test_a_node_stops_before_others_can_judge_it() -> None:
    lease = Lease(PACE, 0.0)
    beating(lease, 0.0, 4.0)
    assert lease.may_begin(9.9)
    assert not lease.overdue(9.9)
    assert not lease.may_begin(10.0)
    assert lease.overdue(10.0)
    assert lease.lapses_at < 4.0 + PACE.lease
    lease.take(Event.OVERDUE)
    assert not lease.may_begin(5.0)
    # Nobody has judged it: it goes on.
    lease.answered(HELD, 11.0)
    assert lease.may_begin(11.0)


def test_a_node_that_was_alone_does_not_stop() -> None:
    lease = Lease(PACE, 0.0)
    lease.answered(ALONE, 2.0)
    assert not lease.overdue(1000.0)
    # But what it begins could be another's that came meanwhile.
    assert not lease.may_begin(1000.0)


def test_nobody_is_judged_before_a_whole_lease_of_ones_own() -> None:
    lease = Lease(PACE, 0.0)
    beating(lease, 0.0, 6.0)
    assert not lease.may_judge(7.9)
    lease.answered(HELD, 8.0)
    assert lease.may_judge(8.0)
    # One beat that was not answered, and it all begins again: the others could not beat either, perhaps.
    lease.missed(12.0)
    beating(lease, 12.0, 18.0)
    assert not lease.may_judge(19.9)
    lease.answered(HELD, 20.0)
    assert lease.may_judge(20.0)


def test_one_who_stood_still_does_not_judge_at_once() -> None:
    lease = Lease(PACE, 0.0)
    beating(lease, 0.0, 20.0)
    assert lease.may_judge(20.0)
    # No beat failed: none was sent.
    lease.answered(HELD, 60.0)
    assert not lease.may_judge(60.0)
    assert not lease.may_judge(67.9)


def test_one_who_was_forgotten_judges_nobody() -> None:
    lease = Lease(PACE, 0.0)
    beating(lease, 0.0, 20.0)
    lease.answered(Pulse(Standing.FORGOTTEN), 22.0)
    assert not lease.may_judge(22.0)
    lease.joined(23.0)
    assert lease.may_begin(23.0)
    assert not lease.may_judge(30.9)

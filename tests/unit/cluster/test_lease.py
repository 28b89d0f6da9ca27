"""The lease of a node: how it stands, and when it may judge others."""

from __future__ import annotations

import pytest

from tidebox.cluster.lease import TRANSITIONS, Lease, LeaseEvent, LeaseState, Pace
from tidebox.store.base import NodeBeat, Pulse, Standing

PACE = Pace()
WAYS = {
    LeaseState.HELD: [],
    LeaseState.LAPSED: [LeaseEvent.OVERDUE],
    LeaseState.FORGOTTEN: [LeaseEvent.FORGOTTEN],
    LeaseState.SUPERSEDED: [LeaseEvent.SUPERSEDED],
}
LAST = NodeBeat("other", 1, 100.0)
HELD = Pulse(Standing.HELD, (LAST,))
ALONE = Pulse(Standing.HELD)


@pytest.mark.parametrize("state", list(LeaseState))
@pytest.mark.parametrize("event", list(LeaseEvent))
def test_a_lease_follows_the_table_and_refuses_everything_else(state: LeaseState, event: LeaseEvent) -> None:
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
        lease.answered(HELD, moment, moment)
        moment += PACE.beat


def test_a_node_stops_before_others_can_judge_it() -> None:
    lease = Lease(PACE, 0.0)
    beating(lease, 0.0, 4.0)
    assert lease.may_begin(9.9)
    assert not lease.overdue(9.9)
    assert not lease.may_begin(10.0)
    assert lease.overdue(10.0)
    assert lease.lapses_at < 4.0 + PACE.lease
    lease.take(LeaseEvent.OVERDUE)
    assert not lease.may_begin(5.0)
    # Nobody has judged it: it goes on.
    lease.answered(HELD, 11.0, 11.0)
    assert lease.may_begin(11.0)


def test_a_node_that_was_alone_does_not_stop() -> None:
    lease = Lease(PACE, 0.0)
    lease.answered(ALONE, 2.0, 2.0)
    assert not lease.overdue(1000.0)
    # But what it begins could be another's that came meanwhile.
    assert not lease.may_begin(1000.0)


def test_nobody_is_judged_before_a_whole_lease_of_ones_own() -> None:
    lease = Lease(PACE, 0.0)
    beating(lease, 0.0, 6.0)
    assert not lease.may_judge(7.9)
    lease.answered(HELD, 8.0, 8.0)
    assert lease.may_judge(8.0)
    # One beat that was not answered, and it all begins again: the others could not beat either, perhaps.
    lease.missed(12.0)
    beating(lease, 12.0, 18.0)
    assert not lease.may_judge(19.9)
    lease.answered(HELD, 20.0, 20.0)
    assert lease.may_judge(20.0)


def test_one_who_stood_still_does_not_judge_at_once() -> None:
    lease = Lease(PACE, 0.0)
    beating(lease, 0.0, 20.0)
    assert lease.may_judge(20.0)
    # No beat failed: none was sent.
    lease.answered(HELD, 60.0, 60.0)
    assert not lease.may_judge(60.0)
    assert not lease.may_judge(67.9)


def test_one_who_was_forgotten_judges_nobody() -> None:
    lease = Lease(PACE, 0.0)
    beating(lease, 0.0, 20.0)
    lease.answered(Pulse(Standing.FORGOTTEN), 22.0, 22.0)
    assert not lease.may_judge(22.0)
    lease.joined(23.0)
    assert lease.may_begin(23.0)
    assert not lease.may_judge(30.9)


def test_a_node_is_lost_whose_last_beat_has_been_the_same_for_a_lease() -> None:
    lease = Lease(PACE, 0.0)
    beating(lease, 0.0, 6.0)
    assert lease.silent(6.0) == []
    lease.answered(HELD, 8.0, 8.0)
    assert lease.silent(8.0) == [LAST]
    # It beats: whatever time that says.
    for moment, at in ((10.0, 5000.0), (12.0, 3.0), (14.0, 3.1), (16.0, 3.2), (18.0, 3.3)):
        lease.answered(Pulse(Standing.HELD, (NodeBeat("other", 1, at),)), moment, moment)
        assert lease.silent(moment) == []


def test_what_was_not_heard_while_nothing_could_be_is_not_silence() -> None:
    lease = Lease(PACE, 0.0)
    beating(lease, 0.0, 4.0)
    # The machine slept, or the database was away.
    lease.answered(HELD, 100.0, 100.0)
    assert lease.silent(100.0) == []
    beating(lease, 102.0, 108.0)
    assert lease.silent(108.0) == [LAST]

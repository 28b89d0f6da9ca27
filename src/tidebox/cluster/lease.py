"""How a node stands with the others, and when it may judge them. No I/O and no clock: times are given, in seconds.

A node that was silent for ``Pace.lease`` is lost, and another takes over what it left. When that is, each of the others
says by its own clock, from when it first saw the beat that is still the last one: a clock that is set, be it the
database's, makes nobody silent. So a node that could not beat for ``Pace.lapse`` stops by itself: afterwards others may
have been told of the end of what it runs. And one that could not beat does not judge those who could not either: it
waits until it has been beating for a whole lease.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from tidebox.store.base import NodeBeat, Pulse, Standing


class LeaseState(enum.Enum):
    """How a node stands."""

    HELD = "held"
    """Its runs are its own."""
    LAPSED = "lapsed"
    """It has not been heard of for so long that its runs may be another's."""
    FORGOTTEN = "forgotten"
    """Its runs are another's; it has to join anew."""
    SUPERSEDED = "superseded"
    """Another server is this node."""


class LeaseEvent(enum.Enum):
    """Events of a node's lease: joined, heartbeat answered, overdue, forgotten, superseded."""

    BEAT = "beat"
    OVERDUE = "overdue"
    FORGOTTEN = "forgotten"
    SUPERSEDED = "superseded"
    JOINED = "joined"


TRANSITIONS: Mapping[LeaseState, Mapping[LeaseEvent, LeaseState]] = {
    LeaseState.HELD: {
        LeaseEvent.BEAT: LeaseState.HELD,
        LeaseEvent.OVERDUE: LeaseState.LAPSED,
        LeaseEvent.FORGOTTEN: LeaseState.FORGOTTEN,
        LeaseEvent.SUPERSEDED: LeaseState.SUPERSEDED,
    },
    LeaseState.LAPSED: {
        LeaseEvent.BEAT: LeaseState.HELD,
        LeaseEvent.FORGOTTEN: LeaseState.FORGOTTEN,
        LeaseEvent.SUPERSEDED: LeaseState.SUPERSEDED,
    },
    LeaseState.FORGOTTEN: {LeaseEvent.JOINED: LeaseState.HELD, LeaseEvent.SUPERSEDED: LeaseState.SUPERSEDED},
    LeaseState.SUPERSEDED: {},
}

EVENTS: Mapping[Standing, LeaseEvent] = {
    Standing.HELD: LeaseEvent.BEAT,
    Standing.FORGOTTEN: LeaseEvent.FORGOTTEN,
    Standing.SUPERSEDED: LeaseEvent.SUPERSEDED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often a node beats, and how long it may be silent, in seconds."""

    beat: float = 2.0
    lapse: float = 6.0
    lease: float = 8.0


class Lease:
    """The lease of one node, from when it joined."""

    def __init__(self, pace: Pace, now: float) -> None:
        self.pace = pace
        self.state = LeaseState.HELD
        self._beat_at = now
        self._beating_since = now
        # What was last heard of each other node, and when that was new. None while nothing is known of others.
        self._heard: dict[str, tuple[NodeBeat, float]] | None = None

    def take(self, event: LeaseEvent) -> LeaseState:
        """Change the state; raises where the table has no such change."""
        following = TRANSITIONS[self.state].get(event)
        if following is None:
            raise ValueError(f"a lease that is {self.state.value} cannot be told {event.value}")
        self.state = following
        return following

    def joined(self, now: float) -> None:
        """Begin again, as a new node."""
        self.take(LeaseEvent.JOINED)
        self._heard = None
        self._beat_at = self._beating_since = now

    def answered(self, pulse: Pulse, sent_at: float, now: float) -> LeaseState:
        """Note the answer to a beat that was sent then, and is here now."""
        following = self.take(EVENTS[pulse.standing])
        if following is LeaseState.HELD:
            if sent_at - self._beat_at > 2 * self.pace.beat:
                self._beating_since = sent_at
            self._beat_at = sent_at
            known = self._heard or {}
            self._heard = {
                beat.node_id: known[beat.node_id]
                if beat.node_id in known and known[beat.node_id][0] == beat
                else (beat, now)
                for beat in pulse.others
            }
        return following

    def missed(self, now: float) -> None:
        """Note that a beat was not answered: what others did not say meanwhile, they perhaps could not."""
        self._beating_since = max(self._beating_since, now)

    @property
    def lapses_at(self) -> float:
        """When it lapses if no beat comes before."""
        return self._beat_at + self.pace.lapse

    def may_begin(self, now: float) -> bool:
        """Whether what is begun now is the node's own for certain."""
        return self.state is LeaseState.HELD and now < self.lapses_at

    def overdue(self, now: float) -> bool:
        """Whether others may have judged it lost. Where there were none, nobody is taken to have come meanwhile."""
        return self.state is LeaseState.HELD and self._heard != {} and now >= self.lapses_at

    def may_judge(self, now: float) -> bool:
        """Whether the silence of others is their own."""
        return self.state is LeaseState.HELD and now - self._beating_since >= self.pace.lease

    def silent(self, now: float) -> list[NodeBeat]:
        """The last beats of those nodes that are lost."""
        if not self.may_judge(now):
            return []
        # Looks are a beat apart: the one that is due after a whole lease may come a moment early.
        enough = self.pace.lease - self.pace.beat / 2
        return [beat for beat, since in (self._heard or {}).values() if now - since >= enough]

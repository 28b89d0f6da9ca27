"""The store interface: everything that must survive a restart.

Stores take and return model objects. Each method is one transaction: it happens as a whole or not at all, and what it
returned is kept. ``StoreUnavailable`` says that nothing has changed; ``StoreInDoubt``, that nobody knows. A phase
changes only by compare-and-set along ``model.run.TRANSITIONS``, so of several who would end a run one does. The program
of a run (its *work*) is kept only while it may have to be started again.

Several servers may share one store. Each joins as a node, beats while it lives, and is the owner of its runs and
bindings; what a node leaves that beats no more is given to another one in one transaction. Who beats no more is said by
those who listen, by their own clocks: that of the database may be set.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tidebox.errors import Conflict
from tidebox.model.artifact import Artifact
from tidebox.model.idempotency import Answered, Claim
from tidebox.model.node import Owner
from tidebox.model.run import Run, Transition
from tidebox.model.run_query import RunPage, RunQuery
from tidebox.model.run_series import Course
from tidebox.model.run_totals import Summary
from tidebox.model.sandbox import Binding
from tidebox.model.session import Session, SessionState


@dataclass(frozen=True, slots=True)
class Holdings:
    """The runs and processor time that a user already has when they ask for one more run, for quotas."""

    unfinished: int
    """His runs that are not over."""
    in_session: int
    """The runs there have been in the session of the new one."""
    cpu_seconds: float
    """Resources used by their runs that ended since the time asked about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Creation:
    """A run that may be created: what it is, what keeps it unique, and what its user may not exceed."""

    run: Run
    work: bytes
    claim: Claim | None = None
    response: bytes = b""
    """The answer that a repeated request will get, kept with the claim."""
    valid_after: float = 0.0
    """Claims made before are forgotten."""
    check: Callable[[Holdings], None] | None = None
    """Raises where the user has too much already. Called inside the transaction, and maybe on another thread."""
    used_since: float = 0.0
    """From when on ``Holdings.cpu_seconds`` counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCreation:
    """A session that may be created; its fields are as those of ``Creation``."""

    session: Session
    claim: Claim | None = None
    response: bytes = b""
    valid_after: float = 0.0
    check: Callable[[int], None] | None = None
    """Raises where the user has too many sessions already: it is told how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionQuery:
    """Which sessions to list, newest first; None means any."""

    user: str | None = None
    state: SessionState | None = None
    limit: int = 50
    offset: int = 0


@dataclass(frozen=True, slots=True)
class SessionPage:
    """Some of the sessions a query found, and how many there are."""

    sessions: tuple[Session, ...]
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingCreation:
    """A binding that is created unless its scope has one; the other fields are as those of ``Creation``."""

    binding: Binding
    claim: Claim | None = None
    valid_after: float = 0.0
    check: Callable[[int], None] | None = None
    """Raises where the user has too many bindings already: it is told how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsuredBinding:
    """The binding of a scope."""

    binding: Binding
    created: bool
    replayed: bool = False
    """Whether its claim was answered before."""


class Standing(enum.Enum):
    """The standing of a node in the store, as its heartbeat is answered."""

    HELD = "held"
    """It is a node, as it was when it joined."""
    FORGOTTEN = "forgotten"
    """It was silent for too long: others have what was its own."""
    SUPERSEDED = "superseded"
    """Another server has joined under its id."""


@dataclass(frozen=True, slots=True)
class NodeBeat:
    """The last heartbeat of a node: as long as it is the same one, nothing was heard of the node."""

    node_id: str
    epoch: int
    at: float
    """By the clock of the store, which may be set: only good to tell one beat from another."""


@dataclass(frozen=True, slots=True)
class Pulse:
    """The answer to a heartbeat."""

    standing: Standing
    others: tuple[NodeBeat, ...] = ()
    """The last heartbeat of every other node."""
    left: bool = False
    """Whether a lost node left runs or bindings that no node has taken over."""


@dataclass(frozen=True, slots=True)
class Estate:
    """The runs and bindings of lost nodes, after one node has taken them over."""

    runs: tuple[tuple[Run, bytes], ...] = ()
    """The queued runs that the node has by now taken over from others, with their work."""
    ended: tuple[Run, ...] = ()
    """Runs that could not be taken over, as they are now."""
    bindings: tuple[Binding, ...] = ()
    """Bindings that have ended."""


def id_taken(node_id: str, silent: float, lease: float) -> Conflict:
    """Two servers cannot be one node."""
    return Conflict(
        f"another server has the node id {node_id}, and was there {silent:.1f} seconds ago: give this one a "
        f"SANDBOX_NODE_ID of its own. (Of a server that was killed the id is free after {lease:g} seconds.)",
        node_id=node_id,
    )


# Databases have a limit on what they index, and know no names that are not text.
_MAX_PATH_BYTES = 2000


def fitting(artifacts: Sequence[Artifact], limit: int | None, held: int) -> list[Artifact]:
    """Those of some artifacts, in their order, that can be kept and fit beside ``held`` bytes into ``limit``."""
    kept = []
    for artifact in artifacts:
        if _can_be_kept(artifact) and (limit is None or held + artifact.size <= limit):
            held += artifact.size
            kept.append(artifact)
    return kept


def _can_be_kept(artifact: Artifact) -> bool:
    text = artifact.path + (artifact.link_target or "")
    try:
        text.encode()
        return len(artifact.path.encode()) <= _MAX_PATH_BYTES and "\0" not in text
    except UnicodeEncodeError:
        return False


class Store(abc.ABC):
    """Keeps runs, sessions, bindings, what is known of artifacts, and idempotency keys."""

    mode: str
    """Its kind, as clients are told."""
    durable: bool
    """Whether what it keeps outlives this process."""
    shared: bool
    """Whether several servers may use it at once. Otherwise all that is in it is the one server's own."""

    @abc.abstractmethod
    async def start(self) -> None:
        """Be ready to be used, or raise what prevents it."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Let go of everything."""

    @abc.abstractmethod
    async def create_run(self, creation: Creation) -> Answered | None:
        """Create a run, or return how its claim was answered before.

        Raises ``IdempotencyConflict`` for a claim answered with another body, ``NotFound`` where the run's session
        takes no runs, and what ``creation.check`` raises.
        """

    @abc.abstractmethod
    async def run(self, run_id: str) -> Run | None:
        """The run of that id."""

    @abc.abstractmethod
    async def advance_run(self, run: Run, step: Transition) -> Run | None:
        """Take a run one step further and return it; None, and nothing changed, where it cannot take that step.

        Nor can it where its owner or its attempt are others than ``run`` says: then another node has it.
        """

    @abc.abstractmethod
    async def list_runs(self, query: RunQuery) -> RunPage:
        """Runs in the order asked for; those without the time that is sorted by come last."""

    @abc.abstractmethod
    async def recover_runs(self, owner: Owner) -> list[tuple[Run, bytes | None]]:
        """Make ``owner`` the owner of every unfinished run of its node, and of those that have none, and return them.

        Oldest first, with their work where that is still kept. In a store that is not shared it is every one.
        """

    @abc.abstractmethod
    async def answered(self, claim: Claim, valid_after: float) -> Answered | None:
        """How a claim was answered; raises ``IdempotencyConflict`` if that was another body."""

    @abc.abstractmethod
    async def list_answered(
        self, *, endpoint: str | None = None, user: str | None = None, limit: int = 50, offset: int = 0
    ) -> list[Answered]:
        """Answered claims, newest first."""

    @abc.abstractmethod
    async def prune(self, *, claims_before: float, runs_before: float) -> None:
        """Forget claims made, and runs finished, before these times, the latter with what is known of their artifacts.

        The one method that may be several transactions: removing much at once would keep others waiting.
        """

    @abc.abstractmethod
    async def create_session(self, creation: SessionCreation) -> Answered | None:
        """Create a session, or return how its claim was answered before; raises as ``create_run`` does."""

    @abc.abstractmethod
    async def session(self, session_id: str) -> Session | None:
        """The session of that id."""

    @abc.abstractmethod
    async def list_sessions(self, query: SessionQuery) -> SessionPage:
        """Sessions, newest first."""

    @abc.abstractmethod
    async def extend_session(self, session_id: str, expires_at: float) -> Session | None:
        """Let an active session live until then and return it; None, and nothing changed, where there is none."""

    @abc.abstractmethod
    async def close_session(self, session_id: str) -> Session | None:
        """Let a session take no more runs and return it, also where that was so; None where there is none."""

    @abc.abstractmethod
    async def delete_session(self, session_id: str) -> bool:
        """Forget a session; False where there was none. Its runs stay."""

    @abc.abstractmethod
    async def expired_sessions(self, now: float, node_id: str) -> list[Session]:
        """Sessions that a node has to remove, oldest first: those whose time is over or whose closing was interrupted.

        Its own, and those of nodes that are none any more.
        """

    @abc.abstractmethod
    async def recover_sessions(self, node_id: str) -> None:
        """Make a node the owner of the sessions without one; in a store that is not shared, of every one."""

    @abc.abstractmethod
    async def add_artifacts(
        self, run_id: str, artifacts: Sequence[Artifact], *, user_limit: int | None = None
    ) -> list[Artifact]:
        """Remember artifacts of a run and return those remembered, in their order.

        ``user_limit`` is how many bytes of artifacts the run's user may have: what does not fit is left out, as is
        what has no name that can be kept. Raises ``NotFound`` where there is no such run.
        """

    @abc.abstractmethod
    async def artifacts(self, run_id: str) -> list[Artifact]:
        """The artifacts of a run, by path."""

    @abc.abstractmethod
    async def artifact(self, run_id: str, path: str) -> Artifact | None:
        """One artifact of a run."""

    @abc.abstractmethod
    async def delete_artifacts(self, run_id: str) -> int:
        """Forget the artifacts of a run and return how many bytes they had."""

    @abc.abstractmethod
    async def expired_artifacts(self, now: float, limit: int = 1000) -> list[str]:
        """Ids of runs with artifacts whose time is over, those first that were to go first."""

    @abc.abstractmethod
    async def having_artifacts(self, run_ids: Sequence[str]) -> set[str]:
        """Those of the runs that have artifacts: any others on disk can be removed."""

    @abc.abstractmethod
    async def artifact_bytes(self, user: str) -> int:
        """How many bytes of artifacts a user has."""

    @abc.abstractmethod
    async def artifact_usage(self, limit: int = 50, offset: int = 0) -> list[tuple[str, int]]:
        """Users and how many bytes of artifacts they have, most first."""

    @abc.abstractmethod
    async def summary(self, created_from: float | None, created_to: float | None, top: int = 10) -> Summary:
        """Totals over the runs created between two times, both included."""

    @abc.abstractmethod
    async def courses(self, begin: float, end: float, limit: int) -> list[Course]:
        """The courses of the runs that existed between two times, the newest first."""

    @abc.abstractmethod
    async def create_binding(self, creation: BindingCreation) -> EnsuredBinding:
        """The binding of a scope: the one it has, or else the new one; the claim then stands for that.

        Raises ``Forbidden`` where the scope is somebody else's, also by a binding that has ended and is still known;
        ``IdempotencyConflict`` for a claim answered with another body; and what ``creation.check`` raises.
        """

    @abc.abstractmethod
    async def binding(self, binding_id: str) -> Binding | None:
        """The binding of that id, ended or not."""

    @abc.abstractmethod
    async def save_binding(self, binding: Binding) -> bool:
        """Replace what is known of a binding; False, and nothing changed, where its node has none or it has ended."""

    @abc.abstractmethod
    async def delete_binding(self, binding_id: str) -> bool:
        """Forget a binding; False where there was none."""

    @abc.abstractmethod
    async def recover_bindings(self, node_id: str) -> list[Binding]:
        """Make a node the owner of the bindings without one, as ``recover_runs`` does, and return all that it has.

        Those that have not ended, oldest first.
        """

    @abc.abstractmethod
    async def prune_bindings(self, ended_before: float) -> None:
        """Forget bindings that ended before this time."""

    @abc.abstractmethod
    async def join_node(self, node_id: str, home: str, lease: float) -> Owner:
        """Make a server a node, with a higher epoch than any that had its id before.

        ``home`` names what only one server at a time can use, such as a data directory. Raises ``Conflict`` where a
        server of another home has the id and has beaten within the last ``lease`` seconds.
        """

    @abc.abstractmethod
    async def beat(self, owner: Owner) -> Pulse:
        """Note that a node lives, and tell what was heard of others."""

    @abc.abstractmethod
    async def has_node(self, node_id: str) -> bool:
        """Whether there is such a node: it has joined, and is not forgotten."""

    @abc.abstractmethod
    async def leave_node(self, owner: Owner) -> None:
        """Let a server of another home have the node's id. What is the node's own stays so until its lease is over."""

    @abc.abstractmethod
    async def take_over(self, owner: Owner, silent: Sequence[NodeBeat], at: float) -> Estate | None:
        """Forget the nodes of which these are still the last beats, and give ``owner`` what lost nodes left.

        Queued runs that another node can do become its own, with the next attempt; every other run ends as
        ``NODE_LOST`` at the time ``at``, and every binding ends. Of several who call this at once one gets everything;
        None, and nothing changed, where another one is at it.
        """

"""A store of dictionaries, for tests of what stands above stores: it answers at once, and does what a test adds to it.

The contract of stores is tried on it as on the others.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from tidebox.errors import Forbidden, NotFound
from tidebox.model.artifact import Artifact
from tidebox.model.idempotency import Answered, Claim, settle
from tidebox.model.node import NOBODY, Owner
from tidebox.model.run import (
    NODE_LOST,
    STARTABLE,
    UNFINISHED,
    Phase,
    Run,
    Transition,
    advanced,
    ended,
    taken_over,
)
from tidebox.model.run_query import RunPage, RunQuery, searched
from tidebox.model.run_series import Course
from tidebox.model.run_totals import Summary, Totals
from tidebox.model.sandbox import Binding, SandboxState
from tidebox.model.session import Session, SessionState
from tidebox.model.timestamps import iso_time
from tidebox.store.base import (
    BindingCreation,
    Creation,
    EnsuredBinding,
    Estate,
    Holdings,
    NodeBeat,
    Pulse,
    SessionCreation,
    SessionPage,
    SessionQuery,
    Standing,
    Store,
    fitting,
    id_taken,
)


@dataclass(frozen=True, slots=True)
class _Node:
    owner: Owner
    home: str
    beat_at: float


class DictStore(Store):
    """Keeps everything in dictionaries. No method gives way to another between reading and writing."""

    mode = "memory"
    durable = False
    shared = False

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}
        self._work: dict[str, bytes] = {}
        self._unfinished: set[str] = set()
        self._answered: dict[tuple[str, str, str], Answered] = {}
        self._sessions: dict[str, Session] = {}
        self._bindings: dict[str, Binding] = {}
        self._artifacts: dict[str, dict[str, Artifact]] = {}
        self._artifact_bytes: defaultdict[str, int] = defaultdict(int)
        self._nodes: dict[str, _Node] = {}

    async def start(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to let go of."""

    async def create_run(self, creation: Creation) -> Answered | None:
        """Create a run, or return how its claim was answered before."""
        run, claim = creation.run, creation.claim
        if claim is not None and (prior := self._valid(claim, creation.valid_after)) is not None:
            return settle(claim, prior)
        session_id = run.facts.session_id
        if session_id is not None:
            session = self._sessions.get(session_id)
            if session is None or session.user != run.user or not session.usable(run.created_at):
                raise NotFound("no such session", session_id=session_id)
        if creation.check is not None:
            creation.check(self._holdings(run, creation.used_since))
        if run.id in self._runs:
            raise ValueError(f"there is a run {run.id} already")
        self._runs[run.id] = run
        self._work[run.id] = creation.work
        self._unfinished.add(run.id)
        if claim is not None:
            self._answer(Answered(claim=claim, object_id=run.id, response=creation.response, created_at=run.created_at))
        return None

    def _answer(self, answered: Answered) -> None:
        # Removed first, so that the order of the dictionary stays the order of time.
        self._answered.pop(answered.claim.scope, None)
        self._answered[answered.claim.scope] = answered

    def _valid(self, claim: Claim, valid_after: float) -> Answered | None:
        prior = self._answered.get(claim.scope)
        return prior if prior is not None and prior.created_at > valid_after else None

    def _holdings(self, new: Run, used_since: float) -> Holdings:
        own = [run for run in self._runs.values() if run.user == new.user]
        session = new.facts.session_id
        return Holdings(
            unfinished=sum(run.phase in UNFINISHED for run in own),
            in_session=0 if session is None else sum(run.facts.session_id == session for run in own),
            cpu_seconds=sum(
                run.usage.cpu_seconds or 0.0
                for run in own
                if run.usage is not None and run.finished_at is not None and run.finished_at >= used_since
            ),
        )

    async def run(self, run_id: str) -> Run | None:
        """The run of that id."""
        return self._runs.get(run_id)

    async def advance_run(self, run: Run, step: Transition) -> Run | None:
        """Take a run one step further and return it; None where it cannot take that step."""
        there = self._runs.get(run.id)
        if there is None or (there.owner, there.attempt) != (run.owner, run.attempt):
            return None
        return self._advance(there, step)

    def _advance(self, run: Run, step: Transition) -> Run | None:
        following = advanced(run, step)
        if following is None:
            return None
        self._runs[run.id] = following
        if following.phase not in STARTABLE:
            self._work.pop(run.id, None)
        if following.phase.terminal:
            self._unfinished.remove(run.id)
        return following

    async def list_runs(self, query: RunQuery) -> RunPage:
        """Runs in the order asked for; those without the time that is sorted by come last."""
        found = [run for run in self._runs.values() if _matches(run, query)]
        found.sort(key=lambda run: run.id, reverse=query.descending)
        with_time = [run for run in found if getattr(run, query.sort) is not None]
        with_time.sort(key=lambda run: float(getattr(run, query.sort)), reverse=query.descending)
        without = [run for run in found if getattr(run, query.sort) is None]
        return RunPage(tuple((with_time + without)[query.offset : query.offset + query.limit]), len(found))

    async def recover_runs(self, owner: Owner) -> list[tuple[Run, bytes | None]]:
        """Make ``owner`` the owner of every unfinished run, and return them."""
        own = [replace(run, owner=owner) for run in self._by_age()]
        self._runs.update((run.id, run) for run in own)
        return [(run, self._work.get(run.id)) for run in own]

    def _by_age(self) -> list[Run]:
        """The unfinished runs."""
        return sorted((self._runs[run_id] for run_id in self._unfinished), key=lambda run: run.created_at)

    async def answered(self, claim: Claim, valid_after: float) -> Answered | None:
        """How a claim was answered; raises ``IdempotencyConflict`` if that was another body."""
        prior = self._valid(claim, valid_after)
        return settle(claim, prior) if prior is not None else None

    async def list_answered(
        self, *, endpoint: str | None = None, user: str | None = None, limit: int = 50, offset: int = 0
    ) -> list[Answered]:
        """Answered claims, newest first."""
        found = [
            answered
            for answered in reversed(self._answered.values())
            if endpoint in (None, answered.claim.endpoint) and user in (None, answered.claim.user)
        ]
        return found[offset : offset + limit]

    async def prune(self, *, claims_before: float, runs_before: float) -> None:
        """Forget claims made, and runs finished, before these times."""
        for scope in [scope for scope, answered in self._answered.items() if answered.created_at < claims_before]:
            del self._answered[scope]
        for run in [run for run in self._runs.values() if (run.finished_at or runs_before) < runs_before]:
            self._forget_artifacts(run)
            del self._runs[run.id]

    async def create_session(self, creation: SessionCreation) -> Answered | None:
        """Create a session, or return how its claim was answered before."""
        session, claim = creation.session, creation.claim
        if claim is not None and (prior := self._valid(claim, creation.valid_after)) is not None:
            return settle(claim, prior)
        if creation.check is not None:
            creation.check(sum(other.user == session.user for other in self._sessions.values()))
        if session.id in self._sessions:
            raise ValueError(f"there is a session {session.id} already")
        self._sessions[session.id] = session
        if claim is not None:
            self._answer(
                Answered(claim=claim, object_id=session.id, response=creation.response, created_at=session.created_at)
            )
        return None

    async def session(self, session_id: str) -> Session | None:
        """The session of that id."""
        return self._sessions.get(session_id)

    async def list_sessions(self, query: SessionQuery) -> SessionPage:
        """Sessions, newest first."""
        found = [
            session
            for session in self._sessions.values()
            if query.user in (None, session.user) and query.state in (None, session.state)
        ]
        found.sort(key=lambda session: (session.created_at, session.id), reverse=True)
        return SessionPage(tuple(found[query.offset : query.offset + query.limit]), len(found))

    async def extend_session(self, session_id: str, expires_at: float) -> Session | None:
        """Let an active session live until then and return it."""
        session = self._sessions.get(session_id)
        if session is None or session.state is not SessionState.ACTIVE:
            return None
        self._sessions[session_id] = session = replace(session, expires_at=expires_at)
        return session

    async def close_session(self, session_id: str) -> Session | None:
        """Let a session take no more runs and return it."""
        session = self._sessions.get(session_id)
        if session is not None:
            self._sessions[session_id] = session = replace(session, state=SessionState.CLOSING)
        return session

    async def delete_session(self, session_id: str) -> bool:
        """Forget a session; False where there was none."""
        return self._sessions.pop(session_id, None) is not None

    async def expired_sessions(self, now: float, node_id: str) -> list[Session]:
        """Sessions that a node has to remove, oldest first."""
        over = [session for session in self._sessions.values() if not session.usable(now)]
        found = [session for session in over if session.node_id == node_id or session.node_id not in self._nodes]
        return sorted(found, key=lambda session: (session.created_at, session.id))

    async def recover_sessions(self, node_id: str) -> None:
        """Make a node the owner of every session."""
        self._sessions = {id: replace(session, node_id=node_id) for id, session in self._sessions.items()}

    async def add_artifacts(
        self, run_id: str, artifacts: Sequence[Artifact], *, user_limit: int | None = None
    ) -> list[Artifact]:
        """Remember artifacts of a run and return those remembered, in their order."""
        run = self._runs.get(run_id)
        if run is None:
            raise NotFound("no such run", run_id=run_id)
        there = self._artifacts.get(run_id, {})
        if any(artifact.path in there for artifact in artifacts):
            raise ValueError(f"the run {run_id} has an artifact of that path already")
        kept = fitting(artifacts, user_limit, self._artifact_bytes[run.user])
        if kept:
            self._artifacts[run_id] = there | {artifact.path: artifact for artifact in kept}
            self._artifact_bytes[run.user] += sum(artifact.size for artifact in kept)
        return kept

    async def artifacts(self, run_id: str) -> list[Artifact]:
        """The artifacts of a run, by path."""
        return sorted(self._artifacts.get(run_id, {}).values(), key=lambda artifact: artifact.path)

    async def artifact(self, run_id: str, path: str) -> Artifact | None:
        """One artifact of a run."""
        return self._artifacts.get(run_id, {}).get(path)

    async def delete_artifacts(self, run_id: str) -> int:
        """Forget the artifacts of a run and return how many bytes they had."""
        run = self._runs.get(run_id)
        return self._forget_artifacts(run) if run is not None else 0

    def _forget_artifacts(self, run: Run) -> int:
        freed = sum(artifact.size for artifact in self._artifacts.pop(run.id, {}).values())
        self._artifact_bytes[run.user] -= freed
        return freed

    async def expired_artifacts(self, now: float, limit: int = 1000) -> list[str]:
        """Ids of runs with artifacts whose time is over."""
        first = {run_id: min(a.expires_at for a in found.values()) for run_id, found in self._artifacts.items()}
        over = sorted((moment, run_id) for run_id, moment in first.items() if moment <= now)
        return [run_id for _, run_id in over[:limit]]

    async def having_artifacts(self, run_ids: Sequence[str]) -> set[str]:
        """Those of the runs that have artifacts."""
        return {run_id for run_id in run_ids if run_id in self._artifacts}

    async def artifact_bytes(self, user: str) -> int:
        """How many bytes of artifacts a user has."""
        return self._artifact_bytes.get(user, 0)

    async def artifact_usage(self, limit: int = 50, offset: int = 0) -> list[tuple[str, int]]:
        """Users and how many bytes of artifacts they have, most first."""
        found = sorted(self._artifact_bytes.items(), key=lambda item: (-item[1], item[0]))
        return [item for item in found if item[1]][offset : offset + limit]

    async def summary(self, created_from: float | None, created_to: float | None, top: int = 10) -> Summary:
        """What the runs created in a time came to."""
        runs = [run for run in self._runs.values() if _within(run.created_at, created_from, created_to)]
        by_user = _grouped((run.user, run) for run in runs)
        return Summary(
            totals=_totals(runs),
            by_runtime=_grouped((run.facts.runtime, run) for run in runs),
            top_users=tuple(sorted(by_user.items(), key=lambda item: (-item[1].runs, item[0]))[:top]),
        )

    async def courses(self, begin: float, end: float, limit: int) -> list[Course]:
        """What became of the runs that there were between two times, the newest first."""
        there = [run for run in self._runs.values() if run.created_at <= end and (run.finished_at or begin) >= begin]
        there.sort(key=lambda run: run.created_at, reverse=True)
        return [
            Course(
                user=run.user,
                phase=run.phase,
                reason=run.reason.value if run.reason is not None else None,
                created_at=run.created_at,
                started_at=run.started_at,
                finished_at=run.finished_at,
                cpu_seconds=(run.usage.cpu_seconds or 0.0) if run.usage is not None else 0.0,
            )
            for run in there[:limit]
        ]

    async def create_binding(self, creation: BindingCreation) -> EnsuredBinding:
        """The binding of a scope: the one it has, or else the new one."""
        new, claim = creation.binding, creation.claim
        prior = self._valid(claim, creation.valid_after) if claim is not None else None
        if claim is not None and prior is not None:
            settle(claim, prior)
        of_scope = [found for found in self._bindings.values() if found.scope == new.scope]
        if of_scope and of_scope[-1].user != new.user:
            raise Forbidden(f"this {new.scope.type.value} is another user's")
        live = [found for found in of_scope if found.state is not SandboxState.TERMINATED]
        if not live:
            if creation.check is not None:
                creation.check(
                    sum(
                        other.user == new.user and other.state is not SandboxState.TERMINATED
                        for other in self._bindings.values()
                    )
                )
            if new.id in self._bindings:
                raise ValueError(f"there is a binding {new.id} already")
            self._bindings[new.id] = new
        bound = live[0] if live else new
        if claim is not None and prior is None:
            self._answer(Answered(claim=claim, object_id=bound.id, response=b"", created_at=new.created_at))
        return EnsuredBinding(binding=bound, created=not live, replayed=prior is not None)

    async def binding(self, binding_id: str) -> Binding | None:
        """The binding of that id, ended or not."""
        return self._bindings.get(binding_id)

    async def save_binding(self, binding: Binding) -> bool:
        """Replace what is known of a binding that has not ended."""
        there = self._bindings.get(binding.id)
        if there is None or there.state is SandboxState.TERMINATED or there.node_id != binding.node_id:
            return False
        self._bindings[binding.id] = binding
        return True

    async def delete_binding(self, binding_id: str) -> bool:
        """Forget a binding; False where there was none."""
        return self._bindings.pop(binding_id, None) is not None

    async def recover_bindings(self, node_id: str) -> list[Binding]:
        """The bindings that have not ended, oldest first: they are this node's own from now on."""
        own = [replace(binding, node_id=node_id) for binding in self._live_bindings()]
        self._bindings.update((binding.id, binding) for binding in own)
        return own

    def _live_bindings(self) -> list[Binding]:
        found = [binding for binding in self._bindings.values() if binding.state is not SandboxState.TERMINATED]
        return sorted(found, key=lambda binding: (binding.created_at, binding.id))

    async def prune_bindings(self, ended_before: float) -> None:
        """Forget bindings that ended before this time."""
        for binding in list(self._bindings.values()):
            if binding.state is SandboxState.TERMINATED and binding.active_at < ended_before:
                del self._bindings[binding.id]

    async def join_node(self, node_id: str, home: str, lease: float) -> Owner:
        """Make a server a node, with a higher epoch than any that had its id before."""
        now, there = time.time(), self._nodes.get(node_id)
        if there is not None and there.home not in ("", home) and abs(now - there.beat_at) < lease:
            raise id_taken(node_id, now - there.beat_at, lease)
        owner = Owner(node_id, max(int(now * 1000), there.owner.epoch + 1 if there is not None else 0))
        self._nodes[node_id] = _Node(owner, home, now)
        return owner

    async def beat(self, owner: Owner) -> Pulse:
        """Note that a node lives, and tell what was heard of others."""
        there = self._nodes.get(owner.node_id)
        if there is None or there.owner != owner:
            superseded = there is not None and there.owner.epoch > owner.epoch
            return Pulse(Standing.SUPERSEDED if superseded else Standing.FORGOTTEN)
        self._nodes[owner.node_id] = replace(there, beat_at=time.time())
        others = tuple(
            NodeBeat(node.owner.node_id, node.owner.epoch, node.beat_at)
            for node in self._nodes.values()
            if node.owner != owner
        )
        return Pulse(Standing.HELD, others, left=bool(self._runs_without_node() or self._bindings_without_node()))

    async def has_node(self, node_id: str) -> bool:
        """Whether there is such a node."""
        return node_id in self._nodes

    async def leave_node(self, owner: Owner) -> None:
        """Let a server of another home have the node's id."""
        there = self._nodes.get(owner.node_id)
        if there is not None and there.owner == owner:
            self._nodes[owner.node_id] = replace(there, home="")

    async def take_over(self, owner: Owner, silent: Sequence[NodeBeat], at: float) -> Estate:
        """Forget the nodes of which these are still the last beats, and give ``owner`` what lost nodes left."""
        there = self._nodes.get(owner.node_id)
        if there is None or there.owner != owner:
            return Estate()
        for last in silent:
            if self._nodes.get(last.node_id) is not None and self._nodes[last.node_id].beat_at == last.at:
                del self._nodes[last.node_id]
        over = []
        for run in self._runs_without_node():
            if run.movable and run.id in self._work:
                self._runs[run.id] = taken_over(run, owner)
            elif (following := self._advance(run, ended(NODE_LOST, at))) is not None:
                over.append(following)
        bindings = [
            replace(binding, state=SandboxState.TERMINATED, active_at=at) for binding in self._bindings_without_node()
        ]
        self._bindings.update((binding.id, binding) for binding in bindings)
        taken = [run for run in self._by_age() if run.owner == owner and run.attempt > 1 and run.phase is Phase.QUEUED]
        return Estate(tuple((run, self._work[run.id]) for run in taken), tuple(over), tuple(bindings))

    def _runs_without_node(self) -> list[Run]:
        return [run for run in self._by_age() if run.owner.node_id not in (NOBODY.node_id, *self._nodes)]

    def _bindings_without_node(self) -> list[Binding]:
        return [found for found in self._live_bindings() if found.node_id not in (NOBODY.node_id, *self._nodes)]


def _grouped(pairs: Iterable[tuple[str, Run]]) -> dict[str, Totals]:
    groups: defaultdict[str, list[Run]] = defaultdict(list)
    for name, run in pairs:
        groups[name].append(run)
    return {name: _totals(groups[name]) for name in sorted(groups)}


def _totals(runs: Sequence[Run]) -> Totals:
    return Totals(
        runs=len(runs),
        completed=sum(run.phase is Phase.COMPLETED for run in runs),
        failed=sum(run.phase is Phase.FAILED for run in runs),
        timed_out=sum(run.phase is Phase.TIMED_OUT for run in runs),
        killed=sum(run.phase is Phase.KILLED for run in runs),
        cpu_seconds=sum((run.usage.cpu_seconds or 0.0) if run.usage is not None else 0.0 for run in runs),
        log_bytes=sum(run.log_bytes for run in runs),
        artifact_bytes=sum(run.artifact_bytes for run in runs),
    )


def _matches(run: Run, query: RunQuery) -> bool:
    return all(
        wanted is None or wanted == found
        for wanted, found in (
            (query.user, run.user),
            (query.session_id, run.facts.session_id),
            (query.phase, run.phase),
            (query.runtime, run.facts.runtime),
            (query.base_image, run.facts.base_image),
            (query.image_digest, run.facts.image_digest),
            (query.node_id, run.owner.node_id),
        )
    ) and all(_time_and_text(run, query))


def _time_and_text(run: Run, query: RunQuery) -> Iterator[bool]:
    yield query.label is None or query.label in run.facts.labels.items()
    yield _within(run.started_at, query.started_from, query.started_to)
    yield _within(run.finished_at, query.finished_from, query.finished_to)
    if query.text is not None:
        yield query.text.lower() in searched(run)


def _within(moment: float | None, low: float | None, high: float | None) -> bool:
    if low is None and high is None:
        return True
    # To the microsecond, as the other stores keep times.
    if moment is None or (low is not None and round(moment, 6) < low):
        return False
    return high is None or iso_time(moment) <= iso_time(high)

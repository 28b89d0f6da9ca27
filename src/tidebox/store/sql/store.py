"""A store in a database: SQLite in a file, or PostgreSQL.

Importing this loads nothing of the database layer: that takes longer than all the rest of a server's start. A thread
loads it, and opens the database, at the first use; whoever needs the store before waits for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from tidebox.errors import StoreUnavailable
from tidebox.model.artifact import Artifact
from tidebox.model.idempotency import Answered, Claim
from tidebox.model.listing import RunPage, RunQuery
from tidebox.model.node import Owner
from tidebox.model.run import STARTABLE, Run, Transition
from tidebox.model.sandbox import Binding
from tidebox.model.session import Session
from tidebox.model.summary import Summary
from tidebox.store.base import (
    BindingCreation,
    Bound,
    Creation,
    Estate,
    Pulse,
    SessionCreation,
    SessionPage,
    SessionQuery,
    Store,
)
from tidebox.store.sql.sqlite_file import prepare
from tidebox.store.sql.work_files import WorkFiles

if TYPE_CHECKING:
    from tidebox.store.sql.database import Database
    from tidebox.store.sql.operations import Operations

_P = ParamSpec("_P")
_T = TypeVar("_T")

# Some 30 ms, for which a new run may have to wait.
_PRUNE_AT_ONCE = 50


class SqlStore(Store):
    """Keeps everything in a database."""

    durable = True

    def __init__(self, open_database: Callable[[], Database]) -> None:
        """``open_database`` blocks, and loads the database layer."""
        self._open = open_database
        self._opening: asyncio.Task[tuple[Database, type[Operations]]] | None = None

    async def close(self) -> None:
        """Let go of everything, after what is under way."""
        if self._opening is None:
            return
        opening, self._opening = self._opening, None
        try:
            database, _ = await opening
        except Exception:
            return
        await asyncio.to_thread(database.close)

    async def _ready(self) -> tuple[Database, type[Operations]]:
        opening = self._opening
        if opening is None or (opening.done() and opening.exception() is not None):
            # After a failure again: the database may be back.
            opening = self._opening = asyncio.create_task(asyncio.to_thread(self._load))
        if opening.done():
            return opening.result()
        # One caller that goes away must not take the others' database along.
        return await asyncio.shield(opening)

    def _load(self) -> tuple[Database, type[Operations]]:
        from tidebox.store.sql.operations import Operations

        return self._open(), Operations

    async def create_run(self, creation: Creation) -> Answered | None:
        """Create a run, or return how its claim was answered before."""
        database, do = await self._ready()
        return await database.write(do.create_run, creation)

    async def run(self, run_id: str) -> Run | None:
        """The run of that id."""
        database, do = await self._ready()
        return await database.read(do.run, run_id)

    async def advance_run(self, run: Run, step: Transition) -> Run | None:
        """Take a run one step further and return it; None where it cannot take that step."""
        database, do = await self._ready()
        return await database.step(do.advance_run, run, step)

    async def list_runs(self, query: RunQuery) -> RunPage:
        """Runs in the order asked for; those without the time that is sorted by come last."""
        database, do = await self._ready()
        return await database.read(do.list_runs, query)

    async def recover_runs(self, owner: Owner) -> list[tuple[Run, bytes | None]]:
        """Make ``owner`` the owner of every unfinished run that can be its own, and return them."""
        database, do = await self._ready()
        return await database.write(do.recover_runs, owner, shared=self.shared)

    async def answered(self, claim: Claim, valid_after: float) -> Answered | None:
        """How a claim was answered; raises ``IdempotencyConflict`` if that was another body."""
        database, do = await self._ready()
        return await database.read(do.answered, claim, valid_after)

    async def list_answered(
        self, *, endpoint: str | None = None, user: str | None = None, limit: int = 50, offset: int = 0
    ) -> list[Answered]:
        """Answered claims, newest first."""
        database, do = await self._ready()
        return await database.read(do.list_answered, endpoint, user, limit, offset)

    async def prune(self, *, claims_before: float, runs_before: float) -> None:
        """Forget claims made, and runs finished, before these times, some at a time."""
        database, do = await self._ready()
        await database.write(do.prune_claims, claims_before)
        while await database.write(do.prune_runs, runs_before, _PRUNE_AT_ONCE) == _PRUNE_AT_ONCE:
            pass

    async def create_session(self, creation: SessionCreation) -> Answered | None:
        """Create a session, or return how its claim was answered before."""
        database, do = await self._ready()
        return await database.write(do.create_session, creation)

    async def session(self, session_id: str) -> Session | None:
        """The session of that id."""
        database, do = await self._ready()
        return await database.read(do.session, session_id)

    async def list_sessions(self, query: SessionQuery) -> SessionPage:
        """Sessions, newest first."""
        database, do = await self._ready()
        return await database.read(do.list_sessions, query)

    async def extend_session(self, session_id: str, expires_at: float) -> Session | None:
        """Let an active session live until then and return it."""
        database, do = await self._ready()
        return await database.write(do.extend_session, session_id, expires_at)

    async def close_session(self, session_id: str) -> Session | None:
        """Let a session take no more runs and return it."""
        database, do = await self._ready()
        return await database.write(do.close_session, session_id)

    async def delete_session(self, session_id: str) -> bool:
        """Forget a session; False where there was none."""
        database, do = await self._ready()
        return await database.write(do.delete_session, session_id)

    async def expired_sessions(self, now: float) -> list[Session]:
        """Sessions to be removed, oldest first."""
        database, do = await self._ready()
        return await database.read(do.expired_sessions, now)

    async def add_artifacts(
        self, run_id: str, artifacts: Sequence[Artifact], *, user_limit: int | None = None
    ) -> list[Artifact]:
        """Remember artifacts of a run and return those remembered, in their order."""
        database, do = await self._ready()
        return await database.write(do.add_artifacts, run_id, artifacts, user_limit)

    async def artifacts(self, run_id: str) -> list[Artifact]:
        """The artifacts of a run, by path."""
        database, do = await self._ready()
        return await database.read(do.artifacts, run_id)

    async def artifact(self, run_id: str, path: str) -> Artifact | None:
        """One artifact of a run."""
        database, do = await self._ready()
        return await database.read(do.artifact, run_id, path)

    async def delete_artifacts(self, run_id: str) -> int:
        """Forget the artifacts of a run and return how many bytes they had."""
        database, do = await self._ready()
        return await database.write(do.delete_artifacts, run_id)

    async def expired_artifacts(self, now: float, limit: int = 1000) -> list[str]:
        """Ids of runs with artifacts whose time is over."""
        database, do = await self._ready()
        return await database.read(do.expired_artifacts, now, limit)

    async def having_artifacts(self, run_ids: Sequence[str]) -> set[str]:
        """Those of the runs that have artifacts."""
        database, do = await self._ready()
        return await database.read(do.having_artifacts, run_ids)

    async def artifact_bytes(self, user: str) -> int:
        """How many bytes of artifacts a user has."""
        database, do = await self._ready()
        return await database.read(do.artifact_bytes, user)

    async def artifact_usage(self, limit: int = 50, offset: int = 0) -> list[tuple[str, int]]:
        """Users and how many bytes of artifacts they have, most first."""
        database, do = await self._ready()
        return await database.read(do.artifact_usage, limit, offset)

    async def summary(self, created_from: float | None, created_to: float | None, top: int = 10) -> Summary:
        """What the runs created in a time came to."""
        database, do = await self._ready()
        return await database.read(do.summary, created_from, created_to, top)

    async def create_binding(self, creation: BindingCreation) -> Bound:
        """The binding of a scope: the one it has, or else the new one."""
        database, do = await self._ready()
        return await database.write(do.create_binding, creation)

    async def binding(self, binding_id: str) -> Binding | None:
        """The binding of that id, ended or not."""
        database, do = await self._ready()
        return await database.read(do.binding, binding_id)

    async def save_binding(self, binding: Binding) -> bool:
        """Replace what is known of a binding that has not ended."""
        database, do = await self._ready()
        return await database.step(do.save_binding, binding)

    async def delete_binding(self, binding_id: str) -> bool:
        """Forget a binding; False where there was none."""
        database, do = await self._ready()
        return await database.write(do.delete_binding, binding_id)

    async def recover_bindings(self, node_id: str) -> list[Binding]:
        """Make a node the owner of every binding that can be its own and has not ended, and return them."""
        database, do = await self._ready()
        return await database.write(do.recover_bindings, node_id, shared=self.shared)

    async def prune_bindings(self, ended_before: float) -> None:
        """Forget bindings that ended before this time."""
        database, do = await self._ready()
        await database.write(do.prune_bindings, ended_before)

    async def join_node(self, node_id: str, home: str, lease: float) -> Owner:
        """Make a server a node, with a higher epoch than any that had its id before."""
        database, do = await self._ready()
        return await database.write(do.join_node, node_id, home, lease)

    async def beat(self, owner: Owner, lease: float) -> Pulse:
        """Note that a node lives, and look whether one was silent for ``lease`` seconds."""
        database, do = await self._ready()
        return await database.beat(do.beat, owner, lease)

    async def leave_node(self, owner: Owner) -> None:
        """Let a server of another home have the node's id."""
        database, do = await self._ready()
        await database.beat(do.leave_node, owner)

    async def take_over(self, owner: Owner, lease: float, at: float) -> Estate | None:
        """Forget nodes that were silent for ``lease`` seconds, and give ``owner`` what they left."""
        database, do = await self._ready()
        return await database.write(do.take_over, owner, lease, at)


class SqliteStore(SqlStore):
    """Keeps everything in one file, for one server, and programs that have not begun in files beside it."""

    mode = "sqlite"
    shared = False

    def __init__(self, path: Path) -> None:
        super().__init__(self._open_file)
        self._path = path
        self._work = WorkFiles(path.with_name(path.name + "-work"))
        self._waiting: set[str] = set()
        """Runs that may have one."""

    def _open_file(self) -> Database:
        from tidebox.store.sql.database import open_sqlite

        return open_sqlite(self._path)

    async def start(self) -> None:
        """Look whether the file can be used, and take it; it is opened at the first use."""
        await asyncio.to_thread(prepare, self._path)
        if not await self._with_work(self._work.claim):
            raise StoreUnavailable(
                f"another server uses the database {self._path}: give this one a file of its own, or both a PostgreSQL "
                "database, which several servers can share"
            )

    async def close(self) -> None:
        """Let go of everything, after what is under way."""
        await super().close()
        self._work.release()

    async def create_run(self, creation: Creation) -> Answered | None:
        """Create a run, or return how its claim was answered before."""
        run_id = creation.run.id
        unused = await self._with_work(self._work.keep, run_id, creation.work)
        self._waiting.add(run_id)
        try:
            prior = await super().create_run(replace(creation, work=b""))
            unused = unused and prior is not None
        finally:
            if unused:
                await self._drop(run_id)
        return prior

    async def advance_run(self, run: Run, step: Transition) -> Run | None:
        """Take a run one step further and return it; None where it cannot take that step."""
        following = await super().advance_run(run, step)
        if following is not None and following.phase not in STARTABLE and run.id in self._waiting:
            await self._drop(run.id)
        return following

    async def recover_runs(self, owner: Owner) -> list[tuple[Run, bytes | None]]:
        """Make ``owner`` the owner of every unfinished run, and return them."""
        found = await super().recover_runs(owner)
        await self._with_work(self._work.keep_only, {run.id for run, _ in found if run.phase in STARTABLE})
        self._waiting.update(run.id for run, _ in found)
        # Earlier versions kept it in the database.
        return [(run, work or await self._with_work(self._work.find, run.id)) for run, work in found]

    async def take_over(self, owner: Owner, lease: float, at: float) -> Estate | None:
        """Forget nodes that were silent for ``lease`` seconds, and give ``owner`` what they left."""
        estate = await super().take_over(owner, lease, at)
        if estate is None:
            return None
        for run in estate.ended:
            await self._drop(run.id)
        found = [(run, await self._with_work(self._work.find, run.id)) for run, _ in estate.runs]
        return replace(estate, runs=tuple((run, work) for run, work in found if work is not None))

    async def delete_session(self, session_id: str) -> bool:
        """Forget a session, and its variables for good; False where there was none."""
        deleted = await super().delete_session(session_id)
        database, _ = await self._ready()
        await database.wipe()
        return deleted

    async def _drop(self, run_id: str) -> None:
        self._waiting.discard(run_id)
        await self._with_work(self._work.drop, run_id)

    async def _with_work(self, operation: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return await asyncio.to_thread(operation, *args, **kwargs)
        except OSError as error:
            raise StoreUnavailable(f"the programs of runs cannot be kept: {error.strerror}") from None


class PostgresStore(SqlStore):
    """Keeps everything in a PostgreSQL database."""

    mode = "postgres"
    shared = True

    def __init__(self, url: str) -> None:
        super().__init__(self._connect)
        self._url = url

    def _connect(self) -> Database:
        from tidebox.store.sql.database import open_postgres

        return open_postgres(self._url)

    async def start(self) -> None:
        """Connect to the database."""
        await self._ready()

"""A store in a database: SQLite in a file or in memory, or PostgreSQL.

Importing this loads nothing of the database layer: that takes longer than all the rest of a server's start. A thread
loads it, and opens the database, at the first use; callers that need the store before wait for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar

from tidebox.errors import StoreUnavailable
from tidebox.model.idempotency import Answered
from tidebox.model.node import Owner
from tidebox.model.run import STARTABLE, Run, Transition
from tidebox.model.sandbox import Binding
from tidebox.store.base import Creation, Estate, NodeBeat, Store
from tidebox.store.sql.sqlite_file import prepare
from tidebox.store.sql.work_files import WorkFiles

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from tidebox.store.sql.database import Database
    from tidebox.store.sql.operations import Operations

_P = ParamSpec("_P")
_T = TypeVar("_T")

# Some 30 ms, for which a new run may have to wait.
_PRUNE_AT_ONCE = 50


# The database layer is loaded late, so an operation is named by a function of what is loaded then.
_Named = Callable[["type[Operations]"], Callable[Concatenate["Connection", _P], _T]]
_Method = Callable[Concatenate["SqlStore", _P], Coroutine[Any, Any, _T]]


def _method(lane: Literal["read", "write", "step", "beat"], operation: _Named[_P, _T]) -> _Method[_P, _T]:
    """The method of a store that does one operation, by the method of ``Database`` that is called ``lane``."""

    async def method(store: SqlStore, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        database, do = await store._ready()
        found: _T = await getattr(database, lane)(operation(do), *args, **kwargs)
        return found

    return method


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

    create_run = _method("write", lambda do: do.create_run)
    run = _method("read", lambda do: do.run)
    advance_run = _method("step", lambda do: do.advance_run)
    list_runs = _method("read", lambda do: do.list_runs)
    answered = _method("read", lambda do: do.answered)
    list_answered = _method("read", lambda do: do.list_answered)
    create_session = _method("write", lambda do: do.create_session)
    session = _method("read", lambda do: do.session)
    list_sessions = _method("read", lambda do: do.list_sessions)
    extend_session = _method("write", lambda do: do.extend_session)
    close_session = _method("write", lambda do: do.close_session)
    delete_session = _method("write", lambda do: do.delete_session)
    expired_sessions = _method("read", lambda do: do.expired_sessions)
    add_artifacts = _method("write", lambda do: do.add_artifacts)
    artifacts = _method("read", lambda do: do.artifacts)
    artifact = _method("read", lambda do: do.artifact)
    delete_artifacts = _method("write", lambda do: do.delete_artifacts)
    expired_artifacts = _method("read", lambda do: do.expired_artifacts)
    having_artifacts = _method("read", lambda do: do.having_artifacts)
    artifact_bytes = _method("read", lambda do: do.artifact_bytes)
    artifact_usage = _method("read", lambda do: do.artifact_usage)
    summary = _method("read", lambda do: do.summary)
    courses = _method("read", lambda do: do.courses)
    create_binding = _method("write", lambda do: do.create_binding)
    binding = _method("read", lambda do: do.binding)
    save_binding = _method("step", lambda do: do.save_binding)
    delete_binding = _method("write", lambda do: do.delete_binding)
    prune_bindings = _method("write", lambda do: do.prune_bindings)
    join_node = _method("write", lambda do: do.join_node)
    beat = _method("beat", lambda do: do.beat)
    has_node = _method("read", lambda do: do.has_node)
    leave_node = _method("beat", lambda do: do.leave_node)
    take_over = _method("write", lambda do: do.take_over)

    async def recover_runs(self, owner: Owner) -> list[tuple[Run, bytes | None]]:
        """Make ``owner`` the owner of every unfinished run that can be its own, and return them."""
        database, do = await self._ready()
        return await database.write(do.recover_runs, owner, shared=self.shared)

    async def recover_sessions(self, node_id: str) -> None:
        """Make a node the owner of every session that can be its own."""
        database, do = await self._ready()
        await database.write(do.recover_sessions, node_id, shared=self.shared)

    async def recover_bindings(self, node_id: str) -> list[Binding]:
        """Make a node the owner of every binding that can be its own and has not ended, and return them."""
        database, do = await self._ready()
        return await database.write(do.recover_bindings, node_id, shared=self.shared)

    async def prune(self, *, claims_before: float, runs_before: float) -> None:
        """Forget claims made, and runs finished, before these times, some at a time."""
        database, do = await self._ready()
        await database.write(do.prune_claims, claims_before)
        while await database.write(do.prune_runs, runs_before, _PRUNE_AT_ONCE) == _PRUNE_AT_ONCE:
            pass


class MemoryStore(SqlStore):
    """Keeps everything in this process's memory: nothing of it survives, which is what throw-away servers want."""

    mode = "memory"
    durable = False
    shared = False

    def __init__(self) -> None:
        super().__init__(self._make)

    def _make(self) -> Database:
        from tidebox.store.sql.database import open_memory

        return open_memory()

    async def start(self) -> None:
        """It is made at the first use."""


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

    async def take_over(self, owner: Owner, silent: Sequence[NodeBeat], at: float) -> Estate | None:
        """Forget the nodes of which these are still the last beats, and give ``owner`` what lost nodes left."""
        estate = await super().take_over(owner, silent, at)
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

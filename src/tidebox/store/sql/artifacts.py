"""SQL of artifact records."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import bindparam

from tidebox.errors import NotFound
from tidebox.model.artifact import Artifact
from tidebox.store.base import fitting
from tidebox.store.sql import claims
from tidebox.store.sql.rows import artifact_of, artifact_row, stamp
from tidebox.store.sql.schema import artifacts, runs, usage

_columns = artifacts.c
_OWNER = sa.select(runs.c.user_id).where(runs.c.id == bindparam("run_id"))
_OF_RUN = sa.select(artifacts).where(_columns.run_id == bindparam("run_id"))
_LIST = _OF_RUN.order_by(_columns.path)
_FIND = _OF_RUN.where(_columns.path == bindparam("of_path"))
_INSERT = sa.insert(artifacts)
_DELETE = sa.delete(artifacts).where(_columns.run_id == bindparam("of_run"))
_SIZE = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(_columns.size), 0)).where(
    _columns.run_id == bindparam("run_id")
)
_HELD = sa.select(usage.c.artifact_bytes).where(usage.c.user_id == bindparam("user"))
_ADD_HELD = (
    sa.update(usage)
    .where(usage.c.user_id == bindparam("user"))
    .values(artifact_bytes=usage.c.artifact_bytes + bindparam("more"))
)
_FIRST_HELD = sa.insert(usage)


def add(
    connection: sa.Connection, run_id: str, artifacts: Sequence[Artifact], *, user_limit: int | None = None
) -> list[Artifact]:
    """Remember artifacts of a run and return those remembered, in their order."""
    user = connection.scalar(_OWNER, {"run_id": run_id})
    if user is None:
        raise NotFound("no such run", run_id=run_id)
    claims.lock_user(connection, user)
    kept = fitting(artifacts, user_limit, held(connection, user))
    if kept:
        try:
            connection.execute(_INSERT, [artifact_row(artifact) for artifact in kept])
        except sa.exc.IntegrityError:
            raise ValueError(f"the run {run_id} has an artifact of that path already") from None
        _add_held(connection, user, sum(artifact.size for artifact in kept))
    return kept


def _add_held(connection: sa.Connection, user: str, more: int) -> None:
    if not connection.execute(_ADD_HELD, {"user": user, "more": more}).rowcount:
        connection.execute(_FIRST_HELD, {"user_id": user, "artifact_bytes": more})


def list_artifacts(connection: sa.Connection, run_id: str) -> list[Artifact]:
    """The artifacts of a run, by path."""
    return [artifact_of(row) for row in connection.execute(_LIST, {"run_id": run_id})]


def find(connection: sa.Connection, run_id: str, path: str) -> Artifact | None:
    """One artifact of a run."""
    row = connection.execute(_FIND, {"run_id": run_id, "of_path": path}).first()
    return artifact_of(row) if row is not None else None


def delete(connection: sa.Connection, run_id: str) -> int:
    """Forget the artifacts of a run and return how many bytes they had."""
    user = connection.scalar(_OWNER, {"run_id": run_id})
    if user is None:
        return 0
    claims.lock_user(connection, user)
    return forget_artifacts(connection, run_id, user)


def forget_artifacts(connection: sa.Connection, run_id: str, user: str) -> int:
    """Forget the artifacts of a run whose user is locked, and return how many bytes they had."""
    number, size = connection.execute(_SIZE, {"run_id": run_id}).one()
    if number:
        connection.execute(_DELETE, {"of_run": run_id})
        _add_held(connection, user, -int(size))
    return int(size)


def expired(connection: sa.Connection, now: float, limit: int = 1000) -> list[str]:
    """Ids of runs with artifacts whose time is over, those first that were to go first."""
    first = sa.func.min(_columns.expires_at)
    over = sa.select(_columns.run_id).where(_columns.expires_at <= stamp(now)).group_by(_columns.run_id)
    return list(connection.scalars(over.order_by(first, _columns.run_id).limit(limit)))


def having(connection: sa.Connection, run_ids: Sequence[str]) -> set[str]:
    """Those of the runs that have artifacts."""
    found: set[str] = set()
    for start in range(0, len(run_ids), 500):
        some = _columns.run_id.in_(run_ids[start : start + 500])
        found.update(connection.scalars(sa.select(_columns.run_id).where(some).distinct()))
    return found


def held(connection: sa.Connection, user: str) -> int:
    """How many bytes of artifacts a user has."""
    return connection.scalar(_HELD, {"user": user}) or 0


def usages(connection: sa.Connection, limit: int = 50, offset: int = 0) -> list[tuple[str, int]]:
    """Users and how many bytes of artifacts they have, most first."""
    columns = usage.c
    query = sa.select(columns.user_id, columns.artifact_bytes).where(columns.artifact_bytes > 0)
    order = (columns.artifact_bytes.desc(), columns.user_id)
    return [(user, size) for user, size in connection.execute(query.order_by(*order).limit(limit).offset(offset))]

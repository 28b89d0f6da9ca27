"""Idempotency keys in a database, and the lock under which a user's things are counted and changed."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import bindparam

from tidebox.model.idempotency import Answered, Claim, settle
from tidebox.store.sql.rows import answered_of, answered_row
from tidebox.store.sql.schema import idempotency

_columns = idempotency.c
_SCOPE = sa.and_(
    _columns.endpoint == bindparam("of_endpoint"),
    _columns.user_key == bindparam("of_user"),
    _columns.key == bindparam("of_key"),
)
_FIND = sa.select(idempotency).where(_SCOPE, _columns.created_at > bindparam("valid_after"))
_FORGET = sa.delete(idempotency).where(_SCOPE)
_REMEMBER = sa.insert(idempotency)
_PRUNE = sa.delete(idempotency).where(_columns.created_at < bindparam("before"))
_LOCK = sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtextextended(bindparam("user"), 0)))


def lock_user(connection: sa.Connection, user: str) -> None:
    """Let no other transaction count or change what this user has until this one is over.

    SQLite has only one writing transaction at a time.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(_LOCK, {"user": user})


def _scope(claim: Claim) -> dict[str, str]:
    endpoint, user, key = claim.scope
    return {"of_endpoint": endpoint, "of_user": user, "of_key": key}


def answered(connection: sa.Connection, claim: Claim, valid_after: float) -> Answered | None:
    """How a claim was answered."""
    row = connection.execute(_FIND, {**_scope(claim), "valid_after": valid_after}).first()
    return settle(claim, answered_of(row)) if row is not None else None


def remember(connection: sa.Connection, answered: Answered) -> None:
    """Keep the answer to a claim; one that is no longer valid makes room for it."""
    connection.execute(_FORGET, _scope(answered.claim))
    connection.execute(_REMEMBER, answered_row(answered))


def list_answered(
    connection: sa.Connection,
    *,
    endpoint: str | None = None,
    user: str | None = None,
    limit: int = 50,
    offset: int = 0,
) -> list[Answered]:
    """Answered claims, newest first."""
    query = sa.select(idempotency)
    if endpoint is not None:
        query = query.where(_columns.endpoint == endpoint)
    if user is not None:
        query = query.where(_columns.user_key == user)
    order = (_columns.created_at.desc(), _columns.endpoint, _columns.user_key, _columns.key)
    return [answered_of(row) for row in connection.execute(query.order_by(*order).limit(limit).offset(offset))]


def prune(connection: sa.Connection, before: float) -> None:
    """Forget claims made before a time."""
    connection.execute(_PRUNE, {"before": before})

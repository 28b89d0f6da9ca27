"""Sessions in a database."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import bindparam

from tidebox.model.idempotency import Answered
from tidebox.model.node import NOBODY
from tidebox.model.session import Session, SessionState
from tidebox.store.base import SessionCreation, SessionPage, SessionQuery
from tidebox.store.sql import claims
from tidebox.store.sql.rows import session_of, session_row, stamp
from tidebox.store.sql.schema import nodes, sessions

_columns = sessions.c
_INSERT = sa.insert(sessions)
_WHOLE = sa.select(_columns.record, _columns.state, _columns.expires_at, _columns.node_id)
_FIND = _WHOLE.where(_columns.id == bindparam("session_id"))
_COUNT = sa.select(sa.func.count()).where(_columns.user_id == bindparam("user"))
_RECOVER_ALL = sa.update(sessions).values(node_id=bindparam("of_node"))
_RECOVER = _RECOVER_ALL.where(_columns.node_id == NOBODY.node_id)
_OWNER = sa.select(_columns.user_id).where(_columns.id == bindparam("session_id"))


def create(connection: sa.Connection, creation: SessionCreation) -> Answered | None:
    """Create a session, or return how its claim was answered before."""
    session, claim = creation.session, creation.claim
    claims.lock_user(connection, session.user)
    if claim is not None:
        prior = claims.answered(connection, claim, creation.valid_after)
        if prior is not None:
            return prior
    if creation.check is not None:
        creation.check(connection.scalar(_COUNT, {"user": session.user}) or 0)
    try:
        connection.execute(_INSERT, session_row(session))
    except sa.exc.IntegrityError:
        raise ValueError(f"there is a session {session.id} already") from None
    if claim is not None:
        claims.remember(
            connection,
            Answered(claim=claim, object_id=session.id, response=creation.response, created_at=session.created_at),
        )
    return None


def find(connection: sa.Connection, session_id: str) -> Session | None:
    """The session of that id."""
    row = connection.execute(_FIND, {"session_id": session_id}).first()
    return session_of(*row) if row is not None else None


def list_sessions(connection: sa.Connection, query: SessionQuery) -> SessionPage:
    """Sessions, newest first."""
    conditions = []
    if query.user is not None:
        conditions.append(_columns.user_id == query.user)
    if query.state is not None:
        conditions.append(_columns.state == query.state.value)
    total = connection.scalar(sa.select(sa.func.count()).select_from(sessions).where(*conditions)) or 0
    page = _WHOLE.where(*conditions).order_by(_columns.created_at.desc(), _columns.id.desc())
    found = connection.execute(page.limit(query.limit).offset(query.offset))
    return SessionPage(tuple(session_of(*row) for row in found), total)


def _lock(connection: sa.Connection, session_id: str) -> None:
    user = connection.scalar(_OWNER, {"session_id": session_id})
    if user is not None:
        claims.lock_user(connection, user)


def extend(connection: sa.Connection, session_id: str, expires_at: float) -> Session | None:
    """Let an active session live until then and return it."""
    _lock(connection, session_id)
    active = sa.and_(_columns.id == session_id, _columns.state == SessionState.ACTIVE.value)
    changed = connection.execute(sa.update(sessions).where(active).values(expires_at=stamp(expires_at)))
    return find(connection, session_id) if changed.rowcount else None


def close(connection: sa.Connection, session_id: str) -> Session | None:
    """Let a session take no more runs and return it."""
    _lock(connection, session_id)
    connection.execute(sa.update(sessions).where(_columns.id == session_id).values(state=SessionState.CLOSING.value))
    return find(connection, session_id)


def delete(connection: sa.Connection, session_id: str) -> bool:
    """Forget a session; False where there was none."""
    _lock(connection, session_id)
    return bool(connection.execute(sa.delete(sessions).where(_columns.id == session_id)).rowcount)


def expired(connection: sa.Connection, now: float, node_id: str) -> list[Session]:
    """Sessions that a node has to remove, oldest first."""
    over = sa.or_(_columns.expires_at <= stamp(now), _columns.state == SessionState.CLOSING.value)
    # Of a lost node's session the row is all there is; its files go when that node is back.
    own = sa.or_(_columns.node_id == node_id, _columns.node_id.not_in(sa.select(nodes.c.node_id)))
    found = connection.execute(_WHOLE.where(over, own).order_by(_columns.created_at, _columns.id))
    return [session_of(*row) for row in found]


def recover(connection: sa.Connection, node_id: str, *, shared: bool) -> None:
    """Make a node the owner of every session that can be its own."""
    connection.execute(_RECOVER if shared else _RECOVER_ALL, {"of_node": node_id})

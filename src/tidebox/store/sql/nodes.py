"""Nodes in a database: who has joined and lives, and who takes over what a lost node left."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import bindparam

from tidebox.model.node import Owner
from tidebox.store.base import Estate, NodeBeat, Pulse, Standing, id_taken
from tidebox.store.sql import bindings, runs
from tidebox.store.sql.schema import nodes

_columns = nodes.c

# The one who holds it changes who is a node. The number means nothing.
_LOCK_NUMBER = 7215303022
_LOCK = sa.select(sa.func.pg_advisory_xact_lock(_LOCK_NUMBER))
_TRY_LOCK = sa.select(sa.func.pg_try_advisory_xact_lock(_LOCK_NUMBER))
# In seconds since the epoch. Not PostgreSQL's now(), which stands still while a transaction waits for the lock.
_NOW: dict[str, sa.ColumnElement[float]] = {
    "postgresql": sa.literal_column("extract(epoch from clock_timestamp())::double precision", sa.Double()),
    "sqlite": sa.literal_column("(julianday('now') - 2440587.5) * 86400.0", sa.Double()),
}
_FIND = sa.select(nodes).where(_columns.node_id == bindparam("of_node"))
_INSERT = sa.insert(nodes)
_JOIN_AGAIN = sa.update(nodes).where(_columns.node_id == bindparam("of_node"))
_OWN = sa.and_(_columns.node_id == bindparam("of_node"), _columns.epoch == bindparam("of_epoch"))
_LEAVE = sa.update(nodes).where(_OWN).values(home="")


# Written once: SQLAlchemy compiles a statement it knows only the first time.
_BEAT = {name: sa.update(nodes).where(_OWN).values(beat_at=now) for name, now in _NOW.items()}
_OTHERS = sa.select(_columns.node_id, _columns.epoch, _columns.beat_at).where(_columns.node_id != bindparam("of_node"))
_LEFT = sa.select(sa.or_(runs.EXIST_WITHOUT_NODE, bindings.EXIST_WITHOUT_NODE))
_FORGET = sa.delete(nodes).where(_OWN, _columns.beat_at == bindparam("last_beat"))


def join(connection: sa.Connection, node_id: str, home: str, lease: float) -> Owner:
    """Make a server a node, with a higher epoch than any that had its id before."""
    if connection.dialect.name == "postgresql":
        connection.execute(_LOCK)
    now = connection.execute(sa.select(_NOW[connection.dialect.name])).scalar_one()
    there = connection.execute(_FIND, {"of_node": node_id}).first()
    if there is not None and there.home not in ("", home) and abs(now - there.beat_at) < lease:
        raise id_taken(node_id, now - there.beat_at, lease)
    # A time rather than a count: it is higher also than the epochs of a node that has been forgotten.
    epoch = max(int(now * 1000), there.epoch + 1 if there is not None else 0)
    row = {"node_id": node_id, "home": home, "epoch": epoch, "beat_at": now}
    if there is None:
        connection.execute(_INSERT, row)
    else:
        connection.execute(_JOIN_AGAIN, {"of_node": node_id, **row})
    return Owner(node_id, epoch)


def beat(connection: sa.Connection, owner: Owner) -> Pulse:
    """Note that a node lives, and tell what was heard of others."""
    if not connection.execute(_BEAT[connection.dialect.name], _own(owner)).rowcount:
        there = connection.execute(_FIND, {"of_node": owner.node_id}).first()
        # An older epoch is that of a database which has lost its last moments.
        superseded = there is not None and there.epoch > owner.epoch
        return Pulse(Standing.SUPERSEDED if superseded else Standing.FORGOTTEN)
    others = tuple(NodeBeat(*row) for row in connection.execute(_OTHERS, {"of_node": owner.node_id}))
    return Pulse(Standing.HELD, others, left=bool(connection.scalar(_LEFT)))


def exists(connection: sa.Connection, node_id: str) -> bool:
    """Whether there is such a node."""
    return connection.execute(_FIND, {"of_node": node_id}).first() is not None


def leave(connection: sa.Connection, owner: Owner) -> None:
    """Let a server of another home have the node's id."""
    connection.execute(_LEAVE, _own(owner))


def take_over(connection: sa.Connection, owner: Owner, silent: Sequence[NodeBeat], at: float) -> Estate | None:
    """Forget the nodes of which these are still the last beats, and give ``owner`` what lost nodes left."""
    # SQLite has only one writing transaction at a time.
    if connection.dialect.name == "postgresql" and not connection.scalar(_TRY_LOCK):
        return None
    # A node that has joined anew meanwhile owns nothing here.
    there = connection.execute(_FIND, {"of_node": owner.node_id}).first()
    if there is None or there.epoch != owner.epoch:
        return Estate()
    for last in silent:
        # A node that beats just now is waited for, and then this was not its last beat.
        connection.execute(_FORGET, {**_own(Owner(last.node_id, last.epoch)), "last_beat": last.at})
    ended = runs.take_over(connection, owner, at)
    return Estate(
        runs=runs.taken_over_by(connection, owner),
        ended=ended,
        bindings=bindings.end_without_node(connection, at),
    )


def _own(owner: Owner) -> dict[str, str | int]:
    return {"of_node": owner.node_id, "of_epoch": owner.epoch}

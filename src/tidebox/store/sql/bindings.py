"""Bindings of sandboxes in a database."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy import bindparam

from tidebox.errors import Forbidden
from tidebox.model.idempotency import Answered
from tidebox.model.node import NOBODY
from tidebox.model.sandbox import Binding, SandboxState, Scope
from tidebox.store.base import BindingCreation, EnsuredBinding
from tidebox.store.sql import claims
from tidebox.store.sql.rows import stamp
from tidebox.store.sql.schema import bindings, nodes

_columns = bindings.c
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Binding).decode
_ENDED = SandboxState.TERMINATED.value

_INSERT = sa.insert(bindings)
# Of a binding's node only the column is right.
_WHOLE = sa.select(_columns.record, _columns.node_id)
_FIND = _WHOLE.where(_columns.id == bindparam("binding_id"))
_OF_SCOPE = (
    _WHOLE.add_columns(_columns.user_id, _columns.live_scope)
    .where(_columns.scope_type == bindparam("type"), _columns.scope_id == bindparam("scope"))
    .order_by(_columns.created_at.desc(), _columns.id.desc())
)
_COUNT = sa.select(sa.func.count()).where(_columns.user_id == bindparam("user"), _columns.state != _ENDED)
_SAVE = sa.update(bindings).where(
    _columns.id == bindparam("binding_id"), _columns.state != _ENDED, _columns.node_id == bindparam("of_node")
)
_LIVE = _WHOLE.where(_columns.state != _ENDED).order_by(_columns.created_at, _columns.id)
_OF_NODE = _LIVE.where(_columns.node_id == bindparam("of_node"))
_RECOVER_ALL = sa.update(bindings).where(_columns.state != _ENDED).values(node_id=bindparam("of_node"))
_RECOVER = _RECOVER_ALL.where(_columns.node_id == NOBODY.node_id)
_IS_WITHOUT_NODE = sa.and_(
    _columns.state != _ENDED, _columns.node_id != NOBODY.node_id, _columns.node_id.not_in(sa.select(nodes.c.node_id))
)
EXIST_WITHOUT_NODE = sa.exists().where(_IS_WITHOUT_NODE)
"""Whether there are live bindings of a node that is none any more."""
_FIND_WITHOUT_NODE = _LIVE.where(_IS_WITHOUT_NODE).with_for_update()
_PRUNE = sa.delete(bindings).where(_columns.state == _ENDED, _columns.active_at < bindparam("before"))


def _live_scope(scope: Scope) -> str:
    return f"{scope.type.value}:{scope.id}"


def _binding_of(record: str, node_id: str) -> Binding:
    return replace(_decode(record), node_id=node_id)


def _changing(binding: Binding) -> dict[str, Any]:
    return {
        "live_scope": None if binding.state is SandboxState.TERMINATED else _live_scope(binding.scope),
        "state": binding.state.value,
        "active_at": stamp(binding.active_at),
        "record": _encode(binding).decode(),
    }


def create(connection: sa.Connection, creation: BindingCreation) -> EnsuredBinding:
    """The binding of a scope: the one it has, or else the new one."""
    new, claim = creation.binding, creation.claim
    # Of a user's bindings and of a scope's: always in this order.
    claims.lock_user(connection, new.user)
    claims.lock_user(connection, "scope " + _live_scope(new.scope))
    prior = claims.answered(connection, claim, creation.valid_after) if claim is not None else None
    of_scope = connection.execute(_OF_SCOPE, {"type": new.scope.type.value, "scope": new.scope.id}).all()
    if of_scope and of_scope[0].user_id != new.user:
        raise Forbidden(f"this {new.scope.type.value} is another user's")
    live = next((_binding_of(row.record, row.node_id) for row in of_scope if row.live_scope is not None), None)
    if live is None:
        if creation.check is not None:
            creation.check(connection.scalar(_COUNT, {"user": new.user}) or 0)
        connection.execute(
            _INSERT,
            {
                "id": new.id,
                "user_id": new.user,
                "scope_type": new.scope.type.value,
                "scope_id": new.scope.id,
                "created_at": stamp(new.created_at),
                "node_id": new.node_id,
                **_changing(new),
            },
        )
    bound = live or new
    if claim is not None and prior is None:
        claims.remember(connection, Answered(claim=claim, object_id=bound.id, response=b"", created_at=new.created_at))
    return EnsuredBinding(binding=bound, created=live is None, replayed=prior is not None)


def find(connection: sa.Connection, binding_id: str) -> Binding | None:
    """The binding of that id, ended or not."""
    row = connection.execute(_FIND, {"binding_id": binding_id}).first()
    return _binding_of(*row) if row is not None else None


def save(connection: sa.Connection, binding: Binding) -> bool:
    """Replace what is known of a binding that has not ended, and is its node's."""
    named = {"binding_id": binding.id, "of_node": binding.node_id}
    return bool(connection.execute(_SAVE.values(_changing(binding)), named).rowcount)


def delete(connection: sa.Connection, binding_id: str) -> bool:
    """Forget a binding; False where there was none."""
    return bool(connection.execute(sa.delete(bindings).where(_columns.id == binding_id)).rowcount)


def recover(connection: sa.Connection, node_id: str, *, shared: bool) -> list[Binding]:
    """Make a node the owner of every binding that can be its own and has not ended, and return them, oldest first."""
    connection.execute(_RECOVER if shared else _RECOVER_ALL, {"of_node": node_id})
    return [_binding_of(*row) for row in connection.execute(_OF_NODE, {"of_node": node_id})]


def end_without_node(connection: sa.Connection, at: float) -> tuple[Binding, ...]:
    """End the bindings of nodes that are none any more, and return them."""
    found = [_binding_of(*row) for row in connection.execute(_FIND_WITHOUT_NODE).all()]
    over = tuple(replace(binding, state=SandboxState.TERMINATED, active_at=at) for binding in found)
    for binding in over:
        save(connection, binding)
    return over


def prune(connection: sa.Connection, ended_before: float) -> None:
    """Forget bindings that ended before this time."""
    connection.execute(_PRUNE, {"before": stamp(ended_before)})

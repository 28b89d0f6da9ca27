"""Bindings of sandboxes in a database."""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy import bindparam

from tidebox.errors import Forbidden
from tidebox.model.idempotency import Answered
from tidebox.model.sandbox import Binding, SandboxState, Scope
from tidebox.store.base import BindingCreation, Bound
from tidebox.store.sql import claims
from tidebox.store.sql.rows import stamp
from tidebox.store.sql.schema import bindings

_columns = bindings.c
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Binding).decode
_ENDED = SandboxState.TERMINATED.value

_INSERT = sa.insert(bindings)
_FIND = sa.select(_columns.record).where(_columns.id == bindparam("binding_id"))
_OF_SCOPE = (
    sa.select(_columns.record, _columns.user_id, _columns.live_scope)
    .where(_columns.scope_type == bindparam("type"), _columns.scope_id == bindparam("scope"))
    .order_by(_columns.created_at.desc(), _columns.id.desc())
)
_COUNT = sa.select(sa.func.count()).where(_columns.user_id == bindparam("user"), _columns.state != _ENDED)
_SAVE = sa.update(bindings).where(_columns.id == bindparam("binding_id"), _columns.state != _ENDED)
_LIVE = sa.select(_columns.record).where(_columns.state != _ENDED).order_by(_columns.created_at, _columns.id)
_PRUNE = sa.delete(bindings).where(_columns.state == _ENDED, _columns.active_at < bindparam("before"))


def _live_scope(scope: Scope) -> str:
    return f"{scope.type.value}:{scope.id}"


def _changing(binding: Binding) -> dict[str, Any]:
    return {
        "live_scope": None if binding.state is SandboxState.TERMINATED else _live_scope(binding.scope),
        "state": binding.state.value,
        "active_at": stamp(binding.active_at),
        "record": _encode(binding).decode(),
    }


def create(connection: sa.Connection, creation: BindingCreation) -> Bound:
    """The binding of a scope: the one it has, or else the new one."""
    new, claim = creation.binding, creation.claim
    # Of a user's bindings and of a scope's: always in this order.
    claims.lock_user(connection, new.user)
    claims.lock_user(connection, "scope " + _live_scope(new.scope))
    prior = claims.answered(connection, claim, creation.valid_after) if claim is not None else None
    of_scope = connection.execute(_OF_SCOPE, {"type": new.scope.type.value, "scope": new.scope.id}).all()
    if of_scope and of_scope[0].user_id != new.user:
        raise Forbidden(f"this {new.scope.type.value} is another user's")
    live = next((_decode(row.record) for row in of_scope if row.live_scope is not None), None)
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
                **_changing(new),
            },
        )
    bound = live or new
    if claim is not None and prior is None:
        claims.remember(connection, Answered(claim=claim, object_id=bound.id, response=b"", created_at=new.created_at))
    return Bound(binding=bound, created=live is None, replayed=prior is not None)


def find(connection: sa.Connection, binding_id: str) -> Binding | None:
    """The binding of that id, ended or not."""
    record = connection.scalar(_FIND, {"binding_id": binding_id})
    return _decode(record) if record is not None else None


def save(connection: sa.Connection, binding: Binding) -> bool:
    """Replace what is known of a binding that has not ended."""
    return bool(connection.execute(_SAVE.values(_changing(binding)), {"binding_id": binding.id}).rowcount)


def delete(connection: sa.Connection, binding_id: str) -> bool:
    """Forget a binding; False where there was none."""
    return bool(connection.execute(sa.delete(bindings).where(_columns.id == binding_id)).rowcount)


def live(connection: sa.Connection) -> list[Binding]:
    """Every binding that has not ended, oldest first."""
    return [_decode(record) for record in connection.scalars(_LIVE)]


def prune(connection: sa.Connection, ended_before: float) -> None:
    """Forget bindings that ended before this time."""
    connection.execute(_PRUNE, {"before": stamp(ended_before)})

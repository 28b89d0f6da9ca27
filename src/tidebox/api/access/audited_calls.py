"""Audit records of access calls, and the error responses that only access routes have."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tidebox.api.route_dependencies import ErrorEnvelope
from tidebox.api.services import Services
from tidebox.errors import TideboxError
from tidebox.model.principal import Caller
from tidebox.model.sandbox import Binding

GONE: dict[int | str, dict[str, Any]] = {
    410: {"model": ErrorEnvelope, "description": "It has ended; ask for a new one."}
}
STARTING: dict[int | str, dict[str, Any]] = {
    423: {"model": ErrorEnvelope, "description": "The sandbox is being made; see `Retry-After`."}
}


class AuditedCall:
    """The fields of one call's audit record, collected while it is served."""

    def __init__(self, caller: Caller | None, **fields: Any) -> None:
        self.caller = caller
        self.fields = fields

    def about(self, binding: Binding) -> None:
        """Note which binding it is about."""
        self.fields |= {
            "session_id": binding.id,
            "sandbox_id": binding.sandbox_id,
            "scope_type": binding.scope.type.value,
            "scope_id": binding.scope.id,
            "owner": binding.user,
            "provider": binding.provider,
        }
        if binding.thread_id is not None:
            self.fields["thread_id"] = binding.thread_id


@asynccontextmanager
async def audited(services: Services, event: str, caller: Caller | None, **fields: Any) -> AsyncIterator[AuditedCall]:
    """Record a call and how it ended. A caller who is authenticated on the way is put into the call."""
    call = AuditedCall(caller, **{name: value for name, value in fields.items() if value is not None})
    outcome = "internal_error"
    try:
        yield call
        outcome = "ok"
    except TideboxError as error:
        outcome = error.code
        raise
    finally:
        if call.caller is not None:
            services.audit.record(f"sandbox.access.{event}", call.caller, outcome, **call.fields)

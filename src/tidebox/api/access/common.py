"""What the routes of both protocols share: the audit of every call, and how bindings and grants are shown."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Request

from tidebox.api.access.paths import REFRESH
from tidebox.api.common import ErrorEnvelope, whole
from tidebox.api.services import Services
from tidebox.api.signing import base_url
from tidebox.errors import TideboxError
from tidebox.model.moments import iso_time
from tidebox.model.principal import Caller
from tidebox.model.sandbox import Binding, Grant, named

PROTOCOL_VERSION = "1.0"

GONE: dict[int | str, dict[str, Any]] = {
    410: {"model": ErrorEnvelope, "description": "It has ended; ask for a new one."}
}
STARTING: dict[int | str, dict[str, Any]] = {
    423: {"model": ErrorEnvelope, "description": "The sandbox is being made; see `Retry-After`."}
}


class Call:
    """What the audit log will say of a call."""

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
async def audited(services: Services, event: str, caller: Caller | None, **fields: Any) -> AsyncIterator[Call]:
    """Record a call and how it ended. A caller who proves himself on the way is put into the call."""
    call = Call(caller, **{name: value for name, value in fields.items() if value is not None})
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


def _addresses(request: Request, services: Services, elsewhere: str | None) -> tuple[str, str]:
    """Where a sandbox is used: at this server, or at another one."""
    http = (elsewhere or base_url(request.scope, services.settings.public_url)).rstrip("/")
    return http, http.replace("http", "ws", 1)


def shown(request: Request, services: Services, binding: Binding) -> dict[str, Any]:
    """A binding in the fields of both protocols."""
    http, ws = _addresses(request, services, services.sandboxes.bindings.base_url(binding))
    dataplane = {"http_base_url": f"{http}/v1", "ws_base_url": f"{ws}/v1"}
    found: dict[str, Any] = {
        "session_id": binding.id,
        "thread_id": binding.thread_id,
        "sandbox": None,
        "binding": binding_shown(binding),
        "dataplane": dataplane,
        "policy": {
            "idle_timeout_seconds": whole(services.sandboxes.terms.idle_timeout),
            "hard_ttl_seconds": whole(services.sandboxes.terms.hard_ttl),
        },
    }
    if binding.sandbox_id is not None:
        found["sandbox"] = {"id": binding.sandbox_id, "provider": binding.provider, **dataplane}
    return found


def binding_shown(binding: Binding) -> dict[str, Any]:
    """A binding in the fields of the full protocol."""
    return {
        "id": binding.id,
        "scope": {"type": binding.scope.type.value, "id": binding.scope.id},
        "sandbox_id": binding.sandbox_id,
        "provider": binding.provider,
        "state": binding.state.value,
        "lease_expires_at": iso_time(binding.lease_expires_at),
        "expires_at": iso_time(binding.expires_at),
        "created_at": iso_time(binding.created_at),
        "idle_seconds": round(max(0.0, time.time() - binding.active_at), 3),
    }


def token_shown(grant: Grant) -> dict[str, Any]:
    """A token in the fields of both protocols."""
    expires_at = iso_time(grant.expires_at)
    return {
        "session_id": grant.binding.id,
        "token": grant.token,
        "expires_at": expires_at,
        "credentials": {
            "token_type": "Bearer",
            "access_token": grant.token,
            "expires_at": expires_at,
            "granted_capabilities": named(grant.capabilities),
        },
    }


def grant_shown(request: Request, services: Services, grant: Grant, scopes: list[str]) -> dict[str, Any]:
    """A grant as the negotiation protocol shows it."""
    http, ws = _addresses(request, services, grant.base_url)
    return {
        "protocol_version": PROTOCOL_VERSION,
        "sandbox_id": grant.sandbox_id,
        "session_id": grant.binding.id,
        "token": grant.token,
        "ws_url": f"{ws}/ws/{grant.sandbox_id}",
        "http_url": f"{http}/api/{grant.sandbox_id}",
        "expires_at": iso_time(grant.expires_at),
        "scopes": scopes,
        "refresh_url": REFRESH,
        "thread_id": grant.thread_id,
        "recreated": grant.recreated,
    }

"""The session access protocol: its smaller part and its full one, on the same bindings."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Path, Query, Request
from starlette.responses import Response

from tidebox.api.access.answers import (
    AccessAnswer,
    BindingAnswer,
    BindingList,
    BindingShown,
    HeartbeatAnswer,
    TokenAnswer,
)
from tidebox.api.access.audited_calls import GONE, STARTING, audited
from tidebox.api.access.dialect import binding_words
from tidebox.api.access.requests import SessionBody
from tidebox.api.answers import each
from tidebox.api.asgi import context_of
from tidebox.api.egress import sandbox_egress
from tidebox.api.packages import allowed_packages
from tidebox.api.route_dependencies import CallerDep, DocumentRoute, IdempotencyKey, ServicesDep, claim_of, errors
from tidebox.broker.sandboxes.live_binding import BindingMode, BindingRequest
from tidebox.model.sandbox import Scope, ScopeType
from tidebox.protocols.access import PREFIX

ENDPOINT = "sandbox/sessions"

router = APIRouter(prefix=PREFIX, tags=["access"], route_class=DocumentRoute)

BindingId = Annotated[str, Path(min_length=1, max_length=128, description="The binding, which is the session.")]


@router.post(
    "/sessions",
    response_model_exclude_unset=True,
    responses={**errors(403, 404, 409), **STARTING},
    summary="Get or make a session",
)
async def negotiate(
    body: SessionBody,
    request: Request,
    services: ServicesDep,
    caller: CallerDep,
    idempotency_key: IdempotencyKey = None,
    prefer: Annotated[str | None, Header(description="`respond-async` does not wait for a sandbox to be made.")] = None,
) -> AccessAnswer:
    """Access to the sandbox of a thread, or of another scope, which is made where `mode` allows it."""
    if body.scope is not None:
        context_of(request.scope).dialect = binding_words
        scope_type, scope_id = body.scope.type, body.scope.id
    else:
        assert body.thread_id is not None
        scope_type, scope_id = "thread", body.thread_id
    actor = body.actor.type if body.actor is not None else caller.principal.actor
    async with audited(
        services,
        "negotiated",
        caller,
        mode=body.mode,
        scope_type=scope_type,
        scope_id=scope_id,
        thread_id=scope_id if scope_type == "thread" else None,
        actor_type=actor,
        actor_id=body.actor.id if body.actor is not None else None,
    ) as call:
        requested = body.requested_capabilities
        ask = BindingRequest(
            scope=Scope(ScopeType(scope_type), scope_id),
            mode=BindingMode(body.mode),
            actor=actor,
            capabilities=frozenset(requested) if requested is not None else None,
            provider=body.provider_preference,
            hint=body.sandbox_hint,
            wait=0.0 if _asks_not_to_wait(prefer) else services.settings.create_wait_sec,
            packages=allowed_packages(services, caller, body.packages),
            egress=sandbox_egress(services, caller, body.network_policy, body.egress),
            claim=claim_of(ENDPOINT, caller, idempotency_key, body.model_dump(mode="json", exclude_unset=True)),
        )
        grant = await services.sandboxes.grant(caller, ask)
        call.about(grant.binding)
    return AccessAnswer.granted(grant, request, services, body.sandbox_hint)


def _asks_not_to_wait(prefer: str | None) -> bool:
    """RFC 7240, 4.1."""
    return prefer is not None and any(part.strip().lower() == "respond-async" for part in prefer.split(","))


@router.get("/sessions", responses=errors(403), summary="List sessions")
async def list_sessions(
    services: ServicesDep,
    caller: CallerDep,
    everybody: Annotated[bool, Query(description="Those of all users, for admins.")] = False,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
) -> BindingList:
    """The caller's bindings on this server that have not ended, newest first."""
    async with audited(services, "listed", caller, everybody=everybody or None):
        found = services.sandboxes.bindings.list(caller, everybody=everybody)
    shown = await each(BindingShown.of, found[offset : offset + limit])
    return BindingList.of(shown, total=len(found), limit=limit, offset=offset)


@router.get("/sessions/{binding_id}", responses={**errors(403, 404), **GONE}, summary="Show a session")
async def show(binding_id: BindingId, request: Request, services: ServicesDep, caller: CallerDep) -> BindingAnswer:
    """A binding, without a token."""
    async with audited(services, "shown", caller, session_id=binding_id) as call:
        binding = await services.sandboxes.bindings.get(caller, binding_id)
        call.about(binding)
    return BindingAnswer.of(binding, request, services)


@router.post(
    "/sessions/{binding_id}/refresh",
    responses={**errors(403, 404), **GONE, **STARTING},
    summary="Get a new token",
)
@router.post(
    "/sessions/{binding_id}/refresh-token",
    responses={**errors(403, 404), **GONE, **STARTING},
    summary="Get a new token",
)
async def refresh(binding_id: BindingId, services: ServicesDep, caller: CallerDep) -> TokenAnswer:
    """A new token that covers what the last one did; the last one stays good until it expires."""
    async with audited(services, "refreshed", caller, session_id=binding_id) as call:
        grant = await services.sandboxes.refresh(caller, binding_id)
        call.about(grant.binding)
    return TokenAnswer.of(grant)


@router.post(
    "/sessions/{binding_id}/heartbeat",
    responses={**errors(403, 404), **GONE},
    summary="Extend the lease",
)
async def heartbeat(binding_id: BindingId, services: ServicesDep, caller: CallerDep) -> HeartbeatAnswer:
    """Say that the sandbox is still needed; tokens are not touched by it."""
    async with audited(services, "heartbeat", caller, session_id=binding_id) as call:
        binding = await services.sandboxes.heartbeat(caller, binding_id)
        call.about(binding)
    return HeartbeatAnswer.of(binding)


@router.delete("/sessions/{binding_id}", status_code=204, responses=errors(403, 404), summary="Release a session")
async def release(binding_id: BindingId, services: ServicesDep, caller: CallerDep) -> Response:
    """End a sandbox with everything in it; every token for it is dead at once."""
    async with audited(services, "released", caller, session_id=binding_id) as call:
        call.about(await services.sandboxes.bindings.release(caller, binding_id))
    return Response(status_code=204)


@router.post(
    "/sessions/{binding_id}/revoke", status_code=204, responses={**errors(403, 404), **GONE}, summary="Revoke tokens"
)
async def revoke(binding_id: BindingId, services: ServicesDep, caller: CallerDep) -> Response:
    """Let every token of a sandbox be dead at once; the sandbox goes on, and new tokens can be asked for."""
    async with audited(services, "revoked", caller, session_id=binding_id) as call:
        call.about(await services.sandboxes.revoke(caller, binding_id))
    return Response(status_code=204)


@router.delete("/scopes/{type}/{id:path}", status_code=204, responses=errors(403, 404), summary="End a scope")
async def end_scope(
    type: ScopeType,
    id: Annotated[str, Path(min_length=1, max_length=256)],
    services: ServicesDep,
    caller: CallerDep,
) -> Response:
    """Remove what belonged to a thread that ended, say; nothing happens where there was nothing."""
    scope = Scope(type, id)
    async with audited(services, "scope_ended", caller, scope_type=type.value, scope_id=id) as call:
        ended = await services.sandboxes.end_scope(caller, scope)
        if ended is not None:
            call.about(ended)
    return Response(status_code=204)

"""Server-driven negotiation: the client asks for a thread's sandbox, the server decides which one that is."""

from __future__ import annotations

from fastapi import APIRouter, Request

from tidebox.api.access.answers import GrantAnswer, ReleaseAnswer
from tidebox.api.access.audited_calls import STARTING, audited
from tidebox.api.access.requests import AcquireBody, RefreshBody, ReleaseBody
from tidebox.api.asgi import RequestContext, context_of, header
from tidebox.api.route_dependencies import CallerDep, DocumentRoute, ServicesDep, errors
from tidebox.api.services import Services
from tidebox.broker.sandboxes.live_binding import BindingMode, BindingRequest
from tidebox.errors import InvalidRequest, Unauthorized
from tidebox.model.ids import new_id
from tidebox.model.principal import Caller, Principal
from tidebox.model.sandbox import Scope, ScopeType
from tidebox.protocols.access import NEGOTIATION_PREFIX

router = APIRouter(prefix=NEGOTIATION_PREFIX, tags=["negotiation"], route_class=DocumentRoute)


@router.post(
    "/acquire",
    responses={**errors(403, 409), **STARTING},
    summary="Get the sandbox of a thread",
)
async def acquire(body: AcquireBody, request: Request, services: ServicesDep, caller: CallerDep) -> GrantAnswer:
    """Access to the sandbox that the server has for a thread of an assistant; it is made if there is none."""
    async with audited(services, "acquired", caller, thread_id=body.thread_id, assistant_id=body.assistant_id) as call:
        ask = BindingRequest(
            scope=_scope(services, caller, body),
            mode=BindingMode.ENSURE,
            actor=caller.principal.actor,
            thread_id=body.thread_id,
            wait=services.settings.create_wait_sec,
        )
        grant = await services.sandboxes.grant(caller, ask)
        call.about(grant.binding)
    return GrantAnswer.of(grant, request, services)


def _scope(services: Services, caller: Caller, body: AcquireBody) -> Scope:
    """Choose the scope that the sandbox is bound to: the server's choice, not the client's."""
    settings = services.settings
    assistant = body.assistant_id
    if settings.scoping == "user":
        return Scope(ScopeType.USER, caller.principal.user)
    if settings.scoping == "run":
        return Scope(ScopeType.RUN, new_id("run"))
    if settings.scoping == "assistant" and assistant is None:
        raise InvalidRequest(
            "assistant_id: sandboxes belong to assistants here, so it must be given", field="assistant_id"
        )
    if assistant is not None and (settings.scoping == "assistant" or assistant in settings.scoping_assistants):
        return Scope(ScopeType.ASSISTANT, assistant)
    return Scope(ScopeType.THREAD, body.thread_id)


@router.post("/refresh", responses=errors(403), summary="Get a new token")
async def refresh(request: Request, services: ServicesDep, body: RefreshBody | None = None) -> GrantAnswer:
    """A new token for the current one, which is the bearer token of the request, or stands in its body."""
    context = context_of(request.scope)
    async with audited(services, "refreshed", None) as call:
        token = body.token if body is not None else None
        if token is not None:
            principal = services.authenticator.authenticate(request.scope["headers"])
            call.caller = context.caller = _caller(context, principal)
        else:
            token = _bearer(request)
            principal = services.sandboxes.holder(token, context.address)
            call.caller = _caller(context, principal)
        await services.rate_limiter.check(call.caller.principal)
        grant = await services.sandboxes.refresh_token(token, context.address, context.caller)
        call.about(grant.binding)
    return GrantAnswer.of(grant, request, services)


def _caller(context: RequestContext, principal: Principal) -> Caller:
    return context.caller_as(principal, context.surface.name)


def _bearer(request: Request) -> str:
    scheme, _, token = (header(request.scope, b"authorization") or b"").partition(b" ")
    if scheme.lower() != b"bearer" or not token.strip():
        raise Unauthorized("give the current token as Authorization: Bearer, or in the body beside another credential")
    return token.strip().decode("latin-1")


@router.post("/release", responses=errors(403, 404), summary="Release a sandbox")
async def release(body: ReleaseBody, services: ServicesDep, caller: CallerDep) -> ReleaseAnswer:
    """End a sandbox with everything in it; every token for it is dead at once."""
    async with audited(services, "released", caller, sandbox_id=body.sandbox_id) as call:
        call.about(await services.sandboxes.bindings.release_sandbox(caller, body.sandbox_id))
    return ReleaseAnswer(sandbox_id=body.sandbox_id, released=True)

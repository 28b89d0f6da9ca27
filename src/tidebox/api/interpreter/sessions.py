"""Sessions: make, show, list, delete."""

from __future__ import annotations

import time
from typing import Annotated, Any, Self

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel

from tidebox.api.answers import Page, Quantity, each, example
from tidebox.api.egress import asked_egress, audited_refusals, user_of
from tidebox.api.interpreter.idempotency_details import NO_DETAILS, Details
from tidebox.api.interpreter.packages import allowed_packages
from tidebox.api.interpreter.requests import SessionRequest
from tidebox.api.route_dependencies import CallerDep, DocumentRoute, IdempotencyKey, ServicesDep, claim_of, errors
from tidebox.api.services import Services
from tidebox.broker.runs.planning import patient, require_layers
from tidebox.model.command_size import check_command_size
from tidebox.model.ids import new_id
from tidebox.model.images import HOST
from tidebox.model.policy import ResourceRequest, boundary_for, check_spec_version, terms_of
from tidebox.model.principal import Caller, Principal
from tidebox.model.session import Session, SessionState
from tidebox.model.timestamps import iso_time

router = APIRouter(tags=["sessions"], route_class=DocumentRoute)

SessionId = Annotated[str, Path(min_length=1, max_length=128, description="The session.")]
# Where a session names no image, each of its runs gets that of its own program; this is the one that is shown.
_LANGUAGE = "python"


class SessionAnswer(BaseModel):
    """A session."""

    session_id: str
    id: str
    user_id: str
    state: SessionState
    created_at: str
    expires_at: str
    runtime: str
    runtime_version: str | None
    base_image: str
    image_digest: str | None
    spec_version: str
    policy_hash: str
    trust_level: str | None
    network_policy: str
    timeout_sec: Quantity | None
    resources: dict[str, Quantity]
    labels: dict[str, str]
    packages: dict[str, list[str]]
    egress: dict[str, Any] | None
    details: Details

    @classmethod
    def of(cls, session: Session, details: Details = NO_DETAILS) -> Self:
        """``session`` with what this request adds to it."""
        return cls(
            session_id=session.id,
            id=session.id,
            user_id=session.user,
            state=session.state,
            created_at=iso_time(session.created_at),
            expires_at=iso_time(session.expires_at),
            runtime=session.runtime,
            runtime_version=session.runtime_version,
            base_image=session.base_image,
            image_digest=session.image_digest,
            spec_version=session.spec_version,
            policy_hash=session.policy_hash,
            trust_level=session.trust_level,
            network_policy=session.policy["network_policy"],
            timeout_sec=session.timeout_sec,
            resources=dict(session.resources),
            labels=dict(session.labels),
            packages=session.policy.get("packages", {}),
            egress=session.policy.get("egress"),
            details=details,
        )


class SessionList(Page[SessionAnswer]):
    """Some sessions."""


class SessionDeleted(BaseModel):
    """A session is gone."""

    session_id: str
    id: str
    deleted: bool
    ok: bool


_EXAMPLE = SessionAnswer.of(
    Session(
        id="ses-4k2m8x0q7c1v9b3n5z6a",
        caller=Caller(Principal("local"), "127.0.0.1", "req-1", "rest"),
        runtime="native",
        runtime_version="0.1.0",
        base_image="python:3.11-slim",
        image_digest="sha256:2f1c...",
        spec_version="1.0",
        policy={"network_policy": "deny_all"},
        policy_hash="e1ca8ed3c75e76cbbd0a78e3b1a1e2f1c7c8b6d1b0cf9d55cdd47f2f3c3d1a7e",
        created_at=1767614400.0,
        expires_at=1767618000.0,
        trust_level="standard",
        timeout_sec=60,
        resources={"cpu": 1, "memory_mb": 512, "pids": 256},
        labels={"project": "demo"},
    )
)


@router.post(
    "/sessions",
    response_model_exclude_unset=True,
    responses={200: example(_EXAMPLE), **errors(403, 404, 409, 422)},
    summary="Make a session",
)
async def create_session(
    body: SessionRequest, services: ServicesDep, caller: CallerDep, idempotency_key: IdempotencyKey = None
) -> SessionAnswer:
    """Make a workspace that several runs share until its time is over."""
    check_spec_version(services.policy, body.spec_version)
    check_command_size((), body.env)
    claim = claim_of("sessions", caller, idempotency_key, body.model_dump(mode="json", exclude_unset=True))
    receipt = await services.broker.sessions.create(caller, _new_session(services, caller, body), claim)
    return SessionAnswer.of(receipt.session, Details.of(idempotency_key, receipt.answered))


def _new_session(services: Services, caller: Caller, body: SessionRequest) -> Session:
    policy = services.policy
    asked = ResourceRequest(
        cpu=body.cpu,
        memory_mb=body.memory,
        pids=body.pids,
        timeout_sec=body.timeout_sec,
        startup_timeout_sec=body.startup_timeout_sec,
        network_policy=body.network_policy,
        trust_level=body.trust_level,
    )
    packages = allowed_packages(services, caller, body)
    terms = terms_of(policy, patient(asked, packages, policy))
    boundary = boundary_for(policy, terms.trust_level)
    runtime = services.runtimes.choose(body.runtime, policy.default_runtime, boundary)
    base_image = body.base_image or HOST
    image = services.runtimes.resolve(runtime.name, base_image, _LANGUAGE)
    ask = asked_egress(body)
    # Refused now rather than with its first run.
    with audited_refusals(services, caller):
        require_layers(runtime, packages)
        way_out = services.planner.way_out(runtime, terms.network_policy, [ask], user_of(caller))
    server = services.planner.egress.server if way_out is not None else None
    now = time.time()
    shown = terms.shown()
    return Session(
        id=new_id("ses"),
        caller=caller,
        runtime=runtime.name,
        runtime_version=runtime.version,
        base_image=base_image,
        image_digest=image.digest or None,
        spec_version=body.spec_version,
        policy={
            **shown,
            "network_policy": terms.network_policy,
            "trust_level": terms.trust_level,
            **({"packages": packages.shown()} if packages else {}),
            **({"egress": ask.shown()} if ask is not None else {}),
            **({"egress_server": server.shown()} if server is not None else {}),
        },
        policy_hash=services.planner.hash,
        created_at=now,
        expires_at=now + min(body.ttl_sec or policy.session_ttl_sec, policy.session_ttl_sec),
        trust_level=terms.trust_level,
        timeout_sec=terms.timeout_sec,
        resources={name: shown[name] for name in ("cpu", "memory_mb", "pids")},
        env=body.env,
        labels=body.labels,
    )


@router.get(
    "/sessions",
    response_model_exclude_unset=True,
    responses=errors(),
    summary="List sessions",
)
async def list_sessions(
    services: ServicesDep,
    caller: CallerDep,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
) -> SessionList:
    """The caller's sessions, newest first."""
    page = await services.broker.sessions.list(caller, limit=limit, offset=offset)
    return SessionList.of(await each(SessionAnswer.of, page.sessions), total=page.total, limit=limit, offset=offset)


@router.get(
    "/sessions/{session_id}",
    response_model_exclude_unset=True,
    responses={200: example(_EXAMPLE), **errors(404)},
    summary="Show a session",
)
async def show_session(session_id: SessionId, services: ServicesDep, caller: CallerDep) -> SessionAnswer:
    """A session that can be used."""
    return SessionAnswer.of(await services.broker.sessions.get(caller, session_id))


@router.delete(
    "/sessions/{session_id}",
    responses=errors(404),
    summary="Delete a session",
)
async def delete_session(session_id: SessionId, services: ServicesDep, caller: CallerDep) -> SessionDeleted:
    """Kill what runs in a session, and remove it with its files. Its runs can still be asked for."""
    await services.broker.sessions.delete(caller, session_id)
    return SessionDeleted(session_id=session_id, id=session_id, deleted=True, ok=True)

"""What an admin sees: everybody's runs, keys, usage, metrics, audit."""

from __future__ import annotations

import datetime
import socket
import time
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BeforeValidator
from starlette.responses import Response

from tidebox.api.common import AdminDep, ServicesDep, answer, errors, whole
from tidebox.api.interpreter.common import moment
from tidebox.api.interpreter.runs import RunId, shown_usage
from tidebox.api.interpreter.schemas import (
    AdminRunDetails,
    AdminRunList,
    AuditList,
    IdempotencyList,
    PhaseName,
    Series,
    UsageList,
    UsageSummary,
)
from tidebox.api.interpreter.signing import stream_url
from tidebox.broker.audit_reading import AuditQuery
from tidebox.errors import InvalidRequest
from tidebox.model.listing import RunQuery
from tidebox.model.run import Phase, Run
from tidebox.model.summary import Totals

router = APIRouter(prefix="/admin", tags=["admin"])

_DAY_SECONDS = 24 * 3600.0
_MAX_PAGE = 1000

Limit = Annotated[int, Query(ge=1, le=_MAX_PAGE)]
Offset = Annotated[int, Query(ge=0, le=2**31)]
Text = Annotated[str | None, Query(max_length=256)]


def _iso_only(given: object) -> object:
    """No numbers: whether those are seconds or milliseconds would be a guess."""
    return datetime.datetime.fromisoformat(given) if isinstance(given, str) else given


IsoTime = Annotated[datetime.datetime, BeforeValidator(_iso_only)]
Moment = Annotated[IsoTime | None, Query(description="ISO 8601; UTC where it does not say.")]
Sort = Annotated[
    str,
    Query(
        pattern=r"^((created_at|started_at|finished_at)(:(asc|desc))?|asc|desc)$",
        description="A time and a direction, such as `started_at:desc`; a direction alone sorts by `started_at`.",
    ),
]

_RUN_EXAMPLE = {
    "id": "run-9f2c4e6a8b0d1f3h5j7k",
    "run_id": "run-9f2c4e6a8b0d1f3h5j7k",
    "user_id": "user_123",
    "session_id": None,
    "spec_version": "1.0",
    "runtime": "native",
    "runtime_version": "0.1.0",
    "base_image": "python:3.11-slim",
    "image_digest": "sha256:2f1c...",
    "phase": "completed",
    "exit_code": 0,
    "reason_code": "exit_code_0",
    "message": None,
    "created_at": "2026-01-05T12:00:00.000Z",
    "started_at": "2026-01-05T12:00:00.000Z",
    "finished_at": "2026-01-05T12:00:00.015Z",
    "policy_hash": "e1ca8ed3c75e76cbbd0a78e3b1a1e2f1c7c8b6d1b0cf9d55cdd47f2f3c3d1a7e",
    "node_id": "node-1",
}


def _example(value: Any) -> dict[int | str, dict[str, Any]]:
    return {200: {"content": {"application/json": {"example": value}}}}


@router.get(
    "/runs",
    response_model=AdminRunList,
    responses=_example({"items": [_RUN_EXAMPLE], "total": 1, "limit": 50, "offset": 0, "has_more": False})
    | errors(403),
    summary="List everybody's runs",
)
async def list_runs(
    services: ServicesDep,
    admin: AdminDep,
    user_id: Text = None,
    session_id: Text = None,
    phase: Annotated[PhaseName | None, Query()] = None,
    runtime: Text = None,
    q: Annotated[str | None, Query(max_length=256, description="Found in the image's name or the message.")] = None,
    image_digest: Text = None,
    base_image: Text = None,
    node_id: Text = None,
    started_at_from: Moment = None,
    started_at_to: Moment = None,
    finished_at_from: Moment = None,
    finished_at_to: Moment = None,
    sort: Sort = "started_at:desc",
    limit: Limit = 50,
    offset: Offset = 0,
) -> Response:
    """Runs that match every filter. Times include their ends."""
    if node_id not in (None, _node_id()):
        return answer({"items": [], "total": 0, "limit": limit, "offset": offset, "has_more": False})
    field, _, direction = sort.partition(":")
    if field in ("asc", "desc"):
        field, direction = "started_at", field
    query = RunQuery(
        user=user_id,
        session_id=session_id,
        phase=Phase(phase) if phase is not None else None,
        runtime=runtime,
        base_image=base_image,
        image_digest=image_digest,
        text=q,
        started_from=_seconds(started_at_from),
        started_to=_seconds(started_at_to),
        finished_from=_seconds(finished_at_from),
        finished_to=_seconds(finished_at_to),
        sort=_FIELDS[field],
        descending=direction != "asc",
        limit=limit,
        offset=offset,
    )
    page = await services.broker.runs.list(admin, query)
    return answer(
        {
            "items": [_shown(run) for run in page.runs],
            "total": page.total,
            "limit": limit,
            "offset": offset,
            "has_more": offset + len(page.runs) < page.total,
        }
    )


_FIELDS: dict[str, Literal["created_at", "started_at", "finished_at"]] = {
    "created_at": "created_at",
    "started_at": "started_at",
    "finished_at": "finished_at",
}


@router.get(
    "/runs/{run_id}",
    response_model=AdminRunDetails,
    responses=errors(403, 404),
    summary="Show anybody's run",
)
async def show_run(run_id: RunId, request: Request, services: ServicesDep, admin: AdminDep) -> Response:
    """Everything that is known of a run, but not its program, environment or output."""
    run = await services.broker.runs.get(admin, run_id)
    artifacts = await services.broker.artifacts_of(run_id)
    return answer(
        _shown(run)
        | {
            "signal": run.signal,
            "network_policy": run.facts.network_policy,
            "trust_level": run.facts.trust_level,
            "labels": dict(run.facts.labels),
            "resource_usage": shown_usage(run),
            "log_stream_url": stream_url(request, services, run.id),
            "artifacts": [{"path": artifact.path, "size": artifact.size} for artifact in artifacts],
        }
    )


def _shown(run: Run) -> dict[str, Any]:
    facts = run.facts
    return {
        "id": run.id,
        "run_id": run.id,
        "user_id": run.user,
        "session_id": facts.session_id,
        "spec_version": facts.spec_version,
        "runtime": facts.runtime,
        "runtime_version": facts.runtime_version,
        "base_image": facts.base_image,
        "image_digest": facts.image_digest,
        "phase": run.phase.value,
        "exit_code": run.exit_status,
        "reason_code": run.reason.value if run.reason is not None else None,
        "message": run.message,
        "created_at": moment(run.created_at),
        "started_at": moment(run.started_at),
        "finished_at": moment(run.finished_at),
        "policy_hash": facts.policy_hash,
        "node_id": _node_id(),
    }


def _node_id() -> str:
    return socket.gethostname()


@router.get(
    "/idempotency",
    response_model=IdempotencyList,
    responses=_example(
        {
            "items": [
                {
                    "endpoint": "runs",
                    "user_key": "user_123",
                    "key": "5c2d1a9a",
                    "created_at": "2026-01-05T12:00:00.000Z",
                    "object_id": "run-9f2c4e6a8b0d1f3h5j7k",
                }
            ],
            "limit": 50,
            "offset": 0,
        }
    )
    | errors(403),
    summary="List idempotency keys",
)
async def list_keys(
    services: ServicesDep,
    admin: AdminDep,
    endpoint: Literal["runs", "sessions", "any"] = "any",
    user_id: Text = None,
    limit: Limit = 50,
    offset: Offset = 0,
) -> Response:
    """The keys in use, newest first."""
    found = await services.broker.runs.list_answered(
        admin, endpoint=None if endpoint == "any" else endpoint, user=user_id, limit=limit, offset=offset
    )
    items = [
        {
            "endpoint": entry.claim.endpoint,
            "user_key": entry.claim.user,
            "key": entry.claim.key,
            "created_at": moment(entry.created_at),
            "object_id": entry.object_id,
        }
        for entry in found
    ]
    return answer({"items": items, "limit": limit, "offset": offset})


@router.get(
    "/usage",
    response_model=UsageList,
    responses=_example({"items": [{"user_id": "user_123", "artifact_bytes": 5242880}], "limit": 50, "offset": 0})
    | errors(403),
    summary="Who has how much",
)
async def list_usage(services: ServicesDep, _admin: AdminDep, limit: Limit = 50, offset: Offset = 0) -> Response:
    """Users and the bytes of their artifacts, most first."""
    found = await services.broker.artifact_usage(limit=limit, offset=offset)
    items = [{"user_id": user, "artifact_bytes": size} for user, size in found]
    return answer({"items": items, "limit": limit, "offset": offset})


@router.get(
    "/usage/summary",
    response_model=UsageSummary,
    responses=errors(403),
    summary="What runs came to",
)
async def summarize_usage(
    services: ServicesDep,
    _admin: AdminDep,
    from_: Annotated[IsoTime | None, Query(alias="from", description="By default a day ago.")] = None,
    to: Annotated[IsoTime | None, Query(description="By default now.")] = None,
    limit: Annotated[int, Query(ge=1, le=_MAX_PAGE, description="How many users.")] = 10,
) -> Response:
    """The runs created in a time, by how they ended, by runtime, and by user."""
    end = time.time() if to is None else _timestamp(to)
    begin = end - _DAY_SECONDS if from_ is None else _timestamp(from_)
    summary = await services.broker.summary(begin, end, top=limit)
    return answer(
        {
            "window": {"from": moment(begin), "to": moment(end)},
            "totals": _totals(summary.totals),
            "by_runtime": [{"runtime": name} | _totals(totals) for name, totals in summary.by_runtime.items()],
            "top_users": [{"user_id": user} | _totals(totals) for user, totals in summary.top_users],
        }
    )


def _totals(totals: Totals) -> dict[str, Any]:
    return {
        "runs": totals.runs,
        "completed": totals.completed,
        "failed": totals.failed,
        "timed_out": totals.timed_out,
        "killed": totals.killed,
        "cpu_time_sec": whole(totals.cpu_seconds),
        "log_bytes": totals.log_bytes,
        "artifact_bytes": totals.artifact_bytes,
    }


@router.get(
    "/metrics",
    response_model=dict[str, list[Series]],
    responses=_example(
        {
            "sandbox_runs_completed_total": [
                {
                    "labels": {"runtime": "native", "outcome": "completed", "reason": "exit_code_0"},
                    "value": 128,
                }
            ]
        }
    )
    | errors(403),
    summary="What was counted",
)
async def show_metrics(services: ServicesDep, _admin: AdminDep) -> Response:
    """The metrics of this server, by name, with a value for each set of labels."""
    return answer(services.metrics.series())


@router.get("/audit", response_model=AuditList, responses=errors(403), summary="Read the audit log")
async def read_audit(
    services: ServicesDep,
    _admin: AdminDep,
    event: Text = None,
    user_id: Text = None,
    run_id: Text = None,
    session_id: Text = None,
    outcome: Text = None,
    from_: Annotated[IsoTime | None, Query(alias="from")] = None,
    to: Annotated[IsoTime | None, Query()] = None,
    sort: Literal["asc", "desc", "ts:asc", "ts:desc"] = "desc",
    limit: Limit = 50,
    offset: Offset = 0,
) -> Response:
    """Events that match every filter, newest first unless `sort` says otherwise."""
    query = AuditQuery(
        wanted={
            name: value
            for name, value in (
                ("event", event),
                ("user_id", user_id),
                ("run_id", run_id),
                ("session_id", session_id),
                ("outcome", outcome),
            )
            if value is not None
        },
        begin=moment(_seconds(from_)) if from_ is not None else None,
        end=moment(_seconds(to)) if to is not None else None,
        descending=sort.endswith("desc"),
        limit=limit + 1,
        offset=offset,
    )
    found = await services.broker.read_audit(query)
    return answer({"items": found[:limit], "limit": limit, "offset": offset, "has_more": len(found) > limit})


def _seconds(given: datetime.datetime | None) -> float | None:
    return None if given is None else _timestamp(given)


def _timestamp(given: datetime.datetime) -> float:
    if given.tzinfo is None:
        given = given.replace(tzinfo=datetime.UTC)
    try:
        return given.timestamp()
    except (OverflowError, ValueError):
        raise InvalidRequest("a time that is out of range") from None

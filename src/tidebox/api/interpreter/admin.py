"""What an admin sees: everybody's runs, keys, usage, metrics, audit."""

from __future__ import annotations

import datetime
import time
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BeforeValidator

from tidebox.api.answers import each, example
from tidebox.api.common import AdminDep, ServicesDep, errors
from tidebox.api.interpreter import admin_answers
from tidebox.api.interpreter.admin_answers import (
    AdminRun,
    AdminRunDetails,
    AdminRunList,
    AuditList,
    IdempotencyEntry,
    IdempotencyList,
    Metrics,
    UsageList,
    UsageSummary,
    UserUsage,
)
from tidebox.api.interpreter.runs import RunId
from tidebox.api.interpreter.signing import stream_url
from tidebox.broker.audit_reading import AuditQuery
from tidebox.errors import InvalidRequest
from tidebox.model.listing import RunQuery
from tidebox.model.moments import moment
from tidebox.model.run import Phase

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


@router.get(
    "/runs",
    responses={200: example(admin_answers.RUNS), **errors(403)},
    summary="List everybody's runs",
)
async def list_runs(
    services: ServicesDep,
    admin: AdminDep,
    user_id: Text = None,
    session_id: Text = None,
    phase: Annotated[Phase | None, Query()] = None,
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
) -> AdminRunList:
    """Runs that match every filter. Times include their ends."""
    if node_id not in (None, admin_answers.node_id()):
        return AdminRunList.of([], total=0, limit=limit, offset=offset)
    field, _, direction = sort.partition(":")
    if field in ("asc", "desc"):
        field, direction = "started_at", field
    query = RunQuery(
        user=user_id,
        session_id=session_id,
        phase=phase,
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
    return AdminRunList.of(await each(AdminRun.of, page.runs), total=page.total, limit=limit, offset=offset)


_FIELDS: dict[str, Literal["created_at", "started_at", "finished_at"]] = {
    "created_at": "created_at",
    "started_at": "started_at",
    "finished_at": "finished_at",
}


@router.get(
    "/runs/{run_id}",
    response_model_exclude_unset=True,
    responses=errors(403, 404),
    summary="Show anybody's run",
)
async def show_run(run_id: RunId, request: Request, services: ServicesDep, admin: AdminDep) -> AdminRunDetails:
    """Everything that is known of a run, but not its program, environment or output."""
    run = await services.broker.runs.get(admin, run_id)
    artifacts = await services.broker.artifacts_of(run_id)
    return AdminRunDetails.with_artifacts(run, stream_url(request, services, run.id), artifacts)


@router.get(
    "/idempotency",
    responses={200: example(admin_answers.KEYS), **errors(403)},
    summary="List idempotency keys",
)
async def list_keys(
    services: ServicesDep,
    admin: AdminDep,
    endpoint: Literal["runs", "sessions", "any"] = "any",
    user_id: Text = None,
    limit: Limit = 50,
    offset: Offset = 0,
) -> IdempotencyList:
    """The keys in use, newest first."""
    found = await services.broker.runs.list_answered(
        admin, endpoint=None if endpoint == "any" else endpoint, user=user_id, limit=limit, offset=offset
    )
    return IdempotencyList(items=await each(IdempotencyEntry.of, found), limit=limit, offset=offset)


@router.get("/usage", responses={200: example(admin_answers.USAGE), **errors(403)}, summary="Who has how much")
async def list_usage(services: ServicesDep, _admin: AdminDep, limit: Limit = 50, offset: Offset = 0) -> UsageList:
    """Users and the bytes of their artifacts, most first."""
    found = await services.broker.artifact_usage(limit=limit, offset=offset)
    items = [UserUsage(user_id=user, artifact_bytes=size) for user, size in found]
    return UsageList(items=items, limit=limit, offset=offset)


@router.get("/usage/summary", responses=errors(403), summary="What runs came to")
async def summarize_usage(
    services: ServicesDep,
    _admin: AdminDep,
    from_: Annotated[IsoTime | None, Query(alias="from", description="By default a day ago.")] = None,
    to: Annotated[IsoTime | None, Query(description="By default now.")] = None,
    limit: Annotated[int, Query(ge=1, le=_MAX_PAGE, description="How many users.")] = 10,
) -> UsageSummary:
    """The runs created in a time, by how they ended, by runtime, and by user."""
    end = time.time() if to is None else _timestamp(to)
    begin = end - _DAY_SECONDS if from_ is None else _timestamp(from_)
    summary = await services.broker.summary(begin, end, top=limit)
    return UsageSummary.of(summary, begin, end)


@router.get(
    "/metrics",
    responses={200: example(admin_answers.METRICS), **errors(403)},
    summary="What was counted",
)
async def show_metrics(services: ServicesDep, _admin: AdminDep) -> Metrics:
    """The metrics of this server, by name, with a value for each set of labels."""
    return Metrics.model_validate(services.metrics.series())


@router.get("/audit", responses=errors(403), summary="Read the audit log")
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
) -> AuditList:
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
    return AuditList(items=found[:limit], limit=limit, offset=offset, has_more=len(found) > limit)


def _seconds(given: datetime.datetime | None) -> float | None:
    return None if given is None else _timestamp(given)


def _timestamp(given: datetime.datetime) -> float:
    if given.tzinfo is None:
        given = given.replace(tzinfo=datetime.UTC)
    try:
        return given.timestamp()
    except (OverflowError, ValueError):
        raise InvalidRequest("a time that is out of range") from None

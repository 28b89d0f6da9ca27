"""Admin routes: everybody's runs, idempotency keys, usage, metrics and audit log."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request

from tidebox.api.answers import each, example
from tidebox.api.interpreter import admin_answers
from tidebox.api.interpreter.admin_answers import (
    AdminRun,
    AdminRunDetails,
    AdminRunList,
    AuditList,
    IdempotencyEntry,
    IdempotencyList,
    Metrics,
    SeriesAnswer,
    UsageList,
    UsageSummary,
    UserUsage,
)
from tidebox.api.interpreter.queries import Found, IsoTime, Label, Moment, Text, label_of, seconds_of, timestamp
from tidebox.api.interpreter.runs import RunId
from tidebox.api.interpreter.stream_urls import stream_url
from tidebox.api.route_dependencies import AdminDep, ServicesDep, errors
from tidebox.broker.audit.query import AuditQuery
from tidebox.model.run import Phase
from tidebox.model.run_query import RunQuery
from tidebox.model.run_series import make_series
from tidebox.model.timestamps import moment

router = APIRouter(prefix="/admin", tags=["admin"])

_HOUR_SECONDS = 3600.0
_DAY_SECONDS = 24 * _HOUR_SECONDS
# The newest of them count: reading more would keep other readers of the store waiting.
_MAX_COURSES = 50_000
_MAX_PAGE = 1000

Limit = Annotated[int, Query(ge=1, le=_MAX_PAGE)]
Offset = Annotated[int, Query(ge=0, le=2**31)]
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
    q: Found = None,
    label: Label = None,
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
        node_id=node_id,
        text=q,
        label=label_of(label),
        started_from=seconds_of(started_at_from),
        started_to=seconds_of(started_at_to),
        finished_from=seconds_of(finished_at_from),
        finished_to=seconds_of(finished_at_to),
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
    end = time.time() if to is None else timestamp(to)
    begin = end - _DAY_SECONDS if from_ is None else timestamp(from_)
    summary = await services.broker.summary(begin, end, top=limit)
    return UsageSummary.of(summary, begin, end)


@router.get("/series", responses=errors(403), summary="What happened over a time")
async def show_series(
    services: ServicesDep,
    _admin: AdminDep,
    from_: Annotated[IsoTime | None, Query(alias="from", description="By default an hour ago.")] = None,
    to: Annotated[IsoTime | None, Query(description="By default now.")] = None,
    points: Annotated[int, Query(ge=2, le=500, description="How many times to tell figures of.")] = 60,
) -> SeriesAnswer:
    """Load, throughput, latencies, failures and use of the runs of a time, on all servers of the store."""
    end = time.time() if to is None else timestamp(to)
    # A time that would end before it begins is an empty one.
    begin = min(end, end - _HOUR_SECONDS if from_ is None else timestamp(from_))
    courses = await services.broker.courses(begin, end, limit=_MAX_COURSES + 1)
    figures = await asyncio.to_thread(make_series, courses[:_MAX_COURSES], begin, end, points)
    return SeriesAnswer.of(figures, begin, end, complete=len(courses) <= _MAX_COURSES)


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
        begin=moment(seconds_of(from_)) if from_ is not None else None,
        end=moment(seconds_of(to)) if to is not None else None,
        descending=sort.endswith("desc"),
        limit=limit + 1,
        offset=offset,
    )
    found = await services.broker.read_audit(query)
    return AuditList(items=found[:limit], limit=limit, offset=offset, has_more=len(found) > limit)

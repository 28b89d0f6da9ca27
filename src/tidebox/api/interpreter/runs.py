"""Runs: start, show, list, cancel."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from tidebox.api.common import CallerDep, DocumentRoute, IdempotencyKey, ServicesDep, answer, claim_of, errors, whole
from tidebox.api.interpreter.common import idempotency, moment
from tidebox.api.interpreter.schemas import CancelAnswer, PhaseName, RunAnswer, RunList, RunRequest
from tidebox.api.interpreter.signing import stream_url
from tidebox.api.services import Services
from tidebox.broker.planning import RunOrder, inline_files
from tidebox.broker.stdin import StdinRules
from tidebox.errors import Forbidden, InvalidRequest
from tidebox.model import policy
from tidebox.model.limits import MIB
from tidebox.model.listing import RunQuery
from tidebox.model.run import Phase, Run
from tidebox.model.source import GitSource

router = APIRouter(tags=["runs"], route_class=DocumentRoute)

RunId = Annotated[str, Path(min_length=1, max_length=128, description="The run.")]
# A program that heeds SIGTERM is gone sooner than this, and then the answer says so.
_CANCEL_WAIT_SECONDS = 0.25

_USAGE_EXAMPLE = {
    "cpu_time_sec": 0.012,
    "wall_time_sec": 0.015,
    "peak_rss_mb": 9.5,
    "pids": 1,
    "max_open_files": None,
    "log_bytes": 6,
    "log_truncated": False,
    "artifact_bytes": 0,
    "oom_kills": 0,
    "limits": {
        "cpu": 1,
        "memory_mb": 512,
        "pids": 256,
        "nofile": 1024,
        "startup_timeout_sec": 20,
        "timeout_sec": 20,
    },
}
_STARTING: dict[str, Any] = {
    "run_id": "run-9f2c4e6a8b0d1f3h5j7k",
    "id": "run-9f2c4e6a8b0d1f3h5j7k",
    "session_id": None,
    "phase": "starting",
    "exit_code": None,
    "signal": None,
    "reason_code": None,
    "status_reason_code": None,
    "message": None,
    "created_at": "2026-01-05T12:00:00.000Z",
    "started_at": "2026-01-05T12:00:00.000Z",
    "finished_at": None,
    "estimated_start_time": None,
    "runtime": "native",
    "runtime_version": "0.1.0",
    "base_image": "python:3.11-slim",
    "image_digest": "sha256:2f1c...",
    "spec_version": "1.0",
    "policy_hash": "e1ca8ed3c75e76cbbd0a78e3b1a1e2f1c7c8b6d1b0cf9d55cdd47f2f3c3d1a7e",
    "network_policy": "deny_all",
    "trust_level": "standard",
    "labels": {},
    "resource_usage": {"limits": _USAGE_EXAMPLE["limits"]},
    "log_stream_url": "ws://127.0.0.1:8787/api/v1/sandbox/runs/run-9f2c4e6a8b0d1f3h5j7k/stream?token=...&exp=...",
    "details": {},
}
_COMPLETED = _STARTING | {
    "phase": "completed",
    "exit_code": 0,
    "reason_code": "exit_code_0",
    "status_reason_code": "exit_code_0",
    "finished_at": "2026-01-05T12:00:00.015Z",
    "resource_usage": _USAGE_EXAMPLE,
}
_QUEUED = _STARTING | {
    "phase": "queued",
    "started_at": None,
    "estimated_start_time": "2026-01-05T12:00:02.000Z",
}


def _example(value: dict[str, Any]) -> dict[str, Any]:
    return {"content": {"application/json": {"example": value}}}


@router.post(
    "/runs",
    response_model=RunAnswer,
    responses={
        200: {"description": "The run is starting.", **_example(_STARTING)},
        202: {"model": RunAnswer, "description": "The run waits for its turn.", **_example(_QUEUED)},
        **errors(403, 404, 409, 413, 422),
    },
    summary="Start a run",
)
async def create_run(
    body: RunRequest,
    request: Request,
    services: ServicesDep,
    caller: CallerDep,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Run a command, in a session or in a workspace of its own. The answer does not wait for its end."""
    if not services.policy.enable_execution:
        raise Forbidden("execution is turned off on this server")
    policy.check_spec_version(services.policy, body.spec_version)
    claim = claim_of("runs", caller, idempotency_key, body.model_dump(mode="json", exclude_unset=True))
    receipt = await services.broker.runs.answered(claim) if claim is not None else None
    if receipt is None:
        order = _order(services, body)
        session = await services.broker.sessions.get(caller, body.session_id) if body.session_id is not None else None
        facts, work = services.planner.plan(order, session)
        receipt = await services.broker.runs.submit(caller, facts, work, claim)
    run = receipt.run
    shown = shown_run(run)
    if receipt.expected_wait is not None:
        shown["estimated_start_time"] = moment(time.time() + receipt.expected_wait)
    shown["log_stream_url"] = stream_url(request, services, run.id, from_seq=body.resume_from_seq)
    shown["details"] = idempotency(idempotency_key, receipt.answered)
    return answer(shown, 202 if run.phase is Phase.QUEUED else 200)


def _order(services: Services, body: RunRequest) -> RunOrder:
    return RunOrder(
        spec_version=body.spec_version,
        command=body.command,
        asked=policy.Request(
            cpu=body.cpu,
            memory_mb=body.memory,
            pids=body.pids,
            timeout_sec=body.timeout_sec,
            startup_timeout_sec=body.startup_timeout_sec,
            network_policy=body.network_policy,
            trust_level=body.trust_level,
        ),
        runtime=body.runtime,
        base_image=body.base_image,
        env=body.env,
        labels=body.labels,
        files=inline_files((file.path, file.content_b64) for file in body.files),
        capture_patterns=tuple(body.capture_patterns),
        git=_repository(services, body),
        interactive=_stdin_rules(services, body),
    )


def _repository(services: Services, body: RunRequest) -> GitSource | None:
    if body.git is None:
        return None
    source = body.git.source()
    services.files.uploads.check_git(source)
    return source


def _stdin_rules(services: Services, body: RunRequest) -> StdinRules | None:
    if not body.interactive:
        return None
    if body.spec_version < policy.INTERACTIVE_SINCE:
        raise InvalidRequest(
            f"interactive runs need spec_version {policy.INTERACTIVE_SINCE}", field="interactive", since="1.1"
        )
    settings = services.settings
    allowed = StdinRules(
        max_bytes=settings.interactive_max_bytes,
        max_frame_bytes=settings.interactive_max_frame_bytes,
        bytes_per_second=settings.interactive_input_bps,
        idle_timeout=settings.interactive_idle_timeout_sec,
    )
    return allowed.narrowed(
        max_bytes=body.stdin_max_bytes,
        max_frame_bytes=body.stdin_max_frame_bytes,
        bytes_per_second=body.stdin_bps,
        idle_timeout=body.stdin_idle_timeout_sec,
    )


def shown_usage(run: Run) -> dict[str, Any]:
    """What a run used, as far as it is known."""
    limits = {name: whole(value) for name, value in run.facts.limits.items()}
    if not run.phase.terminal:
        return {"limits": limits}
    usage = run.usage
    return {
        "cpu_time_sec": None if usage is None or usage.cpu_seconds is None else whole(usage.cpu_seconds),
        "wall_time_sec": None if usage is None else whole(usage.wall_seconds),
        "peak_rss_mb": None if usage is None or usage.memory_peak is None else whole(usage.memory_peak / MIB),
        "pids": None if usage is None else usage.pids_peak,
        "max_open_files": None,
        "log_bytes": run.log_bytes,
        "log_truncated": run.log_truncated,
        "artifact_bytes": run.artifact_bytes,
        "files_left_out": dict(run.left_out),
        "oom_kills": None if usage is None else usage.oom_kills,
        "limits": limits,
    }


def shown_run(run: Run) -> dict[str, Any]:
    """A run as its user sees it."""
    facts = run.facts
    reason = run.reason.value if run.reason is not None else None
    return {
        "run_id": run.id,
        "id": run.id,
        "session_id": facts.session_id,
        "phase": run.phase.value,
        "exit_code": run.exit_status,
        "signal": run.signal,
        "reason_code": reason,
        "status_reason_code": reason,
        "message": run.message,
        "created_at": moment(run.created_at),
        "started_at": moment(run.started_at),
        "finished_at": moment(run.finished_at),
        "estimated_start_time": None,
        "runtime": facts.runtime,
        "runtime_version": facts.runtime_version,
        "base_image": facts.base_image,
        "image_digest": facts.image_digest,
        "spec_version": facts.spec_version,
        "policy_hash": facts.policy_hash,
        "network_policy": facts.network_policy,
        "trust_level": facts.trust_level,
        "labels": dict(facts.labels),
        "resource_usage": shown_usage(run),
        "log_stream_url": None,
        "details": {},
    }


@router.get(
    "/runs/{run_id}",
    response_model=RunAnswer,
    responses={200: _example(_COMPLETED), **errors(404)},
    summary="Show a run",
)
async def show_run(
    run_id: RunId,
    request: Request,
    services: ServicesDep,
    caller: CallerDep,
    wait_sec: Annotated[
        float, Query(ge=0, le=60, description="Answer when the run is over, or after so many seconds.")
    ] = 0,
) -> Response:
    """Where a run is, and what became of it."""
    run = await services.broker.runs.get(caller, run_id)
    if wait_sec and not run.phase.terminal:
        run = await services.broker.runs.settled(run, wait_sec)
    return answer(shown_run(run) | {"log_stream_url": stream_url(request, services, run.id)})


@router.get(
    "/runs",
    response_model=RunList,
    responses=errors(),
    summary="List runs",
)
async def list_runs(
    services: ServicesDep,
    caller: CallerDep,
    session_id: Annotated[str | None, Query(max_length=128)] = None,
    phase: Annotated[PhaseName | None, Query()] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
) -> Response:
    """The caller's runs, newest first."""
    query = RunQuery(
        user=caller.principal.user,
        session_id=session_id,
        phase=Phase(phase) if phase is not None else None,
        limit=limit,
        offset=offset,
    )
    page = await services.broker.runs.list(caller, query)
    return answer(
        {
            "items": [shown_run(run) for run in page.runs],
            "total": page.total,
            "limit": limit,
            "offset": offset,
            "has_more": offset + len(page.runs) < page.total,
        }
    )


@router.post(
    "/runs/{run_id}/cancel",
    response_model=CancelAnswer,
    responses={200: _example(_STARTING | {"cancel_requested": True}), **errors(404)},
    summary="Cancel a run",
)
async def cancel_run(run_id: RunId, services: ServicesDep, caller: CallerDep) -> Response:
    """Ask for the end of a run: SIGTERM, and SIGKILL after the grace. One that is over stays as it is."""
    before = await services.broker.runs.cancel(caller, run_id)
    run = await services.broker.runs.settled(before, _CANCEL_WAIT_SECONDS)
    return answer(shown_run(run) | {"cancel_requested": not before.phase.terminal})

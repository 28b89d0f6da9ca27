"""Runs: start, show, list, cancel."""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from tidebox.api.answers import each, example
from tidebox.api.egress import asked_egress, audited_refusals, user_of
from tidebox.api.interpreter import run_answers
from tidebox.api.interpreter.idempotency_details import Details
from tidebox.api.interpreter.packages import allowed_packages
from tidebox.api.interpreter.queries import Found, Label, Moment, Text, label_of, seconds_of
from tidebox.api.interpreter.requests import RunRequest
from tidebox.api.interpreter.run_answers import CancelAnswer, RunAnswer, RunList
from tidebox.api.interpreter.stream_urls import stream_url
from tidebox.api.packages import check_packages
from tidebox.api.route_dependencies import CallerDep, DocumentRoute, IdempotencyKey, ServicesDep, claim_of, errors
from tidebox.api.services import Services
from tidebox.broker.runs.planning import RequestedRun, inline_files, packages_of_session
from tidebox.broker.runs.stdin import StdinRules
from tidebox.errors import Forbidden, InvalidRequest
from tidebox.model import policy
from tidebox.model.git_source import GitSource
from tidebox.model.principal import Caller
from tidebox.model.run import Phase
from tidebox.model.run_query import RunQuery

router = APIRouter(tags=["runs"], route_class=DocumentRoute)

RunId = Annotated[str, Path(min_length=1, max_length=128, description="The run.")]
# A program that heeds SIGTERM is gone sooner than this, and then the answer says so.
_CANCEL_WAIT_SECONDS = 0.25


@router.post(
    "/runs",
    response_model_exclude_unset=True,
    responses={
        200: {"description": "The run is starting.", **example(run_answers.STARTING)},
        202: {"model": RunAnswer, "description": "The run waits for its turn.", **example(run_answers.QUEUED)},
        **errors(403, 404, 409, 413, 422),
    },
    summary="Start a run",
)
async def create_run(
    body: RunRequest,
    request: Request,
    response: Response,
    services: ServicesDep,
    caller: CallerDep,
    idempotency_key: IdempotencyKey = None,
) -> RunAnswer:
    """Run a command, in a session or in a workspace of its own. The answer does not wait for its end."""
    if not services.policy.enable_execution:
        raise Forbidden("execution is turned off on this server")
    policy.check_spec_version(services.policy, body.spec_version)
    claim = claim_of("runs", caller, idempotency_key, body.model_dump(mode="json", exclude_unset=True))
    receipt = await services.broker.runs.answered(claim) if claim is not None else None
    if receipt is None:
        order = _order(services, caller, body)
        session = await services.broker.sessions.here(caller, body.session_id) if body.session_id is not None else None
        if session is not None:
            # The policy may have been another one when the session was made.
            check_packages(services, caller, packages_of_session(session))
        with audited_refusals(services, caller):
            facts, work = services.planner.plan(order, session, user_of(caller))
        receipt = await services.broker.runs.submit(caller, facts, work, claim)
    run = receipt.run
    if run.phase is Phase.QUEUED:
        response.status_code = HTTPStatus.ACCEPTED
    return RunAnswer.of(
        run,
        log_stream_url=stream_url(request, services, run.id, from_seq=body.resume_from_seq),
        estimated_start_time=None if receipt.expected_wait is None else time.time() + receipt.expected_wait,
        details=Details.of(idempotency_key, receipt.answered),
    )


def _order(services: Services, caller: Caller, body: RunRequest) -> RequestedRun:
    return RequestedRun(
        spec_version=body.spec_version,
        command=body.command,
        asked=policy.ResourceRequest(
            cpu=body.cpu,
            memory_mb=body.memory,
            pids=body.pids,
            workspace_mb=body.resources.workspace_mb if body.resources is not None else None,
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
        packages=allowed_packages(services, caller, body),
        egress=asked_egress(body),
        language=_language(body),
    )


def _language(body: RunRequest) -> str:
    if body.language is None:
        return ""
    if body.spec_version < policy.LANGUAGE_SINCE:
        since = policy.LANGUAGE_SINCE
        raise InvalidRequest(f"language needs spec_version {since}", field="language", since=since)
    return body.language


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


@router.get(
    "/runs/{run_id}",
    response_model_exclude_unset=True,
    responses={200: example(run_answers.COMPLETED), **errors(404)},
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
) -> RunAnswer:
    """The state of a run, and its result once it is over."""
    run = await services.broker.runs.get(caller, run_id)
    if wait_sec and not run.phase.terminal:
        run = await services.broker.runs.wait_finished(run, wait_sec)
    takes_input = services.broker.runs.takes_input(run)
    return RunAnswer.of(run, log_stream_url=stream_url(request, services, run.id), takes_input=takes_input)


@router.get(
    "/runs",
    response_model_exclude_unset=True,
    responses=errors(),
    summary="List runs",
)
async def list_runs(
    services: ServicesDep,
    caller: CallerDep,
    session_id: Annotated[str | None, Query(max_length=128)] = None,
    phase: Annotated[Phase | None, Query()] = None,
    runtime: Text = None,
    base_image: Text = None,
    q: Found = None,
    label: Label = None,
    started_at_from: Moment = None,
    started_at_to: Moment = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
) -> RunList:
    """The caller's runs that match every filter, newest first. Times include their ends."""
    query = RunQuery(
        user=caller.principal.user,
        session_id=session_id,
        phase=phase,
        runtime=runtime,
        base_image=base_image,
        text=q,
        label=label_of(label),
        started_from=seconds_of(started_at_from),
        started_to=seconds_of(started_at_to),
        limit=limit,
        offset=offset,
    )
    page = await services.broker.runs.list(caller, query)
    return RunList.of(await each(RunAnswer.of, page.runs), total=page.total, limit=limit, offset=offset)


@router.post(
    "/runs/{run_id}/cancel",
    response_model_exclude_unset=True,
    responses={200: example(CancelAnswer(**dict(run_answers.STARTING), cancel_requested=True)), **errors(404)},
    summary="Cancel a run",
)
async def cancel_run(run_id: RunId, services: ServicesDep, caller: CallerDep) -> CancelAnswer:
    """Ask for the end of a run: SIGTERM, and SIGKILL after the grace. One that is over stays as it is."""
    before = await services.broker.runs.cancel(caller, run_id)
    run = await services.broker.runs.wait_finished(before, _CANCEL_WAIT_SECONDS)
    return CancelAnswer(**dict(RunAnswer.of(run)), cancel_requested=not before.phase.terminal)

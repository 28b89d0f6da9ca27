"""Runs as their users see them."""

from __future__ import annotations

import dataclasses
from typing import Self

from pydantic import BaseModel, Field

from tidebox.api.answers import Page, Quantity
from tidebox.api.interpreter.idempotency_details import NO_DETAILS, Details
from tidebox.model.limits import MIB
from tidebox.model.principal import Caller, Principal
from tidebox.model.result import EgressUsage, Usage
from tidebox.model.run import Phase, Reason, Run, RunFacts
from tidebox.model.timestamps import iso_time, moment


class Limits(BaseModel):
    """The limits that were in force."""

    cpu: Quantity | None = None
    memory_mb: Quantity | None = None
    pids: Quantity | None = None
    nofile: Quantity | None = None
    startup_timeout_sec: Quantity | None = None
    timeout_sec: Quantity | None = None


class EgressAnswer(BaseModel):
    """Network usage of a run."""

    connections: int
    denied: int = Field(description="Connections, and names that were not resolved.")
    bytes_sent: int
    bytes_received: int

    @classmethod
    def of(cls, usage: EgressUsage) -> Self:
        """Make the answer from counted usage."""
        return cls(
            connections=usage.connections,
            denied=usage.denied,
            bytes_sent=usage.sent,
            bytes_received=usage.received,
        )


class ResourceUsage(BaseModel):
    """Resource usage of a run. Everything but `limits` is null until it is over, and where nothing counted it."""

    cpu_time_sec: Quantity | None = None
    wall_time_sec: Quantity | None = None
    peak_rss_mb: Quantity | None = None
    pids: int | None = None
    max_open_files: int | None = None
    log_bytes: int | None = None
    log_truncated: bool | None = None
    artifact_bytes: int | None = None
    files_left_out: dict[str, int] | None = Field(default=None, description="Files that were not kept, by the reason.")
    oom_kills: int | None = None
    egress: EgressAnswer | None = Field(default=None, description="Null where programs reached no network.")
    limits: Limits

    @classmethod
    def of(cls, run: Run) -> Self:
        """Make the answer from what is known of ``run`` so far."""
        limits = Limits(**run.facts.limits)
        if not run.phase.terminal:
            return cls(limits=limits)
        usage = run.usage
        return cls(
            cpu_time_sec=None if usage is None else usage.cpu_seconds,
            wall_time_sec=None if usage is None else usage.wall_seconds,
            peak_rss_mb=None if usage is None or usage.memory_peak is None else usage.memory_peak / MIB,
            pids=None if usage is None else usage.pids_peak,
            max_open_files=None,
            log_bytes=run.log_bytes,
            log_truncated=run.log_truncated,
            artifact_bytes=run.artifact_bytes,
            files_left_out=dict(run.left_out),
            oom_kills=None if usage is None else usage.oom_kills,
            egress=None if usage is None or usage.egress is None else EgressAnswer.of(usage.egress),
            limits=limits,
        )


class RunAnswer(BaseModel):
    """A run."""

    run_id: str
    id: str
    session_id: str | None
    phase: Phase
    exit_code: int | None
    signal: int | None
    reason_code: str | None
    status_reason_code: str | None
    message: str | None
    created_at: str
    started_at: str | None
    finished_at: str | None
    estimated_start_time: str | None
    runtime: str
    runtime_version: str | None
    base_image: str
    image_digest: str | None
    spec_version: str
    policy_hash: str
    network_policy: str
    trust_level: str | None
    labels: dict[str, str]
    resource_usage: ResourceUsage
    log_stream_url: str | None
    takes_input: bool = Field(
        default=False, description="Where one run is asked for: whether input sent to its stream reaches its program."
    )
    details: Details

    @classmethod
    def of(
        cls,
        run: Run,
        *,
        log_stream_url: str | None = None,
        estimated_start_time: float | None = None,
        details: Details = NO_DETAILS,
        takes_input: bool = False,
    ) -> Self:
        """``run`` with what this request adds to it."""
        facts = run.facts
        reason = run.reason.value if run.reason is not None else None
        return cls(
            run_id=run.id,
            id=run.id,
            session_id=facts.session_id,
            phase=run.phase,
            exit_code=run.exit_status,
            signal=run.signal,
            reason_code=reason,
            status_reason_code=reason,
            message=run.message,
            created_at=iso_time(run.created_at),
            started_at=moment(run.started_at),
            finished_at=moment(run.finished_at),
            estimated_start_time=moment(estimated_start_time),
            runtime=facts.runtime,
            runtime_version=facts.runtime_version,
            base_image=facts.base_image,
            image_digest=facts.image_digest,
            spec_version=facts.spec_version,
            policy_hash=facts.policy_hash,
            network_policy=facts.network_policy,
            trust_level=facts.trust_level,
            labels=dict(facts.labels),
            resource_usage=ResourceUsage.of(run),
            log_stream_url=log_stream_url,
            details=details,
            # Said only where it is so: of most runs, and in lists, nobody asks.
            **({"takes_input": True} if takes_input else {}),
        )


class RunList(Page[RunAnswer]):
    """Some runs."""


class CancelAnswer(RunAnswer):
    """A run whose end was asked for; it may take until the end of the grace."""

    cancel_requested: bool = Field(description="False where it was over already.")


# What the examples of the document are made from.

_BEGIN = 1767614400.0
STARTING_RUN = Run(
    id="run-9f2c4e6a8b0d1f3h5j7k",
    caller=Caller(Principal("user_123"), "127.0.0.1", "req-1", "rest"),
    facts=RunFacts(
        runtime="native",
        runtime_version="0.1.0",
        base_image="python:3.11-slim",
        image_digest="sha256:2f1c...",
        spec_version="1.0",
        policy_hash="e1ca8ed3c75e76cbbd0a78e3b1a1e2f1c7c8b6d1b0cf9d55cdd47f2f3c3d1a7e",
        trust_level="standard",
        limits={
            "cpu": 1,
            "memory_mb": 512,
            "pids": 256,
            "nofile": 1024,
            "startup_timeout_sec": 20,
            "timeout_sec": 20,
        },
    ),
    created_at=_BEGIN,
    phase=Phase.STARTING,
    started_at=_BEGIN,
)
COMPLETED_RUN = dataclasses.replace(
    STARTING_RUN,
    phase=Phase.COMPLETED,
    exit_code=0,
    reason=Reason.EXIT_ZERO,
    finished_at=_BEGIN + 0.015625,
    usage=Usage(wall_seconds=0.015, cpu_seconds=0.012, memory_peak=19 * MIB // 2, pids_peak=1),
    log_bytes=6,
)
STREAM_URL = f"ws://127.0.0.1:8787/api/v1/sandbox/runs/{STARTING_RUN.id}/stream?token=...&exp=..."
STARTING = RunAnswer.of(STARTING_RUN, log_stream_url=STREAM_URL)
COMPLETED = RunAnswer.of(COMPLETED_RUN, log_stream_url=STREAM_URL)
QUEUED = RunAnswer.of(
    dataclasses.replace(STARTING_RUN, phase=Phase.QUEUED, started_at=None),
    log_stream_url=STREAM_URL,
    estimated_start_time=_BEGIN + 2,
)

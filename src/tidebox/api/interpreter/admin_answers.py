"""Answers of the admin routes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Self

from pydantic import BaseModel, Field, RootModel, WithJsonSchema

from tidebox.api.answers import Page, Quantity, Slice
from tidebox.api.interpreter.run_answers import COMPLETED_RUN, ResourceUsage
from tidebox.model.artifact import Artifact
from tidebox.model.idempotency import Answered, Claim
from tidebox.model.run import Phase, Run
from tidebox.model.run_series import PERCENTILES, RunSeries
from tidebox.model.run_totals import Summary, Totals
from tidebox.model.timestamps import iso_time, moment


class AdminRun(BaseModel):
    """A run as an admin sees it in a list."""

    id: str
    run_id: str
    user_id: str
    session_id: str | None
    spec_version: str
    runtime: str
    runtime_version: str | None
    base_image: str
    image_digest: str | None
    phase: Phase
    exit_code: int | None
    reason_code: str | None
    message: str | None
    created_at: str
    started_at: str | None
    finished_at: str | None
    policy_hash: str
    node_id: str

    @classmethod
    def of(cls, run: Run) -> Self:
        """``run`` without its program, environment and output."""
        facts = run.facts
        return cls(
            id=run.id,
            run_id=run.id,
            user_id=run.user,
            session_id=facts.session_id,
            spec_version=facts.spec_version,
            runtime=facts.runtime,
            runtime_version=facts.runtime_version,
            base_image=facts.base_image,
            image_digest=facts.image_digest,
            phase=run.phase,
            exit_code=run.exit_status,
            reason_code=run.reason.value if run.reason is not None else None,
            message=run.message,
            created_at=iso_time(run.created_at),
            started_at=moment(run.started_at),
            finished_at=moment(run.finished_at),
            policy_hash=facts.policy_hash,
            node_id=run.owner.node_id,
        )


class AdminRunList(Page[AdminRun]):
    """Some runs of everybody."""


class AdminArtifact(BaseModel):
    """An artifact in the admin's view of a run."""

    path: str
    size: int


class AdminRunDetails(AdminRun):
    """A run as an admin sees it."""

    signal: int | None
    network_policy: str
    trust_level: str | None
    labels: dict[str, str]
    resource_usage: ResourceUsage
    log_stream_url: str | None
    artifacts: list[AdminArtifact]

    @classmethod
    def with_artifacts(cls, run: Run, log_stream_url: str, artifacts: Sequence[Artifact]) -> Self:
        """``run`` with everything that is known of it."""
        return cls(
            **dict(AdminRun.of(run)),
            signal=run.signal,
            network_policy=run.facts.network_policy,
            trust_level=run.facts.trust_level,
            labels=dict(run.facts.labels),
            resource_usage=ResourceUsage.of(run),
            log_stream_url=log_stream_url,
            artifacts=[AdminArtifact(path=artifact.path, size=artifact.size) for artifact in artifacts],
        )


class IdempotencyEntry(BaseModel):
    """A key that was used."""

    endpoint: str
    user_key: str
    key: str
    created_at: str
    object_id: str

    @classmethod
    def of(cls, entry: Answered) -> Self:
        """The key of a request that was answered."""
        return cls(
            endpoint=entry.claim.endpoint,
            user_key=entry.claim.user,
            key=entry.claim.key,
            created_at=iso_time(entry.created_at),
            object_id=entry.object_id,
        )


class IdempotencyList(Slice[IdempotencyEntry]):
    """Some keys, newest first."""


class UserUsage(BaseModel):
    """The storage that a user takes."""

    user_id: str
    artifact_bytes: int


class UsageList(Slice[UserUsage]):
    """Users, those with most artifacts first."""


class Window(BaseModel):
    """A time, both ends included."""

    from_: str = Field(serialization_alias="from")
    to: str


class UsageTotals(BaseModel):
    """Totals of several runs."""

    runs: int
    completed: int
    failed: int
    timed_out: int
    killed: int
    cpu_time_sec: Quantity
    log_bytes: int
    artifact_bytes: int

    @classmethod
    def of(cls, totals: Totals) -> Self:
        """``totals`` of some runs."""
        return cls(
            runs=totals.runs,
            completed=totals.completed,
            failed=totals.failed,
            timed_out=totals.timed_out,
            killed=totals.killed,
            cpu_time_sec=totals.cpu_seconds,
            log_bytes=totals.log_bytes,
            artifact_bytes=totals.artifact_bytes,
        )


class RuntimeTotals(UsageTotals):
    """Totals of the runs on one runtime."""

    runtime: str


class UserTotals(UsageTotals):
    """Totals of the runs of one user."""

    user_id: str


class UsageSummary(BaseModel):
    """Totals of the runs that were created in a time."""

    window: Window
    totals: UsageTotals
    by_runtime: list[RuntimeTotals]
    top_users: list[UserTotals]

    @classmethod
    def of(cls, summary: Summary, begin: float, end: float) -> Self:
        """``summary`` of the runs between two times."""
        return cls(
            window=Window(from_=iso_time(begin), to=iso_time(end)),
            totals=UsageTotals.of(summary.totals),
            by_runtime=[
                RuntimeTotals(runtime=name, **dict(UsageTotals.of(totals)))
                for name, totals in summary.by_runtime.items()
            ],
            top_users=[UserTotals(user_id=user, **dict(UsageTotals.of(totals))) for user, totals in summary.top_users],
        )


class Percentiles(BaseModel):
    """Seconds that half, 95 and 99 of a hundred runs did not exceed; null where there were none."""

    p50: list[Quantity | None]
    p95: list[Quantity | None]
    p99: list[Quantity | None]

    @classmethod
    def of(cls, figures: Sequence[Sequence[float | None]]) -> Self:
        """``figures`` of each percentile."""
        return cls(**{f"p{percent}": list(each) for percent, each in zip(PERCENTILES, figures, strict=True)})


class DayUsage(BaseModel):
    """Totals of one user's runs on one day (UTC)."""

    day: str
    user_id: str
    runs: int
    cpu_time_sec: Quantity


class SeriesAnswer(BaseModel):
    """A time series of runs."""

    window: Window
    complete: bool = Field(description="False where there were more runs than are looked at: then the newest count.")
    times: list[Quantity] = Field(description="Seconds since the epoch.")
    active: list[int]
    queued: list[int]
    ended: list[int] = Field(description="Since the time before.")
    unsuccessful: list[int] = Field(description="Those of `ended` that did not complete.")
    wait_sec: Percentiles
    duration_sec: Percentiles
    failures: dict[str, int] = Field(description="Runs that did not complete, by the reason.")
    usage: list[DayUsage] = Field(description="By day and user, the last day first.")

    @classmethod
    def of(cls, series: RunSeries, begin: float, end: float, *, complete: bool) -> Self:
        """``series`` of the runs between two times."""
        return cls(
            window=Window(from_=iso_time(begin), to=iso_time(end)),
            complete=complete,
            times=list(series.times),
            active=list(series.active),
            queued=list(series.queued),
            ended=list(series.ended),
            unsuccessful=list(series.unsuccessful),
            wait_sec=Percentiles.of(series.waits),
            duration_sec=Percentiles.of(series.durations),
            failures=dict(series.reasons),
            usage=[
                DayUsage(day=each.day, user_id=each.user, runs=each.runs, cpu_time_sec=each.cpu_seconds)
                for each in series.days
            ],
        )


class MetricValue(BaseModel):
    """One value of a metric."""

    labels: dict[str, str]
    value: Annotated[int | float, WithJsonSchema({"type": "number"})]


class Metrics(RootModel[dict[str, list[MetricValue]]]):
    """Metrics by name, with a value for each set of labels."""


class AuditList(Slice[dict[str, Any]]):
    """Some events of the audit log."""

    has_more: bool


# The examples of the document.

_RUN = AdminRun.of(COMPLETED_RUN).model_copy(update={"node_id": "node-5f0c2a9d41b7"})
RUNS = AdminRunList.of([_RUN], total=1, limit=50, offset=0)
_CLAIM = Claim("runs", COMPLETED_RUN.user, "5c2d1a9a", "")
_ENTRY = Answered(claim=_CLAIM, object_id=COMPLETED_RUN.id, response=b"", created_at=COMPLETED_RUN.created_at)
KEYS = IdempotencyList(items=[IdempotencyEntry.of(_ENTRY)], limit=50, offset=0)
USAGE = UsageList(items=[UserUsage(user_id=COMPLETED_RUN.user, artifact_bytes=5242880)], limit=50, offset=0)
METRICS = Metrics(
    {
        "sandbox_runs_completed_total": [
            MetricValue(labels={"runtime": "native", "outcome": "completed", "reason": "exit_code_0"}, value=128)
        ]
    }
)

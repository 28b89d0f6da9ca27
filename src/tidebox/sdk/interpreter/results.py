"""Answers of the service. Fields that a later server adds are ignored."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from tidebox.model.run import Phase

Item = TypeVar("Item")
Moment = Annotated[datetime, msgspec.Meta(tz=True)]
"""A time that says how far it is from UTC: others cannot be compared with the clock."""


class Page(msgspec.Struct, Generic[Item], frozen=True):
    """Some items of a list."""

    items: tuple[Item, ...]
    limit: int
    offset: int
    total: int | None = None
    """How many there are in all, where the server counts them."""
    has_more: bool | None = None
    """Whether others follow, where the server says so."""


class Limits(msgspec.Struct, frozen=True):
    """The limits that are in force."""

    cpu: float | None = None
    memory_mb: float | None = None
    pids: float | None = None
    nofile: float | None = None
    startup_timeout_sec: float | None = None
    timeout_sec: float | None = None
    workspace_mb: float | None = None
    """Where a size was asked for."""


class ResourceUsage(msgspec.Struct, frozen=True):
    """Resource usage of a run; None until it is over, and where nothing counted it."""

    cpu_time_sec: float | None = None
    wall_time_sec: float | None = None
    peak_rss_mb: float | None = None
    pids: int | None = None
    log_bytes: int | None = None
    log_truncated: bool | None = None
    artifact_bytes: int | None = None
    files_left_out: dict[str, int] | None = None
    """Files that were not kept, by the reason."""
    oom_kills: int | None = None
    limits: Limits = Limits()


class Session(msgspec.Struct, frozen=True):
    """A workspace that several runs share until its time is over."""

    id: str = msgspec.field(name="session_id")
    expires_at: Moment | None = None
    created_at: Moment | None = None
    user_id: str | None = None
    state: str | None = None
    runtime: str | None = None
    runtime_version: str | None = None
    base_image: str | None = None
    image_digest: str | None = None
    spec_version: str | None = None
    policy_hash: str | None = None
    trust_level: str | None = None
    network_policy: str | None = None
    timeout_sec: float | None = None
    resources: dict[str, float] = {}
    labels: dict[str, str] = {}


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a run, and how it ended."""

    phase: Phase
    exit_code: int | None = None
    signal: int | None = None
    """The number of the signal that ended it, if one did."""
    reason_code: str | None = None
    message: str | None = None
    started_at: Moment | None = None
    finished_at: Moment | None = None

    @property
    def ok(self) -> bool:
        """Whether the program ended by itself with exit code 0."""
        return self.phase is Phase.COMPLETED


class Run(RunState, frozen=True, kw_only=True):
    """A run."""

    id: str = msgspec.field(name="run_id")
    session_id: str | None = None
    created_at: Moment | None = None
    estimated_start_time: Moment | None = None
    runtime: str | None = None
    runtime_version: str | None = None
    base_image: str | None = None
    image_digest: str | None = None
    spec_version: str | None = None
    policy_hash: str | None = None
    network_policy: str | None = None
    trust_level: str | None = None
    labels: dict[str, str] = {}
    resource_usage: ResourceUsage = ResourceUsage()
    log_stream_url: str | None = None
    """Where others may read the log without a credential, for a short time."""
    takes_input: bool = False
    """Where the run itself was asked for: whether input that is sent now reaches its program."""
    cancel_requested: bool | None = None
    """In the answer to a cancellation: False where the run was over already."""


class RunResult(msgspec.Struct, frozen=True):
    """A run that is over, with all it printed."""

    run: Run
    stdout: bytes
    stderr: bytes
    lost_entries: int = 0
    """Entries of the log that the server did not have any more."""

    @property
    def ok(self) -> bool:
        """Whether the program ended by itself with exit code 0."""
        return self.run.ok

    @property
    def exit_code(self) -> int | None:
        """The program's exit code, 128+n where signal n killed it; None if it never ran."""
        return self.run.exit_code

    @property
    def signal(self) -> int | None:
        """The signal that killed the program."""
        return self.run.signal

    @property
    def text(self) -> str:
        """Standard output as text; bytes that are not UTF-8 are replaced."""
        return self.stdout.decode("utf-8", "replace")


class UploadAnswer(msgspec.Struct, frozen=True):
    """The result of an upload."""

    bytes_received: int
    file_count: int
    ignored_count: int = 0
    """Files that were left out because of a pattern."""
    workspace_bytes: int | None = None
    workspace_files: int | None = None
    commit: str | None = None
    """Which commit of a repository it was."""


class WorkspaceFile(msgspec.Struct, frozen=True):
    """A file of a session."""

    path: str
    size: int
    modified_at: Moment | None = None
    is_link: bool = False
    link_target: str | None = None


class WorkspaceAnswer(msgspec.Struct, frozen=True):
    """The files of a session between its runs."""

    items: tuple[WorkspaceFile, ...]
    total_bytes: int
    truncated: bool = False
    """Whether there are more files than the server lists."""


class Artifact(msgspec.Struct, frozen=True):
    """A file that a run left."""

    path: str
    size: int
    content_type: str | None = None
    created_at: Moment | None = None
    expires_at: Moment | None = None
    is_link: bool = False
    link_target: str | None = None


class ArtifactList(msgspec.Struct, frozen=True):
    """The files that a run left, by path."""

    items: tuple[Artifact, ...]
    total_bytes: int | None = None


class ArtifactsDeleted(msgspec.Struct, frozen=True):
    """The deletion of a run's artifacts."""

    freed_bytes: int


class GuaranteeAnswer(msgspec.Struct, frozen=True):
    """Whether something is enforced on the server's machine, and how."""

    guarantee: str
    enforced: bool
    how: str


class Isolation(msgspec.Struct, frozen=True):
    """The isolation between a program and the machine."""

    boundary_class: str
    untrusted_eligible: bool
    network_policies: tuple[str, ...] = ()
    guarantees: tuple[GuaranteeAnswer, ...] = ()
    facts: dict[str, str] = {}


class RuntimeLanguage(msgspec.Struct, frozen=True):
    """A language that a runtime has."""

    name: str
    aliases: tuple[str, ...] = ()
    version: str | None = None
    """None where it is not known, or not yet."""
    image: str | None = None
    start: str | None = None
    """How its programs start: forked, parked or cold."""
    compiled: bool = False
    file: str = "main"
    """The default name of its main file."""


class RuntimeAnswer(msgspec.Struct, frozen=True):
    """One runtime, and what runs may use of it."""

    name: str
    available: bool
    version: str | None = None
    default_images: tuple[str, ...] = ()
    languages: tuple[RuntimeLanguage, ...] = ()
    max_cpu: float | None = None
    max_mem_mb: int | None = None
    max_upload_mb: int | None = None
    max_log_bytes: int | None = None
    max_concurrent_runs: int | None = None
    max_concurrent_runs_per_user: int | None = None
    queue_max_length: int | None = None
    queue_max_length_per_user: int | None = None
    queue_ttl_sec: float | None = None
    workspace_cap_mb: int | None = None
    artifact_ttl_hours: float | None = None
    supported_spec_versions: tuple[str, ...] = ()
    interactive_supported: bool = False
    egress_allowlist_supported: bool = False
    isolation: Isolation | None = None
    reason: str | None = None
    """Why it is not available."""
    notes: str | None = None


class RuntimesAnswer(msgspec.Struct, frozen=True):
    """The runtimes, limits and versions of a server."""

    runtimes: tuple[RuntimeAnswer, ...]
    store_mode: str | None = None
    default_runtime: str | None = None
    execution_enabled: bool | None = None
    policy_hash: str | None = None
    supported_spec_versions: tuple[str, ...] = ()
    trust_levels: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    """Those that the default runtime has an interpreter for."""


class StoreHealth(msgspec.Struct, frozen=True):
    """Whether the store answers."""

    mode: str
    ok: bool
    latency_ms: float | None = None


class ServiceLoad(msgspec.Struct, frozen=True):
    """The number of runs that are active, and that wait."""

    active: int
    queued: int


class ServiceHealth(msgspec.Struct, frozen=True):
    """The health of a server and its parts."""

    status: str
    version: str | None = None
    execution_enabled: bool | None = None
    store: StoreHealth | None = None
    load: ServiceLoad | None = None
    runtimes: dict[str, bool] = {}


# Answers of the admin routes.


class AdminRun(RunState, frozen=True, kw_only=True):
    """A run in a list of everybody's."""

    id: str
    user_id: str
    session_id: str | None = None
    created_at: Moment | None = None
    runtime: str | None = None
    runtime_version: str | None = None
    base_image: str | None = None
    image_digest: str | None = None
    spec_version: str | None = None
    policy_hash: str | None = None
    node_id: str | None = None


class AdminRunDetails(AdminRun, frozen=True, kw_only=True):
    """Everything that is known of anybody's run, but not its program, environment or output."""

    network_policy: str | None = None
    trust_level: str | None = None
    labels: dict[str, str] = {}
    resource_usage: ResourceUsage = ResourceUsage()
    log_stream_url: str | None = None
    artifacts: tuple[Artifact, ...] = ()


class IdempotencyEntry(msgspec.Struct, frozen=True):
    """A key that was used."""

    endpoint: str
    user_key: str
    key: str
    created_at: Moment
    object_id: str


class UserUsage(msgspec.Struct, frozen=True):
    """The storage that a user takes."""

    user_id: str
    artifact_bytes: int


class UsageTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of several runs."""

    runs: int
    completed: int
    failed: int
    timed_out: int
    killed: int = 0
    cpu_time_sec: float = 0
    log_bytes: int = 0
    artifact_bytes: int = 0


class RuntimeTotals(UsageTotals, frozen=True, kw_only=True):
    """Totals of the runs on one runtime."""

    runtime: str


class UserTotals(UsageTotals, frozen=True, kw_only=True):
    """Totals of the runs of one user."""

    user_id: str


class Window(msgspec.Struct, frozen=True):
    """A time, both ends included."""

    begin: Moment = msgspec.field(name="from")
    end: Moment = msgspec.field(name="to")


class UsageSummary(msgspec.Struct, frozen=True):
    """Totals of the runs that were created in a time."""

    window: Window
    totals: UsageTotals
    by_runtime: tuple[RuntimeTotals, ...] = ()
    top_users: tuple[UserTotals, ...] = ()


class MetricValue(msgspec.Struct, frozen=True):
    """One value of a metric."""

    labels: dict[str, str]
    value: float


class AuditEvent(msgspec.Struct, frozen=True):
    """Something that the audit log has."""

    ts: Moment
    event: str
    outcome: str | None = None
    user_id: str | None = None
    actor: str | None = None
    surface: str | None = None
    source: str | None = None
    """The kind of program that the client said it was."""
    address: str | None = None
    request_id: str | None = None
    run_id: str | None = None
    session_id: str | None = None
    fields: dict[str, Any] = {}
    """The whole event as the server has it."""

"""What requests and answers of the service look like: the former are validated by it, the latter described."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator

from tidebox.api.interpreter.sources import GitRequest
from tidebox.model.words import MAX_WORD_BYTES

MAX_ARGUMENTS = 4096
MAX_VARIABLES = 256
MAX_LABELS = 64
MAX_FILES = 1000
MAX_PATTERNS = 100

RuntimeName = Literal["native", "docker", "gvisor", "firecracker", "qemu"]
Network = Literal["deny_all", "allowlist"]
Trust = Literal["trusted", "standard", "untrusted"]
PhaseName = Literal["queued", "starting", "running", "completed", "failed", "timed_out", "killed"]

Word = Annotated[str, StringConstraints(max_length=MAX_WORD_BYTES, pattern=r"^[^\x00]*$")]
VariableName = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=r"^[^=\x00]+$")]
VariableValue = Annotated[str, StringConstraints(max_length=65536, pattern=r"^[^\x00]*$")]
LabelName = Annotated[str, StringConstraints(min_length=1, max_length=128)]
LabelValue = Annotated[str, StringConstraints(max_length=256)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=128)]


def _number(value: Any) -> Any:
    """Refuse what only looks like a number: true is not 1, and "5" is not 5."""
    if isinstance(value, (bool, str)):
        raise ValueError("give a number")
    return value


Number = BeforeValidator(_number)
Seconds = Annotated[float, Field(gt=0, le=31536000, allow_inf_nan=False), Number]
# No box can be timed more finely.
RunSeconds = Annotated[float, Field(ge=0.01, le=31536000, allow_inf_nan=False), Number]
Count = Annotated[int, Field(ge=1, le=2**40), Number]
Cpus = Annotated[float, Field(ge=0.01, le=1024, allow_inf_nan=False), Number]
Mebibytes = Annotated[int, Field(ge=8, le=1048576), Number]

Env = Annotated[
    dict[VariableName, VariableValue],
    Field(max_length=MAX_VARIABLES, json_schema_extra={"additionalProperties": False}),
]
Labels = Annotated[dict[LabelName, LabelValue], Field(max_length=MAX_LABELS)]


class _Request(BaseModel):
    """Nothing of a request is ignored: a misspelt limit must not be no limit."""

    model_config = ConfigDict(extra="forbid")


class Resources(_Request):
    """What a run may use; more than the policy allows becomes the most it allows."""

    cpu: Cpus | None = None
    memory_mb: Mebibytes | None = None
    pids: Annotated[int, Field(ge=4, le=32768), Number] | None = None


# What files.names takes, in the words of a schema; only the length of a name in bytes has none.
_FILE_NAME = r"(?!\.{1,2}(?:/|$))[^/\\\u0000-\u001f\u007f]{1,255}"
_FILE_PATH = rf"^(?![A-Za-z]:)(?:\./+)*{_FILE_NAME}(?:/+(?:\./+)*{_FILE_NAME}){{0,10}}(?:/+\.)*$"
_BASE64 = r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"


class InlineFile(_Request):
    """A small file that is put into the workspace before the program starts."""

    path: Annotated[str, Field(min_length=1, max_length=4096, json_schema_extra={"pattern": _FILE_PATH})]
    content_b64: Annotated[
        str,
        Field(max_length=2 * 1024 * 1024, json_schema_extra={"contentEncoding": "base64", "pattern": _BASE64}),
    ]


class _Terms(_Request):
    spec_version: Annotated[str, StringConstraints(max_length=32)]
    runtime: RuntimeName | None = None
    base_image: Name | None = None
    env: Env = Field(default_factory=dict)
    labels: Labels = Field(default_factory=dict)
    timeout_sec: RunSeconds | None = Field(None, description="How long the program may run.")
    resources: Resources | None = None
    cpu_limit: Cpus | None = Field(None, description="The same as `resources.cpu`.")
    memory_mb: Mebibytes | None = Field(None, description="The same as `resources.memory_mb`.")
    network_policy: Network | None = None
    trust_level: Trust | None = Field(None, description="A profile of limits; it only narrows the policy.")

    @property
    def cpu(self) -> float | None:
        """The processors asked for, wherever."""
        return self.resources.cpu if self.resources and self.resources.cpu is not None else self.cpu_limit

    @property
    def memory(self) -> int | None:
        """The memory asked for, wherever."""
        return self.resources.memory_mb if self.resources and self.resources.memory_mb is not None else self.memory_mb

    @property
    def pids(self) -> int | None:
        """The processes asked for."""
        return self.resources.pids if self.resources else None


class SessionRequest(_Terms):
    """A session to be made."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "spec_version": "1.0",
                    "runtime": "native",
                    "base_image": "python:3.11-slim",
                    "timeout_sec": 60,
                    "network_policy": "deny_all",
                    "labels": {"project": "demo"},
                }
            ]
        },
    )

    ttl_sec: Seconds | None = Field(None, description="How long the session lives; at most what the policy allows.")
    startup_timeout_sec: Seconds | None = None


_ONE_OF: dict[str, Any] = {
    "examples": [
        {
            "spec_version": "1.0",
            "base_image": "python:3.11-slim",
            "command": ["python", "-c", "print('hello')"],
            "timeout_sec": 20,
            "resources": {"cpu": 1, "memory_mb": 512},
            "network_policy": "deny_all",
        }
    ],
    "oneOf": [
        {"required": ["session_id"], "properties": {"session_id": {"type": "string"}, "base_image": {"type": "null"}}},
        {"required": ["base_image"], "properties": {"base_image": {"type": "string"}, "session_id": {"type": "null"}}},
    ],
    "if": {"required": ["interactive"], "properties": {"interactive": {"const": True}}},
    "then": {"properties": {"spec_version": {"not": {"const": "1.0"}}}},
}


class RunRequest(_Terms):
    """A run to be started: in a session, or once in a fresh workspace."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=_ONE_OF)

    session_id: Name | None = None
    command: Annotated[
        list[Word],
        Field(
            min_length=1,
            max_length=MAX_ARGUMENTS,
            description="Executed as it is, without a shell.",
            json_schema_extra={"prefixItems": [{"type": "string", "minLength": 1, "pattern": "^[^\\x00]+$"}]},
        ),
    ]
    startup_timeout_sec: Seconds | None = Field(None, description="How long it may take until the program runs.")
    files: Annotated[list[InlineFile], Field(max_length=MAX_FILES)] = Field(default_factory=list)
    git: GitRequest | None = None
    capture_patterns: Annotated[
        list[Annotated[str, StringConstraints(min_length=1, max_length=1024)]], Field(max_length=MAX_PATTERNS)
    ] = Field(default_factory=list, description="Which files of the workspace are kept as artifacts.")
    interactive: Annotated[bool, Field(strict=True)] = Field(
        False, description="Whether input is sent over the log stream (since 1.1)."
    )
    stdin_max_bytes: Count | None = None
    stdin_max_frame_bytes: Count | None = None
    stdin_bps: Count | None = None
    stdin_idle_timeout_sec: Seconds | None = None
    resume_from_seq: Annotated[int, Field(ge=0, le=2**53), Number] | None = None

    @model_validator(mode="after")
    def _one_of(self) -> RunRequest:
        if (self.session_id is None) == (self.base_image is None):
            raise ValueError("give either session_id or base_image")
        if not self.command[0]:
            raise ValueError("the first word of the command is empty")
        return self


class Details(BaseModel):
    """What became of the idempotency key, where one was given."""

    idempotency_key_echo: str | None = None
    idempotency_status: Literal["created", "replayed"] | None = None


class Limits(BaseModel):
    """The limits that were in force."""

    cpu: float | None = None
    memory_mb: float | None = None
    pids: float | None = None
    nofile: float | None = None
    startup_timeout_sec: float | None = None
    timeout_sec: float | None = None


class ResourceUsage(BaseModel):
    """What a run used. Everything but `limits` is null until it is over, and where nothing counted it."""

    cpu_time_sec: float | None = None
    wall_time_sec: float | None = None
    peak_rss_mb: float | None = None
    pids: int | None = None
    max_open_files: int | None = None
    log_bytes: int | None = None
    log_truncated: bool | None = None
    artifact_bytes: int | None = None
    files_left_out: dict[str, int] | None = Field(None, description="Files that were not kept, by the reason.")
    oom_kills: int | None = None
    limits: Limits


class SessionAnswer(BaseModel):
    """A session."""

    session_id: str
    id: str
    user_id: str
    state: Literal["active", "closing"]
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
    timeout_sec: float | None
    resources: dict[str, float]
    labels: dict[str, str]
    details: Details


class SessionList(BaseModel):
    """Some sessions."""

    items: list[SessionAnswer]
    total: int
    limit: int
    offset: int
    has_more: bool


class SessionDeleted(BaseModel):
    """A session is gone."""

    session_id: str
    id: str
    deleted: bool
    ok: bool


class RunAnswer(BaseModel):
    """A run."""

    run_id: str
    id: str
    session_id: str | None
    phase: PhaseName
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
    details: Details


class RunList(BaseModel):
    """Some runs."""

    items: list[RunAnswer]
    total: int
    limit: int
    offset: int
    has_more: bool


class CancelAnswer(RunAnswer):
    """A run whose end was asked for; it may take until the end of the grace."""

    cancel_requested: bool
    """False where it was over already."""


class GuaranteeAnswer(BaseModel):
    """Whether something is enforced on this machine, and how."""

    guarantee: str
    enforced: bool
    how: str


class IsolationAnswer(BaseModel):
    """What stands between a program and the machine."""

    boundary_class: str
    untrusted_eligible: bool
    network_policies: list[str]
    guarantees: list[GuaranteeAnswer]
    facts: dict[str, str]


class RuntimeAnswer(BaseModel):
    """One runtime, and what runs may use of it."""

    name: str
    available: bool
    version: str | None
    default_images: list[str]
    max_cpu: float
    max_mem_mb: int
    max_upload_mb: int
    max_log_bytes: int
    max_concurrent_runs: int
    max_concurrent_runs_per_user: int
    queue_max_length: int
    queue_max_length_per_user: int
    queue_ttl_sec: float
    workspace_cap_mb: int
    artifact_ttl_hours: float
    supported_spec_versions: list[str]
    interactive_supported: bool
    egress_allowlist_supported: bool
    store_mode: str
    boundary_class: str
    untrusted_eligible: bool
    isolation: IsolationAnswer
    notes: str | None


class RuntimesAnswer(BaseModel):
    """What this server can do."""

    store_mode: str
    default_runtime: str
    execution_enabled: bool
    policy_hash: str
    supported_spec_versions: list[str]
    trust_levels: list[str]
    runtimes: list[RuntimeAnswer]


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
    phase: PhaseName
    exit_code: int | None
    reason_code: str | None
    message: str | None
    created_at: str
    started_at: str | None
    finished_at: str | None
    policy_hash: str
    node_id: str


class AdminRunList(BaseModel):
    """Some runs of everybody."""

    items: list[AdminRun]
    total: int
    limit: int
    offset: int
    has_more: bool


class AdminArtifact(BaseModel):
    """What an admin sees of an artifact."""

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


class IdempotencyEntry(BaseModel):
    """A key that was used."""

    endpoint: str
    user_key: str
    key: str
    created_at: str
    object_id: str


class IdempotencyList(BaseModel):
    """Some keys, newest first."""

    items: list[IdempotencyEntry]
    limit: int
    offset: int


class UserUsage(BaseModel):
    """What a user has."""

    user_id: str
    artifact_bytes: int


class UsageList(BaseModel):
    """Users, those with most artifacts first."""

    items: list[UserUsage]
    limit: int
    offset: int


class Window(BaseModel):
    """A time, both ends included."""

    model_config = ConfigDict(populate_by_name=True)

    from_: str = Field(alias="from")
    to: str


class UsageTotals(BaseModel):
    """What runs came to."""

    runs: int
    completed: int
    failed: int
    timed_out: int
    killed: int
    cpu_time_sec: float
    log_bytes: int
    artifact_bytes: int


class RuntimeTotals(UsageTotals):
    """What the runs on one runtime came to."""

    runtime: str


class UserTotals(UsageTotals):
    """What the runs of one user came to."""

    user_id: str


class UsageSummary(BaseModel):
    """What the runs created in a time came to."""

    window: Window
    totals: UsageTotals
    by_runtime: list[RuntimeTotals]
    top_users: list[UserTotals]


class Series(BaseModel):
    """One value of a metric."""

    labels: dict[str, str]
    value: float


class AuditList(BaseModel):
    """Some events of the audit log."""

    items: list[dict[str, Any]]
    limit: int
    offset: int
    has_more: bool


class StoreHealth(BaseModel):
    """Whether the store answers."""

    mode: str
    ok: bool
    latency_ms: float | None


class LoadAnswer(BaseModel):
    """How much there is to do."""

    active: int
    queued: int


class HealthAnswer(BaseModel):
    """How the server is."""

    status: Literal["ok", "degraded", "draining"]
    version: str
    execution_enabled: bool
    store: StoreHealth
    load: LoadAnswer
    runtimes: dict[str, bool]


class PublicHealth(BaseModel):
    """Whether the server takes work."""

    status: Literal["ok", "degraded", "draining"]

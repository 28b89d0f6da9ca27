"""Request bodies of the service."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from tidebox.api.egress import EgressRequest
from tidebox.api.interpreter.git_request import GitRequest, Number
from tidebox.api.packages import PackagesRequest
from tidebox.model.command_size import MAX_WORD_BYTES

MAX_ARGUMENTS = 4096
MAX_VARIABLES = 256
MAX_LABELS = 64
MAX_FILES = 1000
MAX_PATTERNS = 100

RuntimeName = Literal["native", "docker", "gvisor", "firecracker", "qemu"]
Network = Literal["deny_all", "allowlist"]
Trust = Literal["trusted", "standard", "untrusted"]

Word = Annotated[str, StringConstraints(max_length=MAX_WORD_BYTES, pattern=r"^[^\x00]*$")]
VariableName = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=r"^[^=\x00]+$")]
VariableValue = Annotated[str, StringConstraints(max_length=65536, pattern=r"^[^\x00]*$")]
LabelName = Annotated[str, StringConstraints(min_length=1, max_length=128)]
LabelValue = Annotated[str, StringConstraints(max_length=256)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=128)]
# What is behind a plus sign is for us to say.
ImageName = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[^+]*$")]


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


class _StrictModel(BaseModel):
    """Nothing of a request is ignored: a misspelt limit must not be no limit."""

    model_config = ConfigDict(extra="forbid")


class Resources(_StrictModel):
    """Resource limits; more than the policy allows becomes the most it allows."""

    cpu: Cpus | None = None
    memory_mb: Mebibytes | None = None
    pids: Annotated[int, Field(ge=4, le=32768), Number] | None = None


class RunResources(Resources):
    """Resource limits of a run; `workspace_mb` only of one that is in no session."""

    workspace_mb: Annotated[int, Field(ge=1, le=1048576), Number] | None = None


# What files.names takes, in the words of a schema; only the length of a name in bytes has none.
_FILE_NAME = r"(?!\.{1,2}(?:/|$))[^/\\\u0000-\u001f\u007f]{1,255}"
_FILE_PATH = rf"^(?![A-Za-z]:)(?:\./+)*{_FILE_NAME}(?:/+(?:\./+)*{_FILE_NAME}){{0,10}}(?:/+\.)*$"
_BASE64 = r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"


class InlineFile(_StrictModel):
    """A small file that is put into the workspace before the program starts."""

    path: Annotated[str, Field(min_length=1, max_length=4096, json_schema_extra={"pattern": _FILE_PATH})]
    content_b64: Annotated[
        str,
        Field(max_length=2 * 1024 * 1024, json_schema_extra={"contentEncoding": "base64", "pattern": _BASE64}),
    ]


class _PolicyFields(_StrictModel):
    spec_version: Annotated[str, StringConstraints(max_length=32)]
    runtime: RuntimeName | None = None
    base_image: ImageName | None = None
    packages: PackagesRequest | None = Field(None, description="What programs need besides (since 1.1).")
    env: Env = Field(default_factory=dict)
    labels: Labels = Field(default_factory=dict)
    timeout_sec: RunSeconds | None = Field(None, description="How long the program may run.")
    resources: Resources | None = None
    cpu_limit: Cpus | None = Field(None, description="The same as `resources.cpu`.")
    memory_mb: Mebibytes | None = Field(None, description="The same as `resources.memory_mb`.")
    network_policy: Network | None = None
    egress: EgressRequest | None = Field(
        None, description="What programs may reach, with `network_policy` `allowlist` (since 1.1)."
    )
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


_NOT_1_0 = {"properties": {"spec_version": {"not": {"const": "1.0"}}}}
_PACKAGES_NEED_VERSION: dict[str, Any] = {
    "if": {"required": ["packages"], "properties": {"packages": {"type": "object"}}},
    "then": _NOT_1_0,
}


_EGRESS_NEEDS_VERSION: dict[str, Any] = {
    "if": {"required": ["egress"], "properties": {"egress": {"type": "object"}}},
    "then": {
        "required": ["network_policy"],
        "properties": {**_NOT_1_0["properties"], "network_policy": {"const": "allowlist"}},
    },
}


_LANGUAGE_NEEDS_VERSION: dict[str, Any] = {
    "if": {"required": ["language"], "properties": {"language": {"type": "string"}}},
    "then": _NOT_1_0,
}


class SessionRequest(_PolicyFields):
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
            ],
            "allOf": [_PACKAGES_NEED_VERSION, _EGRESS_NEEDS_VERSION],
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
    "allOf": [
        {"if": {"required": ["interactive"], "properties": {"interactive": {"const": True}}}, "then": _NOT_1_0},
        _PACKAGES_NEED_VERSION,
        _EGRESS_NEEDS_VERSION,
        _LANGUAGE_NEEDS_VERSION,
    ],
}


class RunRequest(_PolicyFields):
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
    language: Annotated[str, StringConstraints(min_length=1, max_length=32)] | None = Field(
        None,
        description="The language of the file that the first word of `command` names; the others are its arguments "
        "(since 1.1).",
    )
    resources: RunResources | None = None
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
        if self.session_id is not None and self.resources is not None and self.resources.workspace_mb is not None:
            raise ValueError("the workspace of a session has its own size: leave resources.workspace_mb out")
        if not self.command[0]:
            raise ValueError("the first word of the command is empty")
        return self

"""Resource policy: what the operator allows, what a request asks for, what a run gets, and the policy's hash.

Every rule here only narrows. A request asks, a trust profile bounds what it may ask for, and the policy bounds both:
numbers that are too large become the largest allowed one, and whatever cannot be enforced is refused.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from tidebox.errors import InvalidRequest, InvalidSpecVersion
from tidebox.model.limits import MIB, Limits
from tidebox.model.runtimes import BOUNDARIES

NetworkPolicy = Literal["deny_all", "allowlist"]
TrustLevel = Literal["trusted", "standard", "untrusted"]

DENY_ALL: NetworkPolicy = "deny_all"
ALLOWLIST: NetworkPolicy = "allowlist"

DEFAULT_TRUST: TrustLevel = "standard"
DEFAULT_CPU = 1.0
DEFAULT_MEMORY_MB = 512
SPEC_VERSIONS = ("1.0", "1.1")
INTERACTIVE_SINCE = "1.1"
PACKAGES_SINCE = "1.1"
EGRESS_SINCE = "1.1"
LANGUAGE_SINCE = "1.1"

_HASH_PREFIX = b"tldw.sandbox.policy:v1\n"


def _hashed(default: Any) -> Any:
    return dataclasses.field(default=default, metadata={"hashed": True})


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The operator's policy. The first part is what the policy hash is made of, named as the settings are."""

    default_runtime: str = _hashed("native")
    network_default: str = _hashed("deny_all")
    max_upload_mb: int = _hashed(64)
    max_log_bytes: int = _hashed(10 * MIB)
    workspace_cap_mb: int = _hashed(256)
    artifact_ttl_hours: float = _hashed(24)
    max_artifact_bytes_per_run_mb: int = _hashed(32)
    max_artifact_bytes_per_user_mb: int = _hashed(128)
    max_cpu: float = _hashed(4.0)
    max_mem_mb: int = _hashed(8192)
    pids_limit: int = _hashed(256)
    ulimit_nofile: int = _hashed(1024)
    ulimit_nproc: int = _hashed(512)
    default_startup_timeout_sec: float = _hashed(20)
    default_exec_timeout_sec: float = _hashed(60)
    cancel_grace_seconds: float = _hashed(5)
    enable_execution: bool = _hashed(True)
    background_execution: bool = _hashed(True)
    """Runs always go on after their request was answered."""
    docker_seccomp: str | None = _hashed(None)
    docker_apparmor_profile: str | None = _hashed(None)
    supported_spec_versions: tuple[str, ...] = _hashed(SPEC_VERSIONS)

    max_startup_timeout_sec: float = 300.0
    max_exec_timeout_sec: float = 3600.0
    session_ttl_sec: float = 3600.0
    workspace_noexec: bool = True
    executable_scratch: bool = True
    """Whether what a compiler makes can be executed, in a directory of its own, although the workspace is noexec."""
    compile_timeout_sec: float = 60.0
    untrusted_boundary: str = BOUNDARIES[0]
    """The weakest boundary that untrusted runs may have around them."""


def hashed_policy(policy: Policy) -> dict[str, Any]:
    """The settings that make up a policy's fingerprint, with their effective values."""
    return {
        f"SANDBOX_{item.name.upper()}": _canonical(getattr(policy, item.name))
        for item in dataclasses.fields(policy)
        if item.metadata.get("hashed")
    }


def policy_hash(policy: Policy) -> str:
    """The policy's fingerprint: 64 hexadecimal digits that change whenever a value of ``hashed_policy`` does."""
    document = json.dumps(hashed_policy(policy), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(_HASH_PREFIX + document.encode()).hexdigest()


def _canonical(value: Any) -> Any:
    """As RFC 8785 writes numbers: 4.0 and 4 are one number, and one text."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return list(value) if isinstance(value, tuple) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyBounds:
    """The most that runs may ask for."""

    cpu: float
    memory_mb: int
    pids: int
    timeout_sec: float
    startup_timeout_sec: float


_UNBOUNDED = float("inf")
# What a profile says nothing about is bounded by the policy alone.
TRUST_PROFILES: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "trusted": {},
        "standard": {"timeout_sec": 900},
        "untrusted": {"cpu": 1.0, "memory_mb": 512, "pids": 64, "timeout_sec": 60, "startup_timeout_sec": 20},
    }
)
_STRICTNESS = tuple(TRUST_PROFILES)


def bounds_of(policy: Policy, trust: str) -> PolicyBounds:
    """The policy, narrowed by a trust profile."""
    profile = TRUST_PROFILES[trust]
    return PolicyBounds(
        cpu=min(policy.max_cpu, profile.get("cpu", _UNBOUNDED)),
        memory_mb=int(min(policy.max_mem_mb, profile.get("memory_mb", _UNBOUNDED))),
        pids=int(min(policy.pids_limit, policy.ulimit_nproc, profile.get("pids", _UNBOUNDED))),
        timeout_sec=min(policy.max_exec_timeout_sec, profile.get("timeout_sec", _UNBOUNDED)),
        startup_timeout_sec=min(policy.max_startup_timeout_sec, profile.get("startup_timeout_sec", _UNBOUNDED)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceRequest:
    """The resources a request or a session asks for; None for the default."""

    cpu: float | None = None
    memory_mb: int | None = None
    pids: int | None = None
    workspace_mb: int | None = None
    """Less than the size of every workspace, for one run."""
    timeout_sec: float | None = None
    startup_timeout_sec: float | None = None
    network_policy: str | None = None
    trust_level: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTerms:
    """The resources a run is granted."""

    cpu: float
    memory_mb: int
    pids: int
    nofile: int
    timeout_sec: float
    startup_timeout_sec: float
    network_policy: str
    trust_level: str
    workspace_mb: int | None = None
    """None for the size of every workspace."""

    def limits(self, policy: Policy) -> Limits:
        """As the runtime is told."""
        workspace = (self.workspace_mb or policy.workspace_cap_mb) * MIB
        return Limits(
            timeout=self.timeout_sec,
            memory=self.memory_mb * MIB,
            pids=self.pids,
            cpus=self.cpu,
            output=policy.max_log_bytes,
            workspace=workspace,
            open_files=self.nofile,
            file_size=workspace,
            compile_timeout=policy.compile_timeout_sec,
        )

    def shown(self) -> dict[str, float]:
        """The ``limits`` of a run's usage, as clients are told."""
        shown = {
            "cpu": self.cpu,
            "memory_mb": self.memory_mb,
            "pids": self.pids,
            "nofile": self.nofile,
            "startup_timeout_sec": self.startup_timeout_sec,
            "timeout_sec": self.timeout_sec,
        }
        return shown if self.workspace_mb is None else {**shown, "workspace_mb": self.workspace_mb}


def boundary_for(policy: Policy, trust: str) -> str:
    """The weakest boundary that a run of this trust level may have around it."""
    return policy.untrusted_boundary if trust == "untrusted" else BOUNDARIES[0]


def terms_of(policy: Policy, request: ResourceRequest, session: ResourceRequest | None = None) -> RunTerms:
    """Decide the resources of a run: as the request asks, then its session, then the policy's defaults."""
    asked = request if session is None else _over(session, request)
    trust = _stricter(session.trust_level if session else None, request.trust_level)
    bounds = bounds_of(policy, trust)
    network = asked.network_policy or policy.network_default
    if session is not None and session.network_policy == DENY_ALL and network != DENY_ALL:
        raise InvalidRequest(f"the session's network_policy is {DENY_ALL}", field="network_policy")
    return RunTerms(
        cpu=_within("resources.cpu", asked.cpu, min(DEFAULT_CPU, bounds.cpu), bounds.cpu),
        memory_mb=int(
            _within("resources.memory_mb", asked.memory_mb, min(DEFAULT_MEMORY_MB, bounds.memory_mb), bounds.memory_mb)
        ),
        pids=int(_within("resources.pids", asked.pids, bounds.pids, bounds.pids)),
        nofile=policy.ulimit_nofile,
        timeout_sec=_within("timeout_sec", asked.timeout_sec, policy.default_exec_timeout_sec, bounds.timeout_sec),
        startup_timeout_sec=_within(
            "startup_timeout_sec",
            asked.startup_timeout_sec,
            policy.default_startup_timeout_sec,
            bounds.startup_timeout_sec,
        ),
        network_policy=network,
        trust_level=trust,
        workspace_mb=None if request.workspace_mb is None else min(request.workspace_mb, policy.workspace_cap_mb),
    )


def _over(session: ResourceRequest, request: ResourceRequest) -> ResourceRequest:
    given = {
        item.name: value for item in dataclasses.fields(request) if (value := getattr(request, item.name)) is not None
    }
    return dataclasses.replace(session, **given)


def _stricter(*levels: str | None) -> str:
    """The strictest of the levels that were named: a run cannot be trusted more than its session."""
    named = [level for level in levels if level is not None] or [DEFAULT_TRUST]
    for level in named:
        if level not in TRUST_PROFILES:
            raise InvalidRequest(f"no such trust level; known are {', '.join(_STRICTNESS)}", field="trust_level")
    return max(named, key=_STRICTNESS.index)


def _within(field: str, asked: float | None, default: float, most: float) -> float:
    if asked is None:
        return min(default, most)
    if not asked > 0:
        raise InvalidRequest(f"{field} must be more than 0", field=field)
    return min(asked, most)


def check_spec_version(policy: Policy, version: str) -> None:
    """Refuse a version of the specification that this server does not speak."""
    if version not in policy.supported_spec_versions:
        raise InvalidSpecVersion(
            f"Unsupported spec_version {version[:32]!r}",
            supported=list(policy.supported_spec_versions),
            provided=version[:32],
        )

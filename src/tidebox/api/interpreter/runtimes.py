"""``GET /runtimes``: what this server can do."""

from __future__ import annotations

from typing import Self

from fastapi import APIRouter
from pydantic import BaseModel, Field

from tidebox.api.answers import Quantity, example
from tidebox.api.route_dependencies import CallerDep, ServicesDep, errors
from tidebox.api.services import Services
from tidebox.model.policy import ALLOWLIST, DENY_ALL, TRUST_PROFILES
from tidebox.model.runtimes import Finding, Guarantee, OfferedLanguage, RuntimeInfo

router = APIRouter(tags=["discovery"])


class GuaranteeAnswer(BaseModel):
    """Whether something is enforced on this machine, and how."""

    guarantee: str
    enforced: bool
    how: str

    @classmethod
    def of(cls, finding: Finding) -> Self:
        """Make the answer from the finding of one guarantee."""
        return cls(guarantee=finding.guarantee.value, enforced=finding.enforced, how=finding.how)


class IsolationAnswer(BaseModel):
    """The isolation between a program and the machine."""

    boundary_class: str
    untrusted_eligible: bool
    network_policies: list[str]
    guarantees: list[GuaranteeAnswer]
    facts: dict[str, str]

    @classmethod
    def of(cls, info: RuntimeInfo, network_policies: list[str]) -> Self:
        """The isolation of one runtime."""
        return cls(
            boundary_class=info.boundary,
            untrusted_eligible=info.untrusted_eligible,
            network_policies=network_policies,
            guarantees=[GuaranteeAnswer.of(finding) for finding in info.findings],
            facts=dict(info.facts),
        )


class LanguageAnswer(BaseModel):
    """One language of a runtime."""

    name: str
    aliases: list[str]
    version: str | None = Field(description="Null where it is not known, or not yet.")
    image: str = Field(description="Of programs whose caller names none.")
    start: str = Field(description="How its programs start: forked, parked or cold.")
    compiled: bool = Field(description="Whether a compiler runs before the program.")
    file: str = Field(description="What its main file is called where nothing else is said.")

    @classmethod
    def of(cls, offered: OfferedLanguage) -> Self:
        """One language."""
        return cls(
            name=offered.name,
            aliases=list(offered.aliases),
            version=offered.version,
            image=offered.image,
            start=offered.start,
            compiled=offered.compiled,
            file=offered.file,
        )


class RuntimeAnswer(BaseModel):
    """One runtime, and what runs may use of it."""

    name: str
    available: bool
    version: str | None
    default_images: list[str]
    languages: list[LanguageAnswer]
    max_cpu: Quantity
    max_mem_mb: int
    max_upload_mb: int
    max_log_bytes: int
    max_concurrent_runs: int
    max_concurrent_runs_per_user: int
    queue_max_length: int
    queue_max_length_per_user: int
    queue_ttl_sec: Quantity
    workspace_cap_mb: int
    artifact_ttl_hours: Quantity
    supported_spec_versions: list[str]
    interactive_supported: bool
    egress_allowlist_supported: bool
    store_mode: str
    boundary_class: str
    untrusted_eligible: bool
    isolation: IsolationAnswer
    reason: str | None
    notes: str | None

    @classmethod
    async def of(cls, info: RuntimeInfo, services: Services) -> Self:
        """One runtime on this server."""
        policy, settings = services.policy, services.settings
        capacity = services.broker.capacity
        egress = info.available and info.features.egress and services.planner.egress.offered
        off = "execution is turned off on this server" if info.available and not policy.enable_execution else None
        return cls(
            name=info.name,
            available=info.available and policy.enable_execution,
            version=info.version,
            default_images=list(info.default_images),
            languages=[LanguageAnswer.of(item) for item in await services.offered(info.name)] if info.available else [],
            max_cpu=policy.max_cpu,
            max_mem_mb=policy.max_mem_mb,
            max_upload_mb=policy.max_upload_mb,
            max_log_bytes=policy.max_log_bytes,
            max_concurrent_runs=capacity.max_concurrent,
            max_concurrent_runs_per_user=capacity.own_slots,
            queue_max_length=capacity.queue_max,
            queue_max_length_per_user=capacity.own_places,
            queue_ttl_sec=settings.queue_ttl_sec,
            workspace_cap_mb=policy.workspace_cap_mb,
            artifact_ttl_hours=policy.artifact_ttl_hours,
            supported_spec_versions=list(policy.supported_spec_versions),
            interactive_supported=info.available,
            egress_allowlist_supported=egress,
            store_mode=services.broker.store_mode,
            boundary_class=info.boundary,
            untrusted_eligible=info.untrusted_eligible,
            isolation=IsolationAnswer.of(info, [DENY_ALL, ALLOWLIST] if egress else [DENY_ALL]),
            reason=info.reason,
            notes=info.reason or off,
        )


class RuntimesAnswer(BaseModel):
    """The runtimes, limits and versions of this server."""

    store_mode: str
    default_runtime: str
    execution_enabled: bool
    policy_hash: str
    supported_spec_versions: list[str]
    trust_levels: list[str]
    languages: list[str] = Field(description="Those that the default runtime has an interpreter for.")
    runtimes: list[RuntimeAnswer]

    @classmethod
    async def of(cls, services: Services) -> Self:
        """Make the answer from the services of the server."""
        policy = services.policy
        return cls(
            store_mode=services.broker.store_mode,
            default_runtime=policy.default_runtime,
            execution_enabled=policy.enable_execution,
            policy_hash=services.planner.hash,
            supported_spec_versions=list(policy.supported_spec_versions),
            trust_levels=list(TRUST_PROFILES),
            languages=sorted(services.languages),
            runtimes=[await RuntimeAnswer.of(info, services) for info in services.runtimes.infos],
        )


_NATIVE = RuntimeInfo(
    name="native",
    available=True,
    boundary="namespaces",
    version="0.1.0",
    default_images=("host@sha256:...",),
    findings=(Finding(Guarantee.NETWORK, True, "an empty network namespace with loopback only"),),
    facts={"kernel": "6.8.0"},
)
_EXAMPLE = RuntimesAnswer(
    store_mode="sqlite",
    default_runtime="native",
    execution_enabled=True,
    policy_hash="e1ca8ed3c75e76cbbd0a78e3b1a1e2f1c7c8b6d1b0cf9d55cdd47f2f3c3d1a7e",
    supported_spec_versions=["1.0", "1.1"],
    trust_levels=list(TRUST_PROFILES),
    languages=["javascript", "python", "shell"],
    runtimes=[
        RuntimeAnswer(
            name=_NATIVE.name,
            available=True,
            version=_NATIVE.version,
            default_images=list(_NATIVE.default_images),
            languages=[
                LanguageAnswer(
                    name="python",
                    aliases=["py"],
                    version="3.11.2",
                    image="host",
                    start="forked",
                    compiled=False,
                    file="main.py",
                )
            ],
            max_cpu=4,
            max_mem_mb=8192,
            max_upload_mb=64,
            max_log_bytes=10485760,
            max_concurrent_runs=8,
            max_concurrent_runs_per_user=7,
            queue_max_length=100,
            queue_max_length_per_user=50,
            queue_ttl_sec=120,
            workspace_cap_mb=256,
            artifact_ttl_hours=24,
            supported_spec_versions=["1.0", "1.1"],
            interactive_supported=True,
            egress_allowlist_supported=False,
            store_mode="sqlite",
            boundary_class=_NATIVE.boundary,
            untrusted_eligible=True,
            isolation=IsolationAnswer.of(_NATIVE, [DENY_ALL]),
            reason=None,
            notes=None,
        )
    ],
)


@router.get("/runtimes", responses={200: example(_EXAMPLE), **errors()}, summary="What this server can do")
async def list_runtimes(services: ServicesDep, _caller: CallerDep) -> RuntimesAnswer:
    """The runtimes, with the guarantees they enforce on this machine, and the limits of runs."""
    await services.runtimes.look_closer()
    return await RuntimesAnswer.of(services)

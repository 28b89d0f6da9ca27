"""``GET /runtimes``: what this server can do."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from tidebox.api.common import CallerDep, ServicesDep, answer, errors, whole
from tidebox.api.interpreter.schemas import RuntimesAnswer
from tidebox.api.services import Services
from tidebox.model.policy import TRUST_PROFILES
from tidebox.model.runtimes import RuntimeInfo

router = APIRouter(tags=["discovery"])

_EXAMPLE = {
    "store_mode": "sqlite",
    "default_runtime": "native",
    "execution_enabled": True,
    "policy_hash": "e1ca8ed3c75e76cbbd0a78e3b1a1e2f1c7c8b6d1b0cf9d55cdd47f2f3c3d1a7e",
    "supported_spec_versions": ["1.0", "1.1"],
    "trust_levels": ["trusted", "standard", "untrusted"],
    "runtimes": [
        {
            "name": "native",
            "available": True,
            "version": "0.1.0",
            "default_images": ["host@sha256:..."],
            "max_cpu": 4,
            "max_mem_mb": 8192,
            "max_upload_mb": 64,
            "max_log_bytes": 10485760,
            "max_concurrent_runs": 8,
            "max_concurrent_runs_per_user": 7,
            "queue_max_length": 100,
            "queue_max_length_per_user": 50,
            "queue_ttl_sec": 120,
            "workspace_cap_mb": 256,
            "artifact_ttl_hours": 24,
            "supported_spec_versions": ["1.0", "1.1"],
            "interactive_supported": True,
            "egress_allowlist_supported": False,
            "store_mode": "sqlite",
            "boundary_class": "namespaces",
            "untrusted_eligible": True,
            "isolation": {
                "boundary_class": "namespaces",
                "untrusted_eligible": True,
                "network_policies": ["deny_all"],
                "guarantees": [
                    {
                        "guarantee": "network",
                        "enforced": True,
                        "how": "an empty network namespace with loopback only",
                    }
                ],
                "facts": {"kernel": "6.8.0"},
            },
            "notes": None,
        }
    ],
}


@router.get(
    "/runtimes",
    response_model=RuntimesAnswer,
    responses={200: {"content": {"application/json": {"example": _EXAMPLE}}}, **errors()},
    summary="What this server can do",
)
async def list_runtimes(services: ServicesDep, _caller: CallerDep) -> Response:
    """Which runtimes there are, with what they enforce on this machine, and what runs may ask for."""
    policy = services.policy
    return answer(
        {
            "store_mode": services.broker.store_mode,
            "default_runtime": policy.default_runtime,
            "execution_enabled": policy.enable_execution,
            "policy_hash": services.planner.hash,
            "supported_spec_versions": policy.supported_spec_versions,
            "trust_levels": list(TRUST_PROFILES),
            "runtimes": [_shown(services, info) for info in services.runtimes.infos],
        }
    )


def _shown(services: Services, info: RuntimeInfo) -> dict[str, Any]:
    policy, settings = services.policy, services.settings
    capacity = services.broker.capacity
    off = "execution is turned off on this server" if info.available and not policy.enable_execution else None
    return {
        "name": info.name,
        "available": info.available and policy.enable_execution,
        "version": info.version,
        "default_images": info.default_images,
        "max_cpu": whole(policy.max_cpu),
        "max_mem_mb": policy.max_mem_mb,
        "max_upload_mb": policy.max_upload_mb,
        "max_log_bytes": policy.max_log_bytes,
        "max_concurrent_runs": capacity.max_concurrent,
        "max_concurrent_runs_per_user": capacity.own_slots,
        "queue_max_length": capacity.queue_max,
        "queue_max_length_per_user": capacity.own_places,
        "queue_ttl_sec": whole(settings.queue_ttl_sec),
        "workspace_cap_mb": policy.workspace_cap_mb,
        "artifact_ttl_hours": whole(policy.artifact_ttl_hours),
        "supported_spec_versions": policy.supported_spec_versions,
        "interactive_supported": info.available,
        "egress_allowlist_supported": info.features.egress,
        "store_mode": services.broker.store_mode,
        "boundary_class": info.boundary,
        "untrusted_eligible": info.untrusted_eligible,
        "isolation": {
            "boundary_class": info.boundary,
            "untrusted_eligible": info.untrusted_eligible,
            "network_policies": ["deny_all"],
            "guarantees": [
                {"guarantee": finding.guarantee.value, "enforced": finding.enforced, "how": finding.how}
                for finding in info.findings
            ],
            "facts": dict(info.facts),
        },
        "notes": info.reason or off,
    }

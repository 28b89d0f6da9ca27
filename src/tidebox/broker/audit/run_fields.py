"""Audit fields of a run: its rules and its outcome, never its program or output."""

from __future__ import annotations

import dataclasses
from typing import Any

from tidebox.model.limits import MIB
from tidebox.model.run import Run


def audited(run: Run) -> dict[str, Any]:
    """The fields of an event about a run as it is now."""
    facts = run.facts
    fields: dict[str, Any] = {
        "run_id": run.id,
        "session_id": facts.session_id,
        "runtime": facts.runtime,
        "runtime_version": facts.runtime_version,
        "base_image": facts.base_image,
        "image_digest": facts.image_digest,
        "spec_version": facts.spec_version,
        "policy_hash": facts.policy_hash,
        "phase": run.phase.value,
    }
    if run.phase.terminal:
        fields |= {
            "exit_code": run.exit_status,
            "reason_code": run.reason.value if run.reason is not None else None,
            "message": run.message,
            "resource_usage": _usage(run),
            "limits": dict(facts.limits),
        }
    return fields


def _usage(run: Run) -> dict[str, Any]:
    usage = run.usage
    written = {"log_bytes": run.log_bytes, "artifact_bytes": run.artifact_bytes}
    if usage is None:
        return written
    return {
        "cpu_time_sec": usage.cpu_seconds,
        "wall_time_sec": usage.wall_seconds,
        "peak_rss_mb": round(usage.memory_peak / MIB, 2) if usage.memory_peak is not None else None,
        **written,
        **({} if usage.egress is None else {"egress": dataclasses.asdict(usage.egress)}),
    }

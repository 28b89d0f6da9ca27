"""The runtimes by name: where the class of each is, and which names are known although this server has none."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from tidebox.errors import RuntimeUnavailable
from tidebox.model.runtimes import Report, RuntimeInfo
from tidebox.runtime.base import Runtime

RUNTIMES: Mapping[str, str] = {"native": "tidebox.runtime.native.runtime:NativeRuntime"}
"""Where the class of a runtime is; loaded when it is first used."""
_ABSENT = {"docker": "container", "gvisor": "container", "firecracker": "microvm", "qemu": "microvm"}


def load(name: str) -> type[Runtime]:
    """The class of a runtime; raises ``RuntimeUnavailable`` where there is none of that name."""
    if name not in RUNTIMES:
        raise RuntimeUnavailable(_absence(name[:32]), runtime=name[:32], available=False, suggested=list(RUNTIMES))
    module, _, attribute = RUNTIMES[name].partition(":")
    found: type[Runtime] = getattr(importlib.import_module(module), attribute)
    return found


def describe(runtime: Runtime, report: Report) -> RuntimeInfo:
    """What clients are told of a runtime, with what was found when it was probed."""
    return RuntimeInfo(
        name=runtime.name,
        available=report.available,
        boundary=runtime.boundary,
        version=runtime.version,
        reason=report.reason,
        features=runtime.features,
        default_images=tuple(f"{image.name}@{image.digest}" for image in runtime.images()),
        findings=report.findings,
        facts=report.facts,
    )


def absent() -> tuple[RuntimeInfo, ...]:
    """What clients are told of the runtimes that this server does not have."""
    return tuple(
        RuntimeInfo(name=name, available=False, boundary=boundary, reason=_absence(name))
        for name, boundary in _ABSENT.items()
    )


def _absence(name: str) -> str:
    return f"this server has no {name} runtime"

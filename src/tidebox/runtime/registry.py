"""The runtimes by name: where the class of each is, and which names are known although this server has none."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping

from tidebox.errors import RuntimeUnavailable
from tidebox.model.runtimes import RuntimeInfo, RuntimeReport
from tidebox.runtime.base import Runtime

RUNTIMES: Mapping[str, str] = {
    "native": "tidebox.runtime.native.runtime:NativeRuntime",
    "docker": "tidebox.runtime.docker.runtime:DockerRuntime",
    "gvisor": "tidebox.runtime.gvisor.runtime:GvisorRuntime",
}
"""Import path of the class of each runtime; loaded when it is first used."""
_BOUNDARIES = {
    "native": "namespaces",
    "docker": "container",
    "gvisor": "user_kernel",
    "firecracker": "microvm",
    "qemu": "microvm",
}
_LINUX_ONLY = frozenset({"native", "gvisor"})


def usable() -> tuple[str, ...]:
    """The names of the runtimes that there are on a machine like this."""
    return tuple(name for name in RUNTIMES if name not in _LINUX_ONLY or sys.platform == "linux")


def load(name: str) -> type[Runtime]:
    """The class of a runtime; raises ``RuntimeUnavailable`` where there is none of that name."""
    if name not in usable():
        raise RuntimeUnavailable(_absence(name[:32]), runtime=name[:32], available=False, suggested=list(usable()))
    module, _, attribute = RUNTIMES[name].partition(":")
    found: type[Runtime] = getattr(importlib.import_module(module), attribute)
    return found


def describe(runtime: Runtime, report: RuntimeReport) -> RuntimeInfo:
    """Describe a runtime to clients, with what was found when it was probed."""
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


def known() -> tuple[RuntimeInfo, ...]:
    """Describe every runtime to clients before any was probed: those that there are count as available."""
    names = dict.fromkeys((*RUNTIMES, *_BOUNDARIES))
    return tuple(
        RuntimeInfo(
            name=name,
            available=name in usable(),
            boundary=_BOUNDARIES.get(name) or load(name).boundary,
            reason=None if name in usable() else _absence(name),
        )
        for name in names
    )


def _absence(name: str) -> str:
    if name in _LINUX_ONLY:
        return f"the {name} runtime needs Linux"
    return f"this server has no {name} runtime"

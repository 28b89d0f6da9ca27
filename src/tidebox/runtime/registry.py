"""The runtimes by name: what was found out about those that are here, and why the others are not."""

from __future__ import annotations

from tidebox.model.runtimes import GuaranteeFact, Report, ResolvedImage, RuntimeInfo
from tidebox.runtime.images import ImageStore

_BOUNDARIES = {"native": "namespaces", "docker": "container", "firecracker": "microvm"}
_NOT_BUILT = "this server has no {name} runtime"


def describe_runtimes(report: Report, version: str, images: ImageStore) -> tuple[RuntimeInfo, ...]:
    """What clients are told of each runtime."""
    host = images.resolve("host")
    found = RuntimeInfo(
        name=report.runtime,
        available=report.available,
        boundary=_BOUNDARIES[report.runtime],
        version=version,
        reason=report.reason,
        default_images=(f"{host.name}@{host.digest}", *(f"{image.name}@{image.digest}" for image in images.list())),
        guarantees=tuple(
            GuaranteeFact(finding.guarantee.value, finding.enforced, finding.how) for finding in report.findings
        ),
        facts=report.facts,
    )
    absent = [
        RuntimeInfo(name=name, available=False, boundary=boundary, reason=_NOT_BUILT.format(name=name))
        for name, boundary in _BOUNDARIES.items()
        if name != report.runtime
    ]
    return (found, *absent)


def resolve_image(images: ImageStore, name: str) -> ResolvedImage:
    """The image that a name stands for, under the name it has in its store."""
    image = images.resolve(name)
    return ResolvedImage(image.name, image.digest)

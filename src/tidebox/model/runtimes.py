"""What clients are told of the ways to isolate that this server has, and of those it has not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tidebox.errors import RuntimeUnavailable


@dataclass(frozen=True, slots=True)
class GuaranteeFact:
    """Whether something is enforced here, and how."""

    name: str
    enforced: bool
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeInfo:
    """One runtime."""

    name: str
    available: bool
    boundary: str
    """What stands between programs and the machine: ``namespaces``, ``container`` or ``microvm``."""
    version: str | None = None
    reason: str | None = None
    """Why it is not available."""
    default_images: tuple[str, ...] = ()
    guarantees: tuple[GuaranteeFact, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def untrusted_eligible(self) -> bool:
        """Whether programs that nobody has read may run in it: every guarantee is enforced."""
        return self.available and all(guarantee.enforced for guarantee in self.guarantees)


@dataclass(frozen=True, slots=True)
class ResolvedImage:
    """An image as the runtime knows it."""

    name: str
    digest: str


class Runtimes:
    """Every runtime that clients may know of."""

    def __init__(self, resolve: Callable[[str], ResolvedImage], infos: tuple[RuntimeInfo, ...] = ()) -> None:
        self.resolve = resolve
        """What an image's name stands for; raises ``UnknownImage``."""
        self.infos = infos
        """Known when each has been probed, which is before the first request."""

    def named(self, name: str) -> RuntimeInfo:
        """A runtime that works here; raises where there is none of that name."""
        for info in self.infos:
            if info.name == name and info.available:
                return info
        raise RuntimeUnavailable(
            f"Requested runtime {name[:32]!r} is not available",
            runtime=name[:32],
            available=False,
            suggested=[info.name for info in self.infos if info.available],
        )

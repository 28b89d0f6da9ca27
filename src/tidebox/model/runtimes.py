"""Runtimes as data: what each guarantees on this machine, and what clients are told of those that are here or not."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from tidebox.errors import PolicyUnsupported, RuntimeUnavailable
from tidebox.model.images import HOST
from tidebox.model.languages import Language

BOUNDARIES = ("namespaces", "container", "user_kernel", "microvm")
"""The isolation boundaries between programs and the machine, the weakest first."""


class Guarantee(enum.Enum):
    """An isolation property that a policy may rely on. A runtime without it says so before a box is opened."""

    USER_SEPARATION = "user_separation"
    FILE_SYSTEM = "file_system"
    PRIVATE_FILES = "private_files"
    PROCESSES = "processes"
    NETWORK = "network"
    IPC = "ipc"
    SYSCALL_FILTER = "syscall_filter"
    NO_PRIVILEGES = "no_privileges"
    MEMORY = "memory"
    PIDS = "pids"
    CPU = "cpu"
    DISK = "disk"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Finding:
    """Whether one guarantee is enforced, how, and otherwise what helps."""

    guarantee: Guarantee
    enforced: bool
    how: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class RuntimeReport:
    """The probe result of a runtime on this machine: whether it is available, and a finding for each guarantee."""

    runtime: str
    available: bool
    findings: tuple[Finding, ...]
    reason: str | None = None
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def missing(self) -> tuple[Finding, ...]:
        """The guarantees that cannot be given here."""
        return tuple(finding for finding in self.findings if not finding.enforced)


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """The optional parts of its contract that a runtime has; callers check before they use one."""

    parks: bool = False
    """Interpreters are started in its boxes before their programs are known."""
    adjusts: bool = False
    """Limits of a box can be changed while it lives: without that no box is opened beforehand."""
    renews: bool = False
    """A box can serve one program after another of the same session."""
    freezes: bool = False
    """All processes of a box can be stopped and go on later."""
    watches: bool = False
    """It tells what changes in the workspace of a box."""
    relays: bool = False
    """External clients reach the agent of a box through a socket of their own."""
    layers: bool = False
    """Packages can be put on top of its images."""
    snapshots: bool = False
    """A box can be saved with its processes, and be opened again from that."""
    egress: bool = False
    """Programs can be given a network that reaches a list of hosts and no other."""


Start = Literal["forked", "parked", "cold"]
"""How the interpreter of a program starts: as a copy of one that runs, beforehand in a box of its own, or for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedLanguage:
    """A language that a runtime has."""

    name: str
    image: str
    start: Start
    aliases: tuple[str, ...] = ()
    version: str | None = None
    """None where it is not known, or not yet."""
    compiled: bool = False
    file: str = ""
    """The default name of its main file."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """A level of a runtime's own, under the name of its metric."""

    name: str
    help: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeInfo:
    """One runtime."""

    name: str
    available: bool
    boundary: str
    """The isolation boundary between programs and the machine: one of ``BOUNDARIES``."""
    version: str | None = None
    reason: str | None = None
    """Why it is not available."""
    features: Features = Features()
    default_images: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def untrusted_eligible(self) -> bool:
        """Whether programs that nobody has read may run in it: every guarantee is enforced."""
        return self.available and bool(self.findings) and all(finding.enforced for finding in self.findings)

    def is_at_least(self, boundary: str) -> bool:
        """Whether what stands between programs and the machine is this, or stronger."""
        return BOUNDARIES.index(self.boundary) >= BOUNDARIES.index(boundary)


@dataclass(frozen=True, slots=True)
class ResolvedImage:
    """An image as the runtime knows it."""

    name: str
    digest: str


async def _nothing_more() -> None:
    """All is known."""


class RuntimeCatalog:
    """Every runtime that clients may know of."""

    def __init__(
        self,
        resolve: Callable[[str, str, str], ResolvedImage],
        infos: tuple[RuntimeInfo, ...] = (),
        look_again: Callable[[str], None] = lambda name: None,
        image_with: Callable[[str, Language], str] = lambda name, language: HOST,
        look_closer: Callable[[], Awaitable[None]] = _nothing_more,
    ) -> None:
        """``look_again`` is told the name of a runtime that was asked for and does not work: it may do so by now."""
        self.resolve = resolve
        """Resolve an image's name in the named runtime, for a program in some language; raises
        ``UnknownImage``."""
        self.infos = infos
        """Known, for runtimes that do not come and go, when each has been probed, which is before the first request."""
        self.look_again = look_again
        self.look_closer = look_closer
        """Find out what is not known yet of those that are only known to be there, if it does not take long."""
        self.image_with = image_with
        """The image of programs in a language whose caller names none, in the runtime of a name; raises
        ``UnknownLanguage``."""

    def named(self, name: str) -> RuntimeInfo:
        """A runtime that works here; raises where there is none of that name."""
        for info in self.infos:
            if info.name == name:
                if info.available:
                    return info
                self.look_again(name)
        raise self._unavailable(f"Requested runtime {name[:32]!r} is not available", name, BOUNDARIES[0])

    def choose(self, wanted: str | None, default: str, boundary: str) -> RuntimeInfo:
        """The runtime of a request: the one it wants, else the default or, where that is too weak, one that is not."""
        if wanted is not None:
            info = self.named(wanted)
            if not info.is_at_least(boundary):
                raise PolicyUnsupported(
                    f"the runtime {wanted} has the boundary {info.boundary}; here such runs need {boundary} at least",
                    field="runtime",
                    boundary=info.boundary,
                    required=boundary,
                    suggested=self._suggested(boundary),
                )
            return info
        strong = [info for info in self.infos if info.is_at_least(boundary)]
        if any(info.name == default for info in strong):
            return self.named(default)
        for info in strong:
            if info.available:
                return info
            self.look_again(info.name)
        raise self._unavailable(
            f"no runtime of this server has the boundary {boundary} that such runs need", default, boundary
        )

    def _unavailable(self, message: str, name: str, boundary: str) -> RuntimeUnavailable:
        suggested = self._suggested(boundary)
        return RuntimeUnavailable(message, runtime=name[:32], available=False, suggested=suggested)

    def _suggested(self, boundary: str) -> list[str]:
        return [info.name for info in self.infos if info.available and info.is_at_least(boundary)]

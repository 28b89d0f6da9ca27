"""Runtimes as data: what each guarantees on this machine, and what clients are told of those that are here or not."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tidebox.errors import RuntimeUnavailable


class Guarantee(enum.Enum):
    """What a policy may rely on. A runtime that cannot give one says so before a box is opened."""

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
class Report:
    """What a runtime can do on this machine."""

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
    """Which optional parts of its contract a runtime has; whoever needs one asks first."""

    parks: bool = False
    """Interpreters are started in its boxes before their programs are known."""
    adjusts: bool = False
    """Limits of a box can be changed while it lives: without that no box is opened beforehand."""
    freezes: bool = False
    """All processes of a box can be stopped and go on later."""
    watches: bool = False
    """It tells what changes in the workspace of a box."""
    relays: bool = False
    """External clients reach the agent of a box through a socket of their own."""
    snapshots: bool = False
    """A box can be saved with its processes, and be opened again from that."""
    egress: bool = False
    """Programs can be given a network that reaches a list of hosts and no other."""


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
    """What stands between programs and the machine: ``namespaces``, ``container`` or ``microvm``."""
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
        return self.available and all(finding.enforced for finding in self.findings)


@dataclass(frozen=True, slots=True)
class ResolvedImage:
    """An image as the runtime knows it."""

    name: str
    digest: str


class Runtimes:
    """Every runtime that clients may know of."""

    def __init__(self, resolve: Callable[[str, str], ResolvedImage], infos: tuple[RuntimeInfo, ...] = ()) -> None:
        self.resolve = resolve
        """What an image's name stands for in the runtime of a name; raises ``UnknownImage``."""
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

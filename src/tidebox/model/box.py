"""A box as data: what is asked for when one is opened, the programs started in it, the files copied out of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from tidebox.errors import InvalidRequest
from tidebox.model.images import HOST
from tidebox.model.launch import WORKSPACE
from tidebox.model.limits import Limits
from tidebox.model.packages import NO_PACKAGES, Packages

if TYPE_CHECKING:
    from tidebox.model.requested_egress import BoxEgress
else:
    # Most boxes have no way out: its rules are loaded where there is one.
    BoxEgress = Any

TRUST_FILE = "/run/tidebox/ca.pem"
"""In a box whose connections are opened: the image's certificates, and that of the box's own authority."""
LAYER_MARK = "+"
"""Between the name of an image and the digests of layers on top of it; in no name that users give."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxSpec:
    """The specification of a box: runtime, image, packages, limits and egress."""

    runtime: str | None = None
    """The runtime's name; None for the default of the server or library that opens the box."""
    image: str = HOST
    packages: Packages = NO_PACKAGES
    """Packages on top of the image. A runtime is told by the name of an image that has them."""
    packages_for: str = ""
    """The user who asks for packages: where several do, they take turns."""
    limits: Limits = field(default_factory=Limits)
    executable: bool = True
    """Whether files in /workspace and /tmp may be executed."""
    scratch: Literal["", "noexec", "exec"] = ""
    """Whether there is a file system at /scratch for what a compiler makes, and whether that can be executed there.
    Such a box runs the compiler before its program."""
    kind: Literal["run", "sandbox"] = "run"
    """``run``: for one program on pipes; files are copied in before it starts and out after its end. ``sandbox``: for
    several programs at once, on terminals too, and for file operations while they run; ``limits.memory`` is beside what
    the box's file systems take."""
    preload: str = ""
    """Which set of modules its program finds loaded, where the runtime has it (see ``model.preloads``)."""
    leads_out: bool = False
    """Whether ``Box.allow`` can give it a way out: for boxes that are opened before it is known what they are for."""
    trusts: bool = False
    """Whether secrets can be put into its requests then: its programs trust an authority of its own."""
    egress: BoxEgress | None = None
    """The network egress its programs are allowed; None for no network."""
    sandbox_id: str | None = None
    """Where given, external clients reach the box's agent at ``<data-dir>/run/agents/<sandbox_id>.sock``."""

    @property
    def has_network(self) -> bool:
        """Whether its network leads out, as far as it is allowed."""
        return self.leads_out or self.egress is not None

    @property
    def has_authority(self) -> bool:
        """Whether its programs trust an authority of its own."""
        return self.trusts or (self.egress is not None and bool(self.egress.injection))

    def __post_init__(self) -> None:
        if self.kind == "run" and self.sandbox_id is not None:
            raise ValueError("the box of a run has no clients of its own")
        if self.sandbox_id is not None and not re.fullmatch(r"sb-[a-z0-9]{1,40}", self.sandbox_id):
            raise InvalidRequest(f"not a sandbox id: {self.sandbox_id!r}", field="sandbox_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A program to start in a box."""

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = WORKSPACE
    tty: tuple[int, int] | None = None
    """Rows and columns of a terminal, None for pipes."""
    cpu_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class FileInfo:
    """The ``stat`` of a file in a box."""

    path: str
    kind: str
    size: int
    mode: int
    modified: float | None
    """Seconds since the epoch; None for a time that no calendar has."""

    @property
    def type(self) -> str:
        """Its kind in the word that clients know."""
        return "directory" if self.kind == "dir" else self.kind


@dataclass(frozen=True, slots=True)
class CaptureRule:
    """Which files of the workspace to copy out after the end, and how much of them."""

    patterns: tuple[str, ...]
    max_file_bytes: int = 64 * 1024 * 1024
    max_total_bytes: int = 256 * 1024 * 1024
    max_files: int = 1000
    exclude: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Captured:
    """Files copied out of a workspace."""

    files: dict[str, bytes]
    skipped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedFile:
    """A file of a workspace that was copied out, or a link that was only noted."""

    path: str
    size: int
    link_target: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedTree:
    """Files copied out of a workspace into a directory."""

    files: tuple[CapturedFile, ...]
    skipped: Mapping[str, int]
    """How many that matched were not taken, by the reason."""

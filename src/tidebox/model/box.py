"""A box as data: what is asked for when one is opened, the programs started in it, the files copied out of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tidebox.errors import InvalidRequest
from tidebox.model.launch import WORKSPACE
from tidebox.model.limits import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxSpec:
    """What kind of box to open."""

    image: str = "host"
    limits: Limits = field(default_factory=Limits)
    executable: bool = True
    """Whether files in /workspace and /tmp may be executed."""
    single: bool = False
    """For one ``Command.single`` and nothing else: the box has no agent, and so no files, terminals or second exec."""
    shared: bool = False
    """Long-lived, with several execs at once: each gets a cgroup leaf of its own. ``limits.memory`` is beside what the
    box's file systems take."""
    sandbox_id: str | None = None
    """Where given, external clients reach the box's agent at ``<data-dir>/run/agents/<sandbox_id>.sock``."""

    def __post_init__(self) -> None:
        if self.single and (self.shared or self.sandbox_id is not None):
            raise ValueError("a box for a single program is nobody else's")
        if self.sandbox_id is not None and not re.fullmatch(r"sb-[a-z0-9]{1,40}", self.sandbox_id):
            raise InvalidRequest(f"not a sandbox id: {self.sandbox_id!r}", field="sandbox_id")


# What the command of such a box may take, however its characters are written.
_SINGLE_BYTES = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A program to start in a box."""

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = WORKSPACE
    tty: tuple[int, int] | None = None
    """Rows and columns of a terminal, None for pipes."""
    cpu_seconds: int | None = None

    @property
    def single(self) -> bool:
        """Whether a box for a single program can run it: without a terminal, and in one message."""
        texts = (*self.argv, *self.env, *self.env.values())
        return self.tty is None and sum(8 + 4 * len(text) for text in texts) < _SINGLE_BYTES


@dataclass(frozen=True, slots=True)
class FileInfo:
    """What ``stat`` tells of a file in a box."""

    path: str
    kind: str
    size: int
    mode: int
    modified: float


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

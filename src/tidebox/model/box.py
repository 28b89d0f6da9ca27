"""A box as data: what is asked for when one is opened, the programs started in it, the files copied out of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tidebox.errors import InvalidRequest
from tidebox.model.launch import WORKSPACE
from tidebox.model.limits import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxSpec:
    """What kind of box to open."""

    runtime: str | None = None
    """By which name it is isolated; None for the default of whoever opens it."""
    image: str = "host"
    limits: Limits = field(default_factory=Limits)
    executable: bool = True
    """Whether files in /workspace and /tmp may be executed."""
    kind: Literal["run", "sandbox"] = "run"
    """``run``: for one program on pipes; files are copied in before it starts and out after its end. ``sandbox``: for
    several programs at once, on terminals too, and for file operations while they run; ``limits.memory`` is beside what
    the box's file systems take."""
    sandbox_id: str | None = None
    """Where given, external clients reach the box's agent at ``<data-dir>/run/agents/<sandbox_id>.sock``."""

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
    """What ``stat`` tells of a file in a box."""

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

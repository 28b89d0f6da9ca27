"""Resource limits of an execution (memory, processes, CPU, time, output, files), and their allowed ranges."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from tidebox.errors import LimitOutOfRange

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


@dataclass(frozen=True, slots=True)
class Range:
    """The smallest and the largest value a limit may have."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one execution. Sizes are bytes, times seconds."""

    timeout: float = 30.0
    memory: int = 256 * MIB
    pids: int = 128
    cpus: float = 1.0
    cpu_shares: int = 512
    output: int = 8 * MIB
    workspace: int = 256 * MIB
    inodes: int = 16_384
    open_files: int = 1024
    file_size: int = 256 * MIB
    compile_timeout: float = 60.0
    """The time limit of compiling, before the program can be started."""

    def __post_init__(self) -> None:
        for item in fields(self):
            check_limit(item.name, getattr(self, item.name))


RANGES: dict[str, Range] = {
    "timeout": Range(0.01, 24 * 3600),
    "memory": Range(8 * MIB, 1024 * GIB),
    "pids": Range(4, 32_768),
    "cpus": Range(0.01, 1024),
    "cpu_shares": Range(2, 262_144),
    "output": Range(0, 16 * GIB),
    "workspace": Range(64 * KIB, 1024 * GIB),
    "inodes": Range(64, 16_777_216),
    "open_files": Range(16, 1_048_576),
    "file_size": Range(0, 1024 * GIB),
    "compile_timeout": Range(0.01, 24 * 3600),
}
"""The ranges that any installation can enforce; a policy narrows them."""


def check_limit(name: str, value: Any) -> None:
    """Refuse a limit that is no number or outside its range, naming both."""
    allowed = RANGES[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise LimitOutOfRange(f"limit {name!r} must be a number, not {value!r}", field=name)
    whole = name not in ("timeout", "compile_timeout", "cpus")
    if whole and not isinstance(value, int):
        raise LimitOutOfRange(f"limit {name!r} must be a whole number, not {value!r}", field=name)
    if not allowed.low <= value <= allowed.high:
        raise LimitOutOfRange(
            f"limit {name!r} must be between {allowed.low:.15g} and {allowed.high:.15g}, not {value!r}", field=name
        )


def make_limits(**given: Any) -> Limits:
    """Limits from keyword arguments; an unknown name is refused like a bad value."""
    if not given:
        return _DEFAULT
    unknown = sorted(set(given) - set(RANGES))
    if unknown:
        raise LimitOutOfRange(f"no such limit: {unknown[0]!r} (known: {', '.join(RANGES)})", field=unknown[0])
    return Limits(**{name: value for name, value in given.items() if value is not None})


_DEFAULT = Limits()

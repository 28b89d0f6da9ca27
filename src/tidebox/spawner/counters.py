"""Usage counters of cgroups (CPU, memory, pids, OOM kills), read from the files of v1 and v2."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    # Where it is, what it tells, in which file, after which key, and what it is divided by.
    Counter = tuple[int, str, str, Optional[str], int]

_COUNTERS = (
    ("cpu_us", "cpuacct.usage", None, 1000),
    ("cpu_us", "cpu.stat", "usage_usec", 1),
    ("memory_peak_bytes", "memory.max_usage_in_bytes", None, 1),
    ("memory_peak_bytes", "memory.peak", None, 1),
    ("pids_peak", "pids.peak", None, 1),
    ("pids_refused", "pids.events", "max", 1),
    ("oom_kills", "memory.oom_control", "oom_kill", 1),
    ("oom_kills", "memory.events", "oom_kill", 1),
)


def read(directory: int, path: str) -> str | None:
    """The text of a file of a control group; None where there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return None
    try:
        return os.read(fd, 65536).decode("ascii", "replace")
    finally:
        os.close(fd)


def read_counters(directories: list[int]) -> dict[str, int]:
    """Read the usage of cgroups, given by descriptors of their directories."""
    return values_of(counters_in(directories, ""), "")


def counters_in(directories: list[int], prefix: str) -> list[Counter]:
    """Which counters there are below ``prefix`` in these directories."""
    everywhere = [(directory, *counter) for directory in directories for counter in _COUNTERS]
    return [found for found in everywhere if read(found[0], prefix + found[2]) is not None]


def values_of(counters: list[Counter], prefix: str) -> dict[str, int]:
    """Read ``counters``, with ``prefix`` before the name of each file; those that cannot be read are absent."""
    usage = {}
    for directory, name, file, key, divisor in counters:
        text = read(directory, prefix + file) or ""
        if key is not None:
            lines = [line.split() for line in text.splitlines()]
            text = next((words[1] for words in lines if words[0] == key), "")
        if text.strip().isdigit():
            usage[name] = int(text) // divisor
    return usage

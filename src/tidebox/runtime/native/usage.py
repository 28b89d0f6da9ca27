"""What a box has used, read from its cgroup."""

from __future__ import annotations

import os
from collections.abc import Mapping

# The agent is in the box's cgroup too; it is not the user's.
_INIT_PROCESSES = 1


class Meter:
    """Reads the counters of one cgroup; ``reset`` starts a new count of cpu and memory."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = files
        self._cpu_base = 0.0
        self._peak: int | None = None

    def reset(self) -> None:
        """Count from now on."""
        self._cpu_base += self.cpu_seconds() or 0.0
        path = self._files.get("peak")
        if path is None:
            return
        try:
            # v1 forgets the peak for everyone; v2 (Linux 6.12) for this descriptor alone, which is therefore kept.
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            os.write(descriptor, b"0")
        except OSError:
            return  # an older v2 kernel: the peak is that of the cell's whole life
        self._peak = descriptor

    def cpu_seconds(self) -> float | None:
        """Cpu time of every process that ever was in the box."""
        text = self._read("cpu")
        if text is None:
            return None
        total = int(text) / 1e9 if text.strip().isdigit() else _value(text, "usage_usec") / 1e6
        return total - self._cpu_base

    def memory_peak(self) -> int | None:
        """The most memory the box ever had, page cache included."""
        if self._peak is not None:
            return int(os.pread(self._peak, 64, 0))
        text = self._read("peak")
        return None if text is None else int(text)

    def pids_peak(self) -> int | None:
        """The most processes and threads it ever had."""
        text = self._read("pids")
        return None if text is None or not text.strip().isdigit() else max(int(text) - _INIT_PROCESSES, 0)

    def only_init_left(self) -> bool:
        """Whether every process of the user is gone; False where that cannot be known."""
        text = self._read("now")
        return text is not None and int(text) <= _INIT_PROCESSES

    def oom_kills(self) -> int:
        """How many of its processes the kernel killed for memory."""
        text = self._read("oom")
        return 0 if text is None else _value(text, "oom_kill")

    def close(self) -> None:
        """Let go of the cgroup."""
        if self._peak is not None:
            os.close(self._peak)
            self._peak = None

    def _read(self, name: str) -> str | None:
        path = self._files.get(name)
        if path is None:
            return None
        try:
            with open(path) as file:
                return file.read()
        except OSError:
            return None  # the cgroup went with a spawner that died


def _value(text: str, key: str) -> int:
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == key:
            return int(value)
    return 0

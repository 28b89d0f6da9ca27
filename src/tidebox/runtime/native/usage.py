"""Resource usage of a box, read from its cgroup."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

_TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
# Leaves whose counters stay open; each has five.
_MOST_IDLE = 8


class Counters:
    """The files of one cgroup, opened once: opening costs more than reading, and the end of a program waits for it."""

    def __init__(self, leaf: str, edition: int, files: Mapping[str, str]) -> None:
        self.leaf = leaf
        self.edition = edition
        self._descriptors: dict[str, int] = {}
        self._paths = {name: path.replace("{}", leaf) for name, path in files.items()}
        for name, path in self._paths.items():
            try:
                self._descriptors[name] = _open_counter(path, resettable=name == "peak")
            except FileNotFoundError:
                continue  # the spawner died meanwhile
        self.system_base = self.system_seconds()
        """What earlier boxes in this leaf made the kernel spend."""

    def read(self, name: str) -> bytes | None:
        """Read the counter of that name; None where there is none."""
        descriptor = self._descriptors.get(name)
        if descriptor is None:
            return None
        try:
            return os.pread(descriptor, 4096, 0)
        except OSError:
            return None  # the cgroup went with a spawner that died

    def directory(self, name: str) -> str | None:
        """Return the cgroup directory of that counter; None where there is none."""
        return os.path.dirname(self._paths[name]) if name in self._paths else None

    def system_seconds(self) -> float:
        """Processor time that the kernel has spent for all that was ever in it; 0 where that is not told."""
        directory = self.directory("cpu")
        if directory is not None:
            for name, key, unit in (("cpuacct.stat", b"system", _TICK_SECONDS), ("cpu.stat", b"system_usec", 1e-6)):
                try:
                    with open(f"{directory}/{name}", "rb") as file:
                        if found := _value(file.read(), key):
                            return found * unit
                except OSError:
                    continue  # the other version's, or the box is gone
        return 0.0

    def reset_peak(self) -> None:
        """Count the most memory from now on."""
        if "peak" in self._descriptors:
            try:
                # v1 forgets the peak for everyone, v2 (Linux 6.12) for this descriptor alone.
                os.pwrite(self._descriptors["peak"], b"0", 0)
            except OSError:
                pass  # an older v2 kernel: the peak is that of the cell's whole life

    def close(self) -> None:
        """Let go of the cgroup."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()


class CgroupCounters:
    """The counters of every leaf of a spawner. Those of the last that were used stay open: a leaf comes round again."""

    def __init__(self) -> None:
        self.files: Mapping[str, str] = {}
        """Where they are, with {} for the name of the leaf."""
        self._idle: dict[str, Counters] = {}

    def open(self, opened: Mapping[str, Any]) -> Counters:
        """Those of the leaf that a box was put into, as its spawner tells, if it was put into one."""
        if "leaf" not in opened:
            return Counters("", 0, {})
        leaf, edition = opened["leaf"], opened["edition"]
        kept = self._idle.pop(leaf, None)
        if kept is not None and kept.edition == edition:
            return kept
        if kept is not None:
            kept.close()
        return Counters(leaf, edition, self.files)

    def give_back(self, counters: Counters) -> None:
        """The box is gone. What becomes of its leaf does not matter: the name is never another's."""
        counters.system_base = counters.system_seconds()
        self._idle[counters.leaf] = counters
        if len(self._idle) > _MOST_IDLE:
            self._idle.pop(next(iter(self._idle))).close()

    def close(self) -> None:
        """Let go of all."""
        while self._idle:
            self._idle.popitem()[1].close()


class Meter:
    """Meter of one box's usage; ``reset`` starts a new count of cpu and memory."""

    def __init__(self, counters: Counters, own_processes: int) -> None:
        """An agent is in the cgroup of its box too: that many of the processes there are not the user's."""
        self.counters = counters
        self._own_processes = own_processes
        self._cpu_base = 0.0
        self._oom_base = 0
        # The leaf may have been another box's.
        self.reset()

    def reset(self) -> None:
        """Count from now on."""
        self._cpu_base += self.cpu_seconds() or 0.0
        self._oom_base += self.oom_kills()
        self.counters.reset_peak()

    def cpu_seconds(self) -> float | None:
        """Cpu time of every process that ever was in the box."""
        text = self.counters.read("cpu")
        if text is None:
            return None
        total = int(text) / 1e9 if text.strip().isdigit() else _value(text, b"usage_usec") / 1e6
        return total - self._cpu_base

    def system_seconds(self) -> float:
        """Return the seconds that the kernel has spent for the processes of the box."""
        return max(self.counters.system_seconds() - self.counters.system_base, 0.0)

    def pids(self) -> list[int]:
        """The processes that are in the box now."""
        directory = self.counters.directory("now")
        found: list[int] = []
        for place, _, files in os.walk(directory) if directory is not None else ():
            if "cgroup.procs" in files:
                try:
                    with open(f"{place}/cgroup.procs", "rb") as file:
                        found += map(int, file.read().split())
                except OSError:
                    continue  # removed while we looked
        return found

    def memory_peak(self) -> int | None:
        """The most memory the box ever had, page cache included."""
        return self._number("peak")

    def pids_peak(self) -> int | None:
        """The most processes and threads it ever had."""
        peak = self._number("pids")
        return None if peak is None else max(peak - self._own_processes, 0)

    def empty(self) -> bool:
        """Whether every process of the user is gone; False where that cannot be known."""
        now = self._number("now")
        return now is not None and now <= self._own_processes

    def oom_kills(self) -> int:
        """Return the number of its processes that the OOM killer has killed."""
        text = self.counters.read("oom")
        return 0 if text is None else _value(text, b"oom_kill") - self._oom_base

    def _number(self, name: str) -> int | None:
        text = self.counters.read(name)
        return int(text) if text is not None and text.strip().isdigit() else None


def _open_counter(path: str, resettable: bool) -> int:
    if resettable:
        try:
            return os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            pass  # v2 before Linux 6.12: nobody may reset it
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _value(text: bytes, key: bytes) -> int:
    for line in text.splitlines():
        name, _, value = line.partition(b" ")
        if name == key:
            return int(value)
    return 0

"""A cgroup leaf per exec in a long-lived box, beside the agent's own, so that kill, usage and OOM are per exec.

The agent owns these directories (the spawner delegated them) and reaches them only through descriptors: the box has
no cgroup file system. On v1 there is one directory per controller hierarchy, on v2 one.
"""

from __future__ import annotations

import os

from tidebox.spawner.cgroups import AGENT_LEAF, SOCKET_MEMORY
from tidebox.spawner.counters import counters_in, read, values_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tidebox.spawner.counters import Counter


def _write(directory: int, path: str, value: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC, dir_fd=directory)
    try:
        os.write(fd, value)
    finally:
        os.close(fd)


class BoxCgroups:
    """The leaves of one box; a leaf is known by its number."""

    def __init__(self, directories: list[int], version: int) -> None:
        self._directories = directories
        self._version = version
        self._next = 0
        self._leftover: set[int] = set()
        self._counters: list[Counter] | None = None
        limits = {directory: read(directory, SOCKET_MEMORY) for directory in directories}
        self._socket_memory = {directory: limit.encode() for directory, limit in limits.items() if limit is not None}

    def settle(self) -> None:
        """Move the calling agent, already in its cgroup namespace, out of the way of the leaves."""
        if self._version == 1:
            return  # the agent was put into its own leaf from outside
        box = self._directories[0]
        os.mkdir(AGENT_LEAF, dir_fd=box)
        _write(box, AGENT_LEAF + "/cgroup.procs", b"0")
        # Allowed only now that no process is left beside the leaves.
        _write(box, "cgroup.subtree_control", b"+memory +pids")

    def make(self) -> int:
        """A new leaf in every hierarchy."""
        number = self._next
        self._next += 1
        for directory in self._directories:
            os.mkdir(f"e{number}", dir_fd=directory)
            if directory in self._socket_memory:
                # The box's own limit holds; but v1 counts sockets only in a group that has one itself.
                _write(directory, f"e{number}/{SOCKET_MEMORY}", self._socket_memory[directory])
        return number

    def attach(self, number: int) -> None:
        """Move the calling process into the leaf."""
        name = "tasks" if self._version == 1 else "cgroup.procs"
        for directory in self._directories:
            _write(directory, f"e{number}/{name}", b"0")

    def kill(self, number: int) -> None:
        """Send SIGKILL to every process in the leaf, no matter which session or process group it hides in."""
        if self._version == 2:
            try:
                _write(self._directories[0], f"e{number}/cgroup.kill", b"1")
                return
            except FileNotFoundError:
                pass  # before Linux 5.14
        # A fork bomb outruns one pass; each pass can only leave what was born during it.
        for _ in range(100):
            pids = (read(self._directories[0], f"e{number}/cgroup.procs") or "").split()
            if not pids:
                return
            for pid in pids:
                try:
                    os.kill(int(pid), 9)
                except ProcessLookupError:
                    pass

    def usage(self, number: int) -> dict[str, int]:
        """Read the leaf's usage: cpu_us, memory_peak_bytes, pids_peak, oom_kills, as far as the kernel counts it."""
        if self._counters is None:
            # Which files there are is the kernel's choice, and the same for every leaf.
            self._counters = counters_in(self._directories, f"e{number}/")
        return values_of(self._counters, f"e{number}/")

    def remove(self, number: int) -> None:
        """Remove the leaf as soon as its last process is gone."""
        self._leftover.add(number)
        self._collect()

    def _collect(self) -> None:
        for number in list(self._leftover):
            try:
                for directory in self._directories:
                    try:
                        os.rmdir(f"e{number}", dir_fd=directory)
                    except FileNotFoundError:
                        continue
            except OSError:
                continue  # still populated by a background process
            self._leftover.discard(number)

"""What of the machine is in use: counts of the server and its boxes, and of the kernel as far as root may see it.

Each count says how far it may be from its start without meaning anything. Those of the whole machine are also changed
by others, so growth of one is believed only when the same attack makes it grow again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load import control_groups, descendants
from tests.attack.target import Target

MIB = 1024 * 1024
# Caches whose memory the kernel takes back when it needs it are no leak.
_SLAB = Path("/sys/kernel/slab")
_SLAB_MIB = 8.0
_TELL_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Rule:
    """How much a count may grow, and whether others on the machine change it too."""

    tolerance: float
    of_the_machine: bool = False


RULES: dict[str, Rule] = {
    "server tasks": Rule(2),
    "server descriptors": Rule(16),
    "server threads": Rule(min(32, (os.cpu_count() or 1) + 4)),
    "server memory MiB": Rule(96),
    "processes below": Rule(3),
    "descriptors below": Rule(60),
    "inotify instances below": Rule(2),
    "control groups": Rule(24),
    "agent sockets": Rule(1),
    "unfinished files": Rule(0),
    "mounts": Rule(2, of_the_machine=True),
    "terminals": Rule(16, of_the_machine=True),
    "sockets": Rule(64, of_the_machine=True),
    "pages of TCP": Rule(4096, of_the_machine=True),
    "BPF programs": Rule(96, of_the_machine=True),
}
_SLAB_RULE = Rule(_SLAB_MIB, of_the_machine=True)


def rule_of(name: str) -> Rule:
    """The rule of a count."""
    return RULES.get(name, _SLAB_RULE)


Counts = dict[str, float]


@dataclass(frozen=True, slots=True)
class Growth:
    """A count that is larger than it may be."""

    name: str
    before: float
    after: float

    def __str__(self) -> str:
        return f"{self.name} {self.before:g} -> {self.after:g}"

    @property
    def of_the_machine(self) -> bool:
        """Whether somebody else may have caused it."""
        return rule_of(self.name).of_the_machine


def grown(before: Counts, after: Counts) -> list[Growth]:
    """What is larger than before by more than its tolerance."""
    pairs = ((name, before.get(name, 0.0), value) for name, value in after.items())
    return [Growth(name, old, new) for name, old, new in pairs if new - old > rule_of(name).tolerance]


def count(target: Target) -> Counts:
    """Everything, now. Takes some milliseconds, and makes the server collect its garbage."""
    return {**_of_server(target), **of_machine()}


def _of_server(target: Target) -> Counts:
    pid = target.server.pid
    below = descendants(pid)
    status = Path(f"/proc/{pid}/status").read_text()
    run = target.data_dir / "run" / "agents"
    unfinished = [*target.data_dir.glob("images/staging-*"), *target.data_dir.glob("staging/*")]
    return {
        "server tasks": _tasks(target),
        "server descriptors": _descriptors(pid),
        "server threads": int(status.partition("Threads:")[2].split()[0]),
        "server memory MiB": int(status.partition("VmRSS:")[2].split()[0]) // 1024,
        "processes below": len(below),
        "descriptors below": sum(map(_descriptors, below)),
        "inotify instances below": sum(map(_inotify_instances, below)),
        "control groups": len(control_groups(below)),
        "agent sockets": len(list(run.iterdir())) if run.exists() else 0,
        "unfinished files": len(unfinished),
    }


def of_machine() -> Counts:
    """What the kernel holds for everybody, as far as this user may see it."""
    found: Counts = {"mounts": _lines(Path("/proc/self/mountinfo"))}
    found["terminals"] = int(Path("/proc/sys/kernel/pty/nr").read_text())
    stat = Path("/proc/net/sockstat").read_text().split()
    found["sockets"] = int(stat[stat.index("used") + 1])
    found["pages of TCP"] = int(stat[stat.index("mem") + 1])
    try:
        found["BPF programs"] = Path("/proc/vmallocinfo").read_text().count("bpf_")
        found.update(slab_mib())
    except PermissionError:
        pass  # both are for root only
    return found


def slab_mib(reclaimable: bool = False) -> Counts:
    """The memory of every cache of kernel objects that the kernel cannot take back by itself, or of all."""
    found: Counts = {}
    for line in Path("/proc/slabinfo").read_text().splitlines()[2:]:
        words = line.split()
        name, pages_per_slab, slabs = words[0], int(words[5]), int(words[14])
        if reclaimable or not _is_reclaimable(name):
            found[f"slab {name} MiB"] = round(slabs * pages_per_slab * os.sysconf("SC_PAGE_SIZE") / MIB, 1)
    return found


def _is_reclaimable(cache: str) -> bool:
    try:
        return (_SLAB / cache / "reclaim_account").read_text().strip() == "1"
    except OSError:
        return False


def _tasks(target: Target) -> int:
    """How many asyncio tasks the server has, which it tells when it is asked by a signal."""
    told = target.data_dir / "told"
    told.unlink(missing_ok=True)
    target.server.signal(signal.SIGUSR1)
    deadline = time.monotonic() + _TELL_SECONDS
    while not told.exists():
        if time.monotonic() > deadline:
            raise AssertionError("the server does not answer a signal: its event loop stands still")
        time.sleep(0.01)
    return int(told.read_text().split()[0])


def _descriptors(pid: int) -> int:
    """Without the counters of control groups, which stay open for the next box, now of more groups and now of fewer."""
    return sum(not link.startswith("/sys/fs/cgroup/") for link in _links(pid))


def _inotify_instances(pid: int) -> int:
    return _links(pid).count("anon_inode:inotify")


def _links(pid: int) -> list[str]:
    """What the descriptors of a process lead to."""
    found = []
    try:
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                found.append(os.readlink(entry.path))
    except OSError:
        pass  # it ended while we looked
    return found


def _lines(path: Path) -> int:
    try:
        return path.read_text().count("\n")
    except OSError:
        return 0

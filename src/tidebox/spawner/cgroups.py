"""Control groups of the boxes: memory (swap off), pids and cpu, on cgroup v1 and v2.

Every spawner owns one directory ``tidebox-<pid>-<start time>`` per hierarchy, and holds a lock on it for as long as it
lives; a box is a leaf below it. What a killed spawner left behind is removed by the next one (see ``sweeping``).

As root the directory stands at the top of the hierarchy. Without root only a delegated v2 subtree can be used: the
spawner's own cgroup, when nothing but the spawner lives in it (``systemd-run --user --scope -p Delegate=yes``).
"""

from __future__ import annotations

import errno
import fcntl
import os
import time

PREFIX = "tidebox-"
AGENT_LEAF = "agent"
NEEDED = ("memory", "pids", "cpu")
# What a box has of the processors it has in every period; on several at once it may use that up early in each, and its
# neighbours wait until then. The kernel gives out no less than a millisecond, so little time is counted over longer.
_PERIOD_US = 20_000
_LONG_PERIOD_US = 100_000
_LEAST_QUOTA_US = 1000
_CLAIM_TRIES = 5
_ENABLE_TRIES = 20
_CLEAN_BYTES = 1 << 20
# Buffers of its sockets v1 counts apart from all other memory of a box.
SOCKET_MEMORY = "memory.kmem.tcp.limit_in_bytes"
_LEAST_SOCKET_MEMORY = 8 << 20
_SOCKET_MEMORY_SHARE = 4
# Of a box: its program.
_FEWEST_PROCESSES = 1


class CgroupError(Exception):
    """No usable control groups; the text says what is missing."""


def _read(path: str) -> str:
    # Three times for every box: the layers of open() cost more than the reading.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return b"".join(iter(lambda: os.read(fd, 1 << 16), b"")).decode("ascii", "replace")
    finally:
        os.close(fd)


def _write(path: str, value: object) -> None:
    # Unbuffered and in one write: the kernel parses every write(2) on its own.
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, str(value).encode())
    except OSError as error:
        error.filename = path
        raise
    finally:
        os.close(fd)


def start_time(pid: int) -> str | None:
    """Return the start time of process ``pid`` (clock ticks since boot), or None if no such process lives."""
    try:
        # The command name may hold spaces and parentheses: count the fields from the last one.
        fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
        # Dead, but not yet collected by its parent.
        return None if fields[0] in "ZX" else fields[19]
    except (OSError, IndexError):
        return None


def owner_is_alive(name: str) -> bool:
    """Whether the name of a directory is that of a living process of this pid namespace."""
    pid, _, rest = name[len(PREFIX) :].partition("-")
    return pid.isdigit() and start_time(int(pid)) == rest.partition("-")[0]


def _quota(per_100_ms: int) -> tuple[int, int]:
    """As the kernel takes it: time, and in which."""
    quota = per_100_ms * _PERIOD_US // _LONG_PERIOD_US
    return (quota, _PERIOD_US) if quota >= _LEAST_QUOTA_US else (per_100_ms, _LONG_PERIOD_US)


def _mounts() -> tuple[dict[str, str], str | None]:
    """Mount point of each v1 controller, and of the v2 hierarchy."""
    controllers: dict[str, str] = {}
    unified = None
    for line in _read("/proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        point = left.split()[4]
        kind, _, options = right.split()[:3]
        if kind == "cgroup2":
            unified = unified or point
        elif kind == "cgroup":
            for option in options.split(","):
                if option in ("memory", "pids", "cpu", "cpuacct", "freezer"):
                    controllers.setdefault(option, point)
    return controllers, unified


def _own_v2_path() -> str:
    for line in _read("/proc/self/cgroup").splitlines():
        if line.startswith("0::"):
            return line[3:]
    return "/"


def remove(path: str, deadline: float | None = None) -> bool:
    """Remove a cgroup and everything below it; False while a process is still in there, or the time is over."""
    try:
        if _is_removed(path):
            return True
        children = [entry.path for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]
        if deadline is not None and time.monotonic() > deadline:
            return False
        return bool(children) and all([remove(child, deadline) for child in children]) and _is_removed(path)
    except FileNotFoundError:
        return True


def _is_removed(path: str) -> bool:
    """Remove a cgroup that has neither processes nor children."""
    try:
        os.rmdir(path)
    except OSError as error:
        if error.errno == errno.EBUSY:
            return False
        raise
    return True


def processes(path: str) -> list[int]:
    """Every process of a subtree; 0 stands for one that another pid namespace hides from us."""
    found: list[int] = []
    for directory, _, files in os.walk(path):
        if "cgroup.procs" in files:
            try:
                found += map(int, _read(directory + "/cgroup.procs").split())
            except OSError:
                continue  # removed while we looked
    return found


def kill_all(path: str) -> None:
    """Send SIGKILL to every process in a subtree."""
    try:
        # v2, Linux 5.14: nothing that forks meanwhile escapes.
        _write(path + "/cgroup.kill", 1)
        return
    except FileNotFoundError:
        pass
    for pid in processes(path):
        try:
            os.kill(pid, 9)
        except ProcessLookupError:
            pass
    for directory, _, files in os.walk(path):
        if "freezer.state" in files:
            # What v1 froze dies only when it runs again.
            try:
                _write(directory + "/freezer.state", "THAWED")
            except FileNotFoundError:
                continue


def _made_and_locked(path: str) -> int | None:
    """The lock on a new cgroup; None if there is one of that name, or it is not ours any more."""
    try:
        os.mkdir(path)
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileExistsError, FileNotFoundError):
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.stat(path)
    except (BlockingIOError, FileNotFoundError):
        os.close(lock)
        return None
    return lock


class Cgroups:
    """The cgroup directories of one spawner."""

    version = 0
    roots: dict[str, str]

    def __init__(self) -> None:
        self.name = f"{PREFIX}{os.getpid()}-{start_time(os.getpid())}"
        self._locks: list[int] = []

    def _bases(self) -> list[str]:
        return sorted({root + "/" + self.name for root in self.roots.values()})

    def _claim(self) -> None:
        """Make the directories of this spawner, and lock them: who sweeps leaves alone what is locked."""
        usual = self.name
        for _ in range(_CLAIM_TRIES):
            bases = self._bases()
            locks = {base: lock for base in bases if (lock := _made_and_locked(base)) is not None}
            if len(locks) == len(bases):
                self._locks = list(locks.values())
                return
            for base, lock in locks.items():
                _is_removed(base)
                os.close(lock)
            # A container may have a spawner with the same numbers. Or one that sweeps saw the directory before it was
            # locked, and removes it.
            self.name = f"{usual}-{os.urandom(4).hex()}"
        raise CgroupError("no directory of this spawner stays: others remove them")

    def sweep_roots(self) -> set[str]:
        """Return the directories below which other spawners may have left cgroups."""
        return set(self.roots.values())

    def kill(self) -> None:
        """End every process in the cgroups of this spawner, frozen ones too."""
        for base in self._bases():
            kill_all(base)

    def make(self, box: str) -> Leaf:
        """A new leaf without limits; ``Leaf.limit`` sets them."""
        raise NotImplementedError

    def adopt_template(self, pid: int, uid: int | None) -> None:
        """Let a template (living under host ``uid``, None for the spawner's own) put its clones into the leaves."""

    def close(self) -> bool:
        """Remove everything of this spawner; False while a process is left."""
        if not all([remove(base) for base in self._bases()]):
            return False
        while self._locks:
            os.close(self._locks.pop())
        return True


class Leaf:
    """The cgroup of one box."""

    paths: dict[str, str]

    def __init__(self, paths: dict[str, str]) -> None:
        self.paths = paths
        self._open: dict[str, int] = {}
        self._limits: dict[str, int] = {}
        self.edition = 0
        """Another one when its files are not the same any more."""

    @property
    def name(self) -> str:
        """The leaf's directory name, which no other leaf of this spawner ever had."""
        return next(iter(self.paths.values())).rpartition("/")[2]

    def limit(self, **limits: int) -> None:
        """Set memory, pids, quota (us of cpu time in every 100 ms) and shares, as far as they are not set already."""
        for name, value in limits.items():
            if self._limits.get(name) != value:
                self._set(name, value)
                self._limits[name] = value

    def _set(self, name: str, value: int) -> None:
        raise NotImplementedError

    def attach_descriptors(self) -> list[int]:
        """Return descriptors that let a process in: on v1 files to write ``0`` into, on v2 a directory to clone into.

        They stay open until ``close_descriptors``.
        """
        raise NotImplementedError

    def close_descriptors(self) -> None:
        """Nobody is let in any more, or for a long time."""
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()

    def freeze(self, frozen: bool) -> None:
        """Stop or continue every process of the box."""
        raise NotImplementedError

    def files(self) -> dict[str, str]:
        """Return the files with any leaf's usage, {} for its name; a counter this kernel does not have is absent."""
        files = {}
        for name, path in self._counters().items():
            if os.path.exists(path):
                directory, counter = os.path.split(path)
                files[name] = f"{os.path.dirname(directory)}/{{}}/{counter}"
        return files

    def _counters(self) -> dict[str, str]:
        raise NotImplementedError

    def delegate(self, uid: int) -> list[int]:
        """Give the directories to the box's agent, for a leaf per exec beside its own; descriptors of them.

        ``uid`` is also the agent's gid on the machine.
        """
        raise NotImplementedError

    def renew(self) -> bool:
        """Make the leaf of a dead box as good as a new one; False where it must be removed instead."""
        return False

    def remove(self) -> bool:
        """Remove the leaf; False while a process is left."""
        self.close_descriptors()
        return all([remove(path) for path in set(self.paths.values())])


class CgroupsV1(Cgroups):
    """One directory per controller hierarchy."""

    version = 1

    def __init__(self, mounts: dict[str, str]) -> None:
        super().__init__()
        self.roots = mounts
        self._claim()

    def make(self, box: str) -> LeafV1:
        paths = {name: f"{root}/{self.name}/{box}" for name, root in self.roots.items()}
        for path in sorted(set(paths.values())):
            os.mkdir(path)
        return LeafV1(paths)


class LeafV1(Leaf):
    """A leaf in each v1 hierarchy."""

    # Where the box is not one process's: the agent is beside the leaves of its execs.
    _divided: frozenset[str] = frozenset()

    def _set(self, name: str, value: int) -> None:
        if name == "memory":
            self._limit_memory(value)
            self._limit_socket_memory(value)
        elif name == "pids":
            _write(self.paths["pids"] + "/pids.max", value)
        elif name == "quota":
            quota, period = _quota(value)
            _write(self.paths["cpu"] + "/cpu.cfs_period_us", period)
            _write(self.paths["cpu"] + "/cpu.cfs_quota_us", quota)
        elif name == "shares":
            _write(self.paths["cpu"] + "/cpu.shares", value)

    def _limit_memory(self, memory: int) -> None:
        plain = self.paths["memory"] + "/memory.limit_in_bytes"
        with_swap = self.paths["memory"] + "/memory.memsw.limit_in_bytes"
        if not os.path.exists(with_swap):
            # Without swap accounting swappiness 0 keeps the leaf's anonymous pages out of swap.
            _write(self.paths["memory"] + "/memory.swappiness", 0)
            _write(plain, memory)
            return
        # memory <= memory+swap must hold at every moment, so the order depends on the direction.
        grows = memory > int(_read(with_swap))
        for path in (with_swap, plain) if grows else (plain, with_swap):
            _write(path, memory)

    def _limit_socket_memory(self, memory: int) -> None:
        # Only sockets that are made after the first write are counted: a leaf has its limits before its box.
        try:
            limit = max(memory // _SOCKET_MEMORY_SHARE, _LEAST_SOCKET_MEMORY)
            _write(f"{self.paths['memory']}/{SOCKET_MEMORY}", limit)
        except FileNotFoundError:
            pass  # a kernel that does not count it, as ``tidebox doctor`` says

    def attach_descriptors(self) -> list[int]:
        for path in sorted(set(self.paths.values())):
            if path not in self._open:
                inner = "/" + AGENT_LEAF if path in self._divided else ""
                self._open[path] = os.open(path + inner + "/tasks", os.O_WRONLY | os.O_CLOEXEC)
        return list(self._open.values())

    def freeze(self, frozen: bool) -> None:
        _write(self.paths["freezer"] + "/freezer.state", "FROZEN" if frozen else "THAWED")

    def renew(self) -> bool:
        # Five hierarchies are dear to make. All of their counters can be counted from where they stand, but the most
        # processes there ever were.
        if self._divided or not (self._had_few_processes() or self._forget_processes()):
            return False
        # What the kernel has not let go of yet would be the next box's.
        return int(_read(self.paths["memory"] + "/memory.usage_in_bytes")) <= _CLEAN_BYTES

    def _had_few_processes(self) -> bool:
        """Whether it is empty and never had more processes than the next box will have in any case."""
        pids = self.paths["pids"]
        try:
            return int(_read(pids + "/pids.current")) == 0 and int(_read(pids + "/pids.peak")) <= _FEWEST_PROCESSES
        except FileNotFoundError:
            return False  # a kernel that does not count the most

    def _forget_processes(self) -> bool:
        pids = self.paths["pids"]
        if list(self.paths.values()).count(pids) > 1 or not _is_removed(pids):
            return False
        os.mkdir(pids)
        self.edition += 1
        self._limits.pop("pids", None)
        if pids in self._open:
            os.close(self._open.pop(pids))
        return True

    def _counters(self) -> dict[str, str]:
        return {
            "cpu": self.paths["cpuacct"] + "/cpuacct.usage",
            "peak": self.paths["memory"] + "/memory.max_usage_in_bytes",
            "oom": self.paths["memory"] + "/memory.oom_control",
            "pids": self.paths["pids"] + "/pids.peak",
            "now": self.paths["pids"] + "/pids.current",
        }

    def delegate(self, uid: int) -> list[int]:
        # Where something is counted for each exec. All are frozen, and have their share of the processor, together.
        self._divided = frozenset(self.paths[name] for name in ("memory", "pids", "cpuacct"))
        descriptors = []
        for path in sorted(self._divided):
            os.mkdir(f"{path}/{AGENT_LEAF}")
            os.chown(path, uid, -1)
            descriptors.append(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        return descriptors


class CgroupsV2(Cgroups):
    """One directory in the unified hierarchy."""

    version = 2

    def __init__(self, mount: str) -> None:
        super().__init__()
        own = mount + _own_v2_path().rstrip("/")
        if os.getuid() == 0:
            root = mount
        else:
            root = own
            self._leave(own)
        self.roots = {"unified": root}
        self._claim()
        base = self._bases()[0]
        try:
            self._enable_below(root, base)
        except BaseException:
            os.rmdir(base)
            raise
        # The templates clone straight into the leaves: they and the leaves need a common ancestor that the templates
        # may write.
        self.nursery = base + "/spawner"
        os.mkdir(self.nursery)
        self._owner: int | None = None

    def sweep_roots(self) -> set[str]:
        # A delegated scope dies with its spawner: only what stands at the top can be left over.
        return set(self.roots.values()) if os.getuid() == 0 else set()

    @staticmethod
    def _leave(own: str) -> None:
        """A cgroup with processes of its own cannot hand controllers down: move this one out of the way."""
        if not os.access(own, os.W_OK):
            raise CgroupError(f"the cgroup {own} is not delegated to this user")
        others = [pid for pid in _read(own + "/cgroup.procs").split() if int(pid) != os.getpid()]
        if others:
            raise CgroupError(f"the spawner's cgroup {own} is shared with other processes")
        os.mkdir(own + "/spawner")
        _write(own + "/spawner/cgroup.procs", os.getpid())

    @classmethod
    def _enable_below(cls, root: str, base: str) -> None:
        """Hand the controllers down to the leaves of ``base``."""
        for tries_left in reversed(range(_ENABLE_TRIES)):
            cls._enable(root)
            try:
                cls._enable(base)
                return
            except CgroupError:
                # At the top systemd may take back, at any moment, what none of its units uses; but not what a
                # cgroup below hands down itself.
                if not tries_left:
                    raise

    @staticmethod
    def _enable(path: str) -> None:
        have = _read(path + "/cgroup.controllers").split()
        missing = [name for name in NEEDED if name not in have]
        if missing:
            raise CgroupError("cgroup v2 at {} has no {} controller".format(path, ", ".join(missing)))
        enabled = _read(path + "/cgroup.subtree_control").split()
        wanted = [name for name in NEEDED if name not in enabled]
        if not wanted:
            return
        try:
            _write(path + "/cgroup.subtree_control", " ".join("+" + name for name in wanted))
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            # The top of a container, as a rule; the machine's own top is exempt.
            raise CgroupError(f"the cgroup {path} holds processes, so it cannot hand controllers down") from error

    def adopt_template(self, pid: int, uid: int | None) -> None:
        # Cloning into a cgroup asks for write access to it and to the nearest ancestor it shares with the template.
        _write(self.nursery + "/cgroup.procs", pid)
        if uid is not None:
            self._owner = uid
            os.chown(self._bases()[0] + "/cgroup.procs", uid, -1)

    def make(self, box: str) -> LeafV2:
        path = self._bases()[0] + "/" + box
        os.mkdir(path)
        if self._owner is not None:
            os.chown(path + "/cgroup.procs", self._owner, -1)
        return LeafV2(path)


class LeafV2(Leaf):
    """A leaf in the unified hierarchy."""

    def __init__(self, path: str) -> None:
        super().__init__({"unified": path})
        self.path = path

    def _set(self, name: str, value: int) -> None:
        if name == "memory":
            if os.path.exists(self.path + "/memory.swap.max"):
                _write(self.path + "/memory.swap.max", 0)
            _write(self.path + "/memory.max", value)
        elif name == "pids":
            _write(self.path + "/pids.max", value)
        elif name == "quota":
            quota, period = _quota(value)
            _write(self.path + "/cpu.max", f"{quota} {period}")
        elif name == "shares":
            # The conversion systemd and the container engines use: 2..262144 shares to 1..10000 weight.
            _write(self.path + "/cpu.weight", 1 + (value - 2) * 9999 // 262142)

    def attach_descriptors(self) -> list[int]:
        if not self._open:
            self._open[self.path] = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return list(self._open.values())

    def freeze(self, frozen: bool) -> None:
        _write(self.path + "/cgroup.freeze", 1 if frozen else 0)

    def _counters(self) -> dict[str, str]:
        return {
            "cpu": self.path + "/cpu.stat",
            "peak": self.path + "/memory.peak",
            "oom": self.path + "/memory.events",
            "pids": self.path + "/pids.peak",
            "now": self.path + "/pids.current",
        }

    def delegate(self, uid: int) -> list[int]:
        # The box is cloned into this cgroup and becomes the root of its own cgroup namespace here, because a namespace
        # may not move processes to a place outside it; then the agent makes room for leaves (``Leaves.settle``).
        if uid != os.getuid():
            for name in ("", "/cgroup.procs", "/cgroup.subtree_control"):
                # Both ids are mapped in the template's user namespace: it has power over a file only then.
                os.chown(self.path + name, uid, uid)
        if not self._open:
            self._open[self.path] = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return list(self._open.values())


def find() -> Cgroups:
    """The control groups this process may use; CgroupError says why there are none."""
    mounts, unified = _mounts()
    try:
        if all(name in mounts for name in (*NEEDED, "cpuacct", "freezer")):
            if os.getuid() != 0:
                raise CgroupError("cgroup v1 needs root")
            return CgroupsV1(mounts)
        if unified is None:
            raise CgroupError("no cgroup file system is mounted")
        return CgroupsV2(unified)
    except OSError as error:
        raise CgroupError(f"cgroup: {error.filename}: {error.strerror}") from error

"""Isolation as a program in its container finds it, as JSON: what was asked for is believed only when seen here."""

from __future__ import annotations

import ctypes
import errno
import os
import resource

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, NoReturn

_MOUNTS = ("/", "/workspace", "/tmp", "/dev/shm", "/.tidebox")
_PTRACE, _PROCESS_VM_READV, _PIDFD_GETFD, _UNSHARE = "ptrace", "process_vm_readv", "pidfd_getfd", "unshare"
_NUMBERS = {
    "x86_64": {_PTRACE: 101, _PROCESS_VM_READV: 310, _PIDFD_GETFD: 438, _UNSHARE: 272},
    "aarch64": {_PTRACE: 117, _PROCESS_VM_READV: 270, _PIDFD_GETFD: 438, _UNSHARE: 97},
}
_PTRACE_ATTACH = 16
_NEW_USER = 0x10000000
_CGROUP = "/sys/fs/cgroup/"
_LIMITS = {
    "memory": ("memory/memory.limit_in_bytes", "memory.max"),
    "memory_swap": ("memory/memory.memsw.limit_in_bytes", "memory.swap.max"),
    "sockets": ("memory/memory.kmem.tcp.limit_in_bytes",),
    "pids": ("pids/pids.max", "pids.max"),
    "cpu": ("cpu/cpu.cfs_quota_us", "cpu.max"),
}
_GET_NO_NEW_PRIVS = 39
# More than the file system of shared memory has.
_MOST_WRITTEN = 96 << 20
# More processes than a box has that is examined so.
_MOST_FORKED = 24
_RLIMITS = ("NOFILE", "NPROC", "CORE", "FSIZE")


def examine(arguments: list[str], _control: int) -> NoReturn:
    """Write it to standard output; with an argument also what only trying tells, where mounts do not show it."""
    # Loaded only here: no other child of the agent needs it.
    import json

    findings = _findings()
    if arguments:
        findings["executed"] = {path: _executed(path) for path in ("/workspace", "/tmp", "/dev/shm")}
        findings["capacity"] = _written("/dev/shm")
        findings["forked"] = _forked()
        findings["opened"] = _opened()
    os.write(1, json.dumps(findings).encode())
    os._exit(0)


def _findings() -> dict[str, Any]:
    return {
        "uid": os.getuid(),
        "gid": os.getgid(),
        "groups": os.getgroups(),
        "status": _status(),
        "mounts": {path: _mount(path) for path in _MOUNTS},
        "files": {path: os.statvfs(path).f_files for path in ("/workspace", "/tmp")},
        "root_writable": _works(lambda: os.close(os.open("/written", os.O_WRONLY | os.O_CREAT, 0o600))),
        "interfaces": _interfaces(),
        "limits": {name: _first(paths) for name, paths in _LIMITS.items()},
        "swap": _swap(),
        "rlimits": {name: list(resource.getrlimit(getattr(resource, "RLIMIT_" + name))) for name in _RLIMITS},
        "init": _init(),
        "namespace": _call(_UNSHARE, _NEW_USER),
        "apparmor": _text("/proc/self/attr/apparmor/current") or _text("/proc/self/attr/current"),
        "shared_memory": os.path.isdir("/dev/shm"),
        "no_new_privileges": _no_new_privileges(),
        "processes": sorted(name for name in os.listdir("/proc") if name.isdigit()),
    }


def _status() -> dict[str, str]:
    lines = (line.partition(":") for line in _text("/proc/self/status").splitlines())
    return {name: value.strip() for name, _, value in lines if name.startswith(("Cap", "NoNewPrivs", "Seccomp"))}


def _mount(path: str) -> list[str]:
    """Kind and options of what is mounted there; nothing where nothing is."""
    found: list[str] = []
    for line in _text("/proc/self/mountinfo").splitlines():
        words = line.split()
        if words[4] == path:
            kind = words[words.index("-") + 1]
            found = [kind, *words[5].split(","), *words[-1].split(",")]
    return found


def _interfaces() -> list[str]:
    return [line.partition(":")[0].strip() for line in _text("/proc/net/dev").splitlines() if ":" in line]


def _swap() -> int:
    for line in _text("/proc/meminfo").splitlines():
        if line.startswith("SwapTotal:"):
            return int(line.split()[1])
    return 0


def _init() -> dict[str, Any]:
    """Try to reach init (memory, descriptors, ptrace, rlimits, pidfd_getfd); returns the outcome of each attempt."""

    def limits() -> None:
        resource.prlimit(1, resource.RLIMIT_NOFILE, (64, 64))

    def descriptor() -> None:
        pidfd = os.pidfd_open(1)
        if _call(_PIDFD_GETFD, pidfd, 0, 0) is None:
            return
        raise PermissionError(errno.EPERM, "")

    return {
        "memory": _works(lambda: os.close(os.open("/proc/1/mem", os.O_RDWR))),
        "descriptors": _works(lambda: os.listdir("/proc/1/fd")),
        "environment": _works(lambda: os.close(os.open("/proc/1/environ", os.O_RDONLY))),
        "trace": _call(_PTRACE, _PTRACE_ATTACH, 1, 0, 0) is None,
        "read": _call(_PROCESS_VM_READV, 1, 0, 0, 0, 0, 0) is None,
        "limits": _works(limits),
        "descriptor": _works(descriptor),
    }


def _no_new_privileges() -> bool:
    """Told by the kernel itself: not every one shows it among the facts of a process."""
    return bool(ctypes.CDLL(None).prctl(_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1)


def _executed(directory: str) -> bool:
    """Whether a file that was made there can be executed."""
    path = f"{directory}/.tidebox-examined"
    try:
        with open(path, "wb") as file:
            file.write(b"#!/bin/true\n")
        os.chmod(path, 0o755)
        pid = os.fork()
        if pid == 0:
            try:
                os.execv(path, [path])
            except PermissionError:
                os._exit(0)
            finally:
                # Any other answer is one of a kernel that was about to.
                os._exit(1)
        return os.waitpid(pid, 0)[1] != 0
    except OSError:
        return False
    finally:
        try:
            os.unlink(path)
        except OSError:
            pass


def _opened() -> list[str]:
    """Return init's descriptors that can be opened, but for files that have a path and those this process has too."""
    found = []
    own = {os.readlink(f"/proc/self/fd/{number}") for number in range(3)}
    try:
        numbers = os.listdir("/proc/1/fd")
    except OSError:
        return []
    for number in numbers:
        path = f"/proc/1/fd/{number}"
        for flags in (os.O_RDONLY, os.O_WRONLY):
            try:
                target = os.readlink(path)
                if target.startswith("/") or target in own:
                    continue
                os.close(os.open(path, flags | os.O_NONBLOCK))
            except OSError:
                continue
            found.append(f"{target} ({number})")
    return found


def _forked() -> int:
    """Count the children that a process can have at once, up to ``_MOST_FORKED``."""
    read, write = os.pipe()
    children = []
    try:
        for _ in range(_MOST_FORKED):
            pid = os.fork()
            if pid == 0:
                os.close(write)
                os.read(read, 1)  # until all are there
                os._exit(0)
            children.append(pid)
    except OSError:
        pass
    os.close(write)
    os.close(read)
    for pid in children:
        os.waitpid(pid, 0)
    return len(children)


def _written(directory: str) -> int:
    """Count the bytes that a file in a small file system can have."""
    path = f"{directory}/.tidebox-examined"
    size = 0
    block = bytes(1 << 20)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            while size < _MOST_WRITTEN:
                size += os.write(fd, block)
        finally:
            os.close(fd)
            os.unlink(path)
    except OSError:
        pass
    return size


def _call(name: str, *arguments: int) -> str | None:
    """The name of the error of a system call; None where it was let through."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    number = _NUMBERS[os.uname().machine][name]
    if libc.syscall(ctypes.c_long(number), *(ctypes.c_long(argument) for argument in arguments)) >= 0:
        return None
    return errno.errorcode.get(ctypes.get_errno(), "?")


def _works(action: Callable[[], object]) -> bool:
    try:
        action()
    except (OSError, ValueError):
        return False
    return True


def _first(paths: tuple[str, ...]) -> str:
    return next((text for text in (_text(_CGROUP + path).strip() for path in paths) if text), "")


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(65536)
    except (OSError, ValueError):
        return ""

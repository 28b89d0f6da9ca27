"""The few system calls Python has no name for, each raising OSError on failure.

Called through ``PyDLL`` so that the interpreter lock is kept: the spawner is single-threaded, and releasing the lock
around a ``clone3`` would let the child come back without it.
"""

from __future__ import annotations

import ctypes
import os
from struct import Struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    # A system call and what it is given, prepared where there is time.
    Call = tuple[Callable[..., int], tuple[Any, ...]]

_libc = ctypes.PyDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
# Looked up here once: the first look-up costs more than the call, and every box would pay for it.
_unshare, _setns, _mount, _umount2 = _libc.unshare, _libc.setns, _libc.mount, _libc.umount2
_sethostname, _prctl, _wait4 = _libc.sethostname, _libc.prctl, _libc.wait4
_mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)
_prctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong)
_MACHINE = os.uname().machine

CLONE_VM = 0x00000100
CLONE_FILES = 0x00000400
CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
CLONE_PIDFD = 0x00001000
CLONE_INTO_CGROUP = 0x200000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

MOUNT_ATTR_RDONLY = 0x1
MOUNT_ATTR_NOSUID = 0x2
MOUNT_ATTR_NODEV = 0x4
MOUNT_ATTR_NOEXEC = 0x8

FSOPEN_CLOEXEC = FSMOUNT_CLOEXEC = 1
FSCONFIG_SET_STRING = 1
FSCONFIG_CMD_CREATE = 6

OPEN_TREE_CLONE = 1
OPEN_TREE_CLOEXEC = os.O_CLOEXEC
AT_EMPTY_PATH = 0x1000
AT_RECURSIVE = 0x8000
MOVE_MOUNT_F_EMPTY_PATH = 0x4

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_SECUREBITS = 28
PR_SET_NO_NEW_PRIVS = 38
SECBIT_NO_SETUID_FIXUP = 4

CAP_CHOWN = 0
CAP_DAC_OVERRIDE = 1
CAP_KILL = 5
CAP_SETGID = 6
CAP_SETUID = 7
CAP_LAST = 40

# The calls newer than both architectures' split share one number; pivot_root and capset do not.
_NR_OPEN_TREE = 428
_NR_MOVE_MOUNT = 429
_NR_FSOPEN = 430
_NR_FSCONFIG = 431
_NR_FSMOUNT = 432
_NR_CLONE3 = 435
_NR_MOUNT_SETATTR = 442
_NR_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}[_MACHINE]
_NR_CAPSET = {"x86_64": 126, "aarch64": 91}[_MACHINE]
_NR_RT_SIGACTION = {"x86_64": 13, "aarch64": 134}[_MACHINE]


def _check(result: int, what: str) -> int:
    if result < 0:
        raise last_error(what)
    return result


class _CloneArgs(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "flags",
            "pidfd",
            "child_tid",
            "parent_tid",
            "exit_signal",
            "stack",
            "stack_size",
            "tls",
            "set_tid",
            "set_tid_size",
            "cgroup",
        )
    ]


_SIGCHLD = 17
_SIGKILL = 9
_before_fork = ctypes.pythonapi.PyOS_BeforeFork
_after_fork_child = ctypes.pythonapi.PyOS_AfterFork_Child
_after_fork_parent = ctypes.pythonapi.PyOS_AfterFork_Parent
_before_fork.restype = _after_fork_child.restype = _after_fork_parent.restype = None


def clone(flags: int, cgroup: int | None = None) -> tuple[int, int]:
    """Fork with ``flags`` (and into the v2 ``cgroup`` directory); (0, -1) in the child, (pid, pidfd) in the parent."""
    pidfd = ctypes.c_int(-1)
    args = _CloneArgs(flags=flags | CLONE_PIDFD, pidfd=ctypes.addressof(pidfd), exit_signal=_SIGCHLD)
    if cgroup is not None:
        args.flags |= CLONE_INTO_CGROUP
        args.cgroup = cgroup
    _before_fork()
    pid = _syscall(_NR_CLONE3, ctypes.byref(args), ctypes.sizeof(args))
    if pid == 0:
        _after_fork_child()
        return 0, -1
    code = ctypes.get_errno()
    _after_fork_parent()
    if pid < 0:
        raise OSError(code, os.strerror(code), "clone3")
    return pid, pidfd.value


_clone = _libc.clone
_clone.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_pause = ctypes.cast(_libc.pause, ctypes.c_void_p)
# All sleepers stand on the same few bytes: each writes there what the others wrote, and none ever comes back to read.
_STACK_SIZE = 4096
_stack = ctypes.create_string_buffer(_STACK_SIZE + 16)
_stack_top = (ctypes.addressof(_stack) + _STACK_SIZE) & ~15


def clone_sleeper(flags: int) -> tuple[int, int]:
    """A process with ``flags`` that sleeps until it is killed: (pid, pidfd).

    It lives in the memory of this one, with its descriptors, and so costs next to nothing.
    """
    pidfd = ctypes.c_int(-1)
    flags |= CLONE_VM | CLONE_FILES | CLONE_PIDFD | _SIGCHLD
    pid = _check(_clone(_pause, _stack_top, flags, None, ctypes.byref(pidfd)), "clone")
    return pid, pidfd.value


# Of struct rusage: user and system time, each in seconds and microseconds, and the most memory in KiB.
_USAGE = Struct("@4ll")
_usage = ctypes.create_string_buffer(256)
_status = ctypes.c_int()


def wait(pid: int) -> tuple[int, int, int]:
    """Take a child that is dead: its wait status, its cpu time in microseconds, the most memory it had in bytes.

    os.wait4 imports a module, and on the root of an image nothing can be imported.
    """
    _check(_wait4(pid, ctypes.byref(_status), 0, _usage), "wait4")
    user, user_us, system, system_us, most = _USAGE.unpack_from(_usage)
    return _status.value, (user + system) * 1_000_000 + user_us + system_us, most * 1024


def unshare(flags: int) -> None:
    """Enter new namespaces."""
    _check(_unshare(flags), "unshare")


def enter_namespace(descriptor: int, kind: int) -> None:
    """Enter the namespace of type ``kind`` behind ``descriptor``."""
    _check(_setns(descriptor, kind), "setns")


def _text(value: str | None) -> bytes | None:
    return None if value is None else os.fsencode(value)


def mount_arguments(
    source: str | None, target: str, kind: str | None, flags: int, data: str | None = None
) -> tuple[bytes | None, bytes | None, bytes | None, int, bytes | None]:
    """Encode the arguments of mount(2) for ``call_mount``."""
    return _text(source), _text(target), _text(kind), flags, _text(data)


# The calls themselves, which answer -1 when they failed: see ``last_error``.
call_mount, call_setns = _mount, _setns


def last_error(what: str) -> OSError:
    """Return the error of the system call before, which failed on ``what``."""
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code), what)


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """Call mount(2); raises OSError if it fails."""
    _check(_mount(*mount_arguments(source, target, kind, flags, data)), target)


def unmount(target: str, flags: int = MNT_DETACH) -> None:
    """Call umount2(2); raises OSError if it fails."""
    _check(_umount2(_text(target), flags), target)


def pivot_root(new: str, old: str) -> None:
    """Call pivot_root(2); raises OSError if it fails."""
    _check(_syscall(_NR_PIVOT_ROOT, _text(new), _text(old)), new)


class _MountAttr(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")]


def restrict_mount(target: str, attributes: int, recursive: bool = True) -> None:
    """Set mount attributes (read-only, nosuid, ...) on a whole tree: mount_setattr(2), Linux 5.12."""
    attr = _MountAttr(attr_set=attributes)
    flags = AT_RECURSIVE if recursive else 0
    _check(_syscall(_NR_MOUNT_SETATTR, -100, _text(target), flags, ctypes.byref(attr), ctypes.sizeof(attr)), target)


def open_tree(path: str) -> int:
    """A descriptor of a detached clone of the mount at ``path``."""
    return _check(_syscall(_NR_OPEN_TREE, -100, _text(path), OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC), path)


def move_mount(tree: int, target: str) -> None:
    """Attach the detached mount ``tree`` at ``target``."""
    _check(_syscall(_NR_MOVE_MOUNT, tree, b"", -100, _text(target), MOVE_MOUNT_F_EMPTY_PATH), target)


def make_tmpfs(options: tuple[tuple[str, str], ...]) -> int:
    """A descriptor of a new tmpfs that is mounted nowhere, without set-id bits and programs: fsmount(2), Linux 5.2."""
    context = _check(_syscall(_NR_FSOPEN, b"tmpfs", FSOPEN_CLOEXEC), "fsopen")
    try:
        for name, value in options:
            given = (name.encode(), value.encode(), 0)
            _check(_syscall(_NR_FSCONFIG, context, FSCONFIG_SET_STRING, *given), "fsconfig")
        _check(_syscall(_NR_FSCONFIG, context, FSCONFIG_CMD_CREATE, None, None, 0), "fsconfig")
        attributes = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC
        return _check(_syscall(_NR_FSMOUNT, context, FSMOUNT_CLOEXEC, attributes), "fsmount")
    finally:
        os.close(context)


def restrict_detached(mount: int, attributes: int) -> None:
    """Set attributes of a mount that is known by its descriptor."""
    attr = _MountAttr(attr_set=attributes)
    size = ctypes.sizeof(attr)
    _check(_syscall(_NR_MOUNT_SETATTR, mount, b"", AT_EMPTY_PATH, ctypes.byref(attr), size), "mount_setattr")


def set_hostname(name: str) -> None:
    """Call sethostname(2); raises OSError if it fails."""
    raw = name.encode()
    _check(_sethostname(raw, len(raw)), "sethostname")


def prctl_call(option: int, value: int) -> Call:
    """prctl(2) with one argument, to be made later."""
    return _prctl, (option, value, 0, 0, 0)


def make(calls: list[Call], what: str) -> None:
    """Make calls that were prepared."""
    for call, arguments in calls:
        _check(call(*arguments), what)


def prctl(option: int, value: int = 0, what: str = "prctl") -> int:
    """prctl(2) with one argument."""
    return _check(_prctl(option, value, 0, 0, 0), what)


# The C library keeps these for itself and hides them from sigaction(3), yet its posix_spawn leaves them ignored, and
# that is inherited: every program started by make has it.
_HIDDEN_SIGNALS = (32, 33)


def reset_hidden_signals() -> None:
    """Put back the kernel's default for the signals that Python cannot reach."""
    default = ctypes.create_string_buffer(32)
    for number in _HIDDEN_SIGNALS:
        _check(_syscall(_NR_RT_SIGACTION, number, default, None, 8), "rt_sigaction")


class _CapHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _CapData(ctypes.Structure):
    _fields_ = [("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32)]


_CapSets = _CapData * 2


class Capabilities:
    """A set of capabilities, prepared where there is time: a box only hands it to the kernel."""

    def __init__(self, keep: tuple[int, ...]) -> None:
        mask = sum(1 << number for number in keep)
        self._data = _CapSets()
        for word in (0, 1):
            self._data[word].effective = self._data[word].permitted = (mask >> (32 * word)) & 0xFFFFFFFF
        self._header = _CapHeader(0x20080522, 0)
        # Made the effective and permitted set; nothing is inheritable or ambient.
        self.set_calls: list[Call] = [(_syscall, (_NR_CAPSET, ctypes.byref(self._header), self._data))]
        # Every other removed from the bounding set.
        dropped = [number for number in range(CAP_LAST + 1) if number not in keep]
        self.bound_calls: list[Call] = [prctl_call(PR_CAPBSET_DROP, number) for number in dropped]


def clone_as(uid: int, flags: int) -> tuple[int, int]:
    """``clone`` for a process that has the capabilities of root, with ``uid`` as the maker of new namespaces.

    The process dies with its parent afterwards, as templates do.
    """
    prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP)
    os.setresuid(-1, uid, -1)
    try:
        return clone(flags)
    finally:
        # Not in a child with a user namespace of its own, where this is nobody.
        if os.getuid() == 0:
            os.setresuid(-1, 0, -1)
            prctl(PR_SET_SECUREBITS, 0)
            # The change of identity has taken it back.
            prctl(PR_SET_PDEATHSIG, _SIGKILL)


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


class Filter:
    """A seccomp filter, prepared where there is time."""

    def __init__(self, instructions: bytes) -> None:
        self._program = _Program(len(instructions) // 8, instructions)
        # Installed on this thread, for ever.
        self.load_calls: list[Call] = [(_prctl, (PR_SET_SECCOMP, 2, ctypes.addressof(self._program), 0, 0))]

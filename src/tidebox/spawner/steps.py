"""The steps a plan is made of, and the executor that fails closed naming the step.

A plan is an ordered list ``[name, argument, ...]`` made elsewhere by pure code. Nothing here decides; an unknown or
failing step ends the set-up with ``StepFailed`` and the half-made process exits.
"""

from __future__ import annotations

import _socket
import errno
import fcntl
import os
import stat
from _md5 import md5  # type: ignore[import-not-found]

from tidebox.spawner import syscalls as sys_

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Optional

    # Source, target, type, flags, data.
    Mount = tuple[Optional[str], str, Optional[str], int, Optional[str]]
    # A label for errors, what to call, and with what.
    Prepared = tuple[str, Callable[..., Any], tuple[Any, ...]]

# Where a process that becomes a box has the mount of its devices, if it is given one.
DEVICES = 6

_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1
_LARGEST_PACKAGED = 256 * 1024
_LARGEST_BUNDLE = 900 * 1024
# Of a directory: to list it, and to reach what is in it.
_READ_BY_ALL = stat.S_IROTH | stat.S_IXOTH

_ATTRIBUTES = {
    "ro": (sys_.MS_RDONLY, sys_.MOUNT_ATTR_RDONLY),
    "nosuid": (sys_.MS_NOSUID, sys_.MOUNT_ATTR_NOSUID),
    "nodev": (sys_.MS_NODEV, sys_.MOUNT_ATTR_NODEV),
    "noexec": (sys_.MS_NOEXEC, sys_.MOUNT_ATTR_NOEXEC),
}


class StepFailed(Exception):
    """A set-up step failed; ``step`` names it."""

    def __init__(self, step: str, error: OSError) -> None:
        super().__init__(f"{step}: {error.strerror}")
        self.step = step
        self.errno = error.errno or 0

    def told(self) -> dict[str, Any]:
        """As an answer says it."""
        return {"failed": self.step, "errno": self.errno, "text": os.strerror(self.errno)}


def execute(plan: list[list[Any]]) -> None:
    """Run every step in order; the first failure ends it."""
    run(prepare(plan))


def prepare(plan: list[list[Any]]) -> list[Prepared]:
    """Turn the steps of a plan into calls ahead, where there is time: a box only makes the calls."""
    calls: list[Prepared] = []
    for step in plan:
        name, arguments = step[0], step[1:]
        shown = [str(argument) for argument in arguments[:2] if isinstance(argument, str) and len(argument) < 80]
        label = " ".join([name, *shown])
        if name in _MOUNTS:
            calls += [(label, sys_.call_mount, sys_.mount_arguments(*item)) for item in _MOUNTS[name](*arguments)]
        elif name in _STEPS:
            calls.append((label, _STEPS[name], tuple(arguments)))
        else:
            raise StepFailed(name, OSError(errno.EINVAL, "unknown step"))
    return calls


def run(prepared: list[Prepared]) -> None:
    """Make the calls; a system call fails with a number, everything else by itself."""
    for label, call, arguments in prepared:
        try:
            if call(*arguments) == -1:
                raise sys_.last_error(label)
        except OSError as error:
            raise StepFailed(label, error) from error
        except ValueError as error:
            # How setrlimit says that a limit may not be raised.
            raise StepFailed(label, OSError(errno.EPERM, str(error))) from error


def _flags(attributes: list[str]) -> int:
    return sum(_ATTRIBUTES[name][0] for name in attributes)


def _private() -> None:
    sys_.mount(None, "/", None, sys_.MS_REC | sys_.MS_PRIVATE)


def _stage() -> None:
    """Stand on an empty tmpfs with the machine at /old and the root to be built at /new."""
    sys_.mount("tmpfs", "/tmp", "tmpfs", sys_.MS_NOSUID | sys_.MS_NODEV, "mode=0755,size=16m")
    os.mkdir("/tmp/old")
    os.mkdir("/tmp/new", 0o755)
    sys_.pivot_root("/tmp", "/tmp/old")
    os.chdir("/")


def _root_tmpfs() -> None:
    sys_.mount("tmpfs", "/new", "tmpfs", sys_.MS_NOSUID | sys_.MS_NODEV, "mode=0755,size=64m")


def _enter() -> None:
    """Make /new the root and let go of the machine's file systems."""
    _pivot("/new")


def _mkdir(path: str, mode: int) -> None:
    os.makedirs(path, mode, exist_ok=True)


def _symlink(target: str, path: str) -> None:
    os.symlink(target, path)


def _file(path: str, content: bytes) -> None:
    os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)


def _copy(source: str, target: str) -> None:
    """Copy a file or a directory of the machine, with links as they are.

    What not everybody may read is left out: root can read it here, and a copy could be read in every box.
    """
    mode = os.lstat(source).st_mode
    if stat.S_ISLNK(mode):
        os.symlink(os.readlink(source), target)
    elif stat.S_ISDIR(mode) and mode & _READ_BY_ALL == _READ_BY_ALL:
        os.makedirs(target, 0o755, exist_ok=True)
        for name in os.listdir(source):
            _copy(f"{source}/{name}", f"{target}/{name}")
    elif stat.S_ISREG(mode) and mode & stat.S_IROTH:
        with open(source, "rb") as file:
            content = file.read()
        _file(target, content)


def _copy_packaged(source: str, target: str, files: list[list[str]]) -> None:
    """Copy files of the machine that are still as packages brought them: path and MD5 of each.

    Looked at again here, for much time may have passed: what was edited meanwhile may hold a secret by now.
    """
    for path, digest in files:
        if os.path.lexists(target + path):
            continue
        try:
            fd = os.open(source + path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue
        with open(fd, "rb") as file:
            mode = os.fstat(fd).st_mode
            content = file.read(_LARGEST_PACKAGED + 1) if stat.S_ISREG(mode) and mode & stat.S_IROTH else b""
        if md5(content).hexdigest() == digest:
            _file(target + path, content)


def _trust(places: list[str], target: str, certificate: bytes) -> None:
    """Write the certificates that the image trusts, and one more, to ``target``, and put that in their place.

    ``places`` are where images have them; the first that is there is the one.
    """
    there = [place for place in places if os.path.isfile(place)]
    known = b""
    if there:
        with open(there[0], "rb") as file:
            known = file.read(_LARGEST_BUNDLE)
    _file(target, known + b"\n" + certificate)
    # Names of one file: what is put on the first would be on all.
    for place in {os.path.realpath(place) for place in there}:
        sys_.mount(target, place, None, sys_.MS_BIND)


def _bind(source: str, target: str, attributes: list[str]) -> None:
    """Bind a directory or file of the machine, without what is mounted in it if that can be; its target is made."""
    if os.path.isdir(source):
        os.makedirs(target, 0o755, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), 0o755, exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    try:
        sys_.mount(source, target, None, sys_.MS_BIND)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # Without root nobody may look below a mount.
        sys_.mount(source, target, None, sys_.MS_BIND | sys_.MS_REC)
    if attributes:
        _restrict(target, attributes)


def _restrict(target: str, attributes: list[str]) -> None:
    try:
        sys_.restrict_mount(target, sum(_ATTRIBUTES[name][1] for name in attributes))
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        _restrict_one_by_one(target, attributes)


def _restrict_one_by_one(target: str, attributes: list[str]) -> None:
    """The same before Linux 5.12: remount every mount below; what the machine already restricts must be repeated."""
    with open("/proc/self/mountinfo" if os.path.exists("/proc/self") else "/old/proc/self/mountinfo") as file:
        lines = [line.split() for line in file]
    for fields in lines:
        point, options = fields[4], fields[5].split(",")
        if point == target or point.startswith(target.rstrip("/") + "/"):
            keep = [name for name in options if name in _ATTRIBUTES]
            flags = _flags(sorted({*keep, *attributes}))
            sys_.mount(None, point, None, sys_.MS_REMOUNT | sys_.MS_BIND | flags)


def _read_only_root() -> None:
    sys_.mount(None, "/", None, sys_.MS_REMOUNT | sys_.MS_BIND | sys_.MS_RDONLY | sys_.MS_NOSUID | sys_.MS_NODEV)


def _pivot(path: str) -> None:
    """Make ``path`` the root, and let go of what was."""
    os.chdir(path)
    sys_.pivot_root(".", ".")
    sys_.unmount(".", sys_.MNT_DETACH)
    os.chdir("/")


def _chroot(path: str) -> None:
    """Make ``path`` the root of this process and all that come from it."""
    os.chroot(path)
    os.chdir("/")


def _attach_devices(path: str) -> None:
    sys_.move_mount(DEVICES, path)


def _overlay(path: str, layers: list[str]) -> list[Mount]:
    """Another file system with the same files: read-only, for there is nowhere to write to."""
    flags = sys_.MS_RDONLY | sys_.MS_NOSUID | sys_.MS_NODEV
    return [("overlay", path, "overlay", flags, f"lowerdir={':'.join(map(_escape, layers))},userxattr")]


def _escape(path: str) -> str:
    return "".join("\\" + letter if letter in "\\:," else letter for letter in path)


def _bind_tree(source: str, path: str) -> list[Mount]:
    return [(source, path, None, sys_.MS_BIND | sys_.MS_REC, None)]


def _tmpfs(path: str, attributes: list[str], options: str) -> list[Mount]:
    return [("tmpfs", path, "tmpfs", _flags(attributes), options)]


def _proc(path: str, options: str) -> list[Mount]:
    return [("proc", path, "proc", sys_.MS_NOSUID | sys_.MS_NODEV | sys_.MS_NOEXEC, options)]


def _read_only(path: str) -> list[Mount]:
    flags = sys_.MS_RDONLY | sys_.MS_NOSUID | sys_.MS_NODEV | sys_.MS_NOEXEC
    return [(None, path, None, sys_.MS_REMOUNT | sys_.MS_BIND | flags, None)]


def _devpts(path: str, most: int) -> list[Mount]:
    # No gid=: the tty group is not mapped here, and the kernel refuses an id that is not.
    options = f"newinstance,ptmxmode=0666,mode=0620,max={most}"
    return [("devpts", path, "devpts", sys_.MS_NOSUID | sys_.MS_NOEXEC, options)]


def _cover(source: str, paths: list[str]) -> list[Mount]:
    """Hide paths behind an empty source."""
    return [(source, path, None, sys_.MS_BIND, None) for path in paths]


def _write(path: str, value: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def _write_if_shown(path: str, value: str) -> None:
    """The same where the kernel lets this user see the setting at all."""
    try:
        _write(path, value)
    except FileNotFoundError:
        pass


def _loopback() -> None:
    """Bring ``lo`` up: without it servers of a program on 127.0.0.1 cannot be reached by the program itself."""
    sock = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM | _socket.SOCK_CLOEXEC)
    try:
        request = b"lo".ljust(16, b"\0") + bytes(24)
        request = fcntl.ioctl(sock.fileno(), _SIOCGIFFLAGS, request)
        flags = int.from_bytes(request[16:18], "little") | _IFF_UP
        fcntl.ioctl(sock.fileno(), _SIOCSIFFLAGS, request[:16] + flags.to_bytes(2, "little") + request[18:])
    finally:
        sock.close()


def _cgroup_namespace() -> None:
    sys_.unshare(sys_.CLONE_NEWCGROUP)


_STEPS: dict[str, Callable[..., None]] = {
    "private": _private,
    "stage": _stage,
    "root_tmpfs": _root_tmpfs,
    "enter": _enter,
    "mkdir": _mkdir,
    "symlink": _symlink,
    "file": _file,
    "copy": _copy,
    "copy_packaged": _copy_packaged,
    "trust": _trust,
    "bind": _bind,
    "chroot": _chroot,
    "attach_devices": _attach_devices,
    "restrict": _restrict,
    "read_only_root": _read_only_root,
    "write": _write,
    "write_if_shown": _write_if_shown,
    "loopback": _loopback,
    "hostname": sys_.set_hostname,
    "cgroup_namespace": _cgroup_namespace,
}

# Steps that are nothing but mounts.
_MOUNTS: dict[str, Callable[..., list[Mount]]] = {
    "overlay": _overlay,
    "bind_tree": _bind_tree,
    "tmpfs": _tmpfs,
    "proc": _proc,
    "read_only": _read_only,
    "devpts": _devpts,
    "cover": _cover,
}

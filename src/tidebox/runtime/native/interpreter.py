"""A copy of the interpreter that warm programs are forked from, on a file system that nothing else sees.

A program can open the file that it was started from by ``/proc/self/exe``, under any root, and lock or watch it.
For one that was forked that is the spawner's, which would be the machine's own and that of every box. Nobody but root
can read this copy, so no program can open it; what the link says, and that it can be executed, stays.
"""

from __future__ import annotations

import ctypes
import os

_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
_CLOEXEC = 1
_CMD_CREATE = 6
_NOSUID, _NODEV = 2, 4
_EXECUTE_ONLY = 0o711


def copy_interpreter(program: str) -> int | None:
    """A descriptor of the copy, to be executed; None where this user cannot make a file system."""
    path = os.path.realpath(program)
    mount = _make_tmpfs()
    if mount is None:
        return None
    try:
        name = path.lstrip("/")
        for directory in directories_of(name):
            os.mkdir(directory, 0o755, dir_fd=mount)
        target = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, _EXECUTE_ONLY, dir_fd=mount)
        try:
            with open(path, "rb") as source:
                while os.sendfile(target, source.fileno(), None, 1 << 30):
                    pass
            os.fchmod(target, _EXECUTE_ONLY)
        finally:
            os.close(target)
        return os.open(name, os.O_PATH | os.O_CLOEXEC, dir_fd=mount)
    finally:
        os.close(mount)


def directories_of(name: str) -> list[str]:
    """Those that a file of this relative name is in, the outermost first; none for one at the root."""
    parts = name.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]


def _make_tmpfs() -> int | None:
    if os.geteuid() != 0:
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    context = libc.syscall(_FSOPEN, b"tmpfs", _CLOEXEC)
    if context < 0:
        return None
    try:
        if libc.syscall(_FSCONFIG, context, _CMD_CREATE, None, None, 0) < 0:
            return None
        mount: int = libc.syscall(_FSMOUNT, context, _CLOEXEC, _NOSUID | _NODEV)
    finally:
        os.close(context)
    return mount if mount >= 0 else None

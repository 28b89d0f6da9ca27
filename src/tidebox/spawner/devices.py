"""The /dev of a box: a file system of its own, made by root and handed to the box as a descriptor.

A program can lock a device, or watch it, as any file. Were the machine's own bound into boxes, each would see what
others do with them; and nobody but the machine's root can make a device.
"""

from __future__ import annotations

import os
import stat

from tidebox.spawner import syscalls as sys_

_NODES = (("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0))
_LINKS = (
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
)
_MODE = stat.S_IFCHR | 0o666


def make() -> int:
    """A descriptor of a mount with devices for one box; OSError where this user cannot make them."""
    mount = sys_.make_tmpfs((("mode", "0755"), ("size", "64k")))
    try:
        before = os.umask(0)
        try:
            for name, major, minor in _NODES:
                os.mknod(name, _MODE, os.makedev(major, minor), dir_fd=mount)
        finally:
            os.umask(before)
        for name, target in _LINKS:
            os.symlink(target, name, dir_fd=mount)
        for name in ("pts", "shm"):
            os.mkdir(name, 0o755, dir_fd=mount)
        sys_.restrict_detached(mount, sys_.MOUNT_ATTR_RDONLY)
        # Some containers let root make devices that nobody can open.
        os.close(os.open("null", os.O_RDWR | os.O_CLOEXEC, dir_fd=mount))
    except OSError:
        os.close(mount)
        raise
    return mount

"""Pseudo-terminals of execs."""

from __future__ import annotations

import fcntl
import os
from struct import Struct

_SIZE = Struct("HHHH")
# The same on x86-64 and ARM64. With the module that has them every box would have one more library to map.
_TIOCSCTTY = 0x540E
_TIOCSWINSZ = 0x5414


def open_pair(rows: int, cols: int, uid: int, gid: int) -> tuple[int, int]:
    """Master and slave of a new terminal that belongs to the user."""
    master, slave = os.openpty()
    try:
        resize(master, rows, cols)
        os.fchmod(slave, 0o620)
        # Last: init has no power over the mode of what is not its own.
        if (uid, gid) != (os.getuid(), os.getgid()):
            os.fchown(slave, uid, gid)
        os.set_blocking(master, False)
    except OSError:
        os.close(master)
        os.close(slave)
        raise
    return master, slave


def resize(master: int, rows: int, cols: int) -> None:
    """Change the size; the kernel tells the foreground process group."""
    fcntl.ioctl(master, _TIOCSWINSZ, _SIZE.pack(rows, cols, 0, 0))


def take_control(slave: int) -> None:
    """Make the terminal the controlling one of the calling session leader."""
    fcntl.ioctl(slave, _TIOCSCTTY, 0)

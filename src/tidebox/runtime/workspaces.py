"""Whole workspaces into boxes and out of them, through the workspace's directory descriptor.

The box's agent takes no part in it: it could not tell the truth about files that a hostile program made.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

from tidebox.errors import PayloadTooLarge
from tidebox.files.trees import Tally, TreeLimits, copy_tree, opened

_libc = ctypes.CDLL(None)


def place(source: Path, workspace: int, limits: TreeLimits) -> Tally:
    """Copy what is below ``source`` into an empty workspace; there it belongs to the box's user."""
    status = os.fstat(workspace)
    owner = _Owner(status.st_uid, status.st_gid) if status.st_uid != os.geteuid() else None
    try:
        with opened(source) as directory:
            return copy_tree(directory, workspace, limits, owner=owner)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise PayloadTooLarge("the files do not fit into the workspace", limit=limits.max_bytes) from error


def collect(workspace: int, target: Path, limits: TreeLimits) -> Tally:
    """Copy the workspace of a stopped box into the empty directory ``target``; there it belongs to us."""
    with opened(target) as directory:
        return copy_tree(workspace, directory, limits)


class _Owner:
    """Creates files as the user of a box.

    The workspace is mounted in the box's user namespace, in which nobody from outside has an id: a file of the
    machine's root cannot even exist there. The ids are this thread's own (setfsuid(2)), and are given back at once.
    """

    def __init__(self, uid: int, gid: int) -> None:
        self._ids = uid, gid
        self._own = os.geteuid(), os.getegid()

    def __enter__(self) -> None:
        _libc.setfsgid(self._ids[1])
        _libc.setfsuid(self._ids[0])

    def __exit__(self, *unused: object) -> None:
        _libc.setfsuid(self._own[0])
        _libc.setfsgid(self._own[1])

"""Whole workspaces into boxes and out of them, through the workspace's directory descriptor.

The box's agent takes no part in it: it could not tell the truth about files that a hostile program made.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path

from tidebox.errors import PayloadTooLarge
from tidebox.untrusted_files.trees import Tally, TreeLimits, copy_tree, make_beneath, opened

_libc = ctypes.CDLL(None)
_REPLACED_FILE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


def place(source: Path, workspace: int, limits: TreeLimits) -> Tally:
    """Copy what is below ``source`` into an empty workspace; there it belongs to the box's user."""
    with _fitting(limits.max_bytes), opened(source) as directory:
        return copy_tree(directory, workspace, limits, owner=_owner(workspace))


def put(files: Mapping[str, bytes], workspace: int, max_bytes: int) -> None:
    """Write files into a workspace in which nothing runs yet; there they belong to the box's user."""
    with _fitting(max_bytes), _owner(workspace) or nullcontext():
        for path, content in files.items():
            *parents, name = path.split("/")
            directory = make_beneath(workspace, parents)
            try:
                descriptor = os.open(name, _REPLACED_FILE, 0o644, dir_fd=directory)
            finally:
                os.close(directory)
            with open(descriptor, "wb", 0) as file:
                view = memoryview(content)
                while view:
                    view = view[file.write(view) :]


@contextmanager
def _fitting(max_bytes: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise PayloadTooLarge("the files do not fit into the workspace", limit=max_bytes) from error


def _owner(workspace: int) -> _Owner | None:
    status = os.fstat(workspace)
    return _Owner(status.st_uid, status.st_gid) if status.st_uid != os.geteuid() else None


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

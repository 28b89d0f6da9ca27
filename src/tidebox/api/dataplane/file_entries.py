"""Files of a sandbox as clients name and see them."""

from __future__ import annotations

import posixpath
from typing import cast

from tidebox.api.dataplane.commands import box_path
from tidebox.errors import InvalidRequest
from tidebox.model.box import FileInfo
from tidebox.model.timestamps import iso_time
from tidebox.protocols.dataplane.routes import FileEntry, FileType

_PERMISSIONS = 0o7777


def shown(info: FileInfo) -> FileEntry:
    """A file as clients see it."""
    return FileEntry(
        path=info.path,
        name=posixpath.basename(info.path),
        type=cast("FileType", info.type),
        size=info.size,
        mode=f"{info.mode & _PERMISSIONS:04o}",
        modified_at=_moment(info.modified),
    )


def _moment(seconds: float | None) -> str | None:
    """A time, unless a program of the sandbox has set one that no calendar has."""
    try:
        return None if seconds is None else iso_time(seconds)
    except (ValueError, OverflowError, OSError):
        return None


def file_path(path: str) -> str:
    """The path of a file in the box."""
    whole = box_path(path)
    if posixpath.basename(whole) in ("", ".", ".."):
        raise InvalidRequest("path: names no file", field="path")
    return whole

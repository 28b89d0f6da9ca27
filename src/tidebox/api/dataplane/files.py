"""Files of a sandbox as clients name and see them."""

from __future__ import annotations

import posixpath
import re
from typing import Any

from tidebox.api.dataplane.commands import box_path
from tidebox.errors import InvalidRequest
from tidebox.model.box import FileInfo
from tidebox.model.moments import iso_time

_UPLOAD_ID = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_MODE = re.compile(r"[0-7]{3,4}", re.ASCII)
_PERMISSIONS = 0o7777


def shown(info: FileInfo) -> dict[str, Any]:
    """A file as clients see it."""
    return {
        "path": info.path,
        "name": posixpath.basename(info.path),
        "type": info.type,
        "size": info.size,
        "mode": f"{info.mode & _PERMISSIONS:04o}",
        "modified_at": _moment(info.modified),
    }


def _moment(seconds: float | None) -> str | None:
    """A time, unless a program of the sandbox has set one that no calendar has."""
    try:
        return None if seconds is None else iso_time(seconds)
    except (ValueError, OverflowError, OSError):
        return None


def parse_mode(text: str | None) -> int | None:
    """Permissions in octal digits."""
    if text is None:
        return None
    if not _MODE.fullmatch(text):
        raise InvalidRequest("mode: give three or four octal digits, such as 0644", field="mode")
    return int(text, 8)


def parse_offset(text: str | None) -> int:
    """How much of an upload is there already."""
    if text is None:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) <= 16):
        raise InvalidRequest("offset: give a whole number that is not negative", field="offset")
    return int(text)


def parse_upload_id(text: str | None) -> str:
    """A client's name for an upload in parts."""
    if not _UPLOAD_ID.fullmatch(text or ""):
        raise InvalidRequest("upload_id: give up to 64 letters, digits, '-' and '_'", field="upload_id")
    return text or ""


def file_path(path: str | None) -> str:
    """The path of a file in the box."""
    whole = box_path(path)
    if posixpath.basename(whole) in ("", ".", ".."):
        raise InvalidRequest("path: names no file", field="path")
    return whole


def shown_upload(path: str, size: int, upload_id: str, complete: bool) -> dict[str, Any]:
    """An upload in parts, as clients see it."""
    return {"path": path, "size": size, "upload_id": upload_id, "complete": complete}

"""What can be done with the files of a sandbox. Bodies are streamed both ways: their size costs no memory."""

from __future__ import annotations

import errno
import posixpath
import re
from collections.abc import AsyncIterator
from typing import Any

from tidebox.api.dataplane.commands import box_path
from tidebox.errors import Conflict, FileOperationFailed, InvalidRequest
from tidebox.model.box import FileInfo
from tidebox.model.ids import new_id
from tidebox.model.moments import iso_time
from tidebox.runtime.base import Files

_UPLOAD_ID = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_MODE = re.compile(r"[0-7]{3,4}", re.ASCII)
_DEFAULT_MODE = 0o644
_PERMISSIONS = 0o7777
_KINDS = {"dir": "directory"}


def shown(info: FileInfo) -> dict[str, Any]:
    """A file as clients see it."""
    return {
        "path": info.path,
        "name": posixpath.basename(info.path),
        "type": _KINDS.get(info.kind, info.kind),
        "size": info.size,
        "mode": f"{info.mode & _PERMISSIONS:04o}",
        "modified_at": _moment(info.modified),
    }


def _moment(seconds: float) -> str | None:
    """A time, unless a program of the sandbox has set one that no calendar has."""
    try:
        return iso_time(seconds)
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


async def without_dots(files: Files, path: str) -> str:
    """The path as it is answered: without ``..``, which leads elsewhere after a link than its text says.

    What follows the last one is left as it is, links too. Where nothing is found there the path is as it was given.
    """
    parts = path.split("/")
    if ".." not in parts:
        return path
    end = len(parts) - parts[::-1].index("..")
    try:
        directory = await files.real_path("/".join(parts[:end]))
    except FileOperationFailed:
        return path
    return posixpath.join(directory, *parts[end:])


def _split(path: str | None) -> tuple[str, str]:
    whole = box_path(path)
    parent, name = posixpath.split(whole)
    if name in ("", ".", ".."):
        raise InvalidRequest("path: names no file", field="path")
    return parent, whole


async def upload(files: Files, path: str | None, body: AsyncIterator[bytes], mode: int | None) -> dict[str, Any]:
    """Replace a file by ``body``, at once and as a whole; a file that is replaced keeps its permissions."""
    parent, target = _split(path)
    temporary = posixpath.join(parent, f".{new_id('upload')}")
    if mode is None:
        mode = await _mode_of(files, target)
    try:
        size = await _write(files, temporary, body, mode, None)
        await files.rename(temporary, target)
    except BaseException:
        await _discard(files, temporary)
        raise
    return {"path": await without_dots(files, target), "size": size}


class Resumable:
    """An upload in several requests: what has come is kept beside the target until all is there."""

    def __init__(self, files: Files, path: str | None, upload_id: str) -> None:
        if not _UPLOAD_ID.fullmatch(upload_id):
            raise InvalidRequest("upload_id: give up to 64 letters, digits, '-' and '_'", field="upload_id")
        self._files = files
        self._upload_id = upload_id
        parent, self._target = _split(path)
        self._partial = posixpath.join(parent, f".upload-{upload_id}")

    async def offset(self) -> int:
        """How much has come."""
        try:
            return (await self._files.stat(self._partial)).size
        except FileOperationFailed as error:
            if error.errno == errno.ENOENT:
                return 0
            raise

    async def append(self, body: AsyncIterator[bytes], offset: int, mode: int | None) -> int:
        """Take what comes next; how much is there then."""
        there = await self.offset()
        if offset != there:
            raise Conflict(f"offset: {there} bytes of this upload have come", field="offset", offset=there)
        if mode is None:
            mode = await _mode_of(self._files, self._target)
        return there + await _write(self._files, self._partial, body, mode, there)

    async def complete(self) -> None:
        """All is there: it takes the target's place."""
        await self._files.rename(self._partial, self._target)

    async def discard(self) -> None:
        """Give the upload up."""
        await self._files.remove(self._partial)

    async def shown(self, size: int, complete: bool) -> dict[str, Any]:
        """The upload as clients see it."""
        path = await without_dots(self._files, self._target)
        return {"path": path, "size": size, "upload_id": self._upload_id, "complete": complete}


async def _mode_of(files: Files, path: str) -> int:
    try:
        there = await files.stat(path)
    except FileOperationFailed:
        return _DEFAULT_MODE
    return there.mode & _PERMISSIONS if there.kind == "file" else _DEFAULT_MODE


async def _write(files: Files, path: str, body: AsyncIterator[bytes], mode: int, offset: int | None) -> int:
    """Write a file; directories that are missing are made."""
    try:
        return await files.write(path, body, mode, offset)
    except FileOperationFailed as error:
        # The file is opened before anything of the body is taken.
        if error.errno != errno.ENOENT:
            raise
    await files.mkdir(posixpath.dirname(path))
    return await files.write(path, body, mode, offset)


async def _discard(files: Files, path: str) -> None:
    try:
        await files.remove(path)
    except FileOperationFailed:
        pass  # it was not made


async def listing(files: Files, path: str | None) -> dict[str, Any]:
    """The entries of a directory, by name."""
    where = await without_dots(files, box_path(path or "."))
    found = sorted(await files.list(where), key=lambda info: info.path)
    return {"path": where, "entries": [shown(info) for info in found]}


async def downloadable(files: Files, path: str | None) -> FileInfo:
    """The file at a path, whatever links lead there."""
    info = await files.stat(box_path(path), follow=True)
    if info.kind != "file":
        raise Conflict("path: not a regular file", field="path", type=_KINDS.get(info.kind, info.kind))
    return info

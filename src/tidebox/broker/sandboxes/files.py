"""Files of sandboxes: one interface wherever a sandbox is, and the implementation for those of this server.

Bodies are streamed both ways: their size costs no memory. Everything is done with the rights of the sandbox's user.
"""

from __future__ import annotations

import abc
import errno
import posixpath
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidebox.errors import Conflict, FileOperationFailed
from tidebox.model.box import FileInfo
from tidebox.model.ids import new_id

if TYPE_CHECKING:
    from tidebox.runtime.base import LiveFiles

_DEFAULT_MODE = 0o644
_PERMISSIONS = 0o7777


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that was uploaded, or what has come of it."""

    path: str
    size: int


class SandboxFiles(abc.ABC):
    """The files of a sandbox. Paths are absolute; what the kernel refuses raises ``FileOperationFailed``.

    Operations return the paths that they were about, as the sandbox names them.
    """

    @abc.abstractmethod
    async def stat(self, path: str) -> FileInfo:
        """Return the metadata of ``path``: of a symbolic link, of the link itself."""

    @abc.abstractmethod
    async def list(self, path: str) -> tuple[str, list[FileInfo]]:
        """A directory, and its entries."""

    @abc.abstractmethod
    async def mkdir(self, path: str) -> str:
        """Make a directory and its parents."""

    @abc.abstractmethod
    async def remove(self, path: str, recursive: bool = False) -> str:
        """Remove a file, or a directory with everything in it."""

    @abc.abstractmethod
    async def move(self, source: str, target: str) -> tuple[str, str]:
        """Move a file or directory, replacing a file at the target."""

    @abc.abstractmethod
    async def size(self, path: str) -> int:
        """The length of the regular file at ``path``, whatever links lead there; raises ``Conflict`` where none is."""

    @abc.abstractmethod
    def read(self, path: str, offset: int, length: int) -> AsyncGenerator[bytes, None]:
        """Yield ``length`` bytes of a regular file from ``offset`` on."""

    @abc.abstractmethod
    async def upload(self, path: str, body: AsyncIterator[bytes], mode: int | None = None) -> StoredFile:
        """Replace a file by ``body``, at once and as a whole.

        Without ``mode`` a file that is replaced keeps its permissions.
        """

    # Uploads in several parts. What has come is kept beside the target until all is there.

    @abc.abstractmethod
    async def uploaded(self, path: str, upload_id: str) -> StoredFile:
        """Return the bytes received so far."""

    @abc.abstractmethod
    async def append(
        self, path: str, upload_id: str, body: AsyncIterator[bytes], *, offset: int, mode: int | None = None
    ) -> StoredFile:
        """Take what follows the first ``offset`` bytes; what has come then.

        Raises ``Conflict`` with the right ``offset`` where another number of bytes has come.
        """

    @abc.abstractmethod
    async def complete(self, path: str, upload_id: str, size: int) -> None:
        """All ``size`` bytes have come: put them in the place of the target."""

    @abc.abstractmethod
    async def discard(self, path: str, upload_id: str) -> StoredFile:
        """Give an upload up."""


class LocalFiles(SandboxFiles):
    """Files of a box of this server."""

    def __init__(self, files: LiveFiles) -> None:
        self._files = files

    async def stat(self, path: str) -> FileInfo:
        """Return the metadata of ``path``."""
        return await self._files.stat(await self._without_dots(path))

    async def list(self, path: str) -> tuple[str, list[FileInfo]]:
        """A directory, and its entries."""
        path = await self._without_dots(path)
        return path, await self._files.list(path)

    async def mkdir(self, path: str) -> str:
        """Make a directory and its parents."""
        await self._files.mkdir(path)
        return await self._without_dots(path)

    async def remove(self, path: str, recursive: bool = False) -> str:
        """Remove a file, or a directory with everything in it."""
        removed = await self._without_dots(path)
        await self._files.remove(path, recursive)
        return removed

    async def move(self, source: str, target: str) -> tuple[str, str]:
        """Move a file or directory."""
        left = await self._without_dots(source)
        await self._files.rename(source, target)
        return left, await self._without_dots(target)

    async def size(self, path: str) -> int:
        """The bytes of a regular file."""
        info = await self._files.stat(path, follow=True)
        if info.kind != "file":
            raise Conflict("path: not a regular file", field="path", type=info.type)
        return info.size

    def read(self, path: str, offset: int, length: int) -> AsyncGenerator[bytes, None]:
        """Yield ``length`` bytes of a regular file from ``offset`` on."""
        return self._files.read(path, offset, length)

    async def upload(self, path: str, body: AsyncIterator[bytes], mode: int | None = None) -> StoredFile:
        """Write ``body`` beside the target, and rename it at its end."""
        temporary = posixpath.join(posixpath.dirname(path), f".{new_id('upload')}")
        if mode is None:
            mode = await self._mode_of(path)
        try:
            size = await self._write(temporary, body, mode, None)
            await self._files.rename(temporary, path)
        except BaseException:
            await self._remove_quietly(temporary)
            raise
        return StoredFile(await self._without_dots(path), size)

    async def uploaded(self, path: str, upload_id: str) -> StoredFile:
        """Return the bytes received so far."""
        shown = await self._without_dots(path)
        try:
            return StoredFile(shown, (await self._files.stat(_partial(path, upload_id))).size)
        except FileOperationFailed as error:
            if error.errno == errno.ENOENT:
                return StoredFile(shown, 0)
            raise

    async def append(
        self, path: str, upload_id: str, body: AsyncIterator[bytes], *, offset: int, mode: int | None = None
    ) -> StoredFile:
        """Take what follows the first ``offset`` bytes."""
        size = (await self.uploaded(path, upload_id)).size
        if offset != size:
            raise Conflict(f"offset: {size} bytes of this upload have come", field="offset", offset=size)
        if mode is None:
            mode = await self._mode_of(path)
        size += await self._write(_partial(path, upload_id), body, mode, size)
        return StoredFile(await self._without_dots(path), size)

    async def complete(self, path: str, upload_id: str, size: int) -> None:
        """Rename it to its target."""
        await self._files.rename(_partial(path, upload_id), path)

    async def discard(self, path: str, upload_id: str) -> StoredFile:
        """Remove what has come."""
        await self._files.remove(_partial(path, upload_id))
        return StoredFile(await self._without_dots(path), 0)

    async def _without_dots(self, path: str) -> str:
        """The path as it is answered: without ``..``, which leads elsewhere after a link than its text says.

        What follows the last one is left as it is, links too. Where nothing is found there the path is as it was given.
        """
        parts = path.split("/")
        if ".." not in parts:
            return path
        end = len(parts) - parts[::-1].index("..")
        try:
            directory = await self._files.real_path("/".join(parts[:end]))
        except FileOperationFailed:
            return path
        return posixpath.join(directory, *parts[end:])

    async def _mode_of(self, path: str) -> int:
        try:
            info = await self._files.stat(path)
        except FileOperationFailed:
            return _DEFAULT_MODE
        return info.mode & _PERMISSIONS if info.kind == "file" else _DEFAULT_MODE

    async def _write(self, path: str, body: AsyncIterator[bytes], mode: int, offset: int | None) -> int:
        """Write a file; directories that are missing are made."""
        try:
            return await self._files.write(path, body, mode, offset)
        except FileOperationFailed as error:
            # The file is opened before anything of the body is taken.
            if error.errno != errno.ENOENT:
                raise
        await self._files.mkdir(posixpath.dirname(path))
        return await self._files.write(path, body, mode, offset)

    async def _remove_quietly(self, path: str) -> None:
        try:
            await self._files.remove(path)
        except FileOperationFailed:
            pass  # it was not made


def _partial(path: str, upload_id: str) -> str:
    return posixpath.join(posixpath.dirname(path), f".upload-{upload_id}")

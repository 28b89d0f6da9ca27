"""Contents of uploads and downloads: read from bytes, paths or files of the caller, and written to them, in pieces."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO

from tidebox.errors import InvalidRequest

LocalPath = os.PathLike[str]
Content = bytes | bytearray | memoryview | LocalPath | BinaryIO

PIECE_BYTES = 256 * 1024


class UploadContent:
    """The content of an upload. It may have to be sent again, whole or from an offset on."""

    def __init__(self, content: Content) -> None:
        if isinstance(content, str) or not (
            isinstance(content, bytes | bytearray | memoryview | os.PathLike) or hasattr(content, "read")
        ):
            raise InvalidRequest("content: give bytes, a path (pathlib.Path) or a file", field="content")
        self._content = content
        self._file: BinaryIO | None = None
        self._start: int | None = None

    @property
    def replayable(self) -> bool:
        """Whether it can be sent again."""
        return self._start is None or self._start >= 0

    async def size(self) -> int | None:
        """The size in bytes; None of a file that tells only when it is read."""
        content = self._content
        if isinstance(content, bytes | bytearray | memoryview):
            return memoryview(content).nbytes
        if isinstance(content, os.PathLike):
            return (await asyncio.to_thread(os.stat, content)).st_size
        if not content.seekable():
            return None
        here = content.tell()
        size = content.seek(0, os.SEEK_END) - here
        content.seek(here)
        return size

    async def begin(self, offset: int = 0) -> bytes | AsyncIterator[bytes]:
        """The body of a request, without the first ``offset`` bytes."""
        content = self._content
        if isinstance(content, bytes | bytearray | memoryview):
            return bytes(content)[offset:]
        if isinstance(content, os.PathLike):
            self._file = await asyncio.to_thread(open, content, "rb")
            self._file.seek(offset)
            return pieces_of(self._file)
        if self._start is None:
            self._start = content.tell() if content.seekable() else -1
        elif not self.replayable:
            raise InvalidRequest("content: a file that cannot be read again, and it had to be sent again")
        else:
            content.seek(self._start + offset)
        return pieces_of(content)

    async def end(self) -> None:
        """The request is over."""
        file, self._file = self._file, None
        if file is not None:
            await asyncio.to_thread(file.close)


async def pieces_of(file: BinaryIO) -> AsyncIterator[bytes]:
    """The rest of a file."""
    while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
        yield piece


def check_target(to: object) -> None:
    """Refuse a text as the place of a download: whether that is a path or the content is anybody's guess."""
    if isinstance(to, str):
        raise InvalidRequest("to: give a path (pathlib.Path) or a file", field="to")


async def write_to(to: LocalPath | BinaryIO, pieces: AsyncIterator[bytes]) -> int:
    """Write a download to a path, which is replaced when all has come, or to a file; return its size."""
    return await _replace(Path(to), pieces) if isinstance(to, os.PathLike) else await _copy(pieces, to)


async def _replace(path: Path, pieces: AsyncIterator[bytes]) -> int:
    """Write a file beside its place, and put it there when it is whole."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    file = await asyncio.to_thread(open, temporary, "xb")
    try:
        with file:
            size = await _copy(pieces, file)
        await asyncio.to_thread(os.replace, temporary, path)
    except BaseException:
        temporary.unlink()
        raise
    return size


async def _copy(pieces: AsyncIterator[bytes], file: BinaryIO) -> int:
    size = 0
    async for piece in pieces:
        await asyncio.to_thread(file.write, piece)
        size += len(piece)
    return size

"""The files of a box, through its agent."""

from __future__ import annotations

import errno
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING

from tidebox.errors import AgentProtocolError, FileOperationFailed
from tidebox.model.box import FileInfo
from tidebox.runtime.base import LiveFiles
from tidebox.runtime.link.flows import BulkSession, chunks_of
from tidebox.runtime.link.session import MessageQueue
from tidebox.wire import bulk
from tidebox.wire import files as wire
from tidebox.wire.bulk import BulkAccepted, BulkFinish, BulkRecord
from tidebox.wire.files import FsData, FsRequest, FsResponse

if TYPE_CHECKING:
    from tidebox.runtime.link.link import Link

# Small enough that the agent writes one chunk while the next is under way.
WRITE_CHUNK_SIZE = 1 << 20
_READ_DIR_LIMIT = 4096


class LinkFiles(LiveFiles):
    """File operations of one link. ``call`` takes every operation of the protocol."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def call(self, operation: wire.Operation) -> wire.ResponseData | None:
        """One operation with one answer; FileOperationFailed with the agent's words."""
        session = MessageQueue(self._link, self._link.allocate_id())
        self._link.start(session, FsRequest(op=operation))
        try:
            return _outcome(await session.next())
        finally:
            session.abandon()

    async def read(self, path: str, offset: int = 0, length: int | None = None) -> AsyncGenerator[bytes, None]:
        """The bytes of a regular file."""
        handle = await self._open(path, wire.OpenOptions(read=True))
        try:
            async with aclosing(self._read(handle, offset, length)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            await self._close(handle)

    async def write(
        self, path: str, data: bytes | AsyncIterator[bytes], mode: int = 0o644, offset: int | None = None
    ) -> int:
        """Create or replace a file, or with ``offset`` write into it from there; the number of bytes written."""
        options = wire.OpenOptions(write=True, create=True, truncate=offset is None, mode=mode)
        handle = await self._open(path, options)
        try:
            return await self._write(handle, data, offset or 0)
        finally:
            await self._close(handle)

    async def stat(self, path: str, follow: bool = False) -> FileInfo:
        """Return the metadata of a path: of a symbolic link itself, or with ``follow`` of its target."""
        answer = await self.call(wire.Stat(path=path, follow_symlink=follow))
        if not isinstance(answer, wire.StatData):
            raise _wrong_answer()
        return _info(answer.entry)

    async def list(self, path: str) -> list[FileInfo]:
        """The entries of a directory."""
        try:
            return _entries(await self.call(wire.List(path=path)))
        except FileOperationFailed as error:
            # How the agent refuses a listing that one answer does not hold.
            if error.errno != errno.EOVERFLOW:
                raise
        answer = await self.call(wire.OpenDir(path=path))
        if not isinstance(answer, wire.HandleData):
            raise _wrong_answer()
        found: list[FileInfo] = []
        try:
            while part := _entries(await self.call(wire.ReadDir(handle=answer.handle, limit=_READ_DIR_LIMIT))):
                found += part
        finally:
            await self._close(answer.handle)
        return found

    async def mkdir(self, path: str) -> None:
        """Make a directory and its parents."""
        await self.call(wire.Mkdir(path=path))

    async def remove(self, path: str, recursive: bool = False) -> None:
        """Remove a file or a directory."""
        if (await self.stat(path)).kind == wire.KIND_DIR:
            await self.call(wire.RemoveDir(path=path, recursive=recursive))
        else:
            await self.call(wire.Remove(path=path))

    async def rename(self, source: str, target: str) -> None:
        """Move a file or directory."""
        await self.call(wire.Rename(src=source, dst=target))

    async def real_path(self, path: str) -> str:
        """The path without links and ``..``."""
        answer = await self.call(wire.RealPath(path=path))
        if not isinstance(answer, wire.PathData):
            raise _wrong_answer()
        return answer.path

    async def _open(self, path: str, options: wire.OpenOptions) -> int:
        answer = await self.call(wire.OpenFile(path=path, options=options))
        if not isinstance(answer, wire.HandleData):
            raise _wrong_answer()
        return answer.handle

    async def _close(self, handle: int) -> None:
        if not self._link.gone:
            await self.call(wire.CloseHandle(handle=handle))

    async def _read(self, handle: int, offset: int, length: int | None) -> AsyncGenerator[bytes, None]:
        operation = wire.Read(handle=handle, offset=offset, len=length)
        with_bulk = self._link.supports(BulkAccepted)
        session = BulkSession(self._link, self._link.allocate_id(), bulk.KIND_FS, paced=with_bulk)
        offer = session.offer(bulk.DEFAULT_WINDOW, bulk.DEFAULT_FS_RECORD_PAYLOAD) if with_bulk else None
        self._link.start(session, FsRequest(op=operation, bulk=offer))
        try:
            while True:
                item = await session.next()
                if isinstance(item, BulkRecord):
                    yield bytes(item.payload)
                    session.took(item)
                elif isinstance(item, FsData):
                    yield bytes(item.data)
                elif not isinstance(item, BulkFinish):
                    _outcome(item)
                    return
        finally:
            session.cancel()

    async def _write(self, handle: int, data: bytes | AsyncIterator[bytes], offset: int) -> int:
        length = len(data) if isinstance(data, bytes) else None
        operation = wire.Write(handle=handle, offset=offset, len=length)
        # One small chunk needs no credit and so no round trip for it.
        with_bulk = self._link.supports(BulkAccepted) and (length is None or length > WRITE_CHUNK_SIZE)
        session = BulkSession(self._link, self._link.allocate_id(), bulk.KIND_FS, paced=True)
        offer = session.offer(0, bulk.DEFAULT_FS_RECORD_PAYLOAD) if with_bulk else None
        self._link.start(session, FsRequest(op=operation, bulk=offer))
        written = 0
        try:
            send_bulk = with_bulk and await session.accepted() is not None
            async for chunk in chunks_of(data):
                if session.ended:
                    break
                view = memoryview(chunk)
                for start in range(0, len(view), WRITE_CHUNK_SIZE):
                    piece = view[start : start + WRITE_CHUNK_SIZE]
                    if send_bulk:
                        await session.send_bulk(piece)
                    elif not session.ended:
                        self._link.send_data(FsData, piece, session.id)
                        await self._link.drain()
                written += len(view)
            if send_bulk:
                session.finish_bulk()
            elif not session.ended:
                self._link.send_data(FsData, b"", session.id)
            _outcome(await session.next())
            return written
        finally:
            session.cancel()


def _outcome(item: object) -> wire.ResponseData | None:
    if not isinstance(item, FsResponse):
        raise _wrong_answer()
    if not item.ok:
        raise FileOperationFailed(item.error or "the operation failed", errno=item.errno)
    return item.data


def _entries(answer: wire.ResponseData | None) -> list[FileInfo]:
    if not isinstance(answer, wire.ListData):
        raise _wrong_answer()
    return [_info(entry) for entry in answer.entries]


def _wrong_answer() -> AgentProtocolError:
    return AgentProtocolError("the agent answered a file operation with something else")


def _info(entry: wire.Entry) -> FileInfo:
    modified = entry.modified if entry.modified is not None else entry.mtime
    return FileInfo(entry.path, entry.kind, entry.size, entry.mode, float(modified or 0))

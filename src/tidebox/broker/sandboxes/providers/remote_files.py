"""Files of a sandbox on another server, through that server's dataplane. What is in them passes unparsed."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING

from tidebox.broker.sandboxes.files import SandboxFiles, StoredFile
from tidebox.errors import ServerProtocolError, TideboxError
from tidebox.model.box import FileInfo
from tidebox.model.limits import MIB
from tidebox.protocols.dataplane import routes
from tidebox.protocols.dataplane.routes import FileUploadAnswer, PartRequest, PathRequest, UploadRequest
from tidebox.sdk.sandboxes.dataplane import DataplaneClient

if TYPE_CHECKING:
    import httpx2

    from tidebox.broker.sandboxes.providers.remote_sandbox import RemoteSandbox
    from tidebox.sdk.sandboxes.grants import SandboxGrant

_SILENCE_SECONDS = 60.0
# A directory of a hundred thousand entries.
_MAX_ANSWER_BYTES = 32 * MIB
_TOTAL = re.compile(r"bytes \d+-\d+/(\d{1,18})", re.ASCII)


class RemoteFiles(SandboxFiles):
    """Each operation is a request."""

    def __init__(self, sandbox: RemoteSandbox, headers: Mapping[str, str]) -> None:
        self._sandbox = sandbox
        self._headers = headers
        self._plane = DataplaneClient(
            sandbox.http, sandbox.do, headers=headers, seconds=_SILENCE_SECONDS, limit=_MAX_ANSWER_BYTES
        )

    async def stat(self, path: str) -> FileInfo:
        """Return the metadata of ``path``."""
        return _info(await self._plane.ask(routes.STAT, PathRequest(path)))

    async def list(self, path: str) -> tuple[str, list[FileInfo]]:
        """A directory, and its entries."""
        asked = routes.ListRequest(path)
        found = await self._plane.ask(routes.LIST, asked)
        return found.path, [_info(entry) for entry in found.entries]

    async def mkdir(self, path: str) -> str:
        """Make a directory and its parents."""
        return (await self._plane.ask(routes.MKDIR, PathRequest(path))).path

    async def remove(self, path: str, recursive: bool = False) -> str:
        """Remove a file, or a directory with everything in it."""
        asked = routes.RemoveRequest(path, recursive)
        return (await self._plane.ask(routes.REMOVE, asked)).path

    async def move(self, source: str, target: str) -> tuple[str, str]:
        """Move a file or directory."""
        asked = routes.MoveRequest(source, target)
        moved = await self._plane.ask(routes.MOVE, asked)
        return moved.source, moved.target

    async def size(self, path: str) -> int:
        """The bytes of a regular file, which an answer with one of them tells."""
        async with self._sandbox.granted() as grant:
            try:
                async with self._download(grant, path, 0, 1) as answer:
                    match = _TOTAL.fullmatch(answer.headers.get("content-range", ""))
            except TideboxError as error:
                if error.details.get("status") != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                    raise
                return 0  # an empty file has no first byte
            if match is None:
                raise ServerProtocolError("a part of a file without its size")
            return int(match[1])

    async def read(self, path: str, offset: int, length: int) -> AsyncGenerator[bytes, None]:
        """Yield ``length`` bytes of a regular file from ``offset`` on."""
        async with self._sandbox.granted() as grant, self._download(grant, path, offset, length) as answer:
            async for chunk in answer.aiter_raw():
                if len(chunk) > length:
                    raise ServerProtocolError("more of a file than was asked for")
                length -= len(chunk)
                yield chunk

    @asynccontextmanager
    async def _download(
        self, grant: SandboxGrant, path: str, offset: int, length: int
    ) -> AsyncIterator[httpx2.Response]:
        # An empty file has no range; whether it may be read is asked all the same.
        part = {"range": f"bytes={offset}-{offset + length - 1}"} if length else {}
        exchange = self._sandbox.http.exchange(
            "GET",
            f"{grant.http_url}/files/download",
            bearer=grant.token,
            params={"path": path},
            headers={**self._headers, **part},
            seconds=_SILENCE_SECONDS,
        )
        async with exchange as answer:
            if answer.status_code != (206 if length else 200):
                raise ServerProtocolError("not the part of a file that was asked for")
            yield answer

    async def upload(self, path: str, body: AsyncIterator[bytes], mode: int | None = None) -> StoredFile:
        """Replace a file by ``body``."""
        return await self._upload(UploadRequest(path, _octal(mode)), body)

    async def uploaded(self, path: str, upload_id: str) -> StoredFile:
        """Return the bytes received so far."""
        return _stored(await self._plane.ask(routes.UPLOADED, PartRequest(path, upload_id)))

    async def append(
        self, path: str, upload_id: str, body: AsyncIterator[bytes], *, offset: int, mode: int | None = None
    ) -> StoredFile:
        """Take what follows the first ``offset`` bytes."""
        return await self._upload(UploadRequest(path, _octal(mode), upload_id, offset, complete=False), body)

    async def complete(self, path: str, upload_id: str, size: int) -> None:
        """Send a last part with nothing in it."""
        await self._upload(UploadRequest(path, None, upload_id, size), b"")

    async def _upload(self, asked: UploadRequest, body: bytes | AsyncIterator[bytes]) -> StoredFile:
        async def begin() -> bytes | AsyncIterator[bytes]:
            return body

        return _stored(await self._plane.ask(routes.UPLOAD, asked, begin))

    async def discard(self, path: str, upload_id: str) -> StoredFile:
        """Give an upload up."""
        return _stored(await self._plane.ask(routes.DISCARD, PartRequest(path, upload_id)))


def _stored(answer: FileUploadAnswer) -> StoredFile:
    return StoredFile(answer.path, answer.size)


def _info(entry: routes.FileEntry) -> FileInfo:
    modified = entry.modified()
    return FileInfo(
        path=entry.path,
        kind="dir" if entry.type == "directory" else entry.type,
        size=entry.size,
        mode=int(entry.mode, 8),
        modified=None if modified is None else modified.timestamp(),
    )


def _octal(mode: int | None) -> str | None:
    return None if mode is None else f"{mode:04o}"

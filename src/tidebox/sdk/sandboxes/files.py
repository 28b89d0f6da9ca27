"""The files of a sandbox, for asyncio. Contents are streamed both ways: their size costs no memory."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import BinaryIO, overload

from msgspec import UNSET

from tidebox.errors import Conflict, NotFound, ServerProtocolError, TideboxError
from tidebox.model.limits import MIB
from tidebox.protocols.dataplane import routes
from tidebox.sdk.errors import ConnectionLost, ServerUnreachable
from tidebox.sdk.file_content import PIECE_BYTES, Content, LocalPath, UploadContent, check_target, write_to
from tidebox.sdk.retries import RetryBudget
from tidebox.sdk.sandboxes.dataplane import DataplaneClient
from tidebox.sdk.sandboxes.grants import SandboxGrant
from tidebox.sdk.sandboxes.results import FileInfo, file_info
from tidebox.sdk.sandboxes.shared_grant import SharedGrant
from tidebox.sdk.sandboxes.watch import AsyncWatch

# Uploads of this size or more go on where they were when a connection is lost; smaller ones begin again.
_RESUME_BYTES = MIB
# How long a lost connection is tried to be made again, if nothing more arrives meanwhile.
_PATIENCE_SECONDS = 30.0
_DISCARD_SECONDS = 5.0


class AsyncFiles:
    """File operations in a sandbox. Paths that are not absolute are below ``/workspace``."""

    def __init__(self, plane: DataplaneClient, shared_grant: SharedGrant) -> None:
        self._plane = plane
        self._shared_grant = shared_grant

    async def upload(self, path: str, content: Content, *, mode: int | None = None) -> int:
        """Write a file, as a whole or not at all; its size. ``content`` are bytes, the path of a file here, or a file.

        Directories that are missing are made. Without ``mode`` a file that is replaced keeps its permissions.
        """
        upload = UploadContent(content)
        request = routes.UploadRequest(path, None if mode is None else f"{mode:04o}")
        size = await upload.size()
        if size is None or size < _RESUME_BYTES:
            return await self._upload(upload, request)
        request.upload_id = secrets.token_hex(16)
        try:
            return await self._upload(upload, request)
        except BaseException:
            await self._discard(routes.PartRequest(path, request.upload_id))
            raise

    async def _upload(self, upload: UploadContent, request: routes.UploadRequest) -> int:
        """Send a file, again if a connection is lost: the rest of it if the sandbox keeps what came, else all."""
        patience = RetryBudget(_PATIENCE_SECONDS)
        lost = False
        while True:
            try:
                if lost and request.upload_id is not None:
                    before, request.offset = request.offset, await self._offset(request.path, request.upload_id)
                    if request.offset > before:
                        patience.progress()
                return await self._send(upload, request)
            except (ConnectionLost, ServerUnreachable) as error:
                failure: TideboxError = error
            except (Conflict, NotFound) as error:
                if not lost or not (isinstance(error, NotFound) or "offset" in error.details):
                    raise
                # What was on its way on the connection before has arrived since, maybe all of it.
                failure = ConnectionLost(error.message)
            if not upload.replayable:
                raise failure
            await patience.overcome(failure)
            lost = True

    async def _offset(self, path: str, upload_id: str) -> int:
        """Return the number of bytes of an upload that have come."""
        came = await self._plane.ask(routes.UPLOADED, routes.PartRequest(path, upload_id))
        if came.offset is UNSET:
            raise ServerProtocolError("the sandbox did not say how much of the upload has come")
        return came.offset

    async def _send(self, upload: UploadContent, request: routes.UploadRequest) -> int:
        async def begin() -> bytes | AsyncIterator[bytes]:
            # A request that is sent again, with another token, begins there too.
            await upload.end()
            return await upload.begin(request.offset)

        try:
            return (await self._plane.ask(routes.UPLOAD, request, begin)).size
        finally:
            await upload.end()

    async def _discard(self, request: routes.PartRequest) -> None:
        """Give up an upload, as well as that can be done."""
        try:
            async with asyncio.timeout(_DISCARD_SECONDS):
                await self._plane.ask(routes.DISCARD, request)
        except (TideboxError, TimeoutError):
            pass

    @overload
    async def download(self, path: str) -> bytes: ...

    @overload
    async def download(self, path: str, to: LocalPath | BinaryIO) -> int: ...

    async def download(self, path: str, to: LocalPath | BinaryIO | None = None) -> bytes | int:
        """Read a file: its content or, where it is to be written to a path or a file here, its size.

        A file at a path is replaced when all has come, and left as it was when not.
        """
        check_target(to)

        async def attempt(grant: SandboxGrant) -> bytes | int:
            url = f"{grant.http_url}/files/download"
            exchange = self._plane.http.exchange("GET", url, bearer=grant.token, params={"path": path})
            async with exchange as response:
                if to is None:
                    return await response.aread()
                return await write_to(to, response.aiter_raw(PIECE_BYTES))

        return await self._plane.use(attempt)

    async def list(self, path: str = ".") -> list[FileInfo]:
        """List a directory, by name."""
        found = await self._plane.ask(routes.LIST, routes.ListRequest(path))
        return [file_info(entry) for entry in found.entries]

    async def stat(self, path: str) -> FileInfo:
        """Return the metadata of a file; a link is not followed."""
        return file_info(await self._plane.ask(routes.STAT, routes.PathRequest(path)))

    async def mkdir(self, path: str) -> None:
        """Make a directory, and those above it that are missing."""
        await self._plane.ask(routes.MKDIR, routes.PathRequest(path))

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file or an empty directory; with ``recursive``, one with all that is in it."""
        await self._plane.ask(routes.REMOVE, routes.RemoveRequest(path, recursive))

    async def move(self, source: str, target: str) -> None:
        """Give a file or a directory another path; a file that is there is replaced."""
        await self._plane.ask(routes.MOVE, routes.MoveRequest(source, target))

    async def watch(self, path: str = ".", *, recursive: bool = False) -> AsyncWatch:
        """Watch a directory for what changes in it; with ``recursive``, also in those below it."""

        async def attempt(grant: SandboxGrant) -> AsyncWatch:
            return await AsyncWatch.open(
                self._plane.http, self._shared_grant, grant, routes.WatchRequest(path, recursive)
            )

        return await self._plane.use(attempt)

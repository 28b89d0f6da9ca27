"""The files of a sandbox, for asyncio. Contents are streamed both ways: their size costs no memory."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, BinaryIO, Protocol, TypeVar, overload

from tidebox.errors import Conflict, NotFound, TideboxError
from tidebox.model.limits import MIB
from tidebox.sdk.errors import ConnectionLost, ServerUnreachable
from tidebox.sdk.http import MAX_ANSWER_BYTES, Http, read_whole
from tidebox.sdk.patience import Patience
from tidebox.sdk.sandboxes.grants import Grant
from tidebox.sdk.sandboxes.holding import Held
from tidebox.sdk.sandboxes.results import FileInfo, file_info, listing, upload_offset, uploaded
from tidebox.sdk.sandboxes.watch import AsyncWatch
from tidebox.sdk.transfers import PIECE_BYTES, Content, LocalPath, Upload, check_target, write_to

Answer = TypeVar("Answer")

# Uploads of this size or more go on where they were when a connection is lost; smaller ones begin again.
_RESUME_BYTES = MIB
# How long a lost connection is tried to be made again, if nothing more arrives meanwhile.
_PATIENCE_SECONDS = 30.0
_DISCARD_SECONDS = 5.0


class Use(Protocol):
    """Does something with a token that is good."""

    async def __call__(self, attempt: Callable[[Grant], Awaitable[Answer]]) -> Answer: ...


class AsyncFiles:
    """What can be done with files. Paths that are not absolute are below ``/workspace``."""

    def __init__(self, http: Http, held: Held, use: Use) -> None:
        self._http = http
        self._held = held
        self._use = use

    async def upload(self, path: str, content: Content, *, mode: int | None = None) -> int:
        """Write a file, as a whole or not at all; its size. ``content`` are bytes, the path of a file here, or a file.

        Directories that are missing are made. Without ``mode`` a file that is replaced keeps its permissions.
        """
        upload = Upload(content)
        params = {"path": path}
        if mode is not None:
            params["mode"] = f"{mode:04o}"
        size = await upload.size()
        if size is None or size < _RESUME_BYTES:
            return await self._upload(upload, params)
        params["upload_id"] = secrets.token_hex(16)
        try:
            return await self._upload(upload, params)
        except BaseException:
            await self._discard(params)
            raise

    async def _upload(self, upload: Upload, params: Mapping[str, str]) -> int:
        """Send a file, again if a connection is lost: the rest of it if the sandbox keeps what came, else all."""
        patience = Patience(_PATIENCE_SECONDS)
        offset, lost = 0, False
        while True:
            try:
                if lost and "upload_id" in params:
                    before, offset = offset, upload_offset(await self._ask("GET", "upload", params=params))
                    if offset > before:
                        patience.progress()
                return uploaded(await self._send(upload, params, offset))
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

    async def _send(self, upload: Upload, params: Mapping[str, str], offset: int) -> bytes:
        async def attempt(grant: Grant) -> bytes:
            body = await upload.begin(offset)
            try:
                exchange = self._http.exchange(
                    "POST",
                    f"{grant.http_url}/files/upload",
                    bearer=grant.token,
                    body=body,
                    params={**params, "offset": str(offset)} if offset else params,
                )
                async with exchange as response:
                    return await read_whole(response, MAX_ANSWER_BYTES)
            finally:
                await upload.end()

        return await self._use(attempt)

    async def _discard(self, params: Mapping[str, str]) -> None:
        """Give up an upload, as well as that can be done."""
        try:
            async with asyncio.timeout(_DISCARD_SECONDS):
                await self._ask("DELETE", "upload", params=params)
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

        async def attempt(grant: Grant) -> bytes | int:
            exchange = self._http.exchange(
                "GET", f"{grant.http_url}/files/download", bearer=grant.token, params={"path": path}
            )
            async with exchange as response:
                if to is None:
                    return await response.aread()
                return await write_to(to, response.aiter_raw(PIECE_BYTES))

        return await self._use(attempt)

    async def list(self, path: str = ".") -> list[FileInfo]:
        """What is in a directory, by name."""
        return listing(await self._ask("GET", "list", params={"path": path}))

    async def stat(self, path: str) -> FileInfo:
        """What is at a path; a link is not followed."""
        return file_info(await self._ask("GET", "stat", params={"path": path}))

    async def mkdir(self, path: str) -> None:
        """Make a directory, and those above it that are missing."""
        await self._ask("POST", "mkdir", content={"path": path})

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file or an empty directory; with ``recursive``, one with all that is in it."""
        await self._ask("POST", "remove", content={"path": path, "recursive": recursive})

    async def move(self, source: str, target: str) -> None:
        """Give a file or a directory another path; a file that is there is replaced."""
        await self._ask("POST", "move", content={"source": source, "target": target})

    async def watch(self, path: str = ".", *, recursive: bool = False) -> AsyncWatch:
        """Watch a directory for what changes in it; with ``recursive``, also in those below it."""

        async def attempt(grant: Grant) -> AsyncWatch:
            return await AsyncWatch.open(self._http, self._held, grant, path, recursive)

        return await self._use(attempt)

    async def _ask(self, method: str, what: str, **request: Any) -> bytes:
        async def attempt(grant: Grant) -> bytes:
            return await self._http.ask(method, f"{grant.http_url}/files/{what}", bearer=grant.token, **request)

        return await self._use(attempt)

"""The files of a sandbox, for asyncio. Contents are streamed both ways: their size costs no memory."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar, overload

from tidebox.errors import InvalidRequest
from tidebox.sdk.http import Http
from tidebox.sdk.sandboxes.grants import Grant
from tidebox.sdk.sandboxes.holding import Held
from tidebox.sdk.sandboxes.results import FileInfo, file_info, listing, uploaded
from tidebox.sdk.sandboxes.watch import AsyncWatch

Answer = TypeVar("Answer")
LocalPath = os.PathLike[str]
Content = bytes | bytearray | memoryview | LocalPath | BinaryIO

_PIECE_BYTES = 256 * 1024


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
        params = {"path": path}
        if mode is not None:
            params["mode"] = f"{mode:04o}"
        source = _Source(content)

        async def attempt(grant: Grant) -> bytes:
            body = await source.begin()
            try:
                exchange = self._http.exchange(
                    "POST", f"{grant.http_url}/files/upload", bearer=grant.token, body=body, params=params
                )
                async with exchange as response:
                    return await response.aread()
            finally:
                await source.end()

        return uploaded(await self._use(attempt))

    @overload
    async def download(self, path: str) -> bytes: ...

    @overload
    async def download(self, path: str, to: LocalPath | BinaryIO) -> int: ...

    async def download(self, path: str, to: LocalPath | BinaryIO | None = None) -> bytes | int:
        """Read a file: its content or, where it is to be written to a path or a file here, its size.

        A file at a path is replaced when all has come, and left as it was when not.
        """
        if isinstance(to, str):
            raise InvalidRequest("to: give a path (pathlib.Path) or a file", field="to")

        async def attempt(grant: Grant) -> bytes | int:
            exchange = self._http.exchange(
                "GET", f"{grant.http_url}/files/download", bearer=grant.token, params={"path": path}
            )
            async with exchange as response:
                if to is None:
                    return await response.aread()
                if isinstance(to, os.PathLike):
                    return await _replace(Path(to), response.aiter_raw(_PIECE_BYTES))
                return await _copy(response.aiter_raw(_PIECE_BYTES), to)

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


class _Source:
    """What is uploaded. It may have to be sent a second time, with another token."""

    def __init__(self, content: Content) -> None:
        if isinstance(content, str) or not (
            isinstance(content, bytes | bytearray | memoryview | os.PathLike) or hasattr(content, "read")
        ):
            raise InvalidRequest("content: give bytes, a path (pathlib.Path) or a file", field="content")
        self._content = content
        self._file: BinaryIO | None = None
        self._start: int | None = None

    async def begin(self) -> bytes | AsyncIterator[bytes]:
        """The body of a request."""
        content = self._content
        if isinstance(content, bytes | bytearray | memoryview):
            return bytes(content)
        if isinstance(content, os.PathLike):
            self._file = await asyncio.to_thread(open, content, "rb")
            return _pieces(self._file)
        if self._start is None:
            self._start = content.tell() if content.seekable() else -1
        elif self._start < 0:
            raise InvalidRequest("content: a file that cannot be read again, and it had to be sent again")
        else:
            content.seek(self._start)
        return _pieces(content)

    async def end(self) -> None:
        """The request is over."""
        file, self._file = self._file, None
        if file is not None:
            await asyncio.to_thread(file.close)


async def _pieces(file: BinaryIO) -> AsyncIterator[bytes]:
    while piece := await asyncio.to_thread(file.read, _PIECE_BYTES):
        yield piece


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

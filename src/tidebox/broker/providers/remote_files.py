"""Files of a sandbox on another server, through that server's dataplane. What is in them passes unparsed."""

from __future__ import annotations

import datetime
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar
from urllib.parse import urlencode

import msgspec

from tidebox.broker.providers.remote_errors import PeerError, failure
from tidebox.broker.sandbox_files import SandboxFiles, Stored
from tidebox.errors import ProviderUnavailable
from tidebox.model.box import FileInfo
from tidebox.model.limits import MIB

if TYPE_CHECKING:
    import httpx2

    from tidebox.broker.providers.remote_sandbox import RemoteSandbox

_SILENCE_SECONDS = 60.0
# A directory of a hundred thousand entries.
_MAX_ANSWER_BYTES = 32 * MIB
_FILES = "/v1/files"
_TOTAL = re.compile(r"bytes (?:\d+-\d+|\*)/(\d{1,18})", re.ASCII)
_T = TypeVar("_T")


class _File(msgspec.Struct):
    path: str
    type: Literal["file", "directory", "symlink", "other"]
    size: Annotated[int, msgspec.Meta(ge=0)]
    mode: Annotated[str, msgspec.Meta(pattern="^[0-7]{4}$")]
    modified_at: datetime.datetime | None = None

    def info(self) -> FileInfo:
        """The file, as this server knows files."""
        return FileInfo(
            path=self.path,
            kind="dir" if self.type == "directory" else self.type,
            size=self.size,
            mode=int(self.mode, 8),
            modified=None if self.modified_at is None else self.modified_at.timestamp(),
        )


class _Listing(msgspec.Struct):
    path: str
    entries: list[_File]


class _Path(msgspec.Struct):
    path: str


class _Move(msgspec.Struct):
    source: str
    target: str


class _Failure(msgspec.Struct):
    error: PeerError


class RemoteFiles(SandboxFiles):
    """Each operation is a request."""

    def __init__(self, sandbox: RemoteSandbox, request_id: str | None) -> None:
        self._sandbox = sandbox
        # So that the logs of both servers speak of the same request.
        self._headers = {"x-request-id": request_id} if request_id is not None else {}

    async def stat(self, path: str) -> FileInfo:
        """What is at ``path``."""
        return (await self._ask("GET", "stat", _File, path=path)).info()

    async def list(self, path: str) -> tuple[str, list[FileInfo]]:
        """A directory, and its entries."""
        found = await self._ask("GET", "list", _Listing, path=path)
        return found.path, [entry.info() for entry in found.entries]

    async def mkdir(self, path: str) -> str:
        """Make a directory and its parents."""
        return (await self._ask("POST", "mkdir", _Path, path=path)).path

    async def remove(self, path: str, recursive: bool = False) -> str:
        """Remove a file, or a directory with everything in it."""
        return (await self._ask("POST", "remove", _Path, path=path, recursive=_flag(recursive))).path

    async def move(self, source: str, target: str) -> tuple[str, str]:
        """Move a file or directory."""
        moved = await self._ask("POST", "move", _Move, source=source, target=target)
        return moved.source, moved.target

    async def size(self, path: str) -> int:
        """The bytes of a regular file, which an answer with one of them tells."""
        async with self._send("GET", "download", {"path": path}, headers={"range": "bytes=0-0"}) as answer:
            # Of an empty file there is no first byte (416).
            if answer.status_code not in (206, 416):
                await self._check(answer)
            match = _TOTAL.fullmatch(answer.headers.get("content-range", ""))
            if match is None:
                raise _not_this_protocol()
            return int(match[1])

    async def read(self, path: str, offset: int, length: int) -> AsyncGenerator[bytes, None]:
        """So many bytes of a regular file."""
        # An empty file has no range; whether it may be read is asked all the same.
        part = {"range": f"bytes={offset}-{offset + length - 1}"} if length else {}
        async with self._send("GET", "download", {"path": path}, headers=part) as answer:
            await self._check(answer)
            if answer.status_code != (206 if length else 200):
                raise _not_this_protocol()
            async for chunk in answer.aiter_raw():
                if len(chunk) > length:
                    raise _not_this_protocol()
                length -= len(chunk)
                yield chunk

    async def upload(self, path: str, body: AsyncIterator[bytes], mode: int | None = None) -> Stored:
        """Replace a file by ``body``."""
        return await self._ask("POST", "upload", Stored, body, path=path, mode=_octal(mode))

    async def uploaded(self, path: str, upload_id: str) -> Stored:
        """What has come."""
        return await self._ask("GET", "upload", Stored, path=path, upload_id=upload_id)

    async def append(
        self, path: str, upload_id: str, body: AsyncIterator[bytes], *, offset: int, mode: int | None = None
    ) -> Stored:
        """Take what follows the first ``offset`` bytes."""
        part = {"path": path, "upload_id": upload_id, "offset": str(offset), "complete": _flag(False)}
        return await self._ask("POST", "upload", Stored, body, **part, mode=_octal(mode))

    async def complete(self, path: str, upload_id: str, size: int) -> None:
        """Send a last part with nothing in it."""
        part = {"path": path, "upload_id": upload_id, "offset": str(size), "complete": _flag(True)}
        await self._ask("POST", "upload", Stored, None, **part)

    async def discard(self, path: str, upload_id: str) -> Stored:
        """Give an upload up."""
        return await self._ask("DELETE", "upload", Stored, path=path, upload_id=upload_id)

    async def _ask(
        self,
        method: str,
        operation: str,
        type: type[_T],
        body: AsyncIterator[bytes] | None = None,
        **query: str | None,
    ) -> _T:
        given = {name: value for name, value in query.items() if value is not None}
        async with self._send(method, operation, given, body) as answer:
            await self._check(answer)
            return await _decoded(answer, type)

    @asynccontextmanager
    async def _send(
        self,
        method: str,
        operation: str,
        query: Mapping[str, str],
        body: AsyncIterator[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[httpx2.Response]:
        sent = {**self._headers, **(headers or {})}
        if body is not None:
            sent["content-type"] = "application/octet-stream"
        target = f"{_FILES}/{operation}?{urlencode(query)}"
        async with self._sandbox.send(method, target, sent, body, silence=_SILENCE_SECONDS) as answer:
            yield answer

    async def _check(self, answer: httpx2.Response) -> None:
        """Raise what was answered instead of what was asked for."""
        if not answer.is_success:
            raise failure((await _decoded(answer, _Failure)).error)


async def _decoded(answer: httpx2.Response, type: type[_T]) -> _T:
    content = bytearray()
    async for chunk in answer.aiter_raw():
        content += chunk
        if len(content) > _MAX_ANSWER_BYTES:
            raise ProviderUnavailable("the server of the sandbox answers more than this one takes")
    try:
        return msgspec.json.decode(content, type=type)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _not_this_protocol() from None


def _not_this_protocol() -> ProviderUnavailable:
    return ProviderUnavailable("the server of the sandbox does not speak this protocol")


def _flag(value: bool) -> str:
    return str(value).lower()


def _octal(mode: int | None) -> str | None:
    return None if mode is None else f"{mode:04o}"

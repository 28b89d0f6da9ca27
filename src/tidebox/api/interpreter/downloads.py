"""Files on their way to clients: whole or one range, compressed if they are text, never shown by a browser.

What is in them was made by strangers' programs: every answer says that it is an attachment of exactly the type it has,
so that no page of the server's own origin can be made of it.
"""

from __future__ import annotations

import asyncio
import os
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from email.utils import formatdate
from hashlib import sha256
from http import HTTPStatus
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Header
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from tidebox.api.ranges import ByteRange, parse_range
from tidebox.untrusted_files.content_types import is_text

CHUNK_BYTES = 256 * 1024
RangeHeader = Annotated[str | None, Header(description="One range of bytes.", alias="Range")]
_BYTES = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
DOWNLOADED: dict[int | str, dict[str, Any]] = {
    200: {"description": "The whole file, of its own content type.", "content": _BYTES},
    206: {"description": "The range of bytes that was asked for.", "content": _BYTES},
    304: {"description": "It is what the client has already."},
}
"""How a route is described that answers with a file."""
_WORTH_COMPRESSING = 1024
_GZIP_WINDOW = 31  # zlib's way to ask for the gzip format


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """An open file and what is said of it."""

    descriptor: int
    path: str
    size: int
    content_type: str
    modified: float
    identity: str
    """Changes whenever the bytes do; the source of the ETag."""


class _FileResponse(StreamingResponse):
    """Closes the file however the answer ends."""

    def __init__(self, body: AsyncIterator[bytes], descriptor: int, status: int, headers: dict[str, str]) -> None:
        super().__init__(body, status, headers)
        self._descriptor = descriptor

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            os.close(self._descriptor)


def answer_with(request: Request, download: Download) -> Response:
    """The answer to a request for a file, whose descriptor it takes over."""
    try:
        return _answer(request, download)
    except BaseException:
        os.close(download.descriptor)
        raise


def _answer(request: Request, download: Download) -> Response:
    given = request.headers
    etag = f'"{sha256(download.identity.encode("utf-8", "surrogatepass")).hexdigest()[:32]}"'
    headers = {
        **attachment(download.path),
        "content-type": download.content_type,
        "accept-ranges": "bytes",
        "etag": etag,
        "last-modified": formatdate(download.modified, usegmt=True),
        "cache-control": "private, no-cache",
        "vary": "Accept-Encoding",
    }
    known = [tag.strip().removeprefix("W/") for tag in given.get("if-none-match", "").split(",")]
    if etag in known or "*" in known:
        os.close(download.descriptor)
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=_without(headers, "content-type"))
    fresh = given.get("if-range") in (None, etag, headers["last-modified"])
    part = parse_range(given.get("range"), download.size) if fresh else None
    if part is None and _compressed(given.get("accept-encoding", ""), download):
        headers |= {"content-encoding": "gzip", "etag": f"W/{etag}"}
        body = _gzipped(download)
    else:
        wanted = part or ByteRange(0, download.size)
        headers["content-length"] = str(wanted.length)
        body = _pieces(download.descriptor, wanted)
    if part is not None:
        headers["content-range"] = part.content_range(download.size)
    status = HTTPStatus.OK if part is None else HTTPStatus.PARTIAL_CONTENT
    if request.method == "HEAD":
        os.close(download.descriptor)
        return Response(status_code=status, headers=headers)
    return _FileResponse(body, download.descriptor, status, headers)


def attachment(path: str) -> dict[str, str]:
    """The headers that keep a browser from taking a file for a page."""
    name = path.rpartition("/")[2]
    plain = "".join(character if character.isalnum() or character in "._- " else "_" for character in name)
    plain = plain.encode("ascii", "replace").decode().replace("?", "_")
    encoded = quote(name, safe="", errors="replace")
    return {
        "content-disposition": f"attachment; filename=\"{plain}\"; filename*=UTF-8''{encoded}",
        "x-content-type-options": "nosniff",
        "content-security-policy": "sandbox; default-src 'none'",
    }


def _without(headers: dict[str, str], name: str) -> dict[str, str]:
    return {key: value for key, value in headers.items() if key != name}


def _compressed(accepted: str, download: Download) -> bool:
    if not is_text(download.content_type) or download.size < _WORTH_COMPRESSING:
        return False
    for choice in accepted.lower().split(","):
        coding, _, parameters = choice.strip().partition(";")
        if coding.strip() == "gzip":
            return parameters.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


async def _pieces(descriptor: int, wanted: ByteRange) -> AsyncIterator[bytes]:
    position = wanted.start
    while position < wanted.end:
        piece = await asyncio.to_thread(os.pread, descriptor, min(CHUNK_BYTES, wanted.end - position), position)
        if not piece:
            raise OSError("the file became shorter while it was sent")
        position += len(piece)
        yield piece


async def _gzipped(download: Download) -> AsyncIterator[bytes]:
    compressor = zlib.compressobj(6, zlib.DEFLATED, _GZIP_WINDOW)
    async for piece in _pieces(download.descriptor, ByteRange(0, download.size)):
        packed = await asyncio.to_thread(compressor.compress, piece)
        if packed:
            yield packed
    yield compressor.flush()

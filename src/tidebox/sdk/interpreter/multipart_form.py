"""Multipart form of files, made while it is sent."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Mapping

from tidebox.errors import InvalidRequest
from tidebox.sdk.file_content import Content, UploadContent


class MultipartForm:
    """Files, each with its path as its name. It may have to be sent a second time."""

    def __init__(self, files: Mapping[str, Content]) -> None:
        if not files:
            raise InvalidRequest("files: give at least one", field="files")
        self._boundary = secrets.token_hex(16)
        self._body: AsyncGenerator[bytes] | None = None
        self._parts = {_head(self._boundary, path): UploadContent(content) for path, content in files.items()}

    @property
    def content_type(self) -> str:
        """The ``Content-Type`` of the request."""
        return f"multipart/form-data; boundary={self._boundary}"

    @property
    def replayable(self) -> bool:
        """Whether it can be sent again."""
        return all(upload.replayable for upload in self._parts.values())

    async def begin(self) -> AsyncIterator[bytes]:
        """The body of a request."""
        self._body = self._pieces()
        return self._body

    async def end(self) -> None:
        """The request is over."""
        if self._body is not None:
            await self._body.aclose()

    async def _pieces(self) -> AsyncGenerator[bytes]:
        for head, upload in self._parts.items():
            yield head
            body = await upload.begin()
            try:
                if isinstance(body, bytes):
                    yield body
                else:
                    async for piece in body:
                        yield piece
            finally:
                await upload.end()
            yield b"\r\n"
        yield f"--{self._boundary}--\r\n".encode()


def _head(boundary: str, path: str) -> bytes:
    if not path.isprintable():
        raise InvalidRequest(f"files: not the path of a file: {path!r}", field="files")
    name = path.replace("\\", "\\\\").replace('"', '\\"')
    return f'--{boundary}\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n\r\n'.encode()

"""Request bodies, streamed as they arrive; files in multipart forms."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from tidebox.api.asgi import Receive
from tidebox.errors import InvalidRequest, PayloadTooLarge

_FILE_FIELD = b"file"


class ClientDisconnected(Exception):
    """The client disconnected before the end of its body."""


class RequestBody:
    """A body, to be read once."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.cut_off = False
        """Whether the client left before the end."""

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The bytes; raises ClientDisconnected where they end too soon."""
        async for chunk in self.chunks_until_disconnect():
            yield chunk
        if self.cut_off:
            raise ClientDisconnected

    async def chunks_until_disconnect(self) -> AsyncGenerator[bytes, None]:
        """The bytes, up to the end or to where the client left."""
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self.cut_off = True
                return
            if message.get("body"):
                yield message["body"]
            more = message.get("more_body", False)

    async def whole(self, limit: int) -> bytes:
        """Return the whole body; raises PayloadTooLarge beyond ``limit`` bytes."""
        content = bytearray()
        async for chunk in self.chunks():
            content += chunk
            if len(content) > limit:
                raise PayloadTooLarge(f"the body is longer than {limit} bytes", limit=limit)
        return bytes(content)


async def cancel_on_disconnect(receive: Receive, work: asyncio.Task[Any]) -> None:
    """Wait for ``work`` to be done; it is cancelled when the client leaves first. No body is expected any more."""
    leaving = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({leaving, work}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
        if not work.done():
            work.cancel()
        await asyncio.wait({leaving, work})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def form_file(content_type: bytes, chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """The content of the part ``file`` of a form; other parts are ignored."""
    _, options = parse_options_header(content_type)
    form = _FormFileParser(options.get(b"boundary") or b"")
    async for chunk in chunks:
        for piece in form.feed(chunk):
            yield piece
    if not form.whole:
        raise InvalidRequest("the form is cut off")
    if not form.files:
        raise InvalidRequest("the form has no part called file", field="file")


class _FormFileParser:
    """Finds the file among the parts of a multipart form."""

    def __init__(self, boundary: bytes) -> None:
        if not boundary:
            raise InvalidRequest("a form without a boundary", field="content-type")
        self.whole = False
        self.files = 0
        self._pieces: list[bytes] = []
        self._name = b""
        self._value = b""
        self._disposition = b""
        self._wanted = False
        callbacks: Any = {
            "on_part_begin": self._begin,
            "on_header_field": self._adding("_name"),
            "on_header_value": self._adding("_value"),
            "on_header_end": self._end_header,
            "on_headers_finished": self._open,
            "on_part_data": self._data,
            "on_end": self._end,
        }
        try:
            self._parser = MultipartParser(boundary, callbacks)
        except FormParserError as error:
            raise InvalidRequest(f"not a form: {error}", field="content-type") from None

    def feed(self, data: bytes) -> list[bytes]:
        """Parse ``data``, and return the pieces of it that belong to the file."""
        self._pieces = []
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise InvalidRequest(f"the form is damaged: {error}") from None
        return self._pieces

    def _adding(self, attribute: str) -> Callable[[bytes, int, int], None]:
        def add(data: bytes, start: int, end: int) -> None:
            setattr(self, attribute, getattr(self, attribute) + data[start:end])

        return add

    def _begin(self) -> None:
        self._disposition = b""

    def _end_header(self) -> None:
        if self._name.lower() == b"content-disposition":
            self._disposition = self._value
        self._name = self._value = b""

    def _open(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._wanted = options.get(b"name") == _FILE_FIELD
        self.files += self._wanted
        if self.files > 1:
            raise InvalidRequest("the form has more than one part called file", field="file")

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._wanted:
            self._pieces.append(data[start:end])

    def _end(self) -> None:
        self.whole = True

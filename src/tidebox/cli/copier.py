"""The yardstick for files: an HTTP server on the same parts as ours that keeps in memory what it is sent."""

from __future__ import annotations

import os
from http import HTTPStatus
from typing import Any

from tidebox.cli.beside import Beside, listen

_CHUNK_BYTES = 262_144


class Copier(Beside):
    """The server, in a process of its own."""

    def __init__(self) -> None:
        super().__init__(__name__)


def serve(descriptor: int) -> None:
    """Serve on a socket that listens already, until killed."""
    copy = os.memfd_create("copy")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        size = await _take(copy, receive) if scope["method"] == "POST" else os.fstat(copy).st_size
        headers = [(b"content-length", b"%d" % (0 if scope["method"] == "POST" else size))]
        await send({"type": "http.response.start", "status": HTTPStatus.OK, "headers": headers})
        if scope["method"] == "GET":
            for offset in range(0, size, _CHUNK_BYTES):
                chunk = os.pread(copy, _CHUNK_BYTES, offset)
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body"})

    listen(app, descriptor)


async def _take(copy: int, receive: Any) -> int:
    os.ftruncate(copy, 0)
    size = 0
    while True:
        message = await receive()
        size += os.pwrite(copy, message.get("body", b""), size)
        if not message.get("more_body", False):
            return size

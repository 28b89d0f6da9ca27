"""The yardstick for files: an HTTP server on the same parts as ours that keeps in memory what it is sent."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self

from tidebox.cli.yardsticks import ENDS_WITH_PARENT

_CHUNK_BYTES = 262_144


class Copier:
    """The server, in a process of its own."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.address: tuple[str, int] = listener.getsockname()
            descriptor = listener.fileno()
            program = f"{ENDS_WITH_PARENT}from {__name__} import serve; serve({descriptor})"
            self._process = subprocess.Popen([sys.executable, "-c", program], pass_fds=[descriptor])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()


def serve(descriptor: int) -> None:
    """Serve on a socket that listens already, until killed."""
    import uvicorn

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

    config = uvicorn.Config(
        app, loop="uvloop", http="httptools", lifespan="off", log_level="critical", timeout_keep_alive=600
    )
    uvicorn.Server(config).run([socket.socket(fileno=descriptor)])


async def _take(copy: int, receive: Any) -> int:
    os.ftruncate(copy, 0)
    size = 0
    while True:
        message = await receive()
        size += os.pwrite(copy, message.get("body", b""), size)
        if not message.get("more_body", False):
            return size

"""Engines for tests of what is asked of them: sockets that say what a test wants."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

from tidebox.runtime.docker.endpoint import Endpoint
from tidebox.runtime.docker.engine import DockerEngine

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


@contextlib.asynccontextmanager
async def engine_that(directory: Path, serve: Serve) -> AsyncIterator[DockerEngine]:
    """An engine that serves every connection like this."""

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    path = directory / "engine.sock"
    server = await asyncio.start_unix_server(once, path)
    try:
        yield DockerEngine(Endpoint(f"unix://{path}", str(path)))
    finally:
        server.close()
        await server.wait_closed()


def answering(data: bytes, *, hang: bool = False) -> Serve:
    """Gives this answer to everything."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(data)
        await writer.drain()
        if hang:
            await reader.read()

    return serve


def answer_of(content: bytes, status: str = "200 OK") -> bytes:
    """An answer with this content."""
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content

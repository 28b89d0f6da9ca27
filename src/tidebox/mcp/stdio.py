"""Messages on standard input and output, one on each line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
from mcp.server.lowlevel.server import Server
from mcp.shared.message import SessionMessage
from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter

from tidebox.mcp.server import Backend, Context, ToolServer, client_name
from tidebox.model.limits import MIB
from tidebox.stdio import Streams

MAX_LINE_BYTES = 16 * MIB


async def serve_stdio(make_backend: Callable[[str | None], Backend], *, dotted_names: bool) -> None:
    """Serve one client, until its input ends or its output is closed.

    ``make_backend`` is called once, with the name that the client gives itself.
    """
    one = _OneBackend(make_backend)
    tools = ToolServer(one.connect, dotted_names=dotted_names)
    try:
        await _serve(tools.make_server())
    finally:
        await tools.close()
        await one.close()


class _OneBackend:
    """The same backend for every request."""

    def __init__(self, make: Callable[[str | None], Backend]) -> None:
        self._make = make
        self._backend: Backend | None = None

    @asynccontextmanager
    async def connect(self, context: Context) -> AsyncIterator[Backend]:
        if self._backend is None:
            self._backend = self._make(client_name(context))
        yield self._backend

    async def close(self) -> None:
        if self._backend is not None:
            await self._backend.close()


async def _serve(server: Server[Any]) -> None:
    with Streams() as streams:
        inward, messages = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        answers, outward = anyio.create_memory_object_stream[SessionMessage](0)
        loop = asyncio.get_running_loop()
        reading = loop.create_task(_read(streams, inward, answers.clone()), name="mcp stdin")
        writing = loop.create_task(_write(streams, outward), name="mcp stdout")
        serving = loop.create_task(
            server.run(messages, answers, server.create_initialization_options()), name="mcp server"
        )
        try:
            # The server ends with its input, and closes its output when all that ran has been told to stop.
            await asyncio.wait({serving, writing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (serving, reading):
                task.cancel()
            await asyncio.wait({serving, reading})
            writing.cancel()
            await asyncio.wait({writing})
            for stream in (inward, messages, answers, outward):
                stream.close()
        if not serving.cancelled() and (failure := serving.exception()) is not None:
            raise failure


async def _read(streams: Streams, inward: Any, answers: Any) -> None:
    async with inward, answers:
        async for line in _lines(streams):
            if line is None:
                await answers.send(_not_json("a line is longer than this server reads"))
            elif line.strip():
                try:
                    message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError:
                    await answers.send(_not_json("a line is not a JSON-RPC message"))
                else:
                    await inward.send(SessionMessage(message))


def _not_json(text: str) -> SessionMessage:
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=None, error=ErrorData(code=PARSE_ERROR, message=text)))


async def _write(streams: Streams, outward: Any) -> None:
    async for message in outward:
        text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
        try:
            await streams.write(text.encode("utf-8", "replace") + b"\n")
        except OSError:
            return  # nobody reads


async def _lines(streams: Streams) -> AsyncIterator[bytes | None]:
    """Each line; None for one that was too long."""
    held, skipping = bytearray(), False
    while piece := await streams.read():
        *complete, rest = piece.split(b"\n")
        for line in complete:
            held += line
            if not skipping:
                yield bytes(held)
            held.clear()
            skipping = False
        held += rest
        if len(held) > MAX_LINE_BYTES and not skipping:
            yield None
            skipping = True
        if skipping:
            held.clear()
    if held and not skipping:
        yield bytes(held)

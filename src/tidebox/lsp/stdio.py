"""The protocol on standard input and output: messages with a header that says how long they are."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from concurrent.futures import InvalidStateError

import structlog
from pygls.exceptions import JsonRpcException, JsonRpcInvalidRequest
from pygls.protocol import LanguageServerProtocol

from tidebox.lsp.server import EditorServer, MakeWorkbench
from tidebox.model.limits import KIB, MIB
from tidebox.stdio import Streams

_log = structlog.get_logger("tidebox.lsp")

MAX_MESSAGE_BYTES = 64 * MIB
_MAX_HEADER_BYTES = 8 * KIB
_LENGTH = b"content-length:"
_GOODBYE_SECONDS = 2.0
"""Within which an editor reads the last answers, or never will."""
_END = b"\r\n\r\n"


async def serve_stdio(make_workbench: MakeWorkbench) -> int:
    """Serve one editor until it says so or is gone; the exit code that the protocol asks for."""
    with Streams() as streams:
        writer = Writer(streams)
        server = EditorServer(make_workbench, writer.drained)
        server.protocol.set_writer(writer)
        reading = asyncio.get_running_loop().create_task(_read(streams, server.protocol), name="lsp stdin")
        ended = asyncio.get_running_loop().create_task(server.ended.wait(), name="lsp exit")
        try:
            await asyncio.wait({reading, ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (reading, ended):
                task.cancel()
            await asyncio.wait({reading, ended})
            await server.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GOODBYE_SECONDS):
                    await writer.drained()
        return 0 if server.protocol.was_shut_down else 1


class Writer:
    """The writer that pygls sends messages through."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._last: asyncio.Future[None] | None = None

    def write(self, data: bytes) -> None:
        """Write all of it, in its turn."""
        self._last = self._streams.write(data)
        # An editor that is gone is seen by its input, which ends too.
        self._last.add_done_callback(lambda done: done.exception())

    def close(self) -> None:
        """Nothing: the streams are the process's own."""

    async def drained(self) -> None:
        """Wait until all of it is written, or nobody reads."""
        if self._last is not None and not self._last.done():
            await asyncio.wait({self._last})


async def _read(streams: Streams, protocol: LanguageServerProtocol) -> None:
    async for body in _messages(streams):
        try:
            message = json.loads(body, object_hook=protocol.structure_message)
            protocol.handle_message(message)
        except Exception as error:
            _refuse(protocol, body, error)
        # Messages that came together do not keep others from their turn.
        await asyncio.sleep(0)


def _refuse(protocol: LanguageServerProtocol, body: bytes, error: Exception) -> None:
    """Answer a request that is none; pygls would leave the client waiting."""
    try:
        message = json.loads(body)
        request_id = message["id"] if "method" in message else None
    except (ValueError, KeyError, TypeError, RecursionError):
        request_id = None
    if isinstance(error, InvalidStateError):
        return  # the answer to a question that nobody asks any more
    _log.warning("message_refused", kind=type(error).__name__)
    if isinstance(request_id, int | str):
        known = error if isinstance(error, JsonRpcException) else JsonRpcInvalidRequest(message="not a valid message")
        protocol._send_response(request_id, error=known.to_response_error())


async def _messages(streams: Streams) -> AsyncIterator[bytes]:
    """Each message; ends at the end of the input, or where that is not the protocol."""
    buffer = bytearray()
    while True:
        while (end := buffer.find(_END)) < 0:
            if len(buffer) > _MAX_HEADER_BYTES:
                _log.error("not_the_protocol")
                return
            if not (piece := await streams.read()):
                return
            buffer += piece
        length = _length(bytes(buffer[:end]))
        if length is None or length > MAX_MESSAGE_BYTES:
            _log.error("not_the_protocol")
            return
        begin = end + len(_END)
        while len(buffer) < begin + length:
            if not (piece := await streams.read()):
                return
            buffer += piece
        body = bytes(buffer[begin : begin + length])
        del buffer[: begin + length]
        yield body


def _length(header: bytes) -> int | None:
    for line in header.split(b"\r\n"):
        if line.lower().startswith(_LENGTH):
            value = line[len(_LENGTH) :].strip()
            return int(value) if value.isdigit() and len(value) <= 12 else None
    return None

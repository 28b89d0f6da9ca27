"""``GET /runs/{run_id}/logs``: the log of a run for programs that speak no WebSocket, ``curl`` for one."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from tidebox.api.interpreter import stream_frames
from tidebox.api.interpreter.runs import RunId
from tidebox.api.ranges import ByteRange, parse_range
from tidebox.api.route_dependencies import CallerDep, ServicesDep, errors
from tidebox.broker.runs.log_hub import LogReader
from tidebox.broker.storage.log_frames import Gap, LogFrame
from tidebox.broker.storage.log_store import Extent, StoredLog
from tidebox.model.events import OutputEvent

router = APIRouter(tags=["runs"])

TEXT = "text/plain; charset=utf-8"
LINES = "application/x-ndjson"
_LINES_NAMES = (LINES, "application/jsonl", "application/json-lines", "application/json")
_CHUNK_BYTES = 256 * 1024

StreamChoice = Literal["stdout", "stderr"]
_EXAMPLE_LINES = (
    '{"type":"event","event":"start","data":{"ts":"2026-01-02T03:04:05.678Z"},"seq":3}\n'
    '{"type":"stdout","encoding":"utf8","data":"hello\\n","seq":4}\n'
)
_BODY = {
    "text/plain": {"schema": {"type": "string"}, "example": "hello\n"},
    LINES: {"schema": {"type": "string"}, "example": _EXAMPLE_LINES},
}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"description": "The log.", "content": _BODY},
    206: {"description": "The part of the log that was asked for.", "content": _BODY},
    **errors(404, 409, 410, 416),
}


@router.get("/runs/{run_id}/logs", summary="Read the log of a run", responses=_RESPONSES, response_class=Response)
async def read_logs(
    caller: CallerDep,
    services: ServicesDep,
    run_id: RunId,
    stream: Annotated[StreamChoice | None, Query(description="Only what was written there.")] = None,
    format: Annotated[
        Literal["text", "jsonl"] | None, Query(description="Like `Accept`, for those who cannot set it.")
    ] = None,
    from_seq: Annotated[int | None, Query(description="The first frame that counts.", ge=0, le=2**53)] = None,
    follow: Annotated[bool, Query(description="Whether to go on until the run is over.")] = False,
    accept: Annotated[str | None, Header(description="`text/plain` or `application/x-ndjson`.")] = None,
    range: Annotated[str | None, Header(description="One range of bytes; not of a log that is followed.")] = None,
) -> Response:
    """The output as the program wrote it, both streams in the order of their arrival; or every frame of the log stream
    as a line of JSON.

    Without `follow` the answer is what there is now. With it ranges do not count: nobody knows how long it will be.
    """
    lines = _wants_lines(format, accept)
    runs = services.broker.runs
    if follow:
        async with contextlib.AsyncExitStack() as needed:
            needed.enter_context(services.log_followers.following(caller.principal.user))
            reader = await runs.read_log(caller, run_id, from_seq)
            needed.push_async_callback(reader.close)
            return _LogResponse(_rendered(reader, stream, lines), needed.pop_all().aclose, LINES if lines else TEXT)
    if lines:
        part = None
        if range is not None:
            part = await _measured(await runs.read_log_so_far(caller, run_id, from_seq), stream, range)
        return _lines(await runs.read_log_so_far(caller, run_id, from_seq), stream, part)
    _, log = await runs.stored_log(caller, run_id)
    return await _text(log, stream, from_seq, range)


class _LogResponse(StreamingResponse):
    """A streamed body whose source is closed however the response ends."""

    def __init__(
        self,
        body: AsyncIterator[bytes],
        close: Callable[[], Awaitable[None]],
        media_type: str,
        *,
        length: int | None = None,
        part: tuple[ByteRange, int] | None = None,
    ) -> None:
        headers = {"cache-control": "no-store", "x-content-type-options": "nosniff", "accept-ranges": "bytes"}
        if length is not None:
            headers["content-length"] = str(length)
        if part is not None:
            headers["content-range"] = part[0].content_range(part[1])
        status = HTTPStatus.OK if part is None else HTTPStatus.PARTIAL_CONTENT
        super().__init__(body, status, headers, media_type)
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._close()


def _wants_lines(format: str | None, accept: str | None) -> bool:
    if format is not None:
        return format == "jsonl"
    names = [name.partition(";")[0].strip().lower() for name in (accept or "").split(",")]
    return next((name in _LINES_NAMES for name in names if name in (*_LINES_NAMES, "text/plain")), False)


# Text: slices of the file.


async def _text(log: StoredLog | None, stream: StreamChoice | None, seq: int | None, asked: str | None) -> Response:
    if log is None:
        parse_range(asked, 0)
        return Response(b"", media_type=TEXT)

    try:
        extents = await log.extents(stream, seq or 0)
        size = sum(extent.length for extent in extents)
        part = parse_range(asked, size)
    except BaseException:
        await log.close()
        raise
    wanted = part or ByteRange(0, size)
    shown = (part, size) if part is not None else None
    return _LogResponse(_slices(log, extents, wanted), log.close, TEXT, length=wanted.length, part=shown)


async def _slices(log: StoredLog, extents: list[Extent], wanted: ByteRange) -> AsyncIterator[bytes]:
    """The bytes of a range of all output, gathered into pieces that are worth being sent."""
    position = 0
    pending: list[tuple[int, int]] = []
    gathered = 0
    for extent in extents:
        start, end = max(wanted.start - position, 0), min(wanted.end - position, extent.length)
        position += extent.length
        if start < end:
            pending.append((extent.offset + start, end - start))
            gathered += end - start
        if gathered >= _CHUNK_BYTES:
            yield await log.read(pending)
            pending, gathered = [], 0
        if position >= wanted.end:
            break
    if pending:
        yield await log.read(pending)


# JSON lines: frames as the stream has them.


def _lines(reader: LogReader, stream: StreamChoice | None, part: tuple[ByteRange, int] | None) -> Response:
    body = _rendered(reader, stream, lines=True)
    if part is None:
        return _LogResponse(body, reader.close, LINES)
    return _LogResponse(_cut(body, part[0]), reader.close, LINES, length=part[0].length, part=part)


async def _measured(reader: LogReader, stream: StreamChoice | None, asked: str) -> tuple[ByteRange, int] | None:
    """Return the range of the JSON lines that is asked for, and their size."""
    try:
        size = sum([len(piece) async for piece in _rendered(reader, stream, lines=True)])
    finally:
        await reader.close()
    part = parse_range(asked, size)
    return (part, size) if part is not None else None


async def _cut(body: AsyncIterator[bytes], wanted: ByteRange) -> AsyncIterator[bytes]:
    position = 0
    async for piece in body:
        found = piece[max(wanted.start - position, 0) : max(wanted.end - position, 0)]
        position += len(piece)
        if found:
            yield found
        if position >= wanted.end:
            return


async def _rendered(reader: LogReader, stream: StreamChoice | None, lines: bool) -> AsyncIterator[bytes]:
    while batch := await reader.read():
        piece = b"".join([_render(item, stream, lines) for item in batch])
        if piece:
            yield piece


def _render(item: LogFrame | Gap, stream: StreamChoice | None, lines: bool) -> bytes:
    output = item.entry if isinstance(item, LogFrame) and isinstance(item.entry, OutputEvent) else None
    if output is not None and stream not in (None, output.stream):
        return b""
    if lines:
        return stream_frames.render(item) + b"\n"
    return output.data if output is not None else b""

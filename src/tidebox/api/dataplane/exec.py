"""``POST /v1/exec``: a program with all its output in one answer."""

from __future__ import annotations

import asyncio
import base64
import codecs
from collections.abc import AsyncGenerator, Iterator, Sequence

import msgspec

from tidebox.api.dataplane.commands import make_command
from tidebox.api.dataplane.output_frames import shown_end
from tidebox.broker.sandboxes.processes import OutputPiece, ProcessTable
from tidebox.broker.sandboxes.sandbox import LiveSandbox
from tidebox.errors import InternalError, LimitOutOfRange
from tidebox.model.sandbox import Capability
from tidebox.protocols.dataplane.frames import Exit
from tidebox.protocols.dataplane.routes import ExecAnswer, ExecRequest


def seconds_of(timeout_ms: int | None, longest: float) -> float | None:
    """Return the timeout of a request in seconds; None if it has none."""
    if timeout_ms is None:
        return None
    if not 0 < timeout_ms <= longest * 1000:
        raise LimitOutOfRange(f"timeout_ms: give a number between 1 and {longest * 1000:.0f}", field="timeout_ms")
    return timeout_ms / 1000


async def run(
    processes: ProcessTable, sandbox: LiveSandbox, request: ExecRequest, seconds: float, request_id: str
) -> tuple[Exit, ExecOutput]:
    """Run a program to its end, and return its exit and output.

    Cancelling the call kills it. Output beyond the bound is dropped.
    """
    command = make_command(request.command, cwd=request.cwd, env=request.env)
    stdin = (request.stdin or "").encode()
    reader = await processes.start(sandbox, command, capability=Capability.EXEC, request_id=request_id)
    process = reader.process
    try:
        process.end_after(seconds)
        process.put_input(stdin, eof=True)
        collected = ExecOutput(request.max_output_bytes)
        while (pieces := await reader.read()) is not None:
            for piece in pieces:
                collected.add(piece)
    finally:
        await reader.close()
    if process.end is None:
        raise process.error or InternalError("a program without an end")
    return shown_end(process.end), collected


class ExecOutput:
    """The output of a program, up to a number of bytes of both streams together."""

    def __init__(self, bound: int) -> None:
        self._room = bound
        self._truncated = False
        self._streams: dict[str, list[bytes]] = {"stdout": [], "stderr": []}

    def add(self, piece: OutputPiece) -> None:
        """Add a piece of output, as far as there is room."""
        data = piece.data[: self._room]
        self._truncated |= len(data) < len(piece.data)
        self._room -= len(data)
        if data:
            self._streams[piece.stream].append(data)

    async def rendered(self, ending: Exit) -> AsyncGenerator[bytes, None]:
        """The answer in pieces: both streams as text where both are UTF-8, and otherwise both in base64.

        Between pieces others have their turn: of a program that writes much, this takes seconds altogether.
        """
        as_text = True
        for parts in self._streams.values():
            as_text = as_text and await self._is_text(parts)
        answer = ExecAnswer(
            **msgspec.structs.asdict(ending), encoding="utf8" if as_text else "base64", truncated=self._truncated
        )
        yield msgspec.json.encode(answer).removesuffix(_NO_OUTPUT)
        for name, parts in self._streams.items():
            yield b',"%s":"' % name.encode()
            for piece in _as_text(parts) if as_text else _as_base64(parts):
                yield piece
                await asyncio.sleep(0)
            yield b'"'
        yield b"}"

    async def _is_text(self, parts: Sequence[bytes]) -> bool:
        decoder = _UTF8()
        try:
            for part in parts:
                decoder.decode(part)
                await asyncio.sleep(0)
            # The bound may have cut a character in two; what is before it is still text.
            decoder.decode(b"", final=not self._truncated)
        except UnicodeDecodeError:
            return False
        return True


_UTF8 = codecs.getincrementaldecoder("utf-8")
# How an answer ends that has no output in it: its last fields.
_NO_OUTPUT = b',"stdout":"","stderr":""}'


def _as_text(parts: Sequence[bytes]) -> Iterator[bytes]:
    decoder = _UTF8()
    for part in parts:
        yield msgspec.json.encode(decoder.decode(part))[1:-1]


def _as_base64(parts: Sequence[bytes]) -> Iterator[bytes]:
    rest = b""
    for part in parts:
        data = rest + part
        end = len(data) - len(data) % 3
        yield base64.b64encode(data[:end])
        rest = data[end:]
    yield base64.b64encode(rest)

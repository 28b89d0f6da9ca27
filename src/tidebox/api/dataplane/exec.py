"""``POST /v1/exec``: a program with all its output in one answer."""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from tidebox.api.dataplane.commands import make_command
from tidebox.api.dataplane.processes import Piece, start
from tidebox.broker.sandboxes import Sandbox
from tidebox.errors import InternalError, InvalidRequest, LimitOutOfRange
from tidebox.model.limits import MIB
from tidebox.model.sandbox import Capability

DEFAULT_OUTPUT_BYTES = 8 * MIB
MAX_OUTPUT_BYTES = 64 * MIB


class ExecRequest(msgspec.Struct):
    """What to run."""

    command: list[str] | str
    cwd: str | None = None
    env: dict[str, str] = msgspec.field(default_factory=dict)
    stdin: str | None = None
    timeout_ms: int | None = None
    max_output_bytes: int = DEFAULT_OUTPUT_BYTES


_decode = msgspec.json.Decoder(ExecRequest).decode


def parse(body: bytes) -> ExecRequest:
    """The request in a body; raises InvalidRequest."""
    try:
        request = _decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not a request: {error}") from None
    if not 0 <= request.max_output_bytes <= MAX_OUTPUT_BYTES:
        raise LimitOutOfRange(
            f"max_output_bytes: give a number between 0 and {MAX_OUTPUT_BYTES}", field="max_output_bytes"
        )
    return request


def seconds_of(timeout_ms: int | None, longest: float) -> float | None:
    """How long a program may run, where that was said."""
    if timeout_ms is None:
        return None
    if not 0 < timeout_ms <= longest * 1000:
        raise LimitOutOfRange(f"timeout_ms: give a number between 1 and {longest * 1000:.0f}", field="timeout_ms")
    return timeout_ms / 1000


async def run(sandbox: Sandbox, request: ExecRequest, seconds: float) -> dict[str, Any]:
    """Run a program to its end; cancelling the call kills it. Output beyond the bound is dropped, and said to be."""
    command = make_command(request.command, cwd=request.cwd, env=request.env)
    stdin = (request.stdin or "").encode()
    process = await start(sandbox, command, capability=Capability.EXEC)
    reader = process.attach()
    try:
        process.end_after(seconds)
        process.put_input(stdin, eof=True)
        collected = _Collected(request.max_output_bytes)
        while (pieces := await reader.read()) is not None:
            for piece in pieces:
                collected.add(piece)
    finally:
        await process.detach(reader)
    if process.ending is None:
        raise process.error or InternalError("a program without an end")
    return {"timed_out": False, **process.ending, **collected.rendered()}


class _Collected:
    """The output of a program, up to a number of bytes of both streams together."""

    def __init__(self, bound: int) -> None:
        self._room = bound
        self._truncated = False
        self._streams: dict[str, list[bytes]] = {"stdout": [], "stderr": []}

    def add(self, piece: Piece) -> None:
        """Take what there is room for."""
        data = piece.data[: self._room]
        self._truncated |= len(data) < len(piece.data)
        self._room -= len(data)
        self._streams[piece.stream].append(data)

    def rendered(self) -> dict[str, Any]:
        """Both streams as text where both are UTF-8, and otherwise both in base64."""
        streams = {name: b"".join(parts) for name, parts in self._streams.items()}
        fields: dict[str, Any]
        try:
            fields = {name: self._decoded(data) for name, data in streams.items()}
            fields["encoding"] = "utf8"
        except UnicodeDecodeError:
            fields = {name: base64.b64encode(data).decode() for name, data in streams.items()}
            fields["encoding"] = "base64"
        fields["truncated"] = self._truncated
        return fields

    def _decoded(self, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            # The bound may have cut a character in two; what is before it is still text.
            if not self._truncated or error.reason != "unexpected end of data":
                raise
            return data[: error.start].decode()

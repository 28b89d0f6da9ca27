"""A conversation with the server as raw bytes: what is sent and when, and how the client leaves.

Generators make conversations from a seeded source of chance and do no I/O; ``hold`` carries one out.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from dataclasses import dataclass, field
from enum import Enum

_KEPT_BYTES = 64 * 1024
_CONNECT_SECONDS = 5.0


class Leave(Enum):
    """How the client ends the connection."""

    CLOSE = "close"
    HALF_CLOSE = "half-close"
    RESET = "reset"


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes to send, after a pause."""

    data: bytes
    pause: float = 0.0


@dataclass(frozen=True, slots=True)
class Conversation:
    """One connection. ``reads``: whether the client takes what the server sends; ``linger``: how long it then stays."""

    name: str
    pieces: tuple[Piece, ...]
    leave: Leave = Leave.CLOSE
    reads: bool = True
    linger: float = 0.2


@dataclass(slots=True)
class Heard:
    """What came back: its beginning, and how much there was."""

    start: bytearray = field(default_factory=bytearray)
    total: int = 0

    def add(self, data: bytes) -> None:
        """Count it, and keep it while there is room."""
        self.start += data[: _KEPT_BYTES - len(self.start)]
        self.total += len(data)


def random_leave(chance: random.Random) -> Leave:
    """Mostly an honest end."""
    return chance.choices([Leave.CLOSE, Leave.HALF_CLOSE, Leave.RESET], [6, 2, 2])[0]


async def hold(address: tuple[str, int], conversation: Conversation) -> Heard:
    """Carry out one conversation. A server that ends it first is in its right."""
    heard = Heard()
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(*address)
    except (OSError, TimeoutError):
        return heard
    reading = asyncio.create_task(_read(reader, heard)) if conversation.reads else None
    try:
        with contextlib.suppress(OSError, TimeoutError):
            for piece in conversation.pieces:
                if piece.pause:
                    await asyncio.sleep(piece.pause)
                writer.write(piece.data)
                async with asyncio.timeout(_CONNECT_SECONDS):
                    await writer.drain()
            if conversation.leave is Leave.HALF_CLOSE and writer.can_write_eof():
                writer.write_eof()
            if reading is not None:
                await asyncio.wait([reading], timeout=conversation.linger)
            else:
                await asyncio.sleep(conversation.linger)
    finally:
        if reading is not None:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        _end(writer, reset=conversation.leave is Leave.RESET)
    return heard


async def _read(reader: asyncio.StreamReader, heard: Heard) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            heard.add(data)


def _end(writer: asyncio.StreamWriter, *, reset: bool) -> None:
    if reset:
        with contextlib.suppress(OSError):
            # With no time to linger, closing sends a reset instead of an orderly end.
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()

"""Pacing of parsers: received bytes are parsed in pieces, and in each turn of the event loop only for so long.

One read may bring 256 KiB, which are forty thousand empty frames. Parsed in one go they would stop everybody else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

PIECE_BYTES = 2048
"""The piece that is parsed between two looks at the clock and at whether the reader of the messages wants more."""
TURN_SECONDS = 0.002
"""The time that one connection may take of a turn of the loop, but for the rest of a piece."""
# After a piece that took so little, as of a long body, the next may be twice as long; up to a length.
_QUICK_SECONDS = 0.0001
_LONGEST_PIECE_BYTES = 8 * PIECE_BYTES


class PacedReader:
    """Stands between a transport and the parser of its bytes; the only one to pause that transport."""

    __slots__ = ("_loop", "_transport", "_parse", "_held", "_stopped", "_paused", "_scheduled", "_over")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, parse: Callable[[bytes], None]
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._parse = parse
        self._held = b""
        self._stopped = False
        self._paused = False
        self._scheduled = False
        self._over = False

    @property
    def waits_for_client(self) -> bool:
        """Whether there is nothing to parse, and more is wanted."""
        return not (self._stopped or self._held)

    def feed(self, data: bytes) -> None:
        """Parse what was received, now or later."""
        if self._over:
            return
        if self._stopped or self._held:
            self._hold(self._held + data)
        elif len(data) <= PIECE_BYTES:
            self._parse(data)
        else:
            self._work(data)

    def stop(self) -> None:
        """Parse nothing more for now. The transport is only paused once it brings more: mostly it does not."""
        self._stopped = True

    def go_on(self) -> None:
        """Go on parsing, from the next turn of the loop on."""
        self._stopped = False
        if self._held:
            self._schedule()
        else:
            self._resume()

    def end(self) -> None:
        """Parse nothing any more; what still comes is thrown away."""
        self._over = True
        self._held = b""
        self._resume()

    def _work(self, data: bytes) -> None:
        now = time.perf_counter()
        until = now + TURN_SECONDS
        start, size = 0, PIECE_BYTES
        while start < len(data):
            if start and (self._stopped or now > until):
                self._hold(data[start:])
                if not self._stopped:
                    self._schedule()
                return
            self._parse(data[start : start + size])
            if self._over:
                return
            start += size
            before, now = now, time.perf_counter()
            if now - before < _QUICK_SECONDS:
                size = min(2 * size, _LONGEST_PIECE_BYTES)
        if not self._stopped:
            self._resume()

    def _hold(self, data: bytes) -> None:
        # At most what two reads bring: nothing more is read until this is parsed.
        self._held = data
        if not self._paused and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._paused and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._continue)

    def _continue(self) -> None:
        self._scheduled = False
        if self._over or self._stopped:
            return
        data, self._held = self._held, b""
        self._work(data)

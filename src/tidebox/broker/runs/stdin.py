"""The input of an interactive run: what a client sends, on its way to the program, within the run's rules."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TypeVar

from tidebox.errors import Conflict

Number = TypeVar("Number", int, float)

# Buffered for a program that does not read; beyond that the sender waits.
_BUFFER_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class StdinRules:
    """Limits on the size and rate of input. Breaking one closes the input."""

    max_bytes: int = 1024 * 1024
    max_frame_bytes: int = 64 * 1024
    bytes_per_second: int | None = None
    idle_timeout: float | None = None

    def narrowed(
        self,
        *,
        max_bytes: int | None = None,
        max_frame_bytes: int | None = None,
        bytes_per_second: int | None = None,
        idle_timeout: float | None = None,
    ) -> StdinRules:
        """Return the stricter of these rules and the requested ones."""
        return StdinRules(
            max_bytes=_least(self.max_bytes, max_bytes),
            max_frame_bytes=_least(self.max_frame_bytes, max_frame_bytes),
            bytes_per_second=_lesser(self.bytes_per_second, bytes_per_second),
            idle_timeout=_lesser(self.idle_timeout, idle_timeout),
        )


def _least(limit: Number, asked: Number | None) -> Number:
    return limit if asked is None else min(limit, asked)


def _lesser(limit: Number | None, asked: Number | None) -> Number | None:
    return asked if limit is None else _least(limit, asked)


class StdinFeed:
    """A queue of bytes with one end for the client and one for the program."""

    def __init__(self, rules: StdinRules, on_broken: Callable[[str], None]) -> None:
        self._rules = rules
        self._on_broken = on_broken
        self._chunks: deque[bytes] = deque()
        self._buffered = 0
        self._taken = 0
        self._closed = False
        self._changed = asyncio.Event()
        self._allowance = float(rules.bytes_per_second or 0)
        self._refilled = asyncio.get_running_loop().time()
        self._idle: asyncio.TimerHandle | None = None

    @property
    def open(self) -> bool:
        """Whether it takes more input."""
        return not self._closed

    async def write(self, data: bytes) -> None:
        """Hand over some input, waiting while too much of it waits; raises ``Conflict`` when the input is closed."""
        if self._closed:
            raise Conflict("the input of this run is closed", reason="closed")
        broken = self._broken_by(len(data))
        if broken is not None:
            self._break(broken)
            raise Conflict(f"the input of this run is closed: {broken}", reason=broken)
        if self._idle is not None:
            self._watch_idle()
        self._taken += len(data)
        if data:
            self._chunks.append(data)
            self._buffered += len(data)
            self._notify()
        while self._buffered > _BUFFER_BYTES and not self._closed:
            await self._changed.wait()

    def close(self) -> None:
        """No more input will come; what waits is still read."""
        self._closed = True
        if self._idle is not None:
            self._idle.cancel()
        self._notify()

    def _broken_by(self, size: int) -> str | None:
        rules = self._rules
        if size > rules.max_frame_bytes:
            return "stdin_max_frame_bytes"
        if self._taken + size > rules.max_bytes:
            return "stdin_max_bytes"
        if rules.bytes_per_second is not None:
            now = asyncio.get_running_loop().time()
            refill = (now - self._refilled) * rules.bytes_per_second
            self._refilled = now
            self._allowance = min(self._allowance + refill, rules.bytes_per_second) - size
            if self._allowance < 0:
                return "stdin_bps"
        return None

    def _break(self, rule: str) -> None:
        self.close()
        self._on_broken(rule)

    def _watch_idle(self) -> None:
        if self._rules.idle_timeout is None or self._closed:
            return
        if self._idle is not None:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(
            self._rules.idle_timeout, self._break, "stdin_idle_timeout_sec"
        )

    def _notify(self) -> None:
        self._changed.set()
        self._changed.clear()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the input of the program; idle time counts from the first call on."""
        self._watch_idle()
        while True:
            while self._chunks:
                chunk = self._chunks.popleft()
                self._buffered -= len(chunk)
                self._notify()
                yield chunk
            if self._closed:
                return
            await self._changed.wait()

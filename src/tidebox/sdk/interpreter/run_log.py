"""The log of a run as it is made: every entry once, through however many connections that takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Self

from tidebox.errors import TideboxError
from tidebox.sdk.closeable import AsyncCloseable
from tidebox.sdk.error_decoding import from_code
from tidebox.sdk.errors import ClientClosed, ConnectionLost
from tidebox.sdk.interpreter.calls import ServiceCalls, part
from tidebox.sdk.interpreter.entries import (
    INPUT_END,
    LogEntry,
    LogFrame,
    LogGap,
    LogHeartbeat,
    Resumed,
    RunEnd,
    StreamError,
    decode,
    encode_input,
)
from tidebox.sdk.message_socket import MessageSocket

# A server says something every ten seconds, by default; one that says nothing for so long may be gone.
SILENCE_SECONDS = 30.0
# Less than the least that a server takes at once by default.
_INPUT_BYTES = 16 * 1024
# Between two questions whether input arrived; a server answers only so many pings.
_CONFIRM_SECONDS = 0.1


class AsyncRunLog(AsyncCloseable):
    """The log of a run; iterate over it for its entries as they come, up to the ``RunEnd``. One task reads.

    A connection that is lost is made again, and the log goes on where it was. So it does for a reader that was too slow
    for the server's memory: what is left out there is read from its disk. What is not there either is a ``LogGap``.
    """

    def __init__(self, calls: ServiceCalls, run_id: str, from_seq: int | None, tail: bool) -> None:
        self._calls = calls
        self._path = f"/runs/{part(run_id)}/stream"
        self._query = f"?from_seq={from_seq}" if from_seq is not None else "?tail=true" if tail else ""
        self._begin = max(from_seq, 1) if from_seq is not None else None if tail else 1
        """The number of the first entry, if that is known before it comes."""
        self._last: int | None = None
        """The number of the last entry that came."""
        self._patience = calls.patience()
        # Guards the socket: one connection is made at a time.
        self._connecting = asyncio.Lock()
        self._socket: MessageSocket | None = None
        self._heard = False
        """Whether anything has come on this connection."""
        self._fresh = True
        """Whether nothing new has come on this connection yet."""
        self._sent_input = False
        """Whether input was sent on this connection of which nobody knows yet that it arrived."""
        self._sends = 0
        self._confirming: asyncio.Task[None] | None = None
        self._input_unsure = False
        self._pending: LogEntry | LogHeartbeat | Resumed | None = None
        """The frame behind a gap, which is told first."""
        self._closed = False
        self.end: RunEnd | None = None
        """How the run ended, once that was read."""

    @classmethod
    async def open(cls, calls: ServiceCalls, run_id: str, from_seq: int | None, tail: bool) -> Self:
        """Connect to the log; raises if there is none, or nobody may read it."""
        log = cls(calls, run_id, from_seq, tail)
        await log._reached()
        return log

    @property
    def next_seq(self) -> int | None:
        """The number of the entry that comes next: where another reader would go on. None if that is not known yet."""
        return self._begin if self._last is None else self._last + 1

    async def __aiter__(self) -> AsyncIterator[LogEntry]:
        while (entry := await self.read()) is not None:
            yield entry

    async def read(self) -> LogEntry | None:
        """The next entry; None after the end.

        What the server has to say against something that was sent to the program is raised here. So is
        ``ConnectionLost``, once, when a connection was lost before input that was sent on it is known to have arrived.
        After either the log goes on.
        """
        silent_from = self._now()
        while self.end is None:
            self._check_input()
            frame: LogFrame | None = self._pending
            self._pending = None
            if frame is None:
                try:
                    frame = await self._receive(await self._connected(), silent_from + SILENCE_SECONDS)
                except TideboxError as error:
                    await self._disconnect()
                    await self._patience.overcome(error)
                    silent_from = self._now()
                    continue
            if isinstance(frame, StreamError):
                raise from_code(frame.code, frame.message, frame.details)
            if (missing := self._missing(frame)) and not self._fresh:
                # This reader is too slow for the server's memory; what it missed is on the disk.
                await self._disconnect()
                continue
            if missing:
                self._last = frame.seq - 1
                self._pending = frame
                return LogGap(missing, frame.seq)
            if self._is_new(frame):
                silent_from = self._now()
                if not isinstance(frame, LogHeartbeat | Resumed):
                    return frame
        return None

    async def write(self, data: bytes | str) -> None:
        """Give an interactive run input; waits while its program is too far behind with reading."""
        given = data.encode() if isinstance(data, str) else data
        for start in range(0, len(given), _INPUT_BYTES):
            await self._send(encode_input(given[start : start + _INPUT_BYTES]))

    async def end_input(self) -> None:
        """Let the program read the end of its input."""
        if self._confirming is not None:
            # It would ask again only after a pause, and this is the last that there is to ask for.
            self._confirming.cancel()
        await self._send(INPUT_END)

    async def close(self) -> None:
        """Read no more; the run goes on."""
        self._closed = True
        await self._disconnect()

    async def _send(self, message: bytes) -> None:
        self._check_input()
        socket = await self._reached()
        self._sent_input = True
        self._sends += 1
        await socket.send(message)
        if self._confirming is None or self._confirming.done() or self._confirming.cancelling():
            self._confirming = asyncio.get_running_loop().create_task(self._confirm(socket), name="tidebox input")

    async def _confirm(self, socket: MessageSocket) -> None:
        """See that what was sent arrived: then a lost connection loses no input."""
        while socket is self._socket and self._sent_input:
            sends = self._sends
            if not await socket.answered() or socket is not self._socket:
                return
            if sends == self._sends:
                self._sent_input = False
            else:
                await asyncio.sleep(_CONFIRM_SECONDS)

    def _check_input(self) -> None:
        if self._input_unsure:
            self._input_unsure = False
            raise ConnectionLost("the connection was lost, and with it maybe input that was sent to the program")

    async def _reached(self) -> MessageSocket:
        while True:
            try:
                return await self._connected()
            except TideboxError as error:
                await self._patience.overcome(error)

    async def _connected(self) -> MessageSocket:
        async with self._connecting:
            if self._closed:
                raise ClientClosed("the log was closed")
            if self._socket is None:
                query = self._query if self._last is None else f"?from_seq={self._last + 1}"
                self._socket = await self._calls.connect(self._path + query)
                self._heard, self._fresh = False, True
            return self._socket

    async def _disconnect(self) -> None:
        socket, self._socket = self._socket, None
        confirming, self._confirming = self._confirming, None
        if confirming is not None:
            confirming.cancel()
            await asyncio.wait([confirming])
        if self._sent_input:
            self._sent_input, self._input_unsure = False, self.end is None
        if socket is not None:
            await socket.close(at_once=self.end is None)

    async def _receive(self, socket: MessageSocket, silent_at: float) -> LogFrame:
        try:
            async with asyncio.timeout_at(silent_at):
                message = await socket.receive()
        except TimeoutError:
            if not self._heard:
                # It let us in, and may have nothing to tell: whether it is still there is seen by connecting again.
                self._patience.progress()
            raise ConnectionLost(f"nothing new came for {SILENCE_SECONDS:g} seconds") from None
        if message is None:
            raise ConnectionLost("the server closed the connection before the run was over")
        self._heard = True
        frame = decode(message)
        if isinstance(frame, StreamError) and (error := from_code(frame.code, frame.message, frame.details)).retryable:
            # The server stops; the next one goes on with the log.
            raise ConnectionLost(error.message, **error.details)
        return frame

    def _missing(self, frame: LogEntry | LogHeartbeat | Resumed) -> int:
        """Return the number of entries that are missing before a frame."""
        if isinstance(frame, Resumed) and not frame.lost:
            return 0
        expected = self._begin if self._last is None else self._last + 1
        return 0 if expected is None else max(0, frame.seq - expected)

    def _is_new(self, frame: LogEntry | LogHeartbeat | Resumed) -> bool:
        """Whether a frame was not there before; it is noted."""
        if isinstance(frame, RunEnd):
            # Whatever its number: a server that was killed may have lost its last few.
            self.end = frame
        elif isinstance(frame, Resumed):
            if not frame.lost:
                # Another node has taken the run over, and no entry has the numbers in between.
                self._last = frame.seq - 1
            return False
        elif self._last is not None and frame.seq <= self._last:
            return False
        self._last = frame.seq
        self._fresh = False
        self._patience.progress()
        return True

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

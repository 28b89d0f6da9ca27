"""Outgoing frames to the host: a bounded queue over the one stream socket, or a pipe.

Bulk producers (program output, file reads, TCP) ask ``full`` before they read, and wait in line when it is: so a host
that does not read holds back the programs, and never makes the agent grow. Short replies are always taken; the host's
requests stop being read when they pile up (``swamped``).
"""

from __future__ import annotations

import _socket
import os
from _collections import deque  # type: ignore[import-not-found]

from tidebox.agent.loop import READ, WRITE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Callable

    from tidebox.agent.loop import Loop
    from tidebox.wire.cbor import Buffer

# Producers stop here: a few of the largest pieces they put in at once.
FULL_BYTES = 1 << 20
# Requests stop being read here. Far above the other mark: replies to what was already received must fit in between.
SWAMPED_BYTES = 4 << 20
# IOV_MAX is 1024; a short list keeps the cost of a partial send low.
_PIECES_PER_SEND = 64


class HostGone(Exception):
    """The host closed its end; the box has no purpose any more."""


class Pipes:
    """Two pipes that are used as one socket would be."""

    def __init__(self, read: int, write: int) -> None:
        self._read = read
        self.write = write

    def setblocking(self, flag: bool) -> None:
        """Whether to wait in a call."""
        os.set_blocking(self._read, flag)
        os.set_blocking(self.write, flag)

    def recv_into(self, buffer: memoryview) -> int:
        """Receive bytes from the host."""
        return os.readv(self._read, [buffer])

    def sendmsg(self, pieces: Sequence[Buffer], _ancillary: tuple[()], _flags: int) -> int:
        """Send as much as fits."""
        return os.writev(self.write, pieces)

    def fileno(self) -> int:
        """The descriptor that becomes readable when there is more to receive."""
        return self._read

    def close(self) -> None:
        """Give both back."""
        os.close(self._read)
        os.close(self.write)


class HostOutbox:
    """Sends in order what the socket takes; a piece may be reused by its owner once ``wait`` has called back."""

    _sock: _socket.socket | Pipes

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._pieces: deque[Buffer] = deque()
        self._waiting: deque[Callable[[], None]] = deque()
        self._read_interest = READ
        self._interest = READ
        self._pipe: int | None = None
        self.size = 0

    def connect(self, sock: _socket.socket | Pipes) -> None:
        """Where everything goes."""
        self._sock = sock
        self._pipe = sock.write if isinstance(sock, Pipes) else None

    @property
    def full(self) -> bool:
        """Bulk producers have to wait."""
        return self.size >= FULL_BYTES

    @property
    def swamped(self) -> bool:
        """The host sends requests but does not read the replies."""
        return self.size >= SWAMPED_BYTES

    def put(self, pieces: Sequence[Buffer]) -> None:
        """Queue the pieces of one frame, none of them empty; they are sent together at the end of the loop's round."""
        for piece in pieces:
            self._pieces.append(piece)
            self.size += len(piece)

    def wait(self, producer: Callable[[], None]) -> None:
        """Call the producer once, when there is room again."""
        self._waiting.append(producer)

    def listen(self, wanted: bool) -> None:
        """Whether to be told when the host sent something."""
        self._read_interest = READ if wanted else 0
        self._update_interest()

    def flush(self) -> None:
        """Send as much as the socket takes now; raises HostGone."""
        self._send()
        for _ in range(len(self._waiting)):
            if self._pieces:
                break
            # One at a time: each puts in a piece of its own, and the line moves on when that is sent.
            self._waiting.popleft()()
            self._send()
        if self._waiting and not self._pieces:
            # The host reads as fast as they produce: others have their turn, then the line goes on.
            self._loop.soon(_again)
        self._update_interest()

    def _send(self) -> None:
        pieces = self._pieces
        while pieces:
            batch = [pieces[0]] if len(pieces) == 1 else [pieces[i] for i in range(min(len(pieces), _PIECES_PER_SEND))]
            try:
                sent = self._sock.sendmsg(batch, (), _socket.MSG_NOSIGNAL)
            except BlockingIOError:
                break
            except InterruptedError:
                continue
            except OSError as error:
                raise HostGone(f"send: {error}") from error
            self.size -= sent
            while sent:
                first = len(pieces[0])
                if sent < first:
                    pieces[0] = memoryview(pieces[0])[sent:]
                    break
                sent -= first
                pieces.popleft()

    def _update_interest(self) -> None:
        interest = self._read_interest | (WRITE if self._pieces else 0)
        if interest == self._interest:
            return
        changed, self._interest = interest ^ self._interest, interest
        if self._pipe is None:
            self._loop.change(self._sock.fileno(), interest)
            return
        if changed & READ:
            self._loop.change(self._sock.fileno(), interest & READ)
        if interest & changed & WRITE:
            self._loop.watch(self._pipe, WRITE, lambda _events: None)
        elif changed & WRITE:
            self._loop.forget(self._pipe)


def _again() -> None:
    """Only makes the loop come round; flushing is what every round ends with."""

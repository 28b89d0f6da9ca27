"""The session of one correlation id: messages wait here until their consumer takes them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from tidebox.errors import AgentProtocolError, TideboxError
from tidebox.wire.bulk import BulkRecord
from tidebox.wire.fields import DataMessage, Message
from tidebox.wire.messages import Error

if TYPE_CHECKING:
    from tidebox.wire.cbor import Buffer

Item = Message | BulkRecord

# A consumer that is this far behind stops the whole link, unless its peer paces it by credit or acks.
HIGH_WATER = 4 << 20
LOW_WATER = 1 << 20
# More than any window that we grant or accept: a peer that goes beyond it ignores flow control.
PACED_LIMIT = 16 << 20
# What a queued item costs beside its bytes, so that floods of empty messages are bounded too.
ITEM_OVERHEAD = 256


class Port(Protocol):
    """The part of a link that a session needs."""

    def send(self, message: Message, id: int) -> None:
        """Send a message; UnsupportedOperation when the peer is too old for it."""

    def send_pieces(self, pieces: Sequence[Buffer]) -> None:
        """Send a frame that is already encoded."""

    async def drain(self) -> None:
        """Wait while the peer does not read."""

    def hold(self, session: MessageQueue) -> None:
        """Stop reading from the peer until ``release``."""

    def release(self, session: MessageQueue) -> None:
        """This session holds nobody back any more."""

    def forget(self, session: MessageQueue) -> None:
        """Drop what still arrives for the session."""


class MessageQueue:
    """Queue and end of one id. Subclasses handle messages at once by overriding ``deliver``."""

    def __init__(self, port: Port, id: int, *, paced: bool = False) -> None:
        self.id = id
        self.ended = False
        self._port = port
        self._paced = paced
        self._queue: deque[Item] = deque()
        self._queued = 0
        self._error: TideboxError | None = None
        self._waiters: list[asyncio.Future[None]] = []

    def deliver(self, item: Item, terminal: bool) -> None:
        """Called by the link for each item, in order."""
        if isinstance(item, Error):
            self.fail(AgentProtocolError(item.message, kind=item.kind))
            return
        self._queue.append(item)
        self._queued += _size(item)
        if self._queued > HIGH_WATER and not self._paced:
            self._port.hold(self)
        elif self._queued > PACED_LIMIT:
            self._port.forget(self)
            self.fail(AgentProtocolError("the agent ignores flow control"))
        if terminal:
            self.ended = True
        self.wake()

    def fail(self, error: TideboxError) -> None:
        """Nothing more will come; consumers get what is queued, then the error."""
        self.ended = True
        self._error = self._error or error
        self.wake()

    def check(self) -> None:
        """Raise when the session failed."""
        if self._error is not None:
            raise self._error

    def wake(self) -> None:
        """Let every waiter look again."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def changed(self) -> None:
        """Wait until something arrived; raises when the session failed."""
        self.check()
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    async def next(self) -> Item:
        """The next queued item."""
        while not self._queue:
            if self.ended and self._error is None:
                raise AgentProtocolError("the agent ended the session before it was complete")
            await self.changed()
        item = self._queue.popleft()
        self._queued -= _size(item)
        if self._queued <= LOW_WATER:
            self._port.release(self)
        return item

    def abandon(self) -> None:
        """The consumer is gone: drop what is queued and what still comes."""
        self._queue.clear()
        self._queued = 0
        self._port.release(self)
        self._port.forget(self)


def _size(item: Item) -> int:
    if isinstance(item, DataMessage):
        return ITEM_OVERHEAD + len(item.data)
    return ITEM_OVERHEAD + (len(item.payload) if isinstance(item, BulkRecord) else 0)

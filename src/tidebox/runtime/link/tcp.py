"""A TCP connection made from inside a box."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidebox.errors import AgentProtocolError, ConnectFailed
from tidebox.runtime.link.flows import BulkSession
from tidebox.wire import bulk
from tidebox.wire.bulk import BulkAccepted, BulkFinish, BulkRecord
from tidebox.wire.messages import (
    MAX_TCP_DATA_SIZE,
    TcpClose,
    TcpClosed,
    TcpConnect,
    TcpConnected,
    TcpData,
    TcpEof,
    TcpFailed,
)

if TYPE_CHECKING:
    from tidebox.runtime.link.link import Link


class TcpStream(BulkSession):
    """Both directions of one connection, each with its own end."""

    def __init__(self, link: Link, id: int) -> None:
        self._with_bulk = link.supports(BulkAccepted)
        super().__init__(link, id, bulk.KIND_TCP, paced=self._with_bulk)
        self._at_eof = False

    def request(self, host: str, port: int) -> TcpConnect:
        """The message that opens the connection."""
        offer = self.offer(bulk.DEFAULT_WINDOW, bulk.DEFAULT_RECORD_PAYLOAD) if self._with_bulk else None
        return TcpConnect(host=host, port=port, bulk=offer)

    async def connected(self) -> None:
        """Wait until the connection stands; ConnectFailed when it cannot be made."""
        item = await self.next()
        if isinstance(item, TcpFailed):
            raise ConnectFailed(item.error)
        if not isinstance(item, TcpConnected):
            raise AgentProtocolError("the agent answered a connect with something else")
        if self._with_bulk and await self.accepted() is None:
            raise AgentProtocolError("the agent ignored the offer of bulk transfer")

    async def read(self) -> bytes:
        """The next bytes; empty at the end."""
        while not self._at_eof:
            item = await self.next()
            if isinstance(item, TcpData):
                return bytes(item.data)
            if isinstance(item, BulkRecord):
                self.took(item)
                return bytes(item.payload)
            if isinstance(item, TcpFailed):
                raise ConnectFailed(item.error)
            if isinstance(item, (TcpEof, TcpClosed, BulkFinish)):
                self._at_eof = True
        return b""

    async def write(self, data: bytes) -> None:
        """Send bytes, waiting while the other end does not read."""
        if self._with_bulk:
            await self.send_bulk(data)
            return
        view = memoryview(data)
        while view and not self.ended:
            self._link.send_data(TcpData, view[:MAX_TCP_DATA_SIZE], self.id)
            view = view[MAX_TCP_DATA_SIZE:]
            await self._link.drain()

    def write_eof(self) -> None:
        """Close our direction."""
        if self._with_bulk:
            self.finish_bulk()
        elif not self.ended:
            self._link.send(TcpEof(), self.id)

    def close(self) -> None:
        """Drop the connection."""
        if not self.ended and not self._link.gone:
            self._link.send(TcpClose(), self.id)
        self.abandon()

"""Bulk flows under credit, one class per direction, and the session that carries them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from tidebox.errors import AgentProtocolError
from tidebox.runtime.link.session import Item, MessageQueue
from tidebox.wire import bulk
from tidebox.wire.bulk import BulkAccepted, BulkCancel, BulkCredit, BulkFinish, BulkOffer, BulkRecord

if TYPE_CHECKING:
    from tidebox.runtime.link.link import Link


class BulkSession(MessageQueue):
    """A session that offered bulk transfer."""

    def __init__(self, link: Link, id: int, kind: int, *, paced: bool) -> None:
        super().__init__(link, id, paced=paced)
        self._link = link
        self._kind = kind
        self._accepted: BulkAccepted | None = None
        self._window = 0
        self._received = 0
        self._taken = 0
        self._receive_limit = 0
        self._sent = 0
        self._send_limit = 0

    def offer(self, window: int, record_size: int) -> BulkOffer:
        """Return the offer that the request carries: record format, record size and first credit."""
        self._window = self._receive_limit = window
        return BulkOffer(format=bulk.FORMAT_RAW_V1, max_record_payload=record_size, guest_to_host_credit_limit=window)

    def deliver(self, item: Item, terminal: bool) -> None:
        """Credit and acceptance are for senders, who wait for changes; the rest queues in order."""
        if isinstance(item, BulkCredit):
            if item.kind == self._kind and item.flow == bulk.FLOW_HOST_TO_GUEST:
                self._send_limit = max(self._send_limit, min(item.credit_limit, self._sent + bulk.MAX_WINDOW))
            self.wake()
        elif isinstance(item, BulkAccepted):
            self._accept(item)
        elif isinstance(item, BulkCancel):
            self.fail(AgentProtocolError(f"the agent gave the transfer up: {item.message}", reason=item.reason))
        elif isinstance(item, BulkRecord):
            self._receive(item)
        elif isinstance(item, BulkFinish) and item.final_offset != self._received:
            self.fail(AgentProtocolError("a bulk flow ended at another offset than its records"))
        else:
            super().deliver(item, terminal)

    async def accepted(self) -> BulkAccepted | None:
        """Wait for the acceptance; None when the session ended without one."""
        while self._accepted is None:
            if self._queue or self.ended:
                return None
            await self.changed()
        return self._accepted

    async def send_bulk(self, data: bytes | memoryview) -> None:
        """Send bytes as records, as credit allows; stops when the session has ended."""
        view = memoryview(data)
        assert self._accepted is not None
        while view and not self.ended:
            room = min(self._send_limit - self._sent, self._accepted.max_record_payload)
            if room <= 0:
                await self.changed()
                continue
            record = view[:room]
            self._link.send_pieces(bulk.record_pieces(self.id, self._kind, bulk.FLOW_HOST_TO_GUEST, self._sent, record))
            self._sent += len(record)
            view = view[len(record) :]
            await self._link.drain()

    def finish_bulk(self) -> None:
        """The end of what we send."""
        if not self.ended:
            self._link.send(BulkFinish(kind=self._kind, flow=bulk.FLOW_HOST_TO_GUEST, final_offset=self._sent), self.id)

    def took(self, record: BulkRecord) -> None:
        """The consumer is done with a record: give the agent new credit when half of it is used."""
        self._taken += len(record.payload)
        if self._receive_limit - self._taken <= self._window // 2 and not self.ended:
            self._receive_limit = self._taken + self._window
            self._link.send(
                BulkCredit(
                    kind=self._kind,
                    flow=bulk.FLOW_GUEST_TO_HOST,
                    consumed_offset=self._taken,
                    credit_limit=self._receive_limit,
                ),
                self.id,
            )

    def cancel(self) -> None:
        """The caller lost interest."""
        if self._accepted is not None and not self.ended and not self._link.gone:
            self._link.send(BulkCancel(kind=self._kind, reason=bulk.REASON_CALLER, message="cancelled"), self.id)
        self.abandon()

    def _accept(self, accepted: BulkAccepted) -> None:
        size_fits = bulk.MIN_RECORD_PAYLOAD <= accepted.max_record_payload <= bulk.MAX_RECORD_PAYLOAD
        if self._accepted is not None or accepted.kind != self._kind or not size_fits:
            self.fail(AgentProtocolError("the agent accepted a bulk transfer that was not offered"))
            return
        self._accepted = accepted
        self._send_limit = min(accepted.host_to_guest_credit_limit, bulk.MAX_WINDOW)
        self.wake()

    def _receive(self, record: BulkRecord) -> None:
        end = record.offset + len(record.payload)
        wrong = record.kind != self._kind or record.flow != bulk.FLOW_GUEST_TO_HOST or record.offset != self._received
        if self._accepted is None or wrong or end > self._receive_limit:
            self.fail(AgentProtocolError("the agent sent a bulk record out of order or beyond its credit"))
            return
        self._received = end
        super().deliver(record, False)


async def chunks_of(data: bytes | AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Both forms of data that writers take."""
    if isinstance(data, bytes):
        yield data
    else:
        async for chunk in data:
            yield chunk

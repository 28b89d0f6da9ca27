"""Bookkeeping of bulk flows (generation 8): offsets and credit in both directions."""

from __future__ import annotations

from tidebox.wire.bulk import (
    DEFAULT_WINDOW,
    FLOW_GUEST_TO_HOST,
    FLOW_HOST_TO_GUEST,
    FORMAT_RAW_V1,
    MAX_WINDOW,
    MIN_RECORD_PAYLOAD,
    BulkAccepted,
    BulkCredit,
    BulkFinish,
    BulkOffer,
    record_pieces,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tidebox.agent.host_channel import HostChannel
    from tidebox.wire.bulk import BulkRecord
    from tidebox.wire.cbor import Buffer


class BulkViolation(Exception):
    """The host broke the rules of a flow."""


def accept(offer: BulkOffer, kind: int, flows: int, max_payload: int) -> BulkAccepted:
    """The answer to an offer; BulkViolation when it cannot be taken."""
    sends = bool(flows & FLOW_GUEST_TO_HOST)
    credit = offer.guest_to_host_credit_limit
    if (
        offer.format != FORMAT_RAW_V1
        or offer.max_record_payload < MIN_RECORD_PAYLOAD
        or sends != (credit > 0)
        or credit > MAX_WINDOW
    ):
        raise BulkViolation("invalid bulk offer")
    return BulkAccepted(
        kind=kind,
        flows=flows,
        format=FORMAT_RAW_V1,
        max_record_payload=min(offer.max_record_payload, max_payload),
        host_to_guest_credit_limit=DEFAULT_WINDOW if flows & FLOW_HOST_TO_GUEST else 0,
        guest_to_host_credit_limit=credit,
    )


class Outgoing:
    """The flow to the host: never beyond the credit it gave."""

    def __init__(self, id: int, host: HostChannel, accepted: BulkAccepted) -> None:
        self._id = id
        self._host = host
        self._kind = accepted.kind
        self._max_payload = accepted.max_record_payload
        self._limit = accepted.guest_to_host_credit_limit
        self._offset = 0

    @property
    def room(self) -> int:
        """Bytes that the next record may carry."""
        return min(self._max_payload, self._limit - self._offset)

    def send(self, data: Buffer) -> None:
        """One record, no longer than ``room``."""
        self._host.send_pieces(record_pieces(self._id, self._kind, FLOW_GUEST_TO_HOST, self._offset, data))
        self._offset += len(data)

    def credit(self, message: BulkCredit) -> None:
        """More credit; it never goes back."""
        if message.consumed_offset > self._offset or message.credit_limit > message.consumed_offset + MAX_WINDOW:
            raise BulkViolation("credit beyond what was sent or above the largest window")
        self._limit = max(self._limit, message.credit_limit)

    def finish(self) -> None:
        """The end of the flow."""
        self._host.send(self._id, BulkFinish(kind=self._kind, flow=FLOW_GUEST_TO_HOST, final_offset=self._offset))


class Incoming:
    """The flow from the host: contiguous records within the credit we gave."""

    def __init__(self, id: int, host: HostChannel, accepted: BulkAccepted) -> None:
        self._id = id
        self._host = host
        self._kind = accepted.kind
        self._max_payload = accepted.max_record_payload
        self._limit = accepted.host_to_guest_credit_limit
        self._consumed = 0
        self.offset = 0

    def check(self, record: BulkRecord) -> None:
        """Take note of a record."""
        size = len(record.payload)
        if record.offset != self.offset or size > self._max_payload or self.offset + size > self._limit:
            raise BulkViolation("record out of order or beyond the credit")
        self.offset += size

    def consumed(self, size: int) -> None:
        """So many bytes found their place: give credit again when half of the window is used up."""
        self._consumed += size
        if self._limit - self._consumed <= DEFAULT_WINDOW // 2:
            self._limit = self._consumed + DEFAULT_WINDOW
            self._host.send(
                self._id,
                BulkCredit(
                    kind=self._kind,
                    flow=FLOW_HOST_TO_GUEST,
                    consumed_offset=self._consumed,
                    credit_limit=self._limit,
                ),
            )

    def check_finish(self, message: BulkFinish) -> None:
        """The host's end of the flow must be where the records ended."""
        if message.flow != FLOW_HOST_TO_GUEST or message.final_offset != self.offset:
            raise BulkViolation("finish does not match the records")

"""Bulk transfer (generation 8): byte flows as raw records beside the CBOR messages, under credit."""

from __future__ import annotations

from struct import Struct as Layout

from tidebox.wire.errors import InvalidBulkRecord
from tidebox.wire.fields import TEXT, TO_GUEST, TO_HOST, U8, U32, U64, Message, Struct, field
from tidebox.wire.frames import BODY_OFFSET, FLAG_BULK, Frame, frame_header

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tidebox.wire.cbor import Buffer

FORMAT_RAW_V1 = 1

KIND_FS = 1
KIND_TCP = 2

FLOW_HOST_TO_GUEST = 1
FLOW_GUEST_TO_HOST = 2

REASON_CALLER = 1
REASON_DESTINATION_IO = 2
REASON_RESOURCE = 3
REASON_TRANSPORT = 4
REASON_PROTOCOL = 5

RECORD_HEADER_SIZE = 12
MIN_RECORD_PAYLOAD = 16_384
MAX_RECORD_PAYLOAD = 3_145_728
DEFAULT_RECORD_PAYLOAD = 262_144
DEFAULT_FS_RECORD_PAYLOAD = 3_145_728
DEFAULT_WINDOW = 8_388_608
MAX_WINDOW = 33_554_432

_RECORD = Layout(">BBHQ")


class BulkOffer(Struct):
    """The host's offer inside core.fs.request and core.tcp.connect."""

    format: int = field(U8)
    max_record_payload: int = field(U32)
    guest_to_host_credit_limit: int = field(U64)


class BulkAccepted(Message):
    """The guest takes the offer; a credit is nonzero exactly when its flow is in the mask."""

    WIRE, GENERATION, DIRECTION = "core.bulk.accepted", 8, TO_HOST
    kind: int = field(U8)
    flows: int = field(U8)
    format: int = field(U8)
    max_record_payload: int = field(U32)
    host_to_guest_credit_limit: int = field(U64)
    guest_to_host_credit_limit: int = field(U64)


class BulkCredit(Message):
    """The receiver of a flow allows bytes up to an absolute offset."""

    WIRE, GENERATION, DIRECTION = "core.bulk.credit", 8, TO_GUEST | TO_HOST
    kind: int = field(U8)
    flow: int = field(U8)
    consumed_offset: int = field(U64)
    credit_limit: int = field(U64)


class BulkFinish(Message):
    """The sender's end of a flow; must equal the next offset."""

    WIRE, GENERATION, DIRECTION = "core.bulk.finish", 8, TO_GUEST | TO_HOST
    kind: int = field(U8)
    flow: int = field(U8)
    final_offset: int = field(U64)


class BulkCancel(Message):
    """Either side gives the transfer up."""

    WIRE, GENERATION, DIRECTION = "core.bulk.cancel", 8, TO_GUEST | TO_HOST
    kind: int = field(U8)
    reason: int = field(U8)
    message: str = field(TEXT)


class BulkRecord:
    """One raw record of a flow."""

    __slots__ = ("id", "kind", "flow", "offset", "payload")

    def __init__(self, id: int, kind: int, flow: int, offset: int, payload: bytes | memoryview) -> None:
        self.id = id
        self.kind = kind
        self.flow = flow
        self.offset = offset
        self.payload = payload


def record_pieces(id: int, kind: int, flow: int, offset: int, payload: Buffer) -> tuple[bytes, Buffer]:
    """A record as header and payload, for a gathering send."""
    header = frame_header(id, FLAG_BULK, RECORD_HEADER_SIZE + len(payload))
    return header + _RECORD.pack(kind, flow, 0, offset), payload


def decode_record(frame: Frame) -> BulkRecord:
    """Read a frame that has FLAG_BULK."""
    if frame.flags != FLAG_BULK:
        raise InvalidBulkRecord("the bulk flag excludes every other flag")
    payload_start = BODY_OFFSET + RECORD_HEADER_SIZE
    if len(frame.raw) <= payload_start:
        raise InvalidBulkRecord("bulk record without payload")
    kind, flow, reserved, offset = _RECORD.unpack_from(frame.raw, BODY_OFFSET)
    if kind not in (KIND_FS, KIND_TCP) or flow not in (FLOW_HOST_TO_GUEST, FLOW_GUEST_TO_HOST) or reserved:
        raise InvalidBulkRecord("bulk record with an unknown kind, flow or reserved bits")
    payload = memoryview(frame.raw)[payload_start:]
    if len(payload) > MAX_RECORD_PAYLOAD or offset + len(payload) >= 1 << 64:
        raise InvalidBulkRecord("bulk record payload too large")
    return BulkRecord(frame.id, kind, flow, offset, payload)

"""The body of a frame: a CBOR map of ``v`` (the sender's generation), ``t`` (wire name) and ``p`` (payload bytes)."""

from __future__ import annotations

from tidebox.wire import cbor
from tidebox.wire.errors import CborError, InvalidPayload, MalformedMessage, UnknownMessageType
from tidebox.wire.fields import DataMessage
from tidebox.wire.frames import BODY_OFFSET, FLAG_BULK, encode_frame, frame_header
from tidebox.wire.messages import BY_WIRE_NAME

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tidebox.wire.cbor import Buffer
    from tidebox.wire.fields import Message
    from tidebox.wire.frames import Frame

_DATA_KEY = b"\xa1\x64data"
_prefixes: dict[tuple[type[Message], int], bytes] = {}


def _prefix(message_type: type[Message], generation: int) -> bytes:
    """The envelope up to the head of p; the same for every message of a type."""
    key = (message_type, generation)
    prefix = _prefixes.get(key)
    if prefix is None:
        name = message_type.WIRE.encode()
        prefix = b"\xa3\x61v" + cbor.head(0, generation) + b"\x61t" + cbor.head(3, len(name)) + name + b"\x61p"
        _prefixes[key] = prefix
    return prefix


def encode_message(message: Message, id: int, generation: int) -> bytes:
    """One message as a whole frame."""
    if isinstance(message, DataMessage):
        return b"".join(data_pieces(type(message), message.data, id, generation))
    payload = cbor.encode(message.to_item())
    body = b"".join((_prefix(type(message), generation), cbor.head(2, len(payload)), payload))
    return encode_frame(id, message.FLAGS, body)


def data_pieces(message_type: type[DataMessage], data: Buffer, id: int, generation: int) -> tuple[bytes, Buffer]:
    """A data message as everything before the bytes, and the bytes themselves, for a gathering send."""
    size = len(data)
    data_head = cbor.head(2, size)
    payload_head = cbor.head(2, len(_DATA_KEY) + len(data_head) + size)
    lead = b"".join((_prefix(message_type, generation), payload_head, _DATA_KEY, data_head))
    return frame_header(id, message_type.FLAGS, len(lead) + size) + lead, data


class Envelope:
    """A body whose payload is not decoded yet."""

    __slots__ = ("generation", "wire_name", "_buffer", "_start", "_end")

    def __init__(self, generation: int, wire_name: str, buffer: Buffer, start: int, end: int) -> None:
        self.generation = generation
        self.wire_name = wire_name
        self._buffer = buffer
        self._start = start
        self._end = end

    def message_type(self) -> type[Message]:
        """The type that the wire name stands for."""
        found = BY_WIRE_NAME.get(self.wire_name)
        if found is None:
            raise UnknownMessageType(self.wire_name)
        return found

    def decode(self, message_type: type[Message]) -> Message:
        """Decode and check the payload."""
        buffer, start, end = self._buffer, self._start, self._end
        try:
            if issubclass(message_type, DataMessage) and buffer[start : start + 6] == _DATA_KEY:
                # The shape every sane peer sends: the bytes are taken without walking a map.
                data, position = cbor.decode_at(buffer, start + 6, end)
                if position == end and isinstance(data, (bytes, memoryview)):
                    return message_type(data)
            return message_type.from_item(cbor.decode(buffer, start, end), message_type.WIRE)
        except CborError as error:
            raise InvalidPayload(f"{message_type.WIRE}: {error}") from None


def open_envelope(frame: Frame) -> Envelope:
    """Read v and t, and find p, of a frame that is no bulk record."""
    if frame.flags & FLAG_BULK:
        raise MalformedMessage("a bulk record is no message")
    raw = frame.raw
    return _open_canonical(raw) or _open_any(raw)


def _open_canonical(raw: bytes | memoryview) -> Envelope | None:
    """The exact shape that this protocol's encoders write; None for any other."""
    if raw[BODY_OFFSET : BODY_OFFSET + 3] != b"\xa3\x61v" or len(raw) < BODY_OFFSET + 8:
        return None
    generation = raw[BODY_OFFSET + 3]
    name_length = raw[BODY_OFFSET + 6] - 0x60
    if generation > 23 or not 0 <= name_length < 24 or raw[BODY_OFFSET + 4 : BODY_OFFSET + 6] != b"\x61t":
        return None
    name_end = BODY_OFFSET + 7 + name_length
    if raw[name_end : name_end + 2] != b"\x61p":
        return None
    try:
        wire_name = str(raw[BODY_OFFSET + 7 : name_end], "ascii")
        major, _, size, start = cbor.read_head(raw, name_end + 2, len(raw))
    except (UnicodeDecodeError, CborError):
        return None
    if major != 2 or size is None or start + size != len(raw):
        return None
    return Envelope(generation, wire_name, raw, start, start + size)


def _open_any(raw: bytes | memoryview) -> Envelope:
    try:
        item = cbor.decode(raw, BODY_OFFSET, len(raw))
    except CborError as error:
        raise MalformedMessage(f"envelope: {error}") from None
    if type(item) is not dict:
        raise MalformedMessage("envelope: expected a map")
    generation, wire_name, payload = item.get("v"), item.get("t"), item.get("p")
    if type(generation) is not int or not 0 <= generation <= 255:
        raise MalformedMessage("envelope: v is not an unsigned byte")
    if type(wire_name) is not str:
        raise MalformedMessage("envelope: t is not text")
    if not isinstance(payload, (bytes, memoryview)):
        raise MalformedMessage("envelope: p is not a byte string")
    return Envelope(generation, wire_name, payload, 0, len(payload))

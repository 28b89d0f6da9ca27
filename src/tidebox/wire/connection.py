"""Both ends of the protocol without I/O: bytes in, messages out, bytes to send.

Host side: ``HostConnection`` shakes hands (with an agent directly, or as the client of a relay), agrees on one
generation and gates every message type before it is sent. Agent side: ``AgentConnection`` gives either a message or the
reason why a frame is none. Both are driven the same way: receive into ``reader.buffer()``, call ``reader.received(n)``,
then ``next_item()`` until None.
"""

from __future__ import annotations

from struct import Struct

from tidebox.wire.bulk import BulkRecord, decode_record
from tidebox.wire.envelope import data_pieces, encode_message, open_envelope
from tidebox.wire.errors import (
    InvalidBulkRecord,
    InvalidFlags,
    InvalidIdRange,
    InvalidPayload,
    MalformedMessage,
    PeerTooOld,
    UnexpectedMessage,
    UnknownMessageType,
    UnsupportedByPeer,
    WireError,
)
from tidebox.wire.fields import TO_GUEST, TO_HOST
from tidebox.wire.frames import FLAG_BULK, HEADER_SIZE, LENGTH_SIZE, MAX_FRAME_SIZE, FrameReader
from tidebox.wire.generations import (
    BULK_GENERATION,
    ERROR_GENERATION,
    GENERATION,
    LEGACY_GENERATION,
    OLDEST_GENERATION,
    negotiate,
)
from tidebox.wire.ids import LEGACY_STEP, MAX_CLIENTS, IdRange, slot_range
from tidebox.wire.messages import (
    INVALID_FLAGS,
    INVALID_PAYLOAD,
    MALFORMED_MESSAGE,
    UNSUPPORTED_MESSAGE_TYPE,
    Bootstrap,
    Error,
    InitAck,
    InitResolved,
    Ready,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Union

    from tidebox.wire.cbor import Buffer
    from tidebox.wire.fields import DataMessage, Message
    from tidebox.wire.frames import Frame

    AgentItem = Union["Inbound", "Invalid", BulkRecord]
    HostItem = Union["Inbound", BulkRecord]

_PROLOGUE = Struct(">II")


class Inbound:
    """A message, the id it belongs to and the generation its sender speaks."""

    __slots__ = ("id", "generation", "message")

    def __init__(self, id: int, generation: int, message: Message) -> None:
        self.id = id
        self.generation = generation
        self.message = message


class Invalid:
    """A frame that is no message for us; ``kind`` and ``text`` are those of the core.error that answers it."""

    __slots__ = ("id", "kind", "text", "offending_type", "generation")

    def __init__(self, id: int, kind: str, text: str, offending_type: str | None, generation: int) -> None:
        self.id = id
        self.kind = kind
        self.text = text
        self.offending_type = offending_type
        self.generation = generation

    @property
    def answerable(self) -> bool:
        """Whether the sender's generation has core.error."""
        return self.generation >= ERROR_GENERATION

    def answer(self) -> Error:
        """The core.error to send."""
        return Error(kind=self.kind, message=self.text, offending_type=self.offending_type)


class AgentConnection:
    """The agent's end of a stream."""

    def __init__(self, generation: int = GENERATION) -> None:
        self.generation = generation
        self.reader = FrameReader()
        # Of the last message: what an undecodable frame is answered by.
        self.peer_generation = OLDEST_GENERATION

    def next_item(self) -> AgentItem | None:
        """The next message, record or invalid frame; raises FrameError when the stream is lost."""
        while True:
            frame = self.reader.next_frame()
            if frame is None:
                return None
            item = self._read(frame)
            if item is not None:
                return item

    def encode(self, message: Message, id: int) -> bytes:
        """A whole frame."""
        return encode_message(message, id, self.generation)

    def data_pieces(self, message_type: type[DataMessage], data: Buffer, id: int) -> tuple[bytes, Buffer]:
        """A data message as header and bytes, for a gathering send."""
        return data_pieces(message_type, data, id, self.generation)

    def _read(self, frame: Frame) -> AgentItem | None:
        wire_name: str | None = None
        try:
            if frame.flags & FLAG_BULK and self.generation >= BULK_GENERATION:
                return decode_record(frame)
            envelope = open_envelope(frame)
            wire_name = envelope.wire_name
            self.peer_generation = envelope.generation
            message_type = envelope.message_type()
            if self.generation < message_type.GENERATION:
                raise UnknownMessageType(wire_name)
            if not message_type.DIRECTION & TO_GUEST:
                return None
            if frame.flags != message_type.FLAGS:
                raise InvalidFlags(wire_name, message_type.FLAGS, frame.flags)
            return Inbound(frame.id, envelope.generation, envelope.decode(message_type))
        except (MalformedMessage, InvalidBulkRecord) as error:
            return self._invalid(frame, MALFORMED_MESSAGE, error, wire_name)
        except UnknownMessageType as error:
            return self._invalid(frame, UNSUPPORTED_MESSAGE_TYPE, error, wire_name)
        except InvalidFlags as error:
            return self._invalid(frame, INVALID_FLAGS, error, wire_name)
        except InvalidPayload as error:
            return self._invalid(frame, INVALID_PAYLOAD, error, wire_name)

    def _invalid(self, frame: Frame, kind: str, error: WireError, wire_name: str | None) -> Invalid:
        return Invalid(frame.id, kind, str(error), wire_name, self.peer_generation)


class HostConnection:
    """The host's end of a stream: to an agent (default) or, with ``through_relay``, to a relay socket."""

    def __init__(self, generation: int = GENERATION, *, through_relay: bool = False) -> None:
        self.reader = FrameReader()
        # Relay clients get low slots first, so our own ids come from the last one.
        self.ids = slot_range(MAX_CLIENTS - 1)
        self.resolved: InitResolved | None = None
        self.ready: Ready | None = None
        # The cached frame that a relay repeats to each of its clients.
        self.ready_frame: Frame | None = None
        self._ours = generation
        self._emitted = generation
        self._negotiated: int | None = None
        self._awaits_prologue = through_relay

    @property
    def negotiated(self) -> int:
        """The agreed generation; only after the handshake."""
        if self._negotiated is None:
            raise UnexpectedMessage("the handshake is not finished")
        return self._negotiated

    def supports(self, message_type: type[Message]) -> bool:
        """Whether the peer knows a message type."""
        return self.negotiated >= message_type.GENERATION

    def ensure_version_compat(self, message_type: type[Message]) -> None:
        """Raise UnsupportedOperation for a type that the peer is too old for."""
        if self.negotiated < message_type.GENERATION:
            raise UnsupportedByPeer(message_type.WIRE, message_type.GENERATION, self.negotiated)

    def presume(self, ready: Ready) -> None:
        """Speak before the agent has: for an agent that is this very software and cannot say anything else."""
        self.ready = ready
        self._negotiated = self._ours

    def boot(self, bootstrap: Bootstrap) -> bytes:
        """The host's whole half of the boot sequence, pipelined: the agent reads each part when it gets there."""
        return encode_message(bootstrap, 0, self._emitted) + encode_message(InitAck(), 0, self._emitted)

    def encode(self, message: Message, id: int) -> bytes:
        """A whole frame, after the gate."""
        self.ensure_version_compat(type(message))
        return encode_message(message, id, self._emitted)

    def data_pieces(self, message_type: type[DataMessage], data: Buffer, id: int) -> tuple[bytes, Buffer]:
        """A data message as header and bytes, after the gate."""
        self.ensure_version_compat(message_type)
        return data_pieces(message_type, data, id, self._emitted)

    def next_frame(self) -> Frame | None:
        """The next frame after the prologue; a relay routes it by its id instead of reading it."""
        if self._awaits_prologue and not self._read_prologue():
            return None
        return self.reader.next_frame()

    def next_item(self) -> HostItem | None:
        """The next message or record; WireError when the peer broke the protocol: close the connection."""
        while True:
            frame = self.next_frame()
            if frame is None:
                return None
            item = self.read(frame)
            if item is not None:
                return item

    def read(self, frame: Frame) -> HostItem | None:
        """The message of a frame; None for types that we do not know (a newer agent may) or that only hosts send."""
        if frame.flags & FLAG_BULK:
            if self.negotiated < BULK_GENERATION:
                raise InvalidBulkRecord("bulk record below generation 8")
            return decode_record(frame)
        envelope = open_envelope(frame)
        try:
            message_type = envelope.message_type()
        except UnknownMessageType:
            if self._negotiated is None:
                raise UnexpectedMessage(f"expected core.ready frame, got {envelope.wire_name}") from None
            return None
        if not message_type.DIRECTION & TO_HOST:
            return None
        message = envelope.decode(message_type)
        if self.ready_frame is None:
            self._shake(message, envelope.generation, frame)
        return Inbound(frame.id, envelope.generation, message)

    def _read_prologue(self) -> bool:
        raw = self.reader.peek(_PROLOGUE.size)
        if raw is None:
            return False
        start, end = _PROLOGUE.unpack(raw)
        # Before 0.5 one offset preceded the ready frame, so the second word is that frame's length.
        if HEADER_SIZE <= end <= MAX_FRAME_SIZE and (start == 0 or start >= end):
            self.reader.skip(LENGTH_SIZE)
            self.ids = IdRange(start + 1, start + LEGACY_STEP)
            self._ours = self._emitted = LEGACY_GENERATION
        elif start >= end:
            raise InvalidIdRange("invalid relay id range")
        else:
            self.reader.skip(_PROLOGUE.size)
            self.ids = IdRange(start, end)
        self._awaits_prologue = False
        return True

    def _shake(self, message: Message, theirs: int, frame: Frame) -> None:
        if isinstance(message, InitResolved):
            self.resolved = message
        elif isinstance(message, Ready):
            if theirs < OLDEST_GENERATION:
                raise PeerTooOld(
                    f"the sandbox speaks protocol generation {theirs}, the oldest supported one is "
                    f"{OLDEST_GENERATION}; recreate the sandbox"
                )
            negotiated = negotiate(self._ours, theirs)
            if self._negotiated not in (None, negotiated):
                raise UnexpectedMessage("the agent is not the one that was presumed")
            self.ready = message
            self.ready_frame = frame
            self._negotiated = negotiated
        else:
            raise UnexpectedMessage(f"expected core.ready frame, got {message.WIRE}")

"""Everything that can go wrong on the agent protocol, as one tree.

WireError
├── FrameError               the byte stream is lost; the connection must be closed
│   ├── FrameTooShort
│   ├── FrameTooLarge
│   └── FrameTruncated       the peer closed in the middle of a frame
├── CborError                bytes that are no CBOR item this protocol knows
├── MalformedMessage         the envelope {v, t, p} cannot be read
├── UnknownMessageType
├── InvalidFlags
├── InvalidPayload
├── InvalidBulkRecord
├── HandshakeError           no session came into being
│   ├── PeerTooOld
│   ├── InvalidIdRange
│   └── UnexpectedMessage
├── IdsExhausted             every id of our range is in use
└── UnsupportedOperation     the peer is older than the message; only this operation fails
"""

from __future__ import annotations


class WireError(Exception):
    """Base of every protocol error."""


class FrameError(WireError):
    """The framing is broken: nothing after this point can be trusted."""


class FrameTooShort(FrameError):
    """A length that leaves no room for id and flags."""


class FrameTooLarge(FrameError):
    """A length above the frame cap."""


class FrameTruncated(FrameError):
    """The stream ended inside a frame."""


class CborError(WireError):
    """Undecodable or unencodable CBOR."""


class MalformedMessage(WireError):
    """The envelope of a message is not a map of v, t and p."""


class UnknownMessageType(WireError):
    """A wire name that this generation does not know."""

    def __init__(self, wire_name: str) -> None:
        super().__init__(f"unknown message type '{wire_name}'")
        self.wire_name = wire_name


class InvalidFlags(WireError):
    """Frame flags that differ from those of the message type."""

    def __init__(self, wire_name: str, expected: int, got: int) -> None:
        super().__init__(f"invalid flags for '{wire_name}': expected {expected:#04x}, got {got:#04x}")
        self.wire_name = wire_name


class InvalidPayload(WireError):
    """A payload that does not fit its message type."""


class InvalidBulkRecord(WireError):
    """A raw bulk record that breaks the record format."""


class HandshakeError(WireError):
    """The handshake failed."""


class PeerTooOld(HandshakeError):
    """The peer's generation is below the support horizon."""


class InvalidIdRange(HandshakeError):
    """The relay handed out an empty or inverted id range."""


class UnexpectedMessage(HandshakeError):
    """Another message than the handshake's next one."""


class IdsExhausted(WireError):
    """No free correlation id is left in the range."""


class UnsupportedByPeer(WireError):
    """The peer's generation does not have this message type; nothing was sent."""

    def __init__(self, wire_name: str, needs: int, speaks: int) -> None:
        super().__init__(
            f"the sandbox runtime is too old for '{wire_name}' (needs protocol generation {needs}, "
            f"the sandbox speaks {speaks}); restart the sandbox to update its runtime"
        )
        self.wire_name = wire_name
        self.needs = needs
        self.speaks = speaks

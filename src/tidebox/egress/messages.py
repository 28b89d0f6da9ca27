"""Messages between the server and the egress process: typed, and one stream of them for each box."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct as Layout
from typing import Annotated, TypeVar

import msgspec

from tidebox.egress.dns import MOST_ADDRESSES
from tidebox.egress.keys import KeyPair
from tidebox.model.egress import Allowlist, EgressPolicy, make_allowlist
from tidebox.model.events import EgressSeen
from tidebox.model.injection import NO_INJECTION, Injection
from tidebox.model.requested_egress import BoxEgress

_SIZE = Layout(">I")
MOST_BYTES = 4 << 20
"""Of one message: three lists of 1,000 of the longest names are less."""
MOST_SEEN = 1000
"""Connections and names of a box that are reported one by one; later ones are only counted."""
MOST_PINNED = 2000
"""Names that a box may have had resolved: more than a list has rules, for wildcards."""
MOST_PINNED_ADDRESSES = 8192
"""Addresses of all pinned names of a box together: a domain's server may give each name dozens."""
_Name = Annotated[str, msgspec.Meta(max_length=253)]
_Address = Annotated[str, msgspec.Meta(max_length=45)]


class Rules(msgspec.Struct, frozen=True):
    """One list of a policy."""

    hosts: tuple[str, ...]
    cidrs: tuple[str, ...]
    ips: tuple[str, ...]

    @classmethod
    def of(cls, allowlist: Allowlist) -> Rules:
        """As it is sent."""
        return cls(allowlist.hosts, allowlist.cidrs, allowlist.ips)

    def allowlist(self) -> Allowlist:
        """As it is asked."""
        return make_allowlist(self.hosts, self.cidrs, self.ips)


class BoxLimits(msgspec.Struct, frozen=True):
    """The most that one box may have."""

    connections: int = 256
    """At one time."""
    bytes: int = 16 << 30
    """Sent and received together."""
    rate: int = 0
    """Bytes in a second, sent and received together; 0 for as many as there can be."""


class ProcessSettings(msgspec.Struct, frozen=True):
    """Settings of the egress process: the first message, sent once."""

    resolver: str | None = None
    """The DNS resolver, as ``address:port``; None for the machine's own."""
    connections: int = 8192
    """Of all boxes together."""
    proxy: str | None = None
    """Through which everything is dialled."""
    idle: float = 900.0
    """Seconds without a byte after which a connection is ended."""
    ca_file: str | None = None
    """Certificates to trust besides the system's."""
    secrets: tuple[int, ...] | None = None
    """The inherited descriptor of the file of secrets, if it could be opened; None where secrets are not used."""


class Serve(msgspec.Struct, frozen=True, tag="serve"):
    """The rules of a box, from now on."""

    lists: tuple[Rules, ...]
    former: Rules | None = None
    pins: dict[str, tuple[str, ...]] = {}
    """Names that were resolved for this box before: by a process that died."""
    bounds: BoxLimits = BoxLimits()
    injection: Injection = NO_INJECTION
    authority: KeyPair | None = None
    """By which connections of the box are opened."""

    @classmethod
    def of(
        cls, rules: BoxEgress, pins: dict[str, tuple[str, ...]], bounds: BoxLimits, authority: KeyPair | None = None
    ) -> Serve:
        """As it is sent."""
        policy = rules.policy
        former = None if policy.former is None else Rules.of(policy.former)
        return cls(tuple(map(Rules.of, policy.lists)), former, pins, bounds, rules.injection, authority)

    def policy(self) -> EgressPolicy:
        """As it is asked."""
        former = None if self.former is None else self.former.allowlist()
        return EgressPolicy(tuple(rules.allowlist() for rules in self.lists), former)


class CountRequest(msgspec.Struct, frozen=True, tag="ask"):
    """Ask for the counts of a box so far."""

    number: int
    close: bool
    """Close every connection first."""


class SeenConnection(msgspec.Struct, frozen=True, tag="seen"):
    """A connection, or a name that was asked for: the first of its kind."""

    allowed: bool
    host: _Name | None
    address: _Address | None
    port: int | None
    rule: _Name | None
    reason: Annotated[str, msgspec.Meta(max_length=32)] | None

    def event(self) -> EgressSeen:
        """As it is told of."""
        return EgressSeen(
            allowed=self.allowed,
            host=self.host,
            ip=self.address,
            port=self.port,
            matched_rule=self.rule,
            reason=self.reason,
        )


class Pinned(msgspec.Struct, frozen=True, tag="pinned"):
    """A name was resolved; it stands for these addresses in this box from now on."""

    name: _Name
    addresses: Annotated[tuple[_Address, ...], msgspec.Meta(max_length=2 * MOST_ADDRESSES)]


class Counted(msgspec.Struct, frozen=True, tag="counted"):
    """The answer to ``CountRequest``."""

    number: int
    connections: int
    denied: int
    sent: int
    received: int
    untold: int
    """Connections and names that were allowed or denied after the last that was reported by itself."""


ToProcess = Serve | CountRequest
ToServer = SeenConnection | Pinned | Counted
Message = TypeVar("Message")

start_decoder = msgspec.msgpack.Decoder(ProcessSettings)
_encoder = msgspec.msgpack.Encoder()


def encode(message: msgspec.Struct) -> bytes:
    """A message as one piece of the stream."""
    data = _encoder.encode(message)
    return _SIZE.pack(len(data)) + data


def pack(start: ProcessSettings) -> bytes:
    """The first message, which is a datagram."""
    return _encoder.encode(start)


class Broken(Exception):
    """The other side sent what is no message."""


class MessageReader(msgspec.Struct):
    """Cuts the bytes of a stream into messages."""

    decoder: msgspec.msgpack.Decoder[ToProcess] | msgspec.msgpack.Decoder[ToServer]
    _buffer: bytearray = msgspec.field(default_factory=bytearray)

    def feed(self, data: bytes) -> Iterator[ToProcess | ToServer]:
        """The messages that are whole by now."""
        self._buffer += data
        while len(self._buffer) >= _SIZE.size:
            (size,) = _SIZE.unpack_from(self._buffer)
            if size > MOST_BYTES:
                raise Broken(f"a message of {size} bytes")
            end = _SIZE.size + size
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_SIZE.size : end])
            del self._buffer[:end]
            try:
                yield self.decoder.decode(body)
            except msgspec.MsgspecError as error:
                raise Broken(str(error)) from None


def process_reader() -> MessageReader:
    """Of the egress process."""
    return MessageReader(msgspec.msgpack.Decoder(ToProcess))


def server_reader() -> MessageReader:
    """Of the server."""
    return MessageReader(msgspec.msgpack.Decoder(ToServer))

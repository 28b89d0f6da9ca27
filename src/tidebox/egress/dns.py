"""Messages of the domain name system, as far as names are turned into addresses; nothing here touches a socket."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct, pack

from tidebox.model.egress import Address

A, AAAA, CNAME = 1, 28, 5
_OPT = 41
_INTERNET = 1
NO_ERROR, SERVER_FAILURE, NO_SUCH_NAME, REFUSED = 0, 2, 3, 5
NOT_IMPLEMENTED, FORMAT_ERROR = 4, 1
LARGEST_QUESTION = 512
LARGEST_MESSAGE = (1 << 16) - 1
"""Over a connection."""
MOST_ADDRESSES = 24
"""Of a name and a family."""
_LEAST_ROOM = 512
_ACCEPTED_BYTES = 1232
_MOST_RECORDS = 256
_MOST_LABELS = 128
_LONGEST_CHAIN = 16
_SECONDS = 60
_HEADER = Struct(">6H")
_TAIL = Struct(">HH")
_RECORD = Struct(">HHIH")
# What stands before an address: a reference to the name, and the head of the record.
_ADDRESS_RECORD = 2 + _RECORD.size
_RESPONSE, _OPCODE, _TRUNCATED, _RECURSION = 0x8000, 0x7800, 0x0200, 0x0100
_AVAILABLE = 0x0080
_POINTER = 0xC0
_ADDRESS_BYTES = {A: 4, AAAA: 16}


class MalformedDns(Exception):
    """Not a message that can be answered or believed."""


@dataclass(frozen=True, slots=True)
class DnsQuestion:
    """A DNS question of a program in a box."""

    number: int
    name: str
    """As it was asked, without the final dot."""
    kind: int
    section: bytes
    """The question as it came: an answer repeats it."""
    room: int = _LEAST_ROOM
    """Bytes of the largest datagram that the program takes."""
    problem: int = NO_ERROR
    """Response code of a question that is not answered by any name; ``NO_ERROR`` for others."""


@dataclass(frozen=True, slots=True)
class DnsAnswer:
    """A DNS answer of a resolver."""

    code: int
    addresses: tuple[Address, ...]
    truncated: bool = False
    """Whether there is more than what fitted."""


def parse_question(data: bytes) -> DnsQuestion:
    """Parse a question for one name; raises ``MalformedDns`` for what deserves no answer at all."""
    if not _HEADER.size < len(data) <= LARGEST_QUESTION:
        raise MalformedDns
    number, flags, questions, answers, authorities, _ = _HEADER.unpack_from(data)
    if flags & _RESPONSE:
        raise MalformedDns
    if flags & _OPCODE:
        return DnsQuestion(number, "", 0, b"", problem=NOT_IMPLEMENTED)
    if questions != 1:
        return DnsQuestion(number, "", 0, b"", problem=FORMAT_ERROR)
    name, end = _read_name(data, _HEADER.size, compressed=False)
    if end + _TAIL.size > len(data):
        raise MalformedDns
    kind, network = _TAIL.unpack_from(data, end)
    end += _TAIL.size
    section = data[_HEADER.size : end]
    room = _room(data[end:]) if not answers and not authorities else _LEAST_ROOM
    return DnsQuestion(number, name, kind, section, room, NO_ERROR if network == _INTERNET else REFUSED)


def _room(additional: bytes) -> int:
    """Return the datagram size in the first additional record of a question, if there is one (EDNS, RFC 6891)."""
    if len(additional) <= _RECORD.size or additional[0]:
        return _LEAST_ROOM
    kind, size, _, _ = _RECORD.unpack_from(additional, 1)
    return max(size, _LEAST_ROOM) if kind == _OPT else _LEAST_ROOM


def make_answer(
    question: DnsQuestion, code: int, addresses: Sequence[Address] = (), room: int = LARGEST_MESSAGE
) -> bytes:
    """The answer to a question: these addresses, of the family that it asks for, or why there are none.

    Where not all fit into ``room`` it has those that do, and says so.
    """
    length = _ADDRESS_BYTES.get(question.kind)
    wanted = [item for item in addresses if len(item.packed) == length][:MOST_ADDRESSES]
    flags = _RESPONSE | _RECURSION | _AVAILABLE | code
    if length is not None:
        fitting = (room - _HEADER.size - len(question.section)) // (_ADDRESS_RECORD + length)
        if fitting < len(wanted):
            wanted, flags = wanted[: max(fitting, 0)], flags | _TRUNCATED
    parts = [_HEADER.pack(question.number, flags, 1 if question.section else 0, len(wanted), 0, 0), question.section]
    for item in wanted:
        # The name is that of the question, where the message begins.
        start = pack(">H", _POINTER << 8 | _HEADER.size)
        parts.append(start + _RECORD.pack(question.kind, _INTERNET, _SECONDS, len(item.packed)) + item.packed)
    return b"".join(parts)


def make_question(number: int, name: str, kind: int) -> bytes:
    """Encode a question for a resolver; ``name`` is in its normal form."""
    labels = b"".join(bytes([len(label)]) + label for label in name.encode("ascii").split(b"."))
    extension = b"\0" + _RECORD.pack(_OPT, _ACCEPTED_BYTES, 0, 0)
    return _HEADER.pack(number, _RECURSION, 1, 0, 0, 1) + labels + b"\0" + _TAIL.pack(kind, _INTERNET) + extension


def parse_answer(data: bytes, number: int, name: str, kind: int) -> DnsAnswer:
    """Parse a resolver's answer to that question; raises ``MalformedDns`` for anything else."""
    if len(data) < _HEADER.size:
        raise MalformedDns
    found, flags, questions, records, _, _ = _HEADER.unpack_from(data)
    if found != number or not flags & _RESPONSE or flags & _OPCODE or questions != 1:
        raise MalformedDns
    asked, end = _read_name(data, _HEADER.size, compressed=True)
    if asked.lower() != name or data[end : end + _TAIL.size] != _TAIL.pack(kind, _INTERNET):
        raise MalformedDns
    code = flags & 0xF
    if code:
        return DnsAnswer(code, ())
    truncated = bool(flags & _TRUNCATED)
    aliases, addresses = _read_records(data, end + _TAIL.size, records, kind, truncated=truncated)
    names = [name]
    while names[-1] in aliases and len(names) < _LONGEST_CHAIN:
        names.append(aliases[names[-1]])
    meant = [address for owner, address in addresses if owner in names]
    return DnsAnswer(NO_ERROR, tuple(dict.fromkeys(meant))[:MOST_ADDRESSES], truncated)


def _read_records(
    data: bytes, start: int, count: int, kind: int, *, truncated: bool
) -> tuple[dict[str, str], list[tuple[str, Address]]]:
    """The aliases and the addresses among the answers; of a message that was cut, those that are whole."""
    aliases: dict[str, str] = {}
    addresses: list[tuple[str, Address]] = []
    try:
        for _ in range(min(count, _MOST_RECORDS)):
            owner, start = _read_name(data, start, compressed=True)
            if start + _RECORD.size > len(data):
                raise MalformedDns
            found, network, _, length = _RECORD.unpack_from(data, start)
            start += _RECORD.size
            if start + length > len(data):
                raise MalformedDns
            if network == _INTERNET and found == CNAME:
                aliases[owner.lower()] = _read_name(data, start, compressed=True)[0].lower()
            elif network == _INTERNET and found == kind and length == _ADDRESS_BYTES[kind]:
                addresses.append((owner.lower(), ipaddress.ip_address(data[start : start + length])))
            start += length
    except MalformedDns:
        if not truncated:
            raise
    return aliases, addresses


def _read_name(data: bytes, start: int, *, compressed: bool) -> tuple[str, int]:
    """A name, and where what follows it begins. Every jump leads back, so that there is an end."""
    labels: list[str] = []
    place, end, lowest = start, 0, start
    while True:
        if place >= len(data) or len(labels) > _MOST_LABELS:
            raise MalformedDns
        length = data[place]
        if length & _POINTER == _POINTER:
            if not compressed or place + 1 >= len(data):
                raise MalformedDns
            end = end or place + 2
            place = (length & ~_POINTER) << 8 | data[place + 1]
            if place >= lowest:
                raise MalformedDns
            lowest = place
            continue
        if length & _POINTER or place + 1 + length > len(data):
            raise MalformedDns
        place += 1
        if not length:
            return ".".join(labels), end or place
        # What is no letter of a host name is in no list, and makes no other name of it.
        labels.append(data[place : place + length].decode("latin-1"))
        place += length

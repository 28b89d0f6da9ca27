"""The name that a program shows on a connection: in the first message of TLS, or the first request of HTTP.

Parsers of hostile bytes: they take what has come so far, and either want more, or have found a name, none, or what is
so contradictory that no two servers need understand it alike. Nothing here touches a socket.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from struct import unpack_from

LARGEST = 16 * 1024
"""Bytes that may come before the name is known."""
_RECORD_HEADER, _HANDSHAKE_HEADER = 5, 4
_HANDSHAKE, _CLIENT_HELLO = 22, 1
_LARGEST_RECORD = 16384 + 2048
_SERVER_NAME = 0
_LONGEST_LINE = 8192
# What a line that is not whole yet must begin with to be waited for.
_METHODS = (
    *(b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"CONNECT", b"OPTIONS", b"TRACE", b"PATCH", b"PRI"),
    *(b"COPY", b"LOCK", b"MKCOL", b"MOVE", b"PROPFIND", b"PROPPATCH", b"UNLOCK", b"REPORT", b"SEARCH", b"QUERY"),
)
_REQUEST = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+[ \t]+(\S*)[ \t]+HTTP/[0-9.]+[ \t]*\r?\Z")
_AUTHORITY = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://([^/?#]*)")


class More(enum.Enum):
    """Not enough has come to tell."""

    NEEDED = 0


NEEDED = More.NEEDED


@dataclass(frozen=True, slots=True)
class Sight:
    """What is seen on a connection."""

    protocol: str
    """``tls``, ``http``, or empty for anything else."""
    name: str | None = None
    """None where none is shown."""
    contradictory: bool = False
    """More than one name, or a way to hide it."""
    may_turn: bool = False
    """Whether what follows may still make a request of it: it is to be shown to a ``FirstLine``."""


OTHER = Sight("")
_UNDECIDED = Sight("", may_turn=True)
_HIDDEN_TLS, _HIDDEN_HTTP = Sight("tls", contradictory=True), Sight("http", contradictory=True)


def look(data: bytes) -> Sight | More:
    """What is seen in the first bytes of a client, of which there is at least one."""
    found = _look_at_tls(data) if data[0] == _HANDSHAKE else _look_at_http(data)
    return hidden(data) if found is NEEDED and len(data) >= LARGEST else found


def hidden(data: bytes) -> Sight:
    """What is seen where no more is waited for, of bytes that were not enough."""
    return _HIDDEN_TLS if data[0] == _HANDSHAKE else _HIDDEN_HTTP


def _look_at_tls(data: bytes) -> Sight | More:
    hello = _handshake(data)
    if isinstance(hello, bytes):
        try:
            return _server_name(hello)
        except (IndexError, ValueError):
            return _HIDDEN_TLS
    return hello


def _handshake(data: bytes) -> bytes | Sight | More:
    """The first handshake message, which may be cut into records."""
    message = b""
    place = 0
    while True:
        if len(data) >= place + 3 and (data[place] != _HANDSHAKE or data[place + 1] != 3):
            return OTHER if not place else _HIDDEN_TLS
        if len(data) < place + _RECORD_HEADER:
            return NEEDED
        (length,) = unpack_from(">H", data, place + 3)
        if not 0 < length <= _LARGEST_RECORD:
            return _HIDDEN_TLS
        message += data[place + _RECORD_HEADER : place + _RECORD_HEADER + length]
        if message and message[0] != _CLIENT_HELLO:
            return _HIDDEN_TLS
        if len(message) >= _HANDSHAKE_HEADER:
            size = int.from_bytes(message[1:4], "big")
            if len(message) >= _HANDSHAKE_HEADER + size:
                return message[_HANDSHAKE_HEADER : _HANDSHAKE_HEADER + size]
        place += _RECORD_HEADER + length
        if len(data) < place:
            return NEEDED


def _part(data: bytes, start: int, width: int) -> tuple[bytes, int]:
    """A part with its length in front, and where what follows begins."""
    size = int.from_bytes(data[start : start + width], "big")
    end = start + width + size
    if end > len(data) or start + width > len(data):
        raise ValueError("cut off")
    return data[start + width : end], end


def _server_name(hello: bytes) -> Sight:
    _, place = _part(hello, 2 + 32, 1)
    _, place = _part(hello, place, 2)
    _, place = _part(hello, place, 1)
    if place == len(hello):
        return Sight("tls")
    extensions, end = _part(hello, place, 2)
    if end != len(hello):
        return _HIDDEN_TLS
    found: list[bytes] = []
    place = 0
    while place < len(extensions):
        (kind,) = unpack_from(">H", extensions.ljust(place + 2, b"\0"), place)
        content, place = _part(extensions, place + 2, 2)
        if kind == _SERVER_NAME:
            found.append(content)
    if not found:
        return Sight("tls")
    names, end = _part(found[0], 0, 2)
    name, last = _part(names, 1, 2)
    if len(found) > 1 or end != len(found[0]) or last != len(names) or names[0] or not name:
        return _HIDDEN_TLS
    return Sight("tls", name.decode("latin-1"))


def _look_at_http(data: bytes) -> Sight | More:
    # Some servers pass over empty lines before a request.
    line, ended, rest = data.lstrip(b"\r\n").partition(b"\n")
    if not ended:
        method, space, _ = line.partition(b" ")
        begins = any(known == method if space else known.startswith(method) for known in _METHODS)
        if not line or not begins:
            return _UNDECIDED if _may_begin(line) else OTHER
        return NEEDED if len(line) <= _LONGEST_LINE else _HIDDEN_HTTP
    request = _REQUEST.fullmatch(line)
    if request is None:
        return OTHER
    if b" HTTP/1." not in line.replace(b"\t", b" "):
        return _HIDDEN_HTTP
    head, whole = _head(rest)
    return _host(line, request[1], head) if whole else NEEDED


def _may_begin(line: bytes) -> bool:
    """Whether a request of some method may begin like this."""
    return len(line) <= _LONGEST_LINE and re.fullmatch(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]*(?:[ \t].*)?", line) is not None


class FirstLine:
    """Watches a connection that had no whole line yet when it was let go on: it must not become one of HTTP."""

    def __init__(self) -> None:
        self._line = b""
        self._over = False

    def feed(self, data: bytes) -> bool:
        """Whether the line, with what is about to be sent, is still none of a request."""
        if self._over:
            return True
        self._line = (self._line + data).lstrip(b"\r\n")
        line, ended, _ = self._line.partition(b"\n")
        if ended:
            self._over = True
            return _REQUEST.fullmatch(line) is None
        self._over = not _may_begin(line)
        return True


def _head(rest: bytes) -> tuple[list[bytes], bool]:
    """The lines of a head, and whether it is whole."""
    lines: list[bytes] = []
    while True:
        line, ended, rest = rest.partition(b"\n")
        if not ended:
            return lines, False
        line = line.removesuffix(b"\r")
        if not line:
            return lines, True
        lines.append(line)


def _host(line: bytes, target: bytes, head: list[bytes]) -> Sight:
    names: set[bytes] = set()
    if line.upper().startswith(b"CONNECT"):
        names.add(_without_port(target))
    elif authority := _AUTHORITY.match(target):
        names.add(_without_port(authority[1].rpartition(b"@")[2]))
    elif target[:1] not in (b"/", b"*"):
        return _HIDDEN_HTTP
    hosts = 0
    for number, field in enumerate(head):
        name, colon, value = field.partition(b":")
        if name[:1] in (b" ", b"\t"):
            # A line that goes on: of what, servers do not agree.
            if number and b"host" in head[number - 1].lower():
                return _HIDDEN_HTTP
        # A carriage return or a zero in a name is dropped by some servers and not by others.
        elif re.sub(rb"[^a-z0-9-]", b"", name.lower()) == b"host":
            hosts += 1
            if not colon or name.lower() != b"host":
                return _HIDDEN_HTTP
            names.add(_without_port(value.strip(b" \t")))
    if hosts > 1 or len(names) > 1:
        return _HIDDEN_HTTP
    return Sight("http", names.pop().decode("latin-1") if names else None)


def _without_port(authority: bytes) -> bytes:
    return re.sub(rb":[0-9]*\Z", b"", authority).lower()

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
# What a record of TLS may begin with: some servers pass over alerts that come before the first handshake.
_CHANGE_CIPHER, _ALERT, _LAST_KIND = 20, 21, 24
_LARGEST_HELLO = 1 << 17
_LARGEST_RECORD = 16384 + 2048
_SERVER_NAME = 0
_LONGEST_LINE = 8192
# What a line that is not whole yet must begin with to be waited for.
_METHODS = (
    *(b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"CONNECT", b"OPTIONS", b"TRACE", b"PATCH", b"PRI"),
    *(b"COPY", b"LOCK", b"MKCOL", b"MOVE", b"PROPFIND", b"PROPPATCH", b"UNLOCK", b"REPORT", b"SEARCH", b"QUERY"),
)
_REQUEST = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+[ \t]+(\S*)[ \t]+HTTP/[0-9.]+[ \t]*\r?\Z")
# What some server or other takes for white space between the words of a request, and what the first word begins with.
_SPACE = b"\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f \x85\xa0"
_TOKEN = frozenset(b"!#$%&'*+.^_`|~-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
_VERSION = re.compile(rb"HTTP/[0-9.]*\Z")
_VERSION_BYTES = 64
_AUTHORITY = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://([^/?#]*)")


class More(enum.Enum):
    """Not enough has come to tell."""

    NEEDED = 0


NEEDED = More.NEEDED


@dataclass(frozen=True, slots=True)
class Sniffed:
    """The protocol and host name that the first bytes of a connection show."""

    protocol: str
    """``tls``, ``http``, or empty for anything else."""
    name: str | None = None
    """None where none is shown."""
    contradictory: bool = False
    """More than one name, or a way to hide it."""
    may_turn: bool = False
    """Whether what follows may still make a request of it: it is to be shown to a ``FirstLine``."""


OTHER = Sniffed("")
_UNDECIDED = Sniffed("", may_turn=True)
_HIDDEN_TLS, _HIDDEN_HTTP = Sniffed("tls", contradictory=True), Sniffed("http", contradictory=True)


def sniff(data: bytes) -> Sniffed | More:
    """Sniff the first bytes of a client, of which there is at least one: the SNI of TLS, or the Host of HTTP."""
    found = _look_at_tls(data) if _is_record(data) else _look_at_http(data)
    return hidden(data) if found is NEEDED and len(data) >= LARGEST else found


def hidden(data: bytes) -> Sniffed:
    """Classify bytes that were not enough, when no more are waited for."""
    return _HIDDEN_TLS if _is_record(data) else _HIDDEN_HTTP


def _is_record(data: bytes) -> bool:
    return _CHANGE_CIPHER <= data[0] <= _LAST_KIND


def _look_at_tls(data: bytes) -> Sniffed | More:
    if data[0] != _HANDSHAKE:
        return NEEDED if len(data) < 2 else _HIDDEN_TLS if data[1] == 3 else OTHER
    hello = _handshake(data)
    if isinstance(hello, bytes):
        try:
            return _server_name(hello)
        except (IndexError, ValueError):
            return _HIDDEN_TLS
    return hello


def _handshake(data: bytes) -> bytes | Sniffed | More:
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


def _server_name(hello: bytes) -> Sniffed:
    _, place = _part(hello, 2 + 32, 1)
    _, place = _part(hello, place, 2)
    _, place = _part(hello, place, 1)
    if place == len(hello):
        return Sniffed("tls")
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
        return Sniffed("tls")
    names, end = _part(found[0], 0, 2)
    name, last = _part(names, 1, 2)
    if len(found) > 1 or end != len(found[0]) or last != len(names) or names[0] or not name:
        return _HIDDEN_TLS
    return Sniffed("tls", name.decode("latin-1"))


def _look_at_http(data: bytes) -> Sniffed | More:
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
        # A request to some servers, with white space that others do not know.
        return _HIDDEN_HTTP if _may_begin(line) and _VERSION.search(line.rstrip(_SPACE)) else OTHER
    if b" HTTP/1." not in line.replace(b"\t", b" "):
        return _HIDDEN_HTTP
    head, whole = _head(rest)
    return _host(line, request[1], head) if whole else NEEDED


def _may_begin(line: bytes) -> bool:
    """Whether a request of some method may begin like this, to the most lenient of servers."""
    line = line.lstrip(_SPACE)
    return not line or line[0] in _TOKEN


class FirstLine:
    """Watches a connection that had no whole line yet when it was let go on: it must not become one of HTTP.

    However long the line is: of it, only the end is kept, with one space for many.
    """

    def __init__(self) -> None:
        self._end = b""
        self.over = False
        """Whether nothing that follows is of interest."""

    def feed(self, data: bytes) -> bool:
        """Whether the line, with what is about to be sent, is still none of a request."""
        if self.over:
            return True
        line, ended, _ = (data if self._end else data.lstrip(_SPACE)).partition(b"\n")
        if not self._end and not _may_begin(line):
            self.over = True
            return True
        words = line.rstrip(_SPACE)
        self._end = (self._end + words)[-_VERSION_BYTES:]
        if ended:
            self.over = True
            return _VERSION.search(self._end.rstrip(_SPACE)) is None
        if len(words) < len(line) and not self._end.endswith(b" "):
            self._end += b" "
        return True


class Hellos:
    """Watches a connection of TLS whose first message was let go on: a server may want another, with the same name.

    It is the one message besides that shows a name, and comes before anything is encrypted.
    """

    def __init__(self, name: str | None) -> None:
        self._name = name
        self._records = b""
        self._message = b""
        self._left = 0
        """Bytes of a record that are of no interest."""
        self.over = False
        """Whether nothing that follows is of interest."""

    def feed(self, data: bytes) -> bool:
        """Whether what is about to be sent shows no other name."""
        self._records += b"" if self.over else data
        while not self.over and self._records:
            if self._left:
                size = min(self._left, len(self._records))
                self._left, self._records = self._left - size, self._records[size:]
                continue
            if len(self._records) < _RECORD_HEADER:
                break
            kind, length = self._records[0], int.from_bytes(self._records[3:_RECORD_HEADER], "big")
            if kind in (_CHANGE_CIPHER, _ALERT):
                self._left, self._records = length, self._records[_RECORD_HEADER:]
            elif kind != _HANDSHAKE:
                self.over = True
            elif len(self._records) < _RECORD_HEADER + length:
                break
            else:
                self._message += self._records[_RECORD_HEADER : _RECORD_HEADER + length]
                self._records = self._records[_RECORD_HEADER + length :]
                if not self._take_messages():
                    return False
        return True

    def _take_messages(self) -> bool:
        while not self.over and len(self._message) >= _HANDSHAKE_HEADER:
            end = _HANDSHAKE_HEADER + int.from_bytes(self._message[1:_HANDSHAKE_HEADER], "big")
            if self._message[0] != _CLIENT_HELLO or end > _LARGEST_HELLO:
                # The keys are agreed upon: what follows shows nothing.
                self.over = True
            elif len(self._message) < end:
                break
            elif not self._is_same(self._message[_HANDSHAKE_HEADER:end]):
                return False
            else:
                self._message = self._message[end:]
        return True

    def _is_same(self, hello: bytes) -> bool:
        try:
            seen = _server_name(hello)
        except (IndexError, ValueError):
            return False
        return not seen.contradictory and seen.name == self._name


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


def _host(line: bytes, target: bytes, head: list[bytes]) -> Sniffed:
    names: set[bytes] = set()
    if line.upper().startswith(b"CONNECT"):
        names.add(_without_port(target))
    elif authority := _AUTHORITY.match(target):
        names.add(_without_port(authority[1].rpartition(b"@")[2]))
    elif target[:1] not in (b"/", b"*"):
        return _HIDDEN_HTTP
    hosts = 0
    if any(b"\r" in field for field in head):
        # The end of a line to some servers.
        return _HIDDEN_HTTP
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
    return Sniffed("http", names.pop().decode("latin-1") if names else None)


def _without_port(authority: bytes) -> bytes:
    return re.sub(rb":[0-9]*\Z", b"", authority).lower()

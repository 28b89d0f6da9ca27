"""Reads zip archives from untrusted files.

The standard library's reader keeps every entry of the central directory in memory and believes what headers say of
offsets. This one is made for uploads: stored and deflated members only, no encryption, no zip64, each byte of the file
used by at most one member (overlapping members are what the densest bombs are made of), both headers of a member
agreeing on its name, and sizes and check sums verified.
"""

from __future__ import annotations

import os
import stat
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from tidebox.errors import InvalidRequest, PayloadTooLarge
from tidebox.untrusted_files.file_names import refuse
from tidebox.untrusted_files.tarstream import DIRECTORY, OTHER, REGULAR, SYMLINK, Member

MAX_DIRECTORY_BYTES = 8 << 20

_END = struct.Struct("<4s4H2LH")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_MAX_COMMENT = 65535
_STORED, _DEFLATED = 0, 8
_ENCRYPTED, _UTF8 = 0x1, 0x800
_UNIX = 3
_READ = 1 << 16
_ALL_ONES = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class _ZipLocation:
    """Where a member is in the file."""

    member: Member
    raw_name: bytes
    offset: int
    compressed: int
    method: int
    crc: int


class ZipReader:
    """Iterates over the members of an archive; ``read`` gives the bytes of the one just yielded."""

    def __init__(self, descriptor: int, max_members: int) -> None:
        self._file = descriptor
        self._max_members = max_members
        self._data: _MemberData | None = None

    def __iter__(self) -> Iterator[Member]:
        free = 0
        for place in sorted(self._places(), key=lambda place: place.offset):
            begin = self._begin_of_data(place)
            if place.offset < free:
                raise refuse(place.member.name, "a member that shares its bytes with another")
            free = begin + place.compressed
            self._data = _MemberData(self._file, begin, place)
            yield place.member
            # One that nobody read is left out, whatever is in it: to unpack it would only take time.
            if self._data.begun:
                self._data.finish()

    def read(self, size: int) -> bytes:
        """Up to ``size`` bytes of the current member, empty at its end."""
        assert self._data is not None
        return self._data.read(size)

    def content(self, name: bytes, max_bytes: int) -> bytes | None:
        """The bytes of one file, without a look at the others; None if there is none, or it is larger."""
        for place in self._places():
            if place.member.name == name and place.member.kind == REGULAR and place.member.size <= max_bytes:
                return _MemberData(self._file, self._begin_of_data(place), place).whole()
        return None

    def _places(self) -> Iterator[_ZipLocation]:
        start, size, count = self._directory()
        directory = os.pread(self._file, size, start)
        position = 0
        for _ in range(count):
            if position + _CENTRAL.size > len(directory):
                raise InvalidRequest("the zip archive is damaged: its directory is cut off")
            place, position = _central_entry(directory, position)
            yield place

    def _directory(self) -> tuple[int, int, int]:
        """Offset, size and number of entries of the central directory."""
        length = os.fstat(self._file).st_size
        tail_start = max(length - _MAX_COMMENT - _END.size, 0)
        tail = os.pread(self._file, length - tail_start, tail_start)
        at = tail.rfind(b"PK\x05\x06")
        if at < 0 or len(tail) - at < _END.size:
            raise InvalidRequest("not a zip archive, or one that is cut off")
        _, disk, first_disk, on_disk, count, size, start, comment = _END.unpack_from(tail, at)
        if tail[max(at - 20, 0) : at].startswith(b"PK\x06\x07") or _ALL_ONES in (size, start) or count == 0xFFFF:
            raise InvalidRequest("zip64 archives are not taken: no upload may be large enough to need it")
        if (disk, first_disk, on_disk) != (0, 0, count) or at + _END.size + comment != len(tail):
            raise InvalidRequest("the zip archive is damaged: its end says what is not so")
        if count > self._max_members or size > MAX_DIRECTORY_BYTES:
            raise PayloadTooLarge(f"the archive has more than {self._max_members} members", limit=self._max_members)
        if start + size > tail_start + at:
            raise InvalidRequest("the zip archive is damaged: its directory is not where it is said to be")
        return start, size, count

    def _begin_of_data(self, place: _ZipLocation) -> int:
        header = os.pread(self._file, _LOCAL.size, place.offset)
        if len(header) < _LOCAL.size or header[:4] != b"PK\x03\x04":
            raise refuse(place.member.name, "a member that is not where the directory says")
        name_length: int
        extra_length: int
        *_, name_length, extra_length = _LOCAL.unpack(header)
        if os.pread(self._file, name_length, place.offset + _LOCAL.size) != place.raw_name:
            raise refuse(place.member.name, "a member with two names")
        return place.offset + _LOCAL.size + name_length + extra_length


def _central_entry(directory: bytes, position: int) -> tuple[_ZipLocation, int]:
    (
        magic,
        made_by,
        _,
        flags,
        method,
        clock,
        date,
        crc,
        compressed,
        size,
        name_length,
        extra_length,
        comment_length,
        _,
        _,
        attributes,
        offset,
    ) = _CENTRAL.unpack_from(directory, position)
    if magic != b"PK\x01\x02":
        raise InvalidRequest("the zip archive is damaged: its directory has something else in it")
    position += _CENTRAL.size
    raw = directory[position : position + name_length]
    name = raw if flags & _UTF8 or _is_utf8(raw) else raw.decode("cp437").encode()
    if b"\0" in raw or len(raw) < name_length:
        raise refuse(name, "a name that no file can have")
    if flags & _ENCRYPTED:
        raise refuse(name, "an encrypted member")
    if _ALL_ONES in (compressed, size, offset):
        raise refuse(name, "a member that needs zip64")
    if method not in (_STORED, _DEFLATED):
        raise refuse(name, "a member that is neither stored nor deflated")
    if method == _STORED and compressed != size:
        raise refuse(name, "a member that lies about its size")
    mode = attributes >> 16 if made_by >> 8 == _UNIX else 0
    kind = _kind(name, mode)
    if kind == DIRECTORY and size:
        raise refuse(name, "a directory with content")
    permissions = stat.S_IMODE(mode) or (0o755 if kind == DIRECTORY else 0o644)
    member = Member(name, kind, permissions, size, _seconds(date, clock), b"")
    place = _ZipLocation(member, raw, offset, compressed, method, crc)
    return place, position + name_length + extra_length + comment_length


def _kind(name: bytes, mode: int) -> str:
    if stat.S_ISLNK(mode):
        return SYMLINK
    if name.endswith(b"/"):
        return DIRECTORY
    # Archives made without regard to Unix say nothing of the type.
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        return DIRECTORY if stat.S_ISDIR(mode) else OTHER
    return REGULAR


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _seconds(date: int, clock: int) -> int:
    try:
        made = datetime(
            1980 + (date >> 9),
            date >> 5 & 15,
            date & 31,
            clock >> 11,
            clock >> 5 & 63,
            min((clock & 31) * 2, 59),
            tzinfo=UTC,
        )
    except ValueError:
        return 0
    return int(made.timestamp())


class _MemberData:
    """The bytes of one member."""

    def __init__(self, descriptor: int, begin: int, place: _ZipLocation) -> None:
        self._file = descriptor
        self._at = begin
        self._left = place.compressed
        self._place = place
        self._decoder = zlib.decompressobj(-zlib.MAX_WBITS) if place.method == _DEFLATED else None
        self._crc = 0
        self._given = 0
        self.begun = False

    def read(self, size: int) -> bytes:
        self.begun = True
        while True:
            data = self._some(size)
            if data:
                self._given += len(data)
                if self._given > self._place.member.size:
                    raise refuse(self._place.member.name, "a member that lies about its size")
                self._crc = zlib.crc32(data, self._crc)
                return data
            if self._over():
                return b""

    def _some(self, size: int) -> bytes:
        if self._decoder is None:
            return self._input(size)
        if self._decoder.eof:
            return b""
        waiting = self._decoder.unconsumed_tail or self._input(_READ)
        try:
            data = self._decoder.decompress(waiting, size)
            if not data and not waiting and not self._decoder.eof:
                raise refuse(self._place.member.name, "a member that is cut off")
            return data
        except zlib.error as error:
            raise refuse(self._place.member.name, f"a member that cannot be decompressed ({error})") from None

    def _over(self) -> bool:
        return self._decoder.eof if self._decoder is not None else not self._left

    def _input(self, size: int) -> bytes:
        wanted = min(size, self._left, _READ)
        data = os.pread(self._file, wanted, self._at) if wanted else b""
        if len(data) < wanted:
            raise refuse(self._place.member.name, "a member that is cut off")
        self._at += len(data)
        self._left -= len(data)
        return data

    def whole(self) -> bytes:
        """All of it."""
        return b"".join(iter(lambda: self.read(_READ), b""))

    def finish(self) -> None:
        """Read on to the end, so that what the headers say is verified."""
        while self.read(_READ):
            pass
        if self._given != self._place.member.size:
            raise refuse(self._place.member.name, "a member that lies about its size")
        if self._crc != self._place.crc:
            raise refuse(self._place.member.name, "a member with a wrong check sum")

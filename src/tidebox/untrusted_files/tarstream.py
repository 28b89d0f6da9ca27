"""Reads tar archives from untrusted streams.

The standard library's reader is written for archives of friends: its extended headers may be of any size, and crafted
numbers have sent it into endless loops (CVE-2019-20907, CVE-2025-8194). This one knows ustar, GNU long names and pax,
in one pass and with bounded memory; what it does not know (sparse files, negative numbers, damaged headers) it refuses.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from tidebox.errors import InvalidImage

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

BLOCK = 512
MAX_NAME = 4096
"""PATH_MAX: no longer path can be opened anyway."""
MAX_EXTENDED_HEADER = 1 << 20
"""Of one member, all together. Extended attributes are the only big thing in real ones, at most 64 KiB each."""
MAX_XZ_MEMORY = 70 << 20
"""``xz -9`` needs 65 MiB to unpack; a crafted header can ask for 4 GiB."""
MAX_ZSTD_WINDOW_LOG = 25
"""32 MiB. ``zstd -19`` needs 8 MiB to unpack; a crafted header can ask for 2 GiB."""

REGULAR, DIRECTORY, SYMLINK, HARDLINK, OTHER = "file", "directory", "symlink", "hardlink", "other"
_KINDS = {b"0": REGULAR, b"\0": REGULAR, b"7": REGULAR, b"1": HARDLINK, b"2": SYMLINK, b"5": DIRECTORY}
_WITHOUT_DATA = (b"1", b"2", b"3", b"4", b"5", b"6")
_USED_RECORDS = frozenset({b"path", b"linkpath", b"size", b"mtime"})
_SPARSE = b"GNU.sparse."


@dataclass(frozen=True, slots=True)
class Member:
    """One entry of an archive; ``OTHER`` is a device, a fifo or something unknown."""

    name: bytes
    kind: str
    mode: int
    size: int
    mtime: int
    link: bytes


class Readable(Protocol):
    """All that is asked of a stream."""

    def read(self, size: int, /) -> bytes: ...


class _XzReader(io.RawIOBase):
    """An xz stream with a bound on its memory, which ``lzma.LZMAFile`` cannot be given."""

    def __init__(self, source: Readable) -> None:
        self._source = source
        self._decoder: lzma.LZMADecompressor | None = None
        self._input = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        while True:
            if self._decoder is None:
                self._input = (self._input or self._source.read(io.DEFAULT_BUFFER_SIZE)).lstrip(b"\0")
                if not self._input:
                    return 0
                self._decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MAX_XZ_MEMORY)
            if self._decoder.needs_input and not self._input:
                self._input = self._source.read(io.DEFAULT_BUFFER_SIZE)
                if not self._input:
                    raise EOFError("the xz stream ends early")
            data = self._decoder.decompress(self._input, len(buffer))
            self._input = b""
            if self._decoder.eof:
                self._input, self._decoder = self._decoder.unused_data, None
            if data:
                buffer[: len(data)] = data
                return len(data)


def decompress(source: io.BufferedReader[Any]) -> Readable:
    """The plain bytes of a stream that may be compressed, told by its first bytes."""
    start = source.peek(6)
    if start.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=source)
    if start.startswith(b"BZh"):
        return bz2.BZ2File(source)
    if start.startswith(b"\xfd7zXZ\0"):
        return io.BufferedReader(_XzReader(source))
    if start.startswith(b"\x28\xb5\x2f\xfd"):
        return zstd.ZstdFile(source, options={zstd.DecompressionParameter.window_log_max: MAX_ZSTD_WINDOW_LOG})
    return source


class TarReader:
    """Iterates over the members of an archive; ``read`` gives the bytes of the one just yielded."""

    def __init__(self, stream: Readable, max_bytes: int) -> None:
        self._stream = stream
        self._max_bytes = self._budget = max_bytes
        self._data_left = 0
        self._padding = 0

    def __iter__(self) -> Iterator[Member]:
        extended: dict[bytes, bytes] = {}
        extended_room = MAX_EXTENDED_HEADER
        while (header := self._next_header()) is not None:
            kind = header[156:157]
            size = _number(header[124:136], "size")
            if kind in (b"L", b"K", b"x"):
                # One member may have several, each of which would be kept until it comes.
                extended_room -= size
                if extended_room < 0:
                    raise InvalidImage("the archive has an extended header of unreasonable size")
                content = self._extended_header(size)
                extended |= _pax_records(content) if kind == b"x" else _gnu_name(kind, content)
                continue
            if kind == b"S" or _SPARSE in extended:
                raise InvalidImage("the archive holds sparse files; make it without --sparse")
            if b"size" in extended:
                size = _decimal(extended[b"size"], "size")
            self._begin_data(0 if kind in _WITHOUT_DATA else size)
            # A global header holds comments; nothing of it applies to a root file system.
            if kind != b"g":
                yield _member(header, kind, size, extended)
                extended = {}
                extended_room = MAX_EXTENDED_HEADER
        if extended:
            raise InvalidImage("the archive ends after an extended header")
        self._drain()

    def read(self, size: int) -> bytes:
        """Up to ``size`` bytes of the current member, empty at its end."""
        wanted = min(size, self._data_left)
        if wanted == 0:
            return b""
        data = self._take(wanted)
        if not data:
            raise InvalidImage("the archive is cut off")
        self._data_left -= len(data)
        return data

    def _take(self, size: int) -> bytes:
        try:
            data = self._stream.read(size)
        except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, zstd.ZstdError) as error:
            raise InvalidImage(f"the archive cannot be decompressed: {error}") from error
        except OSError as error:
            # bz2 reports damaged data as an OSError without a number.
            if error.errno is None:
                raise InvalidImage(f"the archive cannot be decompressed: {error}") from error
            raise
        self._budget -= len(data)
        if self._budget < 0:
            raise InvalidImage("the archive is larger than allowed when unpacked", limit=self._max_bytes)
        return data

    def _take_exactly(self, size: int) -> bytes:
        parts = []
        while size:
            part = self._take(size)
            if not part:
                break
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _begin_data(self, size: int) -> None:
        self._data_left = size
        self._padding = -size % BLOCK

    def _next_header(self) -> bytes | None:
        while self.read(1 << 16):
            pass
        if len(self._take_exactly(self._padding)) < self._padding:
            raise InvalidImage("the archive is cut off")
        self._padding = 0
        header = self._take_exactly(BLOCK)
        # Some writers leave the closing blocks out.
        if not header or header == bytes(BLOCK):
            return None
        if len(header) < BLOCK:
            raise InvalidImage("the archive is cut off")
        expected = _number(header[148:156], "checksum")
        if sum(header[:148]) + sum(header[156:]) + 8 * ord(" ") != expected:
            raise InvalidImage("not a tar archive, or a damaged one")
        return header

    def _extended_header(self, size: int) -> bytes:
        self._begin_data(size)
        content = self._take_exactly(size)
        if len(content) < size:
            raise InvalidImage("the archive is cut off")
        self._data_left = 0
        return content

    def _drain(self) -> None:
        # Read on to the end, so that the check sums of the compressed stream are verified.
        while self._take(1 << 16):
            pass


def _member(header: bytes, kind: bytes, size: int, extended: dict[bytes, bytes]) -> Member:
    name = _text(header[0:100])
    if header[257:263] == b"ustar\0" and (prefix := _text(header[345:500])):
        name = prefix + b"/" + name
    name = extended.get(b"path", name)
    link = extended.get(b"linkpath", _text(header[157:257]))
    if len(name) > MAX_NAME or len(link) > MAX_NAME or b"\0" in name or b"\0" in link:
        raise InvalidImage("the archive has a name that no file can have")
    meaning = _KINDS.get(kind, OTHER)
    # Before ustar a directory was a file whose name ends with a slash.
    if meaning == REGULAR and name.endswith(b"/"):
        meaning = DIRECTORY
    if b"mtime" in extended:
        mtime = _decimal(extended[b"mtime"].partition(b".")[0].lstrip(b"-") or b"0", "mtime")
    else:
        mtime = _number(header[136:148], "mtime")
    return Member(name, meaning, _number(header[100:108], "mode") & 0o7777, size, min(mtime, 1 << 33), link)


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _number(field: bytes, what: str) -> int:
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.partition(b"\0")[0].strip(b" ")
    if not digits:
        return 0
    if any(digit not in b"01234567" for digit in digits):
        raise InvalidImage(f"not a tar archive, or a damaged one ({what})")
    return int(digits, 8)


def _decimal(value: bytes, what: str) -> int:
    if not value.isdigit() or len(value) > 20:
        raise InvalidImage(f"the archive has a damaged extended header ({what})")
    return int(value)


def _gnu_name(kind: bytes, content: bytes) -> dict[bytes, bytes]:
    return {b"path" if kind == b"L" else b"linkpath": content.rstrip(b"\0")}


def _pax_records(content: bytes) -> dict[bytes, bytes]:
    """The records that count here; those of sparse files as one, because any of them is too much."""
    records: dict[bytes, bytes] = {}
    position = 0
    while position < len(content) and content[position] != 0:
        space = content.find(b" ", position, position + 21)
        if space < 0:
            raise InvalidImage("the archive has a damaged extended header")
        end = position + _decimal(content[position:space], "length")
        key, equals, value = content[space + 1 : end - 1].partition(b"=")
        if end <= space + 1 or end > len(content) or content[end - 1 : end] != b"\n" or not equals:
            raise InvalidImage("the archive has a damaged extended header")
        if key in _USED_RECORDS:
            records[key] = value
        elif key.startswith(_SPARSE):
            records[_SPARSE] = b""
        position = end
    return records

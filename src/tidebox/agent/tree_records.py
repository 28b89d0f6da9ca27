"""Directory trees as a stream of records, where only the agent of a box can reach its files.

A record is a header, the path below the root, the target of a link, and for a file whose content is sent its pieces of
data, which leave out its holes. Both ends treat what they read as hostile: nothing is opened but by name relative to a
directory that is open already, without following links and without blocking.
"""

from __future__ import annotations

import errno
import os
import stat
from struct import Struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Callable

HEADER = Struct(">cHqQHH")
"""Kind, mode, time in ns, size, and the lengths of path and target."""
PIECE = Struct(">QI")
"""Where a piece of data belongs, and its length; one of no length is the end of the file."""
NAME = Struct(">H")
DIRECTORY, FILE, LINK, OTHER, END = b"d", b"f", b"l", b"o", b"e"
MOST_PIECE = 1 << 18
MOST_PATH = 4096

_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


class TreeRecord:
    """One file, directory or link."""

    __slots__ = ("kind", "mode", "mtime_ns", "size", "path", "target")

    def __init__(self, kind: bytes, mode: int, mtime_ns: int, size: int, path: bytes, target: bytes = b"") -> None:
        self.kind = kind
        self.mode = mode
        self.mtime_ns = mtime_ns
        self.size = size
        self.path = path
        self.target = target

    def encode(self) -> bytes:
        """Its bytes, without content."""
        header = HEADER.pack(self.kind, self.mode, self.mtime_ns, self.size, len(self.path), len(self.target))
        return header + self.path + self.target


THE_END = TreeRecord(END, 0, 0, 0, b"")


def parse_list(data: bytes, most: int) -> list[TreeRecord]:
    """The records, without content, that such bytes are; ValueError where they are none."""
    found: list[TreeRecord] = []
    at = 0
    while at + HEADER.size <= len(data) and len(found) <= most:
        kind, mode, mtime, size, path_length, target_length = HEADER.unpack_from(data, at)
        start = at + HEADER.size
        at = start + path_length + target_length
        if kind == END:
            return found
        parts = data[start : start + path_length].split(b"/")
        if at > len(data) or path_length > MOST_PATH or any(part in (b"", b".", b"..") for part in parts):
            raise ValueError("a record that is none")
        path, target = data[start : start + path_length], data[start + path_length : at]
        found.append(TreeRecord(kind, mode & 0o777, mtime, size, path, target))
    raise ValueError("a list without end")


def describe(directory: int, name: bytes, path: bytes) -> TreeRecord:
    """The record of what is in an open directory."""
    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    mode, target = status.st_mode, b""
    if stat.S_ISDIR(mode):
        kind = DIRECTORY
    elif stat.S_ISREG(mode):
        kind = FILE
    elif stat.S_ISLNK(mode):
        kind, target = LINK, os.readlink(name, dir_fd=directory)[:MOST_PATH]
    else:
        kind = OTHER
    return TreeRecord(kind, stat.S_IMODE(mode) & 0o777, status.st_mtime_ns, status.st_size, path, target)


def walk(root: int, most_entries: int, most_depth: int) -> Iterator[TreeRecord]:
    """Everything below a directory, a directory before what is in it, in the order of the names."""
    levels = [(b"", os.open(".", _OPEN_DIRECTORY, dir_fd=root))]
    names = [sorted(_names(levels[0][1]))]
    try:
        while levels:
            prefix, directory = levels[-1]
            if not names[-1]:
                os.close(levels.pop()[1])
                names.pop()
                continue
            name = names[-1].pop(0)
            if len(prefix) + len(name) > MOST_PATH or not most_entries:
                continue
            most_entries -= 1
            record = describe(directory, name, prefix + name)
            yield record
            if record.kind == DIRECTORY and len(levels) <= most_depth:
                below = _readable(directory, name, _OPEN_DIRECTORY, 0o700)
                levels.append((prefix + name + b"/", below))
                names.append(sorted(_names(below)))
    finally:
        for _, directory in levels:
            os.close(directory)


def _names(directory: int) -> list[bytes]:
    return [os.fsencode(name) for name in os.listdir(directory)]


def _readable(directory: int, name: bytes, flags: int, mode: int) -> int:
    try:
        return os.open(name, flags, dir_fd=directory)
    except PermissionError:
        # Its owner took their own permissions away, and that owner is this process.
        os.chmod(name, mode, dir_fd=directory)
        return os.open(name, flags, dir_fd=directory)


def beneath(root: int, parts: list[bytes], make: bool = False) -> int:
    """The descriptor of a directory below another, none of whose parts is a link; with ``make``, made if missing."""
    directory = os.open(".", _OPEN_DIRECTORY, dir_fd=root)
    try:
        for part in parts:
            if part in (b"", b".", b".."):
                raise OSError(errno.EINVAL, "not a path below the root")
            try:
                below = _readable(directory, part, _OPEN_DIRECTORY, 0o700)
            except FileNotFoundError:
                if not make:
                    raise
                os.mkdir(part, 0o755, dir_fd=directory)
                below = os.open(part, _OPEN_DIRECTORY, dir_fd=directory)
            os.close(directory)
            directory = below
    except BaseException:
        os.close(directory)
        raise
    return directory


def file_stream(root: int, path: bytes) -> Iterator[bytes]:
    """The record of a regular file with its data; OSError, before there is anything, where it is none."""
    *parents, name = path.split(b"/")
    directory = beneath(root, parents)
    try:
        record = describe(directory, name, path)
        if record.kind != FILE:
            raise OSError(errno.EINVAL, "not a regular file")
        file = _readable(directory, name, _OPEN_FILE, 0o600)
    finally:
        os.close(directory)
    try:
        yield record.encode()
        for start, data in pieces(file, record.size):
            yield PIECE.pack(start, len(data)) + data
        yield PIECE.pack(0, 0)
    finally:
        os.close(file)


def pieces(file: int, size: int) -> Iterator[tuple[int, bytes]]:
    """The data of a file with where it belongs, without its holes: one may be larger than any disk."""
    end = 0
    while end < size:
        try:
            start = os.lseek(file, end, os.SEEK_DATA)
            end = os.lseek(file, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            if error.errno != errno.EINVAL:
                raise
            # A kernel that does not tell where holes are: what is nothing but zeros is taken for one.
            yield from ((at, data) for at, data in _read(file, end, size) if data.count(0) != len(data))
            return
        yield from _read(file, start, end)


def _read(file: int, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    while start < end:
        data = os.pread(file, min(MOST_PIECE, end - start), start)
        if not data:
            return
        yield start, data
        start += len(data)


class Receiver:
    """Makes below a directory what records say; given bytes as they come.

    ``allow`` sees every record before anything is done about it, and every piece before it is written.
    """

    def __init__(self, root: int, allow: Callable[[TreeRecord, int], None] | None = None) -> None:
        self._root = root
        self._allow = allow
        self._buffer = bytearray()
        self._record: TreeRecord | None = None
        self._file = -1
        self._directories: list[TreeRecord] = []
        self.ended = False

    def feed(self, data: bytes | memoryview) -> None:
        """Take bytes; OSError where something could not be made, ValueError for what is no stream of records."""
        self._buffer += data
        used = 0
        while not self.ended:
            step = self._take_piece(used) if self._record is not None else self._take_record(used)
            if not step:
                break
            used += step
        del self._buffer[:used]

    def close(self) -> None:
        """Give back what is open."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _take_record(self, at: int) -> int:
        if len(self._buffer) - at < HEADER.size:
            return 0
        kind, mode, mtime, size, path_length, target_length = HEADER.unpack_from(self._buffer, at)
        if max(path_length, target_length) > MOST_PATH:
            raise ValueError("a path that is too long")
        length: int = HEADER.size + path_length + target_length
        if len(self._buffer) - at < length:
            return 0
        text = bytes(self._buffer[at + HEADER.size : at + length])
        record = TreeRecord(kind, mode & 0o777, mtime, size, text[:path_length], text[path_length:])
        self._make(record)
        return length

    def _make(self, record: TreeRecord) -> None:
        if record.kind == END:
            self.ended = True
            for made in reversed(self._directories):
                self._finish(made)
            return
        *parents, name = record.path.split(b"/")
        if name in (b"", b".", b"..") or record.kind not in (DIRECTORY, FILE, LINK):
            raise ValueError("a record that nothing can be made of")
        if self._allow is not None:
            self._allow(record, 0)
        directory = beneath(self._root, parents, make=True)
        try:
            if record.kind == DIRECTORY:
                try:
                    os.mkdir(name, 0o700, dir_fd=directory)
                except FileExistsError:
                    os.close(beneath(directory, [name]))
                self._directories.append(record)
            elif record.kind == LINK:
                os.symlink(record.target, name, dir_fd=directory)
            else:
                self._file = os.open(name, _NEW_FILE, 0o600, dir_fd=directory)
                self._record = record
        finally:
            os.close(directory)

    def _finish(self, record: TreeRecord) -> None:
        directory = beneath(self._root, record.path.split(b"/"))
        try:
            os.fchmod(directory, record.mode | 0o700)
            os.utime(directory, ns=(record.mtime_ns, record.mtime_ns))
        finally:
            os.close(directory)

    def _take_piece(self, at: int) -> int:
        record = self._record
        assert record is not None
        if len(self._buffer) - at < PIECE.size:
            return 0
        piece: tuple[int, int] = PIECE.unpack_from(self._buffer, at)
        start, length = piece
        if length > MOST_PIECE or start + length > record.size:
            raise ValueError("data outside of its file")
        if len(self._buffer) - at < PIECE.size + length:
            return 0
        if not length:
            os.ftruncate(self._file, record.size)
            os.fchmod(self._file, record.mode | 0o600)
            os.utime(self._file, ns=(record.mtime_ns, record.mtime_ns))
            os.close(self._file)
            self._file = -1
            self._record = None
            return PIECE.size
        if self._allow is not None:
            self._allow(record, length)
        begin = at + PIECE.size
        written = 0
        with memoryview(self._buffer)[begin : begin + length] as data:
            while written < length:
                written += os.pwrite(self._file, data[written:], start + written)
        return PIECE.size + length

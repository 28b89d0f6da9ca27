"""The files of one upload, gathered in a directory of ours before any of them counts.

Everything an upload may not be is found here, and the member that is to blame is named. The caller throws the
whole directory away when something is raised.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, Protocol

from tidebox.errors import InvalidImage, InvalidRequest, PayloadTooLarge
from tidebox.untrusted_files import ignore
from tidebox.untrusted_files.file_names import refuse, shown, split_name, too_much
from tidebox.untrusted_files.ignore import Ignore
from tidebox.untrusted_files.tarstream import (
    DIRECTORY,
    HARDLINK,
    REGULAR,
    SYMLINK,
    Member,
    Readable,
    TarReader,
    decompress,
)
from tidebox.untrusted_files.trees import NEW_FILE, OPEN_DIRECTORY, make_beneath
from tidebox.untrusted_files.zipstream import ZipReader

ArchiveKind = Literal["tar", "zip"]

SUFFIXES: tuple[tuple[str, ArchiveKind], ...] = (
    (".tar", "tar"),
    (".tar.gz", "tar"),
    (".tgz", "tar"),
    (".tar.bz2", "tar"),
    (".tbz2", "tar"),
    (".tar.xz", "tar"),
    (".txz", "tar"),
    (".zip", "zip"),
)
_CHUNK = 1 << 18
# Members that are left out count for nothing but the time they take: so many for each that may be taken, and so much.
_LEFT_OUT_MEMBERS = 20
_LEFT_OUT_BYTES = 4
_READ_AHEAD = 1 << 16
_PADDING = 1 << 20
_REASONS = {SYMLINK: "a symbolic link", HARDLINK: "a hard link"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLimits:
    """How much one upload may bring."""

    max_bytes: int
    """Of the files, unpacked."""
    max_files: int = 1000
    max_depth: int = 10
    max_seconds: float = 60.0
    """Of a processor: a few bytes can be packed so that unpacking them takes hours."""


class Archive(Protocol):
    """A reader of archives."""

    def __iter__(self) -> Iterator[Member]: ...

    def read(self, size: int, /) -> bytes: ...


class Stage:
    """Writes what is brought into the empty directory ``root``; to be closed. Used by one thread."""

    def __init__(
        self,
        root: int,
        limits: StageLimits,
        left_out: Ignore,
        *,
        keep_links: bool = False,
        rename: Callable[[bytes], bytes | None] | None = None,
    ) -> None:
        """``rename`` says where a member of an archive goes, by its name; None for nowhere."""
        self._root = root
        self._rename = rename
        self._limits = limits
        self._ignore = left_out
        self._keep_links = keep_links
        self._deadline = time.thread_time() + limits.max_seconds
        self._files: set[tuple[str, ...]] = set()
        self._directories: set[tuple[str, ...]] = set()
        # Files of one directory mostly come together.
        self._open_parts: tuple[str, ...] = ()
        self._open = os.open(".", OPEN_DIRECTORY, dir_fd=root)
        self.bytes = 0
        self.ignored = 0

    def close(self) -> None:
        """Let go of the directory."""
        os.close(self._open)

    @property
    def file_count(self) -> int:
        """How many files there are."""
        return len(self._files)

    def unpack(self, descriptor: int, kind: ArchiveKind) -> None:
        """Take every member of the archive in an open file."""
        room = self._limits.max_bytes * _LEFT_OUT_BYTES
        if kind == "zip":
            self._unpack(ZipReader(descriptor, self._limits.max_files * _LEFT_OUT_MEMBERS))
            return
        with open(descriptor, "rb", closefd=False) as file:
            if not file.peek(1):
                raise InvalidRequest("the archive is empty: it has not even an end")
            self.unpack_tar(file, room)

    def unpack_tar(self, file: io.BufferedReader, room: int | None = None) -> None:
        """Take every member of a tar archive, compressed or not."""
        self._unpack(self._tar(file, room or self._limits.max_bytes * 2))

    def _tar(self, file: io.BufferedReader, room: int) -> TarReader:
        # On both sides of the decoder: there are archives of which nothing comes out, however much goes in.
        packed = io.BufferedReader(_HastySource(file, self._check_time), _READ_AHEAD)
        return TarReader(_Hasty(decompress(packed), self._check_time), room + _PADDING)

    def _check_time(self) -> None:
        if time.thread_time() > self._deadline:
            seconds = self._limits.max_seconds
            raise PayloadTooLarge(f"the archive takes more than {seconds:g} seconds to unpack", limit=seconds)

    def ignore_lines(self, descriptor: int, kind: ArchiveKind) -> list[str]:
        """The lines of the ``.dockerignore`` at the root of an archive: it may come after what it leaves out."""
        name = ignore.FILE.encode()
        if kind == "zip":
            archive = ZipReader(descriptor, self._limits.max_files * _LEFT_OUT_MEMBERS)
            content = archive.content(name, ignore.MAX_FILE_BYTES)
        else:
            try:
                content = self._find_in_tar(descriptor, name)
            except InvalidImage:
                content = None  # told when it is unpacked, with the member that is to blame
            finally:
                os.lseek(descriptor, 0, os.SEEK_SET)
        return (content or b"").decode("utf-8", "replace").splitlines()

    def _find_in_tar(self, descriptor: int, name: bytes) -> bytes | None:
        with open(descriptor, "rb", closefd=False) as file:
            archive = self._tar(file, self._limits.max_bytes * _LEFT_OUT_BYTES)
            for member in archive:
                found = member.kind == REGULAR and member.name.removeprefix(b"./") == name
                if found and member.size <= ignore.MAX_FILE_BYTES:
                    return b"".join(iter(lambda: archive.read(ignore.MAX_FILE_BYTES), b""))
        return None

    def _unpack(self, archive: Archive) -> None:
        name: bytes | None = None
        count = 0
        try:
            for member in archive:
                self._check_time()
                name = member.name
                count += 1
                if count > self._limits.max_files * _LEFT_OUT_MEMBERS:
                    raise too_much(name, "more members than an archive may have", self._limits.max_files)
                self._take(member, archive)
        except InvalidImage as error:
            if "limit" in error.details:
                raise too_much(name, error.message, error.details["limit"]) from None
            raise _blame(name, error.message) from None

    def _take(self, member: Member, archive: Archive) -> None:
        # As the archive has it first: what leads out of it must not be led anywhere else.
        parts = split_name(member.name, self._limits.max_depth)
        if self._rename is not None:
            name = self._rename("/".join(parts).encode())
            if name is None:
                return
            parts = split_name(name, self._limits.max_depth)
        if member.kind == SYMLINK and self._keep_links:
            self._link(parts, member)
            return
        if member.kind not in (REGULAR, DIRECTORY):
            raise refuse(member.name, _REASONS.get(member.kind, "a device, fifo or something else that is no file"))
        if member.kind == DIRECTORY:
            if parts and not self._leaves_out(parts):
                self._add_directory(parts, member.name)
            return
        if self._leaves_out(parts, member.name):
            return
        if self.bytes + member.size > self._limits.max_bytes:
            raise too_much(
                member.name, f"more than {self._limits.max_bytes} bytes when unpacked", self._limits.max_bytes
            )
        self.write(parts, member.name, archive.read, mode=member.mode, mtime=member.mtime)

    def _link(self, parts: tuple[str, ...], member: Member) -> None:
        if self._leaves_out(parts, member.name):
            return
        self._claim(parts, member.name)
        os.symlink(member.link, os.fsencode(parts[-1]), dir_fd=self._directory(parts[:-1]))

    def _leaves_out(self, parts: tuple[str, ...], name: bytes | str = b"") -> bool:
        if not parts:
            raise refuse(name, "a file without a name")
        if self._ignore.leaves_out("/".join(parts)):
            self.ignored += 1
            return True
        return False

    def write(
        self,
        parts: tuple[str, ...],
        name: bytes | str,
        read: Callable[[int], bytes],
        *,
        mode: int = 0o644,
        mtime: int | None = None,
    ) -> None:
        """Write one file from what ``read`` gives until that is nothing."""
        self._claim(parts, name)
        with self._new_file(parts) as file:
            while data := read(_CHUNK):
                self.bytes += len(data)
                if self.bytes > self._limits.max_bytes:
                    raise too_much(name, f"more than {self._limits.max_bytes} bytes of files", self._limits.max_bytes)
                view = memoryview(data)
                while view:
                    view = view[os.write(file, view) :]
            os.fchmod(file, mode & 0o777 | 0o600)
            if mtime is not None:
                os.utime(file, (mtime, mtime))

    def adopt(self, name: str, source: int, source_name: str) -> None:
        """Take a file that lies in another directory of the same file system, by renaming it."""
        parts = split_name(name, self._limits.max_depth)
        if self._leaves_out(parts, name):
            os.unlink(source_name, dir_fd=source)
            return
        self._claim(parts, name)
        self.bytes += os.stat(source_name, dir_fd=source, follow_symlinks=False).st_size
        if self.bytes > self._limits.max_bytes:
            raise too_much(name, f"more than {self._limits.max_bytes} bytes of files", self._limits.max_bytes)
        os.rename(source_name, parts[-1], src_dir_fd=source, dst_dir_fd=self._directory(parts[:-1]))

    def put(self, name: str, content: bytes) -> None:
        """Take a file of which all bytes are at hand."""
        parts = split_name(name, self._limits.max_depth)
        if not self._leaves_out(parts, name):
            self.write(parts, name, io.BytesIO(content).read)

    def _claim(self, parts: tuple[str, ...], name: bytes | str) -> None:
        """Make sure that a file can be at ``parts``: nothing else of this upload is there or on the way."""
        if parts in self._files:
            raise refuse(name, "a name that is there twice")
        if parts in self._directories:
            raise refuse(name, "a file where another member needs a directory")
        self._add_directory(parts[:-1], name)
        self._files.add(parts)
        if len(self._files) > self._limits.max_files:
            raise too_much(name, f"more than {self._limits.max_files} files", self._limits.max_files)

    def _add_directory(self, parts: tuple[str, ...], name: bytes | str) -> None:
        if parts in self._directories:
            return
        for depth in range(1, len(parts) + 1):
            above = parts[:depth]
            if above in self._files:
                raise refuse(name, "a directory where another member is a file")
            self._directories.add(above)
        if len(parts) > self._limits.max_depth:
            raise too_much(name, f"nested more than {self._limits.max_depth} directories deep", self._limits.max_depth)
        if len(self._directories) > self._limits.max_files:
            raise too_much(name, f"more than {self._limits.max_files} directories", self._limits.max_files)
        self._directory(parts)

    def _directory(self, parts: tuple[str, ...]) -> int:
        """The descriptor of a directory, good until the next one is asked for."""
        if parts != self._open_parts:
            fresh = make_beneath(self._root, parts)
            os.close(self._open)
            self._open, self._open_parts = fresh, parts
        return self._open

    @contextmanager
    def _new_file(self, parts: tuple[str, ...]) -> Iterator[int]:
        descriptor = os.open(parts[-1], NEW_FILE, 0o600, dir_fd=self._directory(parts[:-1]))
        try:
            yield descriptor
        finally:
            os.close(descriptor)


class _Hasty:
    """A stream that is given up when reading it has taken too long."""

    def __init__(self, stream: Readable, check_time: Callable[[], None]) -> None:
        self._stream = stream
        self._check_time = check_time

    def read(self, size: int, /) -> bytes:
        self._check_time()
        return self._stream.read(size)


class _HastySource(io.RawIOBase):
    """The same for a file that a decoder reads."""

    def __init__(self, file: io.BufferedReader, check_time: Callable[[], None]) -> None:
        self._file = file
        self._check_time = check_time

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        self._check_time()
        return self._file.readinto1(buffer)


def _blame(name: bytes | None, message: str) -> InvalidRequest:
    if name is None:
        return InvalidRequest(message)
    return InvalidRequest(f"after {shown(name)}: {message}", member=shown(name), reason=message)


def archive_kind(name: str) -> ArchiveKind | None:
    """The kind of archive that a file of this name is, None for no archive."""
    lower = name.lower()
    return next((kind for suffix, kind in SUFFIXES if lower.endswith(suffix)), None)

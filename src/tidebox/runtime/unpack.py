"""Unpacks an untrusted archive into a directory of ours, and nowhere else.

House rules:

- Every path is walked from the root's descriptor, one component at a time, never followed by the kernel. A symbolic
  link on the way is resolved as it would be inside the box: the root is its root, and ``..`` stops there.
- What is written belongs to the importing user. Set-id bits, devices, fifos and extended attributes (file capabilities)
  are left out: a box has a /dev of its own, and nothing in it may gain privileges.
- The owner can always read and remove everything, no matter which modes the archive asks for.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tidebox.errors import InvalidImage
from tidebox.untrusted_files.tarstream import DIRECTORY, HARDLINK, REGULAR, SYMLINK, Member, TarReader

MAX_DEPTH = 200
"""Deeper trees exist in attacks only, and every level costs a descriptor while it is walked."""
MAX_LINKS = 40
"""Number of links that the kernel follows before ELOOP."""

WHITEOUT = b".wh."
OPAQUE = b".wh..wh..opq"
WHITEOUT_META = b".wh..wh."

# Not the archive's fault.
_MACHINE_ERRORS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
)
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

Parts = tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class UnpackLimits:
    """Size limits of an image; far above what anyone runs untrusted code in, far below a full disk."""

    max_bytes: int = 16 << 30
    max_entries: int = 1_000_000


class Unpacker:
    """Writes archives, one over the other, into the directory ``root_fd``; the limits count over all of them."""

    def __init__(self, root_fd: int, limits: UnpackLimits) -> None:
        self._root = root_fd
        self._bytes_left = limits.max_bytes
        self._entries_left = limits.max_entries
        # What the archive being unpacked has put there: its whiteouts are about the ones below it.
        self._touched: set[Parts] = set()

    def unpack(self, archive: TarReader, *, whiteouts: bool = False) -> None:
        """Write every member; with ``whiteouts``, the markers of an OCI layer remove what lies below."""
        self._touched.clear()
        for member in archive:
            try:
                self._place(member, archive, whiteouts)
            except OSError as error:
                if error.errno in _MACHINE_ERRORS:
                    raise
                raise InvalidImage(f"{_shown(member.name)}: {error.strerror}") from error

    def _place(self, member: Member, archive: TarReader, whiteouts: bool) -> None:
        parts = split_path(member.name)
        if not parts:
            return
        *above, name = parts
        if whiteouts and name.startswith(WHITEOUT):
            self._white_out(tuple(above), name)
        elif member.kind in (REGULAR, DIRECTORY, SYMLINK, HARDLINK):
            self._count_entry()
            with self._directory(tuple(above), create=True) as (parent, place):
                if whiteouts:
                    self._touch((*place, name))
                if member.kind == DIRECTORY:
                    self._make_directory(parent, name, member)
                elif member.kind == REGULAR:
                    self._write_file(parent, name, member, archive)
                elif member.kind == SYMLINK:
                    _clear(parent, name)
                    os.symlink(member.link, name, dir_fd=parent)
                else:
                    self._make_hardlink(parent, (*place, name), member)

    def _make_directory(self, parent: int, name: bytes, member: Member) -> None:
        if not _is_directory(parent, name):
            _clear(parent, name)
            os.mkdir(name, 0o700, dir_fd=parent)
        with _opened(name, _DIRECTORY_FLAGS, parent) as directory:
            os.fchmod(directory, member.mode & 0o1777 | 0o700)

    def _write_file(self, parent: int, name: bytes, member: Member, archive: TarReader) -> None:
        self._bytes_left -= member.size
        if self._bytes_left < 0:
            raise InvalidImage("the image is larger than allowed when unpacked")
        _clear(parent, name)
        with _opened(name, _FILE_FLAGS, parent) as file:
            while data := archive.read(1 << 18):
                view = memoryview(data)
                while view:
                    view = view[os.write(file, view) :]
            os.fchmod(file, member.mode & 0o777 | 0o600)
            # Compiled Python files are valid only beside a source of the recorded time.
            os.utime(file, (member.mtime, member.mtime))

    def _make_hardlink(self, parent: int, place: Parts, member: Member) -> None:
        target = split_path(member.link)
        if not target:
            raise InvalidImage(f"{_shown(member.name)}: a hard link to nothing")
        with self._directory(target[:-1]) as (source, source_place):
            if (*source_place, target[-1]) == place:
                raise InvalidImage(f"{_shown(member.name)}: a hard link to itself")
            if _is_directory(source, target[-1]):
                raise InvalidImage(f"{_shown(member.name)}: a hard link to a directory")
            # A link to nothing must not cost the entry it would have replaced.
            os.stat(target[-1], dir_fd=source, follow_symlinks=False)
            _clear(parent, place[-1])
            os.link(target[-1], place[-1], src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)

    def _white_out(self, above: Parts, name: bytes) -> None:
        try:
            with self._directory(above) as (parent, place):
                if name == OPAQUE:
                    for child in os.listdir(parent):
                        self._remove_lower(parent, (*place, os.fsencode(child)))
                elif not name.startswith(WHITEOUT_META):
                    hidden = split_path(name[len(WHITEOUT) :])
                    if len(hidden) != 1:
                        raise InvalidImage(f"{_shown(name)}: a whiteout of nothing")
                    self._remove_lower(parent, (*place, *hidden))
        except (FileNotFoundError, NotADirectoryError):
            return

    def _remove_lower(self, parent: int, place: Parts) -> None:
        """Remove an entry as far as the current archive did not put it there."""
        if place not in self._touched:
            _clear(parent, place[-1])
        elif _is_directory(parent, place[-1]):
            with _opened(place[-1], _DIRECTORY_FLAGS, parent) as directory:
                for child in os.listdir(directory):
                    self._remove_lower(directory, (*place, os.fsencode(child)))

    def _touch(self, place: Parts) -> None:
        while place and place not in self._touched:
            self._touched.add(place)
            place = place[:-1]

    def _count_entry(self) -> None:
        self._entries_left -= 1
        if self._entries_left < 0:
            raise InvalidImage("the image has more files than allowed")

    @contextmanager
    def _directory(self, parts: Parts, *, create: bool = False) -> Iterator[tuple[int, Parts]]:
        """Descriptor and real place of the directory ``parts``, its symbolic links resolved within the root."""
        opened: list[int] = []
        place: list[bytes] = []
        pending = list(reversed(parts))
        links = 0
        try:
            while pending:
                part = pending.pop()
                if part == b"..":
                    if place:
                        place.pop()
                        os.close(opened.pop())
                    continue
                parent = opened[-1] if opened else self._root
                link = _read_link(parent, part)
                if link is None:
                    if len(opened) >= MAX_DEPTH:
                        raise InvalidImage("the archive has directories nested too deeply")
                    opened.append(self._enter(parent, part, create))
                    place.append(part)
                    continue
                links += 1
                if links > MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                if link.startswith(b"/"):
                    place.clear()
                    while opened:
                        os.close(opened.pop())
                pending.extend(reversed([piece for piece in link.split(b"/") if piece not in (b"", b".")]))
            yield opened[-1] if opened else self._root, tuple(place)
        finally:
            for descriptor in opened:
                os.close(descriptor)

    def _enter(self, parent: int, part: bytes, create: bool) -> int:
        try:
            return os.open(part, _DIRECTORY_FLAGS, dir_fd=parent)
        except FileNotFoundError:
            if not create:
                raise
        except NotADirectoryError:
            # A file of a lower layer gives way to a directory of this one.
            if not create:
                raise
            os.unlink(part, dir_fd=parent)
        self._count_entry()
        os.mkdir(part, 0o700, dir_fd=parent)
        directory = os.open(part, _DIRECTORY_FLAGS, dir_fd=parent)
        os.fchmod(directory, 0o755)  # regardless of the umask
        return directory


def split_path(name: bytes) -> Parts:
    """The components of an archive's path; absolute paths and ``..`` are refused."""
    parts = tuple(part for part in name.split(b"/") if part not in (b"", b"."))
    if name.startswith(b"/") or b".." in parts:
        raise InvalidImage(f"{_shown(name)}: a path that leads out of the image")
    return parts


@contextmanager
def _opened(name: bytes, flags: int, parent: int) -> Iterator[int]:
    descriptor = os.open(name, flags, 0o600, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _read_link(parent: int, name: bytes) -> bytes | None:
    try:
        return os.readlink(name, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return None
        raise


def _is_directory(parent: int, name: bytes) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _clear(parent: int, name: bytes) -> None:
    """Make sure that nothing is at ``name``."""
    if _is_directory(parent, name):
        shutil.rmtree(os.fsdecode(name), dir_fd=parent)
        return
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        pass


def _shown(name: bytes) -> str:
    # Names of a hostile archive end up on terminals and in logs.
    text = ascii(name.decode("utf-8", "backslashreplace"))[1:-1]
    return text if len(text) <= 200 else text[:200] + "..."

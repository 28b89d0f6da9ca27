"""Directory trees in which every name, type and link is hostile.

House rules: nothing is opened but by name relative to an already opened directory, without following links and without
blocking; only regular files are read; a link is copied as a link and never looked through. Whatever is no directory,
regular file or link (devices, fifos, sockets) is left out and counted.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tidebox.errors import PayloadTooLarge

OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

MAX_DEPTH = 64
"""Every level costs descriptors while it is walked; deeper trees are made by nobody who needs them."""
MAX_ENTRIES = 200_000
_CHUNK = 1 << 20


class TreeEntry(NamedTuple):
    """Something found in a tree."""

    path: str
    directory: int
    """The descriptor of the directory it is in, good until the next entry is asked for."""
    name: str
    status: os.stat_result
    depth: int

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.status.st_mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.status.st_mode)

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.status.st_mode)


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeLimits:
    """How much of a tree is copied."""

    max_bytes: int
    max_entries: int = MAX_ENTRIES
    max_depth: int = MAX_DEPTH


@dataclass(slots=True)
class Tally:
    """Counts of what a copy took and left out."""

    bytes: int = 0
    files: int = 0
    entries: int = 0
    left_out: int = 0
    """Entries that are no file, directory or link, or lie too deep."""


@contextmanager
def opened(path: Path | str, parent: int | None = None) -> Iterator[int]:
    """The descriptor of a directory that is no link, for as long as it is needed."""
    descriptor = os.open(path, OPEN_DIRECTORY, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def walk(root: int, *, max_depth: int = MAX_DEPTH, max_entries: int = MAX_ENTRIES) -> Iterator[TreeEntry]:
    """Everything below ``root``, a directory before what is in it, in the order of the names."""
    seen = 0
    # Depth first: one open descriptor for each level, however many directories there are.
    levels = [_level("", os.open(".", OPEN_DIRECTORY, dir_fd=root))]
    try:
        while levels:
            prefix, directory, names = levels[-1]
            name = next(names, None)
            if name is None:
                os.close(levels.pop()[1])
                continue
            seen += 1
            if seen > max_entries:
                return
            status = os.lstat(name, dir_fd=directory)
            yield TreeEntry(prefix + name, directory, name, status, len(levels))
            if stat.S_ISDIR(status.st_mode) and len(levels) <= max_depth:
                levels.append(_level(f"{prefix}{name}/", enter(directory, name)))
    finally:
        for _, directory, _ in levels:
            os.close(directory)


def _level(prefix: str, directory: int) -> tuple[str, int, Iterator[str]]:
    return prefix, directory, iter(sorted(os.listdir(directory)))


def enter(parent: int, name: str) -> int:
    """The descriptor of a directory, made readable where its owner had taken that away."""
    try:
        return os.open(name, OPEN_DIRECTORY, dir_fd=parent)
    except PermissionError:
        # Owners may take away their own permissions; the machine's user with the same uid can give them back.
        os.chmod(name, 0o700, dir_fd=parent)
        return os.open(name, OPEN_DIRECTORY, dir_fd=parent)


def open_regular(directory: int, name: str) -> int:
    """Open a regular file; anything else that was put in its place is refused."""
    try:
        descriptor = os.open(name, OPEN_FILE, dir_fd=directory)
    except PermissionError:
        if not stat.S_ISREG(os.lstat(name, dir_fd=directory).st_mode):
            raise
        os.chmod(name, 0o600, dir_fd=directory)
        descriptor = os.open(name, OPEN_FILE, dir_fd=directory)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", name)
    return descriptor


def open_beneath(root: int, parts: Sequence[str]) -> int:
    """The descriptor of the regular file at a path below ``root``, none of whose directories is a link."""
    directory = os.open(".", OPEN_DIRECTORY, dir_fd=root)
    try:
        for part in parts[:-1]:
            below = os.open(part, OPEN_DIRECTORY, dir_fd=directory)
            os.close(directory)
            directory = below
        return open_regular(directory, parts[-1])
    finally:
        os.close(directory)


def make_beneath(root: int, parts: Sequence[str]) -> int:
    """The descriptor of the directory at a path below ``root``; what is missing of it is made."""
    directory = os.open(".", OPEN_DIRECTORY, dir_fd=root)
    try:
        for part in parts:
            try:
                below = os.open(part, OPEN_DIRECTORY, dir_fd=directory)
            except FileNotFoundError:
                os.mkdir(part, 0o755, dir_fd=directory)
                below = os.open(part, OPEN_DIRECTORY, dir_fd=directory)
            os.close(directory)
            directory = below
    except BaseException:
        os.close(directory)
        raise
    return directory


@contextmanager
def directory_beneath(root: int, parts: Sequence[str]) -> Iterator[int]:
    """``make_beneath`` for as long as it is needed."""
    directory = make_beneath(root, parts)
    try:
        yield directory
    finally:
        os.close(directory)


def copy_tree(
    source: int,
    target: int,
    limits: TreeLimits,
    *,
    link_files: bool = False,
    owner: AbstractContextManager[None] | None = None,
) -> Tally:
    """Copy what is below ``source`` into the empty directory ``target``; ``PayloadTooLarge`` beyond the limits.

    Modes (without set-id bits), times and holes of files stay; hard links become files of their own. With
    ``link_files`` both trees share their files, which is right only where a file is never written again. ``owner`` is
    entered around whatever creates something.
    """
    owner = owner or nullcontext()
    tally = Tally()
    times: list[tuple[int, os.stat_result]] = []
    # The open directories of the copy, one for each level.
    levels = [os.open(".", OPEN_DIRECTORY, dir_fd=target)]
    try:
        for entry in walk(source, max_depth=limits.max_depth, max_entries=limits.max_entries + 1):
            while len(levels) > entry.depth:
                _leave(levels.pop(), times.pop())
            tally.entries += 1
            if tally.entries > limits.max_entries:
                raise PayloadTooLarge(
                    f"there are more than {limits.max_entries} files and directories", limit=limits.max_entries
                )
            here = levels[-1]
            if entry.is_directory and entry.depth <= limits.max_depth:
                with owner:
                    os.mkdir(entry.name, 0o700, dir_fd=here)
                levels.append(os.open(entry.name, OPEN_DIRECTORY, dir_fd=here))
                times.append((stat.S_IMODE(entry.status.st_mode) & 0o777 | 0o700, entry.status))
            elif entry.is_link:
                tally.files += 1
                destination = os.readlink(entry.name, dir_fd=entry.directory)
                with owner:
                    os.symlink(destination, entry.name, dir_fd=here)
            elif entry.is_file:
                tally.files += 1
                if link_files:
                    os.link(entry.name, entry.name, src_dir_fd=entry.directory, dst_dir_fd=here, follow_symlinks=False)
                    tally.bytes += _taken(entry.status)
                    if tally.bytes > limits.max_bytes:
                        raise _too_large(limits.max_bytes)
                else:
                    left = limits.max_bytes - tally.bytes
                    reading = open_regular(entry.directory, entry.name)
                    try:
                        with owner:
                            writing = os.open(entry.name, NEW_FILE, 0o600, dir_fd=here)
                        tally.bytes += _copy_and_close(reading, writing, left, limits.max_bytes)
                    finally:
                        os.close(reading)
            else:
                tally.left_out += 1
        while len(levels) > 1:
            _leave(levels.pop(), times.pop())
    finally:
        for level in levels:
            os.close(level)
    return tally


def _leave(directory: int, made: tuple[int, os.stat_result]) -> None:
    """Close a directory whose entries are all there: now its mode and times can be those of the original."""
    try:
        mode, status = made
        os.fchmod(directory, mode)
        os.utime(directory, ns=(status.st_atime_ns, status.st_mtime_ns))
    finally:
        os.close(directory)


def copy_file(source: int, name: str, target: int, new_name: str, budget: int) -> int:
    """Copy a regular file with its holes, mode and times; the bytes it takes, which ``budget`` must allow."""
    reading = open_regular(source, name)
    try:
        return _copy_and_close(reading, os.open(new_name, NEW_FILE, 0o600, dir_fd=target), budget, budget)
    finally:
        os.close(reading)


def _copy_and_close(reading: int, writing: int, budget: int, limit: int) -> int:
    try:
        status = os.fstat(reading)
        copied = 0
        for start, end in _data_of(reading, status.st_size):
            copied += end - start
            if copied > budget:
                raise _too_large(limit)
            os.lseek(writing, start, os.SEEK_SET)
            while start < end:
                sent = os.sendfile(writing, reading, start, min(end - start, _CHUNK))
                if not sent:
                    break
                start += sent
        os.ftruncate(writing, status.st_size)
        os.fchmod(writing, stat.S_IMODE(status.st_mode) & 0o777 | 0o600)
        os.utime(writing, ns=(status.st_atime_ns, status.st_mtime_ns))
        return copied
    finally:
        os.close(writing)


def _data_of(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    """The ranges of a file that hold data: a hole may be as large as no disk."""
    end = 0
    while end < size:
        try:
            start = os.lseek(descriptor, end, os.SEEK_DATA)
            end = os.lseek(descriptor, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        yield start, end


def _too_large(limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"the files are larger than {limit} bytes together", limit=limit)


def size_of(root: int, limits: TreeLimits) -> Tally:
    """How much there is below ``root``; files that are mostly holes count as what they take."""
    tally = Tally()
    for entry in walk(root, max_depth=limits.max_depth, max_entries=limits.max_entries):
        tally.entries += 1
        if entry.is_link:
            tally.files += 1
        elif entry.is_file:
            tally.files += 1
            tally.bytes += _taken(entry.status)
    return tally


def _taken(status: os.stat_result) -> int:
    """The bytes of content a file takes on disk: less than its size where it is sparse."""
    return min(status.st_size, status.st_blocks * 512)


def remove_tree(path: Path) -> None:
    """Remove a directory of ours with everything in it, if there is one; links in it are removed, never followed."""
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        pass

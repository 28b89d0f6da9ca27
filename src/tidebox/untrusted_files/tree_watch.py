"""Watches a directory tree that a hostile program writes to for changes (inotify(7)).

House rules are those of ``trees``: directories are opened by name relative to an opened one, and no link is followed,
so nothing outside the tree is ever watched. The kernel's queue is the only one: it is bounded, what does not fit
becomes an overflow, and a slow reader costs nothing. Everything here blocks, though never for long.
"""

from __future__ import annotations

import ctypes
import enum
import os
import struct
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tidebox.errors import LimitOutOfRange
from tidebox.untrusted_files.trees import MAX_DEPTH, OPEN_DIRECTORY

MAX_DIRECTORIES = 2048
"""Watched at once; the kernel keeps about a kilobyte for each."""
# Told at once; of a tree that is moved in with more entries than this the rest is an overflow.
MAX_CHANGES = 8192
_READ_BYTES = 16 * 1024
# The two halves of a move are queued one after the other, but the reader may come in between.
_PAIR_SECONDS = 0.005

# <sys/inotify.h>
_MODIFY, _ATTRIB, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x4, 0x40, 0x80, 0x100, 0x200
_OVERFLOW, _IGNORED, _ONLY_DIRECTORIES, _IS_DIRECTORY = 0x4000, 0x8000, 0x1000000, 0x40000000
_CHANGES = _MODIFY | _ATTRIB | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE
_LEAVING = _MOVED_FROM | _DELETE
_HEAD = struct.Struct("iIII")

_libc = ctypes.CDLL(None, use_errno=True)


class ChangeKind(enum.Enum):
    """The kind of a change: created, changed, removed, ..., or an overflow."""

    CREATED = "created"
    MODIFIED = "modified"
    REMOVED = "removed"
    MOVED = "moved"
    OVERFLOW = "overflow"
    """More than could be told: something is not known."""


class TreeChange(NamedTuple):
    """One change; paths are relative to the root of the tree."""

    kind: ChangeKind
    path: str = ""
    is_directory: bool = False
    source: str | None = None
    """Where it was, of what was moved."""


class _InotifyEvent(NamedTuple):
    watch: int
    mask: int
    cookie: int
    name: str


class _Found:
    """Changes to be told together."""

    def __init__(self) -> None:
        self.changes: list[TreeChange] = []
        self._modified: set[str] = set()

    def add(self, kind: ChangeKind, path: str = "", is_directory: bool = False, source: str | None = None) -> None:
        """One more. A file that is written to again and again is told of once, until something else happens to it."""
        if kind is ChangeKind.MODIFIED and path in self._modified:
            return
        if len(self.changes) >= MAX_CHANGES:
            kind, path, is_directory, source = ChangeKind.OVERFLOW, "", False, None
            if self.changes[-1].kind is kind:
                return
        (self._modified.add if kind is ChangeKind.MODIFIED else self._modified.discard)(path)
        self.changes.append(TreeChange(kind, path, is_directory, source))


class TreeWatch:
    """Watches one directory of a tree, and with ``recursive`` every directory below it."""

    def __init__(self, root: int, parts: Sequence[str], recursive: bool) -> None:
        """``parts`` lead from the tree's root, an open directory, to what is watched."""
        self.over = False
        """Whether the directory is gone, and nothing will be told any more."""
        self._recursive = recursive
        self._parts = tuple(parts)
        self._watched = "/".join(parts)
        self._paths: dict[int, str] = {}
        # Found in new directories and told already, before the kernel's own word of them was read.
        self._seen: set[str] = set()
        self._above = -1
        self._top = -1
        # Of our own: its number must not become another file's while it is used here.
        self._root = os.dup(root)
        try:
            self._queue = _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        except OSError:
            os.close(self._root)
            raise

    def fileno(self) -> int:
        """Readable when there is something to take."""
        return self._queue

    def close(self) -> None:
        """Watch nothing any more."""
        os.close(self._queue)
        os.close(self._root)

    def begin(self) -> None:
        """From now on changes are told; raises OSError, and LimitOutOfRange where there is too much to watch."""
        if self._parts:
            # Its own end is seen from above: a directory that somebody still uses is not told of its removal.
            with _Directory(self._root, self._parts[:-1]) as above:
                self._above = self._add(above, _LEAVING)
        with _Directory(self._root, self._parts) as top:
            self._top = self._add(top, _CHANGES)
            self._paths[self._top] = self._watched
            if self._recursive:
                self._enter_below(top, self._watched, len(self._parts), None)

    def take(self) -> list[TreeChange]:
        """Return the changes since the last call."""
        events = list(self._read())
        arrived = {event.cookie for event in events if event.mask & _MOVED_TO}
        if any(event.mask & _MOVED_FROM and event.cookie not in arrived for event in events):
            time.sleep(_PAIR_SECONDS)
            events += self._read()
        return self._digest(events)

    def _read(self) -> Iterator[_InotifyEvent]:
        try:
            data = os.read(self._queue, _READ_BYTES)
        except BlockingIOError:
            return
        position = 0
        while position < len(data):
            watch, mask, cookie, size = _HEAD.unpack_from(data, position)
            position += _HEAD.size
            name = data[position : position + size].rstrip(b"\0")
            position += size
            yield _InotifyEvent(watch, mask, cookie, os.fsdecode(name))

    def _digest(self, events: list[_InotifyEvent]) -> list[TreeChange]:
        found = _Found()
        seen_before = self._seen.copy()
        arriving = {event.cookie for event in events if event.mask & _MOVED_TO and event.watch in self._paths}
        leaving: dict[int, tuple[str, bool]] = {}
        for event in events:
            is_directory = bool(event.mask & _IS_DIRECTORY)
            if event.mask & _OVERFLOW:
                found.add(ChangeKind.OVERFLOW)
                self._look_again()
            elif self._ends(event):
                found.add(ChangeKind.REMOVED, self._watched, is_directory=True)
                self.over = True
                break
            elif event.mask & _IGNORED:
                self._paths.pop(event.watch, None)
            elif event.name and event.watch in self._paths:
                path = _joined(self._paths[event.watch], event.name)
                if event.mask & _MOVED_FROM and event.cookie in arriving:
                    leaving[event.cookie] = path, is_directory
                elif event.mask & _MOVED_TO and event.cookie in leaving:
                    source, _ = leaving.pop(event.cookie)
                    found.add(ChangeKind.MOVED, path, is_directory, source)
                    self._relocate(source, path)
                elif event.mask & _LEAVING:
                    self._left(found, path, is_directory)
                elif event.mask & _CREATE and path in self._seen:
                    self._seen.discard(path)
                elif event.mask & (_CREATE | _MOVED_TO):
                    found.add(ChangeKind.CREATED, path, is_directory)
                    if is_directory and self._recursive:
                        self._enter(path, found)
                else:
                    found.add(ChangeKind.MODIFIED, path, is_directory)
        for path, is_directory in leaving.values():
            self._left(found, path, is_directory)
        self._seen -= seen_before
        return found.changes

    def _ends(self, event: _InotifyEvent) -> bool:
        """Whether it tells that the watched directory is not where it was."""
        if event.watch == self._above:
            return bool(event.mask & _LEAVING) and event.name == self._parts[-1]
        return event.watch == self._top and bool(event.mask & _IGNORED)

    def _left(self, found: _Found, path: str, is_directory: bool) -> None:
        found.add(ChangeKind.REMOVED, path, is_directory)
        self._seen.discard(path)
        for watch in self._at_or_below(path):
            self._forget(watch)

    def _at_or_below(self, path: str) -> list[int]:
        inside = path + "/"
        return [watch for watch, known in self._paths.items() if known == path or known.startswith(inside)]

    def _relocate(self, source: str, target: str) -> None:
        for watch in self._at_or_below(source):
            self._paths[watch] = target + self._paths[watch][len(source) :]

    def _forget(self, watch: int) -> None:
        del self._paths[watch]
        _libc.inotify_rm_watch(self._queue, watch)  # fails if the directory is gone, and the watch with it

    def _look_again(self) -> None:
        """After an overflow: which directories there are now is not known."""
        if not self._recursive:
            return
        before, self._paths = self._paths, {self._top: self._watched}
        self._enter(self._watched, None)
        for watch in before.keys() - self._paths.keys():
            _libc.inotify_rm_watch(self._queue, watch)

    # Directories

    def _add(self, directory: int, mask: int) -> int:
        # A link of ours to an opened directory: what its name means by now does not matter.
        path = b"/proc/self/fd/%d" % directory
        return _checked(_libc.inotify_add_watch(self._queue, path, mask | _ONLY_DIRECTORIES))

    def _enter(self, path: str, found: _Found | None) -> None:
        """Watch a directory that is new, and what is in it by now, which is told in ``found``."""
        parts = path.split("/") if path else []
        try:
            directory = _Directory(self._root, parts)
        except OSError:
            return  # gone again, or not for its user to read
        with directory as opened:
            self._paths[self._add(opened, _CHANGES)] = path
            self._enter_below(opened, path, len(parts), found)

    def _enter_below(self, directory: int, path: str, depth: int, found: _Found | None) -> None:
        if len(self._paths) > MAX_DIRECTORIES:
            raise LimitOutOfRange(f"more than {MAX_DIRECTORIES} directories to watch", limit=MAX_DIRECTORIES)
        if depth > MAX_DEPTH:
            raise LimitOutOfRange(f"directories more than {MAX_DEPTH} deep to watch", limit=MAX_DEPTH)
        with os.scandir(directory) as listing:
            entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in listing]
        for name, is_directory in entries:
            below = _joined(path, name)
            if found is not None:
                found.add(ChangeKind.CREATED, below, is_directory)
                self._seen.add(below)
            if not is_directory:
                continue
            try:
                opened = _Directory(directory, [name])
            except OSError:
                continue  # gone again, or not for its user to read
            with opened as inner:
                self._paths[self._add(inner, _CHANGES)] = below
                self._enter_below(inner, below, depth + 1, found)


class _Directory:
    """A directory that is reached without following links, opened for as long as it is needed."""

    def __init__(self, root: int, parts: Sequence[str]) -> None:
        self._descriptor = os.open(".", OPEN_DIRECTORY, dir_fd=root)
        try:
            for part in parts:
                deeper = os.open(part, OPEN_DIRECTORY, dir_fd=self._descriptor)
                os.close(self._descriptor)
                self._descriptor = deeper
        except OSError:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> int:
        return self._descriptor

    def __exit__(self, *unused: object) -> None:
        os.close(self._descriptor)


def _joined(directory: str, name: str) -> str:
    return f"{directory}/{name}" if directory else name


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result

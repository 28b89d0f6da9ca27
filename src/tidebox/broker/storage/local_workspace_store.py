"""Workspaces on the local disk: directories of ours, which are the truth between two runs.

``<id>/workspace`` is never written into. A new state is made beside it and takes its place by renaming, so that a crash
leaves the old state or the new one; files that both have are one file with two names.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import stat
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from tidebox.broker.storage.workspace_store import KeptFile, WorkspaceStore
from tidebox.errors import Conflict, NotFound, StoreUnavailable
from tidebox.model.ids import new_id
from tidebox.runtime.base import Box
from tidebox.untrusted_files.durability import flush
from tidebox.untrusted_files.file_names import refuse, too_much
from tidebox.untrusted_files.trees import (
    OPEN_DIRECTORY,
    Tally,
    TreeLimits,
    copy_tree,
    open_beneath,
    opened,
    remove_tree,
    size_of,
    walk,
)

_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")
_WORKSPACE = "workspace"
_OLD = "old"
_REMOVED = ".removed"
# Between looks for what is just being replaced.
_PAUSES_SECONDS = (0.005, 0.01, 0.02)
_T = TypeVar("_T")


class LocalWorkspaceStore(WorkspaceStore):
    """The workspaces of all sessions, in one directory."""

    def __init__(self, directory: Path, limits: TreeLimits) -> None:
        self._root = directory
        self._limits = limits

    async def start(self) -> None:
        """Make whole what a crash interrupted."""
        await asyncio.to_thread(self._recover)

    def _recover(self) -> None:
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for directory in self._root.iterdir():
            if directory.name.startswith(_REMOVED):
                remove_tree(directory)
            elif directory.is_dir():
                _recover(directory)

    async def ids(self) -> list[str]:
        """The sessions that have files here."""
        names = await asyncio.to_thread(os.listdir, self._root)
        return [name for name in names if _ID.fullmatch(name)]

    async def create(self, session_id: str) -> None:
        """Make the workspace of a session, empty, where there is none."""
        await asyncio.to_thread(_make, self._directory(session_id))

    async def place(self, session_id: str, box: Box) -> None:
        """Copy the files of a session into a fresh box."""
        await box.place(self._directory(session_id) / _WORKSPACE)

    async def keep(self, session_id: str, box: Box) -> int:
        """Make what a stopped box has in its workspace the new state."""
        directory = self._directory(session_id)
        async with _fresh(directory, "the workspace") as fresh:
            left_out = (await box.collect(fresh, self._limits)).left_out
            await asyncio.to_thread(_put_in_place, directory, fresh)
            return left_out

    async def put(self, session_id: str, stage: Path) -> Tally:
        """Put the files of ``stage`` over those there are; how much there is then."""
        directory = self._directory(session_id)
        async with _fresh(directory, "the files") as fresh:
            return await asyncio.to_thread(self._put, directory, stage, fresh)

    def _put(self, directory: Path, stage: Path, fresh: Path) -> Tally:
        with opened(stage) as source, opened(directory / _WORKSPACE) as current, opened(fresh) as target:
            copy_tree(current, target, self._limits, link_files=True)
            _lay_over(source, target)
            tally = size_of(target, self._limits)
        _check_size(tally, self._limits)
        _put_in_place(directory, fresh)
        with opened(directory) as flushed:
            flush(flushed)
        return tally

    async def listing(self, session_id: str, limit: int) -> list[KeptFile]:
        """The files of a session as they are between its runs, by path; no more than ``limit`` of them."""
        directory = self._directory(session_id)

        def read(root: int) -> list[KeptFile]:
            found = _listing(root, limit)
            # What was replaced meanwhile is being removed: some of it may have been missing already.
            if not os.path.samestat(os.fstat(root), os.stat(directory / _WORKSPACE)):
                raise FileNotFoundError
            return found

        try:
            return await self._read(directory, read)
        except FileNotFoundError:
            if await asyncio.to_thread(directory.exists):
                raise Conflict("the files of this session are replaced all the time", session_id=session_id) from None
            return []

    async def open(self, session_id: str, parts: Sequence[str]) -> int:
        """The descriptor of one of them; ``NotFound`` where there is none that can be read."""
        try:
            return await self._read(self._directory(session_id), lambda root: open_beneath(root, parts))
        except OSError as error:
            raise NotFound("no such file", session_id=session_id, path="/".join(parts)) from error

    async def _read(self, directory: Path, read: Callable[[int], _T]) -> _T:
        """Return the result of ``read``; raises FileNotFoundError where it finds nothing however often it looks."""

        def attempt() -> _T:
            with opened(directory / _WORKSPACE) as root:
                return read(root)

        for pause in _PAUSES_SECONDS:
            # A run may end meanwhile, and its files take the place of those that are being read.
            with contextlib.suppress(FileNotFoundError):
                return await asyncio.to_thread(attempt)
            await asyncio.sleep(pause)
        return await asyncio.to_thread(attempt)

    async def remove(self, session_id: str) -> None:
        """Remove the files of a session; harmless where there are none."""
        await asyncio.to_thread(self._remove, self._directory(session_id))

    def _remove(self, directory: Path) -> None:
        doomed = self._root / new_id(_REMOVED)
        try:
            directory.rename(doomed)
        except FileNotFoundError:
            return
        remove_tree(doomed)

    def _directory(self, session_id: str) -> Path:
        if not _ID.fullmatch(session_id):
            raise NotFound("no such session", session_id=session_id)
        return self._root / session_id


@contextlib.asynccontextmanager
async def _fresh(directory: Path, what: str) -> AsyncIterator[Path]:
    """A directory beside the workspace, for its next state; ``StoreUnavailable`` where that cannot be kept."""
    fresh = directory / new_id("next")
    try:
        await asyncio.to_thread(fresh.mkdir, 0o700)
        yield fresh
    except OSError as error:
        raise StoreUnavailable(f"{what} could not be kept: {error.strerror}") from error
    finally:
        await asyncio.to_thread(remove_tree, fresh)


def _listing(root: int, limit: int) -> list[KeptFile]:
    found: list[KeptFile] = []
    for entry in walk(root):
        if entry.is_directory:
            continue
        if len(found) == limit:
            break
        target = os.readlink(entry.name, dir_fd=entry.directory) if entry.is_link else None
        size = 0 if entry.is_link else entry.status.st_size
        found.append(KeptFile(entry.path, size, entry.status.st_mtime, target))
    return found


def _make(directory: Path) -> None:
    directory.mkdir(mode=0o700, exist_ok=True)
    (directory / _WORKSPACE).mkdir(mode=0o700, exist_ok=True)


def _put_in_place(directory: Path, fresh: Path) -> None:
    """Make ``fresh`` the workspace. Between the two renames there is none, which ``_recover`` finds."""
    old = directory / _OLD
    remove_tree(old)
    (directory / _WORKSPACE).rename(old)
    fresh.rename(directory / _WORKSPACE)
    remove_tree(old)


def _recover(directory: Path) -> None:
    workspace, old = directory / _WORKSPACE, directory / _OLD
    if not workspace.exists() and old.exists():
        old.rename(workspace)
    for entry in directory.iterdir():
        if entry.name != _WORKSPACE:
            remove_tree(entry)


def _check_size(tally: Tally, limits: TreeLimits) -> None:
    if tally.bytes > limits.max_bytes:
        raise too_much(None, f"the workspace would be larger than {limits.max_bytes} bytes", limits.max_bytes)
    if tally.entries >= limits.max_entries:
        raise too_much(None, f"the workspace would have {limits.max_entries} files or more", limits.max_entries)


def _lay_over(source: int, target: int) -> None:
    """Move what is below ``source`` over what is below ``target``: a file replaces a file or a link."""
    levels = [os.open(".", OPEN_DIRECTORY, dir_fd=target)]
    try:
        for entry in walk(source):
            while len(levels) > entry.depth:
                os.close(levels.pop())
            here = levels[-1]
            if entry.is_directory:
                levels.append(_enter_anew(here, entry.name))
                continue
            try:
                os.rename(entry.name, entry.name, src_dir_fd=entry.directory, dst_dir_fd=here)
            except IsADirectoryError:
                raise refuse(entry.path, "a file where the workspace has a directory") from None
    finally:
        for level in levels:
            os.close(level)


def _enter_anew(parent: int, name: str) -> int:
    """The directory ``name``, made if there is none; a link there is replaced, for it could lead anywhere."""
    try:
        os.mkdir(name, 0o755, dir_fd=parent)
    except FileExistsError:
        if not stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode):
            os.unlink(name, dir_fd=parent)
            os.mkdir(name, 0o755, dir_fd=parent)
    return os.open(name, OPEN_DIRECTORY, dir_fd=parent)

"""The kept workspaces of sessions: directories of ours, which are the truth between two runs.

``sessions/<id>/workspace`` is never written into. A new state is made beside it and takes its place by renaming, so
that a crash leaves the old state or the new one; files that both have are one file with two names. One at a time works
on a session: a run from before its start to its end, an upload while its files are put in.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tidebox.errors import Conflict, NotFound, StoreUnavailable
from tidebox.files.disk import flush
from tidebox.files.names import refuse, too_much
from tidebox.files.trees import (
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
from tidebox.model.ids import new_id
from tidebox.runtime.base import Box

_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")
_WORKSPACE = "workspace"
_OLD = "old"
_REMOVED = ".removed"
UPLOAD_WAIT_SECONDS = 10.0
# Between looks for what is just being replaced.
_PAUSES_SECONDS = (0.005, 0.01, 0.02)
_T = TypeVar("_T")


class Held:
    """A workspace in the hands of one run or upload."""

    def __init__(self, directory: Path, limits: TreeLimits, release: Callable[[], None]) -> None:
        self._directory = directory
        self._limits = limits
        self._release = release
        self.left_out = 0
        """How much of the box's workspace was no file, directory or link, and is not kept."""

    @property
    def path(self) -> Path:
        """Where its files are now."""
        return self._directory / _WORKSPACE

    async def place(self, box: Box) -> None:
        """Copy it into a fresh box."""
        await box.place(self.path)

    async def keep(self, box: Box) -> None:
        """Make what a stopped box has in its workspace the new state."""
        fresh = await self._fresh()
        try:
            self.left_out = (await box.collect(fresh, self._limits)).left_out
            await asyncio.to_thread(_put_in_place, self._directory, fresh)
        except OSError as error:
            raise StoreUnavailable(f"the workspace could not be kept: {error.strerror}") from error
        finally:
            await asyncio.to_thread(remove_tree, fresh)

    async def put(self, stage: Path) -> Tally:
        """Put the files of ``stage``, a directory of ours, over those there are; how much there is then.

        Where the files of ``stage`` are on the disk, so is the new state, before anybody hears of it.
        """
        fresh = await self._fresh()
        try:
            return await asyncio.to_thread(self._put, stage, fresh)
        except OSError as error:
            raise StoreUnavailable(f"the files could not be kept: {error.strerror}") from error
        finally:
            await asyncio.to_thread(remove_tree, fresh)

    def _put(self, stage: Path, fresh: Path) -> Tally:
        with opened(stage) as source, opened(self.path) as current, opened(fresh) as target:
            copy_tree(current, target, self._limits, link_files=True)
            _lay_over(source, target)
            tally = size_of(target, self._limits)
        _check_size(tally, self._limits)
        _put_in_place(self._directory, fresh)
        with opened(self._directory) as directory:
            flush(directory)
        return tally

    async def _fresh(self) -> Path:
        fresh = self._directory / new_id("next")
        await asyncio.to_thread(fresh.mkdir, 0o700)
        return fresh

    def release(self) -> None:
        """Let the next one have it; harmless if that was done."""
        release, self._release = self._release, _nothing
        release()


def _nothing() -> None:
    return


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A file of a kept workspace, or a link in it."""

    path: str
    size: int
    modified: float
    link_target: str | None = None


class _Turn:
    """Whose turn it is in one session, and how many want to have theirs."""

    __slots__ = ("lock", "wanted")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.wanted = 0


class Workspaces:
    """The workspaces of all sessions."""

    def __init__(self, data_dir: Path, limits: TreeLimits) -> None:
        self._root = data_dir / "sessions"
        self._limits = limits
        self._turns: dict[str, _Turn] = {}

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

    async def hold(self, session_id: str, exists: Callable[[], Awaitable[object]] | None = None) -> Held:
        """The workspace of a session, waiting until nobody else has it; it must be released.

        Where it may have been removed meanwhile, ``exists`` raises.
        """
        directory = self._directory(session_id)
        await self._take_turn(session_id)
        try:
            if exists is not None:
                await exists()
            await asyncio.to_thread(_make, directory)
        except BaseException:
            self._end_turn(session_id)
            raise
        return Held(directory, self._limits, lambda: self._end_turn(session_id))

    @contextlib.asynccontextmanager
    async def for_upload(self, session_id: str, exists: Callable[[], Awaitable[object]]) -> AsyncIterator[Held]:
        """The workspace of a session for a moment; ``Conflict`` where a run keeps it for long."""
        try:
            async with asyncio.timeout(UPLOAD_WAIT_SECONDS):
                held = await self.hold(session_id, exists)
        except TimeoutError:
            raise Conflict("a run of this session uses its workspace", session_id=session_id) from None
        try:
            yield held
        finally:
            held.release()

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
        """What ``read`` finds; raises FileNotFoundError where it finds nothing however often it looks."""

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
        """Remove the files of a session, once nobody uses them any more."""
        directory = self._directory(session_id)
        await self._take_turn(session_id)
        try:
            await asyncio.to_thread(self._remove, directory)
        finally:
            self._end_turn(session_id)

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

    async def _take_turn(self, session_id: str) -> None:
        turn = self._turns.setdefault(session_id, _Turn())
        turn.wanted += 1
        try:
            await turn.lock.acquire()
        except BaseException:
            self._want_no_more(session_id, turn)
            raise

    def _end_turn(self, session_id: str) -> None:
        turn = self._turns[session_id]
        turn.lock.release()
        self._want_no_more(session_id, turn)

    def _want_no_more(self, session_id: str, turn: _Turn) -> None:
        turn.wanted -= 1
        if not turn.wanted:
            del self._turns[session_id]


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

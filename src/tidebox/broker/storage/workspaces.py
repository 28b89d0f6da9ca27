"""Locks on session workspaces: a run holds one from before its start to its end, an upload for a moment."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from tidebox.broker.storage.workspace_store import WorkspaceStore
from tidebox.errors import Conflict
from tidebox.runtime.base import Box
from tidebox.untrusted_files.trees import Tally

UPLOAD_WAIT_SECONDS = 10.0


class HeldWorkspace:
    """A workspace in the hands of one run or upload."""

    def __init__(self, workspaces: Workspaces, session_id: str, release: Callable[[], None]) -> None:
        self._workspaces = workspaces
        self._store = workspaces.store
        self._session_id = session_id
        self._release = release
        self.left_out = 0
        """How much of the box's workspace was no file, directory or link, and is not kept."""

    async def place(self, box: Box) -> None:
        """Copy it into a fresh box."""
        await self._store.place(self._session_id, box)

    async def keep(self, box: Box) -> None:
        """Make what a stopped box has in its workspace the new state."""
        self._workspaces.note(self._session_id, None)
        self.left_out = await self._store.keep(self._session_id, box)
        if not self.left_out:
            self._workspaces.note(self._session_id, box)

    def is_in(self, box: Box) -> bool:
        """Whether a box has this very state, and nothing besides, in its workspace."""
        return self._workspaces.is_in(self._session_id, box)

    async def put(self, stage: Path) -> Tally:
        """Put the files of ``stage``, a directory of ours, over those there are; how much there is then."""
        self._workspaces.note(self._session_id, None)
        return await self._store.put(self._session_id, stage)

    def release(self) -> None:
        """Let the next one have it; harmless if that was done."""
        release, self._release = self._release, _nothing
        release()


def _nothing() -> None:
    return


class _Turn:
    """The lock of one session, and how many hold it or wait for it."""

    __slots__ = ("lock", "wanted")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.wanted = 0


class Workspaces:
    """The workspaces of all sessions, each used by one at a time."""

    def __init__(self, store: WorkspaceStore) -> None:
        self.store = store
        """To read them, which anybody may at any time."""
        self._turns: dict[str, _Turn] = {}
        self._boxes: dict[str, weakref.ref[Box]] = {}

    def note(self, session_id: str, box: Box | None) -> None:
        """The box that has the state of a session in its workspace; None where no box does any more."""
        if box is None:
            self._boxes.pop(session_id, None)
        else:
            self._boxes[session_id] = weakref.ref(box)

    def is_in(self, session_id: str, box: Box) -> bool:
        """Whether it is that box."""
        noted = self._boxes.get(session_id)
        return noted is not None and noted() is box

    async def hold(self, session_id: str, exists: Callable[[], Awaitable[object]] | None = None) -> HeldWorkspace:
        """The workspace of a session, waiting until nobody else has it; it must be released.

        Where it may have been removed meanwhile, ``exists`` raises.
        """
        await self._take_turn(session_id)
        try:
            if exists is not None:
                await exists()
            await self.store.create(session_id)
        except BaseException:
            self._end_turn(session_id)
            raise
        return HeldWorkspace(self, session_id, lambda: self._end_turn(session_id))

    @contextlib.asynccontextmanager
    async def for_upload(
        self, session_id: str, exists: Callable[[], Awaitable[object]]
    ) -> AsyncIterator[HeldWorkspace]:
        """The workspace of a session for a moment; ``Conflict`` where a run keeps it for long."""
        try:
            async with asyncio.timeout(UPLOAD_WAIT_SECONDS):
                workspace = await self.hold(session_id, exists)
        except TimeoutError:
            raise Conflict("a run of this session uses its workspace", session_id=session_id) from None
        try:
            yield workspace
        finally:
            workspace.release()

    async def remove(self, session_id: str) -> None:
        """Remove the files of a session, once nobody uses them any more."""
        await self._take_turn(session_id)
        self.note(session_id, None)
        try:
            await self.store.remove(session_id)
        finally:
            self._end_turn(session_id)

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

"""Workspace sync: how files reach a run.

Few files travel with the request. Many are kept on the server, in a session of the folder, and only what changed since
the last run is sent. If a program left anything else there than it found, the next run has a new session, so that every
run has the folder as it is and nothing more.
"""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tidebox.errors import Conflict, Expired, NotFound, TideboxError
from tidebox.lsp.workspace_scan import ScanResult, Signature, WorkspaceScanner
from tidebox.model.limits import MIB
from tidebox.sdk.interpreter.client import AsyncInterpreter

# What a request may have of files within it.
INLINE_BYTES, INLINE_FILES = MIB, 1000
_SESSION_SECONDS = 3600.0
_CLOSE_SECONDS = 5.0
_SESSION_OPTIONS = ("base_image", "runtime", "packages")
"""Options of a session; the runs in it have them from there."""

Listing = dict[str, tuple[int, Any]]


class NotStarted(Exception):
    """It was cancelled before it began."""


@dataclass(slots=True)
class _FolderSession:
    id: str
    terms: dict[str, Any]
    sent: dict[str, Signature | bytes] = field(default_factory=dict)
    """Path -> what was sent: the file on the disk, or the text."""


@dataclass(frozen=True, slots=True)
class SyncedFiles:
    """Options that give a run its files."""

    options: dict[str, Any]
    sent_files: int
    """Number of files that had to be uploaded."""


class WorkspaceSync:
    """Synchronizes one workspace folder with the server: inline files, or uploads into a session."""

    def __init__(self, client: AsyncInterpreter, scanner: WorkspaceScanner) -> None:
        self._client = client
        self._scanner = scanner
        self._session: _FolderSession | None = None
        # Runs in a session come one after the other.
        self._turn = asyncio.Lock()

    async def close(self) -> None:
        """Leave nothing on the server."""
        await self._forget()

    @asynccontextmanager
    async def run_files(
        self, scanned: ScanResult, options: Mapping[str, Any], cancelled: asyncio.Event | None = None
    ) -> AsyncIterator[SyncedFiles]:
        """Provide the files of one run, within this context; raises ``NotStarted`` if cancelled before its turn."""
        if scanned.bytes <= INLINE_BYTES and len(scanned.texts) + len(scanned.files) <= INLINE_FILES:
            files = await asyncio.to_thread(self._contents, scanned, list(scanned.files))
            yield SyncedFiles({**options, "files": files or None}, len(files))
            return
        async with self._in_turn(cancelled or asyncio.Event()):
            terms = {name: options.get(name) for name in _SESSION_OPTIONS}
            session, listing, sent = await self._synchronized(scanned, terms)
            # A cache of compiled modules would be something that it left.
            env = {"PYTHONDONTWRITEBYTECODE": "1", **(options.get("env") or {})}
            rest = {name: value for name, value in options.items() if name not in _SESSION_OPTIONS}
            ended = False
            try:
                yield SyncedFiles({**rest, "env": env, "session_id": session.id}, sent)
                ended = True
            finally:
                # A run that was given up may still be changing it.
                if not ended or not await self._unchanged(session, listing):
                    await self._forget()

    @asynccontextmanager
    async def _in_turn(self, cancelled: asyncio.Event) -> AsyncIterator[None]:
        """Wait until no other run has the session: as long as others run, unless it is cancelled."""
        loop = asyncio.get_running_loop()
        coming, giving_up = loop.create_task(self._turn.acquire()), loop.create_task(cancelled.wait())
        try:
            await asyncio.wait({coming, giving_up}, return_when=asyncio.FIRST_COMPLETED)
            if not coming.done() or cancelled.is_set():
                raise NotStarted
            yield
        finally:
            for task in (coming, giving_up):
                task.cancel()
            await asyncio.wait({coming, giving_up})
            if not coming.cancelled():
                self._turn.release()

    def _contents(self, scanned: ScanResult, paths: list[str]) -> dict[str, bytes]:
        found = dict(scanned.texts)
        left = INLINE_BYTES - sum(map(len, found.values()))
        for path in paths:
            try:
                content = self._scanner.read(path, left + 1)
            except OSError:
                continue  # gone since it was looked at
            if len(content) <= left:
                left -= len(content)
                found[path] = content
        return found

    async def _synchronized(self, scanned: ScanResult, terms: dict[str, Any]) -> tuple[_FolderSession, Listing, int]:
        wanted: dict[str, Signature | bytes] = {**scanned.files, **scanned.texts}
        session = self._session
        if session is not None and (session.terms != terms or not session.sent.keys() <= wanted.keys()):
            # Files cannot be taken out of a session.
            await self._forget()
            session = None
        if session is not None:
            try:
                return session, *await self._send_changed(session, wanted)
            except (NotFound, Expired, Conflict):
                await self._forget()
        made = await self._client.create_session(
            **{name: value for name, value in terms.items() if value is not None}, ttl=_SESSION_SECONDS
        )
        session = self._session = _FolderSession(made.id, terms)
        return session, *await self._send_changed(session, wanted)

    async def _send_changed(self, session: _FolderSession, wanted: dict[str, Signature | bytes]) -> tuple[Listing, int]:
        changed = {path: what for path, what in wanted.items() if session.sent.get(path) != what}
        if changed:
            archive = await asyncio.to_thread(self._pack, changed)
            await self._client.upload_archive(session.id, archive)
            session.sent |= changed
        return await self._list(session.id), len(changed)

    def _pack(self, changed: Mapping[str, Signature | bytes]) -> bytes:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for path, what in changed.items():
                member = tarfile.TarInfo(path)
                if isinstance(what, bytes):
                    content = what
                else:
                    try:
                        content = self._scanner.read(path, what.size)
                    except OSError:
                        continue  # gone since it was looked at
                    member.mtime = what.modified // 10**9
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        return packed.getvalue()

    async def _list(self, session_id: str) -> Listing:
        listed = await self._client.list_files(session_id)
        return {item.path: (item.size, item.modified_at) for item in listed.items}

    async def _unchanged(self, session: _FolderSession, listing: Listing) -> bool:
        try:
            return await self._list(session.id) == listing
        except TideboxError:
            return False

    async def _forget(self) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._client.delete_session(session.id)
        except (TideboxError, TimeoutError):
            pass  # its time will be over

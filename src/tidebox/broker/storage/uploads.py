"""Uploads: files that come in over time, are gathered on disk, and reach a workspace all at once or not at all.

Nothing is held in memory but the piece that just arrived: each part is spooled into a file of its own. A plain file is
then renamed into the stage, an archive is unpacked there; only a stage that is whole, and on the disk, takes its place
in the workspace.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from weakref import WeakValueDictionary

from tidebox.broker.audit.audit_log import Audit
from tidebox.broker.run_metrics import RunMetrics
from tidebox.broker.storage.git_fetch import GitFetch, GitRules, check
from tidebox.broker.storage.staging_area import StagingArea
from tidebox.broker.storage.workspaces import Workspaces
from tidebox.errors import Overloaded, PayloadTooLarge, StoreUnavailable
from tidebox.model.git_source import GitSource
from tidebox.model.principal import Caller
from tidebox.untrusted_files.durability import flush
from tidebox.untrusted_files.ignore import ALWAYS, Ignore
from tidebox.untrusted_files.staging import ArchiveKind, Stage, StageLimits
from tidebox.untrusted_files.trees import NEW_FILE, opened, remove_tree

_FLUSH_BYTES = 1 << 20
MAX_CLONES = 4
"""Fetches at once: each is a process with a connection of its own."""
MAX_USER_CLONES = MAX_CLONES // 2
"""Of one user, however slowly they come: others wait for their own only."""
MAX_STAGINGS = 2
"""Uploads that are unpacked at once, each in as much memory as the most demanding archive takes; one of each user, so
that those who come with one wait for others' turns and not for others' heaps."""
MAX_UPLOADS = 16
"""Uploads at once: each may take as much of the disk as a workspace before it is known to be too much."""
MAX_USER_UPLOADS = MAX_UPLOADS // 2
"""Of one user, who may send them as slowly as they like: there is always room for another."""
MAX_REPOSITORY_FILES = 10_000
MAX_REPOSITORY_DEPTH = 30
"""Repositories are larger and deeper than what people upload; the workspace bounds both in the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadRules:
    """Limits of one upload."""

    max_received: int
    stage: StageLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadResult:
    """The result of an upload."""

    bytes_received: int
    file_count: int
    ignored_count: int
    workspace_bytes: int
    workspace_files: int
    commit: str | None = None


@dataclass(frozen=True, slots=True)
class StagedFiles:
    """Files in a directory of ours, ready to be put into a workspace or a box."""

    tree: Path
    files: int
    ignored: int = 0
    bytes: int = 0
    commit: str | None = None


class UploadPart:
    """One file as it arrives."""

    def __init__(
        self, upload: IncomingUpload, descriptor: int, name: str, spool: str, archive: ArchiveKind | None
    ) -> None:
        self.name = name
        self.archive = archive
        self.spool = spool
        self._upload = upload
        self._descriptor = descriptor
        self._waiting: list[bytes] = []
        self._size = 0

    async def write(self, data: bytes) -> None:
        """Append data to the part."""
        self._upload.count(len(data))
        self._waiting.append(data)
        self._size += len(data)
        if self._size >= _FLUSH_BYTES:
            await self._flush()

    async def close(self) -> None:
        """Finish the part."""
        await self._flush()
        os.close(self._descriptor)
        self._descriptor = -1

    def abandon(self) -> None:
        """Close its file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    async def _flush(self) -> None:
        waiting, self._waiting, self._size = self._waiting, [], 0
        if waiting:
            with _disk_errors():
                await asyncio.to_thread(_write_all, self._descriptor, waiting)


def _write_all(descriptor: int, pieces: list[bytes]) -> None:
    view = memoryview(b"".join(pieces))
    while view:
        view = view[os.write(descriptor, view) :]


class IncomingUpload:
    """An upload under way: parts come first, then ``finish``."""

    def __init__(self, directory: Path, rules: UploadRules) -> None:
        self._directory = directory
        self._rules = rules
        self._parts: list[UploadPart] = []
        self._received = 0
        self.ignore: list[str] = list(ALWAYS)
        """Patterns of what is left out."""
        self.files: dict[str, bytes] = {}
        """Small files that came with the request itself."""

    def count(self, size: int) -> None:
        """Count received bytes; raises ``PayloadTooLarge``."""
        self._received += size
        if self._received > self._rules.max_received:
            limit = self._rules.max_received
            raise PayloadTooLarge(f"the upload is longer than {limit} bytes", limit=limit)

    @property
    def received(self) -> int:
        """Number of bytes received."""
        return self._received

    @property
    def part_count(self) -> int:
        """Number of parts."""
        return len(self._parts)

    def part(self, name: str, archive: ArchiveKind | None = None) -> UploadPart:
        """The next part; an archive is unpacked into the root of the workspace."""
        if len(self._parts) >= self._rules.stage.max_files:
            limit = self._rules.stage.max_files
            raise PayloadTooLarge(f"more than {limit} files", limit=limit)
        spool = str(len(self._parts))
        descriptor = os.open(self._directory / "parts" / spool, NEW_FILE, 0o644)
        part = UploadPart(self, descriptor, name, spool, archive)
        self._parts.append(part)
        return part

    def stage(self) -> StagedFiles:
        """Make one tree of all parts."""
        tree = self._directory / "tree"
        with opened(self._directory / "parts") as parts, opened(tree) as root:
            left_out = Ignore(self.ignore)
            with contextlib.closing(Stage(root, self._rules.stage, left_out)) as stage:
                for part in self._parts:
                    if part.archive is None:
                        stage.adopt(part.name, parts, part.spool)
                    else:
                        self._unpack(stage, left_out, parts, part, part.archive)
                for name, content in self.files.items():
                    stage.put(name, content)
            flush(root)
        return StagedFiles(tree, stage.file_count, stage.ignored)

    def _unpack(self, stage: Stage, left_out: Ignore, parts: int, part: UploadPart, kind: ArchiveKind) -> None:
        descriptor = os.open(part.spool, os.O_RDONLY | os.O_CLOEXEC, dir_fd=parts)
        try:
            left_out.extend(stage.ignore_lines(descriptor, kind))
            stage.unpack(descriptor, kind)
        finally:
            os.close(descriptor)
        os.unlink(part.spool, dir_fd=parts)

    def abandon(self) -> None:
        """Let go of what was not closed."""
        for part in self._parts:
            part.abandon()


class Uploads:
    """Takes in what is sent, or fetched, for sessions and runs."""

    def __init__(
        self,
        spool: StagingArea,
        workspaces: Workspaces,
        rules: UploadRules,
        git: GitRules,
        metrics: RunMetrics,
        audit: Audit,
    ) -> None:
        self._spool = spool
        self._audit = audit
        self._workspaces = workspaces
        self._rules = rules
        self._git = git
        self._metrics = metrics
        self._clones = asyncio.Semaphore(MAX_CLONES)
        self._clones_of: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._stagings = asyncio.Semaphore(MAX_STAGINGS)
        self._staging_of: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._under_way: Counter[str] = Counter()
        # Of their own, because they are long: readers of logs and files must not wait for a slow host.
        self._threads = ThreadPoolExecutor(MAX_CLONES + MAX_STAGINGS, thread_name_prefix="files")

    async def start(self) -> None:
        """Remove what an earlier server did not finish."""
        await self._spool.start()

    def close(self) -> None:
        """Stop: start no more fetches or unpacking."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _in_thread(self, work: Callable[[], StagedFiles]) -> asyncio.Future[StagedFiles]:
        return asyncio.get_running_loop().run_in_executor(self._threads, work)

    def check_git(self, source: GitSource) -> None:
        """Refuse a repository that would not be fetched."""
        check(source, self._git)

    @contextlib.asynccontextmanager
    async def receiving(self, caller: Caller) -> AsyncIterator[IncomingUpload]:
        """An upload, of which nothing is left afterwards but what was put into a workspace."""
        self._audit.check()
        user = caller.principal.user
        if self._under_way.total() >= MAX_UPLOADS:
            raise Overloaded(f"{MAX_UPLOADS} uploads are under way", scope="server", retry_after=1.0)
        if self._under_way[user] >= MAX_USER_UPLOADS:
            raise Overloaded(f"{MAX_USER_UPLOADS} of your uploads are under way", scope="user", retry_after=1.0)
        self._under_way[user] += 1
        try:
            async with self._directory() as directory:
                upload = IncomingUpload(directory, self._rules)
                try:
                    yield upload
                finally:
                    upload.abandon()
        finally:
            self._under_way -= Counter([user])  # which forgets users who have none

    async def put(
        self,
        caller: Caller,
        session_id: str,
        upload: IncomingUpload,
        kind: str,
        exists: Callable[[], Awaitable[object]],
    ) -> UploadResult:
        """Put a whole upload into the workspace of a session, unless ``exists`` raises that there is none any more."""
        with _disk_errors():
            own = self._staging_of.setdefault(caller.principal.user, asyncio.Semaphore(1))
            async with own, self._stagings:
                staged = await self._staged(upload)
            return await self._put(caller, session_id, staged, kind, upload.received, exists)

    async def _staged(self, upload: IncomingUpload) -> StagedFiles:
        work = self._in_thread(upload.stage)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            # The next upload would share the thread with it, and the directory must not go before it ends.
            await asyncio.wait([work])
            raise

    async def put_repository(
        self, caller: Caller, session_id: str, source: GitSource, exists: Callable[[], Awaitable[object]]
    ) -> UploadResult:
        """Put the files of a repository into the workspace of a session."""
        async with self.fetched(caller.principal.user, source) as staged:
            with _disk_errors():
                return await self._put(caller, session_id, staged, "git", staged.bytes, exists)

    async def _put(
        self,
        caller: Caller,
        session_id: str,
        staged: StagedFiles,
        kind: str,
        received: int,
        exists: Callable[[], Awaitable[object]],
    ) -> UploadResult:
        async with self._workspaces.for_upload(session_id, exists) as workspace:
            tally = await workspace.put(staged.tree)
        self._metrics.uploaded(kind, received, staged.files)
        self._audit.record(
            "sandbox.session.files_uploaded",
            caller,
            "stored",
            session_id=session_id,
            kind=kind,
            bytes=received,
            files=staged.files,
            commit=staged.commit,
        )
        return UploadResult(
            bytes_received=received,
            file_count=staged.files,
            ignored_count=staged.ignored,
            workspace_bytes=tally.bytes,
            workspace_files=tally.files,
            commit=staged.commit,
        )

    @contextlib.asynccontextmanager
    async def fetched(self, user: str, source: GitSource) -> AsyncIterator[StagedFiles]:
        """The files of a repository, in a directory that lasts as long as this."""
        check(source, self._git)
        own = self._clones_of.setdefault(user, asyncio.Semaphore(MAX_USER_CLONES))
        async with self._directory() as directory:
            async with own, self._clones:
                staged = await self._fetch(source, directory)
            yield staged

    async def _fetch(self, source: GitSource, directory: Path) -> StagedFiles:
        repository = directory / "repository"
        await asyncio.to_thread(repository.mkdir, 0o700)
        fetch = GitFetch(source, self._git, repository)
        work = self._in_thread(functools.partial(self._stage_fetched, fetch, directory / "tree"))
        try:
            with _disk_errors():
                staged = await asyncio.shield(work)
        except asyncio.CancelledError:
            fetch.stop()
            await asyncio.wait([work])
            raise
        await asyncio.to_thread(remove_tree, repository)
        return staged

    def _stage_fetched(self, fetch: GitFetch, tree: Path) -> StagedFiles:
        with opened(tree) as root:
            limits = replace(self._rules.stage, max_files=MAX_REPOSITORY_FILES, max_depth=MAX_REPOSITORY_DEPTH)
            with contextlib.closing(Stage(root, limits, Ignore(), keep_links=True)) as stage:
                commit = fetch.into(stage)
            flush(root)
        return StagedFiles(tree, stage.file_count, stage.ignored, stage.bytes, commit)

    @contextlib.asynccontextmanager
    async def _directory(self) -> AsyncIterator[Path]:
        async with self._spool.directory() as directory:
            try:
                await asyncio.to_thread(_make, directory)
            except OSError as error:
                raise StoreUnavailable(f"no upload can be taken: {error.strerror}") from error
            yield directory


def _make(directory: Path) -> None:
    for name in ("parts", "tree"):
        (directory / name).mkdir(mode=0o700)


@contextlib.contextmanager
def _disk_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(f"the upload could not be kept: {error.strerror}") from error

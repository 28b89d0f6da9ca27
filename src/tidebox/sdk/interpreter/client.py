"""The interpreter service, for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import BinaryIO, Literal, Unpack, overload

from tidebox.errors import TideboxError
from tidebox.model.git_source import GitSource
from tidebox.model.limits import MIB
from tidebox.model.principal import ClientSource
from tidebox.model.run import Phase
from tidebox.protocols.codec import decode
from tidebox.sdk.closeable import AsyncCloseable
from tidebox.sdk.file_content import Content, LocalPath, UploadContent, check_target, write_to
from tidebox.sdk.http_client import HttpClient
from tidebox.sdk.interpreter.admin import AsyncAdmin
from tidebox.sdk.interpreter.calls import MAX_FILE_BYTES, Query, ServiceCalls, below, part
from tidebox.sdk.interpreter.entries import LogEntry, decode_lines
from tidebox.sdk.interpreter.multipart_form import MultipartForm
from tidebox.sdk.interpreter.requests import (
    RunCommandOptions,
    SessionOptions,
    StartRunOptions,
    git_source,
    make_query,
    make_run,
    make_session,
)
from tidebox.sdk.interpreter.results import (
    ArtifactList,
    ArtifactsDeleted,
    Page,
    Run,
    RunResult,
    RuntimesAnswer,
    ServiceHealth,
    Session,
    UploadAnswer,
    WorkspaceAnswer,
)
from tidebox.sdk.interpreter.run_log import AsyncRunLog
from tidebox.sdk.interpreter.run_output import collect

Stream = Literal["stdout", "stderr"]
ArchiveKind = Literal["tar", "zip"]

_CONTENT_TYPES: dict[ArchiveKind, str] = {"tar": "application/x-tar", "zip": "application/zip"}
# How long the server is asked to wait for the end of a run before it answers, and the least pause between two answers.
_WAIT_SECONDS = 30.0
_LEAST_PAUSE = 0.5
# What a server may take to unpack an upload, or to fetch a repository.
_UNPACK_SECONDS = 120.0
_ABANDON_SECONDS = 10.0


class AsyncInterpreter(AsyncCloseable):
    """The interpreter service of a server: sessions with files, runs, their logs and artifacts.

    ``url`` is the server's address, ``api_key`` the key for it; ``tidebox.sdk.server_target`` says what is used without
    them. ``connect_timeout`` is how long a connection may take to be made, ``timeout`` how long an answer may take, and
    ``patience`` how long a call tries again after a lost connection or as the server's ``Retry-After`` says; all in
    seconds. ``source`` is what kind of program this is, for the server's audit log.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        connect_timeout: float = 10.0,
        timeout: float = 60.0,
        patience: float = 30.0,
        source: ClientSource = "SDK",
        http: HttpClient | None = None,
    ) -> None:
        """``http`` is how requests travel, where that is not over connections of its own."""
        self._calls = ServiceCalls(
            url, api_key, connect_timeout=connect_timeout, timeout=timeout, patience=patience, source=source, http=http
        )
        self.admin = AsyncAdmin(self._calls)
        """The admin routes."""

    async def close(self) -> None:
        """End the connections. Runs go on, and sessions stay."""
        await self._calls.close()

    # The server

    async def runtimes(self) -> RuntimesAnswer:
        """The runtimes of the server with the guarantees they enforce, its limits and versions."""
        return await self._calls.ask("GET", "/runtimes", RuntimesAnswer)

    async def health(self) -> ServiceHealth:
        """The health and load of the server. Raises at once if it takes no work."""
        return await self._calls.ask_once("/health", ServiceHealth)

    # Sessions

    async def create_session(self, *, idempotency_key: str | None = None, **options: Unpack[SessionOptions]) -> Session:
        """Make a workspace that several runs share; see ``SessionOptions`` for what can be said of it."""
        return await self._calls.create("/sessions", Session, make_session(**options), idempotency_key)

    async def get_session(self, session_id: str) -> Session:
        """A session that can be used."""
        return await self._calls.ask("GET", f"/sessions/{part(session_id)}", Session)

    async def list_sessions(self, *, limit: int = 50, offset: int = 0) -> Page[Session]:
        """The caller's sessions, newest first."""
        query = make_query(limit=limit, offset=offset)
        return await self._calls.ask("GET", "/sessions", Page[Session], query=query)

    async def delete_session(self, session_id: str) -> None:
        """Kill what runs in a session, and remove it with its files. Its runs can still be asked for."""
        await self._calls.remove(f"/sessions/{part(session_id)}")

    # Files of sessions

    async def upload_files(
        self, session_id: str, files: Mapping[str, Content], *, ignore: Sequence[str] = (), expand: bool = False
    ) -> UploadAnswer:
        """Put files into the workspace of a session, all of them or none: path -> bytes, a path here, or a file.

        With ``expand`` archives among them are unpacked. ``ignore`` are patterns of files to leave out.
        """
        form = MultipartForm(files)
        return await self._upload(session_id, form, form.content_type, make_query(ignore=tuple(ignore), expand=expand))

    async def upload_archive(
        self, session_id: str, archive: Content, *, kind: ArchiveKind = "tar", ignore: Sequence[str] = ()
    ) -> UploadAnswer:
        """Unpack an archive in the workspace of a session: a tar, compressed or not, or a zip."""
        query = make_query(ignore=tuple(ignore))
        return await self._upload(session_id, UploadContent(archive), _CONTENT_TYPES[kind], query)

    async def upload_git(self, session_id: str, source: GitSource) -> UploadAnswer:
        """Let the server put the files of a git repository into the workspace of a session."""
        return await self._calls.ask(
            "POST",
            f"/sessions/{part(session_id)}/files",
            UploadAnswer,
            {"git": git_source(source)},
            longer=_UNPACK_SECONDS,
        )

    async def _upload(
        self, session_id: str, upload: MultipartForm | UploadContent, content_type: str, query: Query
    ) -> UploadAnswer:
        """Send files. They replace others as a whole, so they may come twice."""
        path = f"/sessions/{part(session_id)}/files"

        async def attempt() -> bytes:
            body = await upload.begin()
            try:
                return await self._calls.send(path, body, content_type, query=query, longer=_UNPACK_SECONDS)
            finally:
                await upload.end()

        return decode(UploadAnswer, await self._calls.persist(attempt, lambda: upload.replayable))

    async def list_files(self, session_id: str) -> WorkspaceAnswer:
        """The files of a session as they were after the last run that ended, or the last upload."""
        return await self._calls.ask("GET", f"/sessions/{part(session_id)}/files", WorkspaceAnswer)

    @overload
    async def download_file(self, session_id: str, path: str, *, max_bytes: int = ...) -> bytes: ...

    @overload
    async def download_file(
        self, session_id: str, path: str, to: LocalPath | BinaryIO, *, max_bytes: int = ...
    ) -> int: ...

    async def download_file(
        self,
        session_id: str,
        path: str,
        to: LocalPath | BinaryIO | None = None,
        *,
        max_bytes: int = MAX_FILE_BYTES,
    ) -> bytes | int:
        """A file of a session: its content or, where it is to be written to a path or a file here, its size.

        A file at a path is replaced when all has come, and left as it was when not.
        """
        return await self._download(f"/sessions/{part(session_id)}/files/{below(path)}", to, max_bytes)

    # Runs

    async def start_run(
        self, command: Sequence[str], *, idempotency_key: str | None = None, **options: Unpack[StartRunOptions]
    ) -> Run:
        """Start a command, in a session or in a fresh workspace, and do not wait for its end.

        See ``StartRunOptions`` for what can be said of it.
        """
        return await self._calls.create("/runs", Run, make_run(command, **options), idempotency_key)

    async def run(
        self,
        command: Sequence[str],
        *,
        stdin: bytes | str | None = None,
        max_output: int = 64 * MIB,
        idempotency_key: str | None = None,
        **options: Unpack[RunCommandOptions],
    ) -> RunResult:
        """Run a command to its end, and collect what it prints; see ``RunCommandOptions`` for what can be said of it.

        Cancelling the call cancels the run.
        """
        # A task of its own: a caller that is cancelled meanwhile must still learn which run there is to cancel.
        starting = asyncio.get_running_loop().create_task(
            self.start_run(command, idempotency_key=idempotency_key, interactive=stdin is not None, **options)
        )
        try:
            run_id = (await asyncio.shield(starting)).id
            async with await self.stream_log(run_id) as log:
                output = await collect(log, stdin, max_output)
            ended = await self.wait_run(run_id)
        except BaseException:
            await abandon(self, starting)
            raise
        return RunResult(ended, output.stdout, output.stderr, output.lost)

    async def get_run(self, run_id: str) -> Run:
        """The state of a run, and its result once it is over."""
        return await self._calls.ask("GET", f"/runs/{part(run_id)}", Run)

    async def list_runs(
        self, *, session_id: str | None = None, phase: Phase | None = None, limit: int = 50, offset: int = 0
    ) -> Page[Run]:
        """The caller's runs, newest first."""
        query = make_query(session_id=session_id, phase=phase, limit=limit, offset=offset)
        return await self._calls.ask("GET", "/runs", Page[Run], query=query)

    async def wait_run(self, run_id: str) -> Run:
        """A run once it is over."""
        loop = asyncio.get_running_loop()
        path, query = f"/runs/{part(run_id)}", make_query(wait_sec=_WAIT_SECONDS)
        while True:
            asked = loop.time()
            run = await self._calls.ask("GET", path, Run, query=query, longer=_WAIT_SECONDS)
            if run.phase.terminal:
                return run
            await asyncio.sleep(max(0.0, asked + _LEAST_PAUSE - loop.time()))

    async def cancel_run(self, run_id: str) -> Run:
        """Ask for the end of a run: SIGTERM, and SIGKILL after a grace. One that is over stays as it is."""
        return await self._calls.ask("POST", f"/runs/{part(run_id)}/cancel", Run)

    # Logs

    async def stream_log(self, run_id: str, *, from_seq: int | None = None, tail: bool = False) -> AsyncRunLog:
        """The log of a run as it is made: from its beginning, from an entry on, or only what comes next."""
        return await AsyncRunLog.open(self._calls, run_id, from_seq, tail)

    async def read_log(self, run_id: str, *, stream: Stream | None = None, from_seq: int | None = None) -> bytes:
        """The output of a run so far, both streams in the order of their arrival or one of them."""
        query = make_query(stream=stream, from_seq=from_seq, format="text")
        return await self._calls.fetch("GET", f"/runs/{part(run_id)}/logs", query=query)

    async def read_log_entries(
        self, run_id: str, *, stream: Stream | None = None, from_seq: int | None = None
    ) -> list[LogEntry]:
        """The entries that the log of a run has so far."""
        query = make_query(stream=stream, from_seq=from_seq, format="jsonl")
        return list(decode_lines(await self._calls.fetch("GET", f"/runs/{part(run_id)}/logs", query=query)))

    # Artifacts

    async def list_artifacts(self, run_id: str) -> ArtifactList:
        """The files that a run left, of those its patterns name."""
        return await self._calls.ask("GET", f"/runs/{part(run_id)}/artifacts", ArtifactList)

    @overload
    async def download_artifact(self, run_id: str, path: str, *, max_bytes: int = ...) -> bytes: ...

    @overload
    async def download_artifact(
        self, run_id: str, path: str, to: LocalPath | BinaryIO, *, max_bytes: int = ...
    ) -> int: ...

    async def download_artifact(
        self, run_id: str, path: str, to: LocalPath | BinaryIO | None = None, *, max_bytes: int = MAX_FILE_BYTES
    ) -> bytes | int:
        """An artifact: its content or, where it is to be written to a path or a file here, its size.

        A file at a path is replaced when all has come, and left as it was when not.
        """
        return await self._download(f"/runs/{part(run_id)}/artifacts/{below(path)}", to, max_bytes)

    async def download_artifacts(
        self, run_id: str, to: LocalPath | BinaryIO, *, max_bytes: int = MAX_FILE_BYTES
    ) -> int:
        """All artifacts of a run as a zip, written to a path or a file here; its size."""
        size = await self._download(f"/runs/{part(run_id)}/artifacts.zip", to, max_bytes)
        assert isinstance(size, int)
        return size

    async def delete_artifacts(self, run_id: str) -> ArtifactsDeleted:
        """Remove the artifacts of a run before their time is over, which makes room for others."""
        return await self._calls.ask("DELETE", f"/runs/{part(run_id)}/artifacts", ArtifactsDeleted)

    async def _download(self, path: str, to: LocalPath | BinaryIO | None, max_bytes: int) -> bytes | int:
        check_target(to)
        async with aclosing(self._calls.download(path, max_bytes)) as pieces:
            if to is None:
                return b"".join([piece async for piece in pieces])
            return await write_to(to, pieces)


async def abandon(client: AsyncInterpreter, starting: asyncio.Task[Run]) -> None:
    """Cancel a run that is being started, and whose end nobody waits for, as well as that can be done."""
    if starting.done() and (starting.cancelled() or starting.exception() is not None):
        return
    try:
        async with asyncio.timeout(_ABANDON_SECONDS):
            await client.cancel_run((await starting).id)
    except (TideboxError, TimeoutError):
        pass

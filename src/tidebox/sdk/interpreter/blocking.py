"""The interpreter service, for threads: blocking facades of the classes for asyncio."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, overload

from tidebox.model.principal import ClientSource
from tidebox.sdk.file_content import LocalPath
from tidebox.sdk.interpreter.admin import AsyncAdmin
from tidebox.sdk.interpreter.calls import MAX_FILE_BYTES
from tidebox.sdk.interpreter.client import AsyncInterpreter
from tidebox.sdk.interpreter.entries import LogEntry, RunEnd
from tidebox.sdk.interpreter.results import Run
from tidebox.sdk.interpreter.run_log import AsyncRunLog
from tidebox.sdk.loop_thread import BlockingFacade, ClosingFacade, LoopThread, blocking


class RunLog(ClosingFacade[AsyncRunLog]):
    """The log of a run; iterate over it for its entries as they come, up to the ``RunEnd``. One thread reads.

    A connection that is lost is made again, and the log goes on where it was. Closing it leaves the run alone.
    """

    write = blocking(AsyncRunLog.write)
    end_input = blocking(AsyncRunLog.end_input)

    @property
    def next_seq(self) -> int | None:
        """The number of the entry that comes next: where another reader would go on. None if that is not known yet."""
        return self._inner.next_seq

    @property
    def end(self) -> RunEnd | None:
        """How the run ended, once that was read."""
        return self._inner.end

    def __iter__(self) -> Iterator[LogEntry]:
        while (entry := self.read()) is not None:
            yield entry

    def read(self, timeout: float | None = None) -> LogEntry | None:
        """The next entry; None after the end.

        ``TimeoutError`` if that takes longer than ``timeout`` seconds; the log can be read on.
        """
        return self._thread.call(self._inner.read, timeout)


class Admin(BlockingFacade[AsyncAdmin]):
    """Everybody's runs, keys, usage, metrics and the audit log, for who has the role ``sandbox_admin``."""

    list_runs = blocking(AsyncAdmin.list_runs)
    get_run = blocking(AsyncAdmin.get_run)
    list_idempotency_keys = blocking(AsyncAdmin.list_idempotency_keys)
    list_usage = blocking(AsyncAdmin.list_usage)
    summarize_usage = blocking(AsyncAdmin.summarize_usage)
    metrics = blocking(AsyncAdmin.metrics)
    list_audit = blocking(AsyncAdmin.list_audit)


class Interpreter(ClosingFacade[AsyncInterpreter]):
    """The interpreter service of a server: sessions with files, runs, their logs and artifacts.

    The arguments are those of ``AsyncInterpreter``. Any number of threads may use one client.
    """

    runtimes = blocking(AsyncInterpreter.runtimes)
    health = blocking(AsyncInterpreter.health)
    create_session = blocking(AsyncInterpreter.create_session)
    get_session = blocking(AsyncInterpreter.get_session)
    list_sessions = blocking(AsyncInterpreter.list_sessions)
    delete_session = blocking(AsyncInterpreter.delete_session)
    upload_files = blocking(AsyncInterpreter.upload_files)
    upload_archive = blocking(AsyncInterpreter.upload_archive)
    upload_git = blocking(AsyncInterpreter.upload_git)
    list_files = blocking(AsyncInterpreter.list_files)
    start_run = blocking(AsyncInterpreter.start_run)
    run = blocking(AsyncInterpreter.run)
    get_run = blocking(AsyncInterpreter.get_run)
    list_runs = blocking(AsyncInterpreter.list_runs)
    cancel_run = blocking(AsyncInterpreter.cancel_run)
    stream_log = blocking(AsyncInterpreter.stream_log, RunLog)
    read_log = blocking(AsyncInterpreter.read_log)
    read_log_entries = blocking(AsyncInterpreter.read_log_entries)
    list_artifacts = blocking(AsyncInterpreter.list_artifacts)
    download_artifacts = blocking(AsyncInterpreter.download_artifacts)
    delete_artifacts = blocking(AsyncInterpreter.delete_artifacts)

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        connect_timeout: float = 10.0,
        timeout: float = 60.0,
        patience: float = 30.0,
        source: ClientSource = "SDK",
    ) -> None:
        inner = AsyncInterpreter(
            url, api_key=api_key, connect_timeout=connect_timeout, timeout=timeout, patience=patience, source=source
        )
        super().__init__(LoopThread(), inner)
        self.admin = Admin(self._thread, inner.admin)
        """The admin routes."""

    def close(self) -> None:
        """End the connections. Runs go on, and sessions stay."""
        super().close()
        self._thread.close()

    def wait_run(self, run_id: str, timeout: float | None = None) -> Run:
        """A run once it is over.

        ``TimeoutError`` if that takes longer than ``timeout`` seconds; the run goes on.
        """
        return self._thread.call(lambda: self._inner.wait_run(run_id), timeout)

    @overload
    def download_file(self, session_id: str, path: str, *, max_bytes: int = ...) -> bytes: ...

    @overload
    def download_file(self, session_id: str, path: str, to: LocalPath | BinaryIO, *, max_bytes: int = ...) -> int: ...

    def download_file(
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
        if to is None:
            return self._thread.call(lambda: self._inner.download_file(session_id, path, max_bytes=max_bytes))
        return self._thread.call(lambda: self._inner.download_file(session_id, path, to, max_bytes=max_bytes))

    @overload
    def download_artifact(self, run_id: str, path: str, *, max_bytes: int = ...) -> bytes: ...

    @overload
    def download_artifact(self, run_id: str, path: str, to: LocalPath | BinaryIO, *, max_bytes: int = ...) -> int: ...

    def download_artifact(
        self, run_id: str, path: str, to: LocalPath | BinaryIO | None = None, *, max_bytes: int = MAX_FILE_BYTES
    ) -> bytes | int:
        """An artifact: its content or, where it is to be written to a path or a file here, its size.

        A file at a path is replaced when all has come, and left as it was when not.
        """
        if to is None:
            return self._thread.call(lambda: self._inner.download_artifact(run_id, path, max_bytes=max_bytes))
        return self._thread.call(lambda: self._inner.download_artifact(run_id, path, to, max_bytes=max_bytes))

"""The audit log: who did what to which sandbox or execution, and how it ended.

Append-only JSON lines in files by day. Never in it: code, environment, output, tokens. Events are written in the
order in which they were recorded, by a thread of its own, in batches: the event loop never waits for the disk. When
the disk does not take them they are kept and tried again; when too many are kept, ``check`` refuses whatever would
make more of them.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import os
import re
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tidebox.broker.audit.query import AuditQuery, find_events
from tidebox.errors import AuditUnavailable
from tidebox.model.principal import Caller
from tidebox.model.timestamps import iso_time

_log = logging.getLogger(__name__)

# Long enough that a burst becomes one write, short enough that a killed server loses next to nothing.
_FLUSH_SECONDS = 0.1
_RETRY_SECONDS = 1.0
_NAME = re.compile(r"audit-(\d{4}-\d{2}-\d{2})-(\d{4})\.jsonl")


class AuditRecord(NamedTuple):
    """One event as it was recorded."""

    time: float
    event: str
    caller: Caller
    outcome: str
    fields: Mapping[str, Any]


def render(record: AuditRecord) -> bytes:
    """Render the JSON line of an event."""
    caller = record.caller
    line = {
        "ts": iso_time(record.time),
        "event": record.event,
        "user_id": caller.principal.user,
        "actor": caller.principal.actor,
        "surface": caller.surface,
        "source": caller.source,
        **({"client": caller.client} if caller.client is not None else {}),
        "address": caller.address,
        "request_id": caller.request_id,
        "outcome": record.outcome,
        **record.fields,
    }
    try:
        return msgspec.json.encode(line) + b"\n"
    except UnicodeEncodeError:
        # A name with half a surrogate pair in it must not keep the event out of the log.
        clean = {key: _encodable(value) for key, value in line.items()}
        return msgspec.json.encode(clean) + b"\n"


def _encodable(value: Any) -> Any:
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


class AuditFiles:
    """The files of the log; blocking, used by one thread at a time."""

    def __init__(self, directory: Path, *, retention_days: float, max_file_bytes: int) -> None:
        self._directory = directory
        self._retention_days = retention_days
        self._max_file_bytes = max_file_bytes
        self._file: int | None = None
        self._day = ""
        self._size = 0
        self._unwritten = b""
        self._within_line = False

    def open(self) -> None:
        """Make the directory and open today's file; raises OSError if the log cannot be written."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._turn_page(_today())

    def write(self, records: list[AuditRecord]) -> None:
        """Append ``records``. What did not fit on the disk is written before anything else by the next call."""
        self._unwritten += b"".join(map(render, records))
        today = _today()
        if self._unwritten and (self._file is None or self._page_is_full(today)):
            self._turn_page(today)
        while self._unwritten:
            assert self._file is not None
            written = os.write(self._file, self._unwritten)
            self._size += written
            self._within_line = self._unwritten[written - 1 : written] != b"\n"
            self._unwritten = self._unwritten[written:]

    def _page_is_full(self, today: str) -> bool:
        return (today != self._day or self._size >= self._max_file_bytes) and not self._within_line

    def close(self) -> None:
        """Bring what was written to the disk."""
        if self._file is not None:
            file, self._file = self._file, None
            try:
                os.fsync(file)
            finally:
                os.close(file)

    def _turn_page(self, day: str) -> None:
        """Open the file that is to be written now, and remove those kept long enough.

        The last line of a file is torn where a server was killed or a disk was full; then a new one is begun.
        """
        number = max((int(match[2]) for match in self._existing() if match[1] == day), default=0)
        while True:
            path = self._directory / f"audit-{day}-{number:04d}.jsonl"
            file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            size = os.fstat(file).st_size
            if size < self._max_file_bytes:
                break
            os.close(file)
            number += 1
        self.close()
        self._file, self._day, self._size = file, day, size
        if size and os.pread(file, 1, size - 1) != b"\n":
            self._unwritten = b"\n" + self._unwritten
        self._expire(day)

    def _existing(self) -> list[re.Match[str]]:
        return [match for name in os.listdir(self._directory) if (match := _NAME.fullmatch(name))]

    def _expire(self, today: str) -> None:
        now = datetime.date.fromisoformat(today)
        for match in self._existing():
            try:
                age = now - datetime.date.fromisoformat(match[1])
            except ValueError:
                continue  # no date, so no file of ours
            if age.days > self._retention_days:
                (self._directory / match[0]).unlink(missing_ok=True)


def _today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()


class Audit:
    """Records events from the event loop."""

    def __init__(
        self,
        directory: Path,
        *,
        retention_days: float = 30,
        max_file_bytes: int = 64 * 1024 * 1024,
        max_backlog: int = 10_000,
    ) -> None:
        self._directory = directory
        self._files = AuditFiles(directory, retention_days=retention_days, max_file_bytes=max_file_bytes)
        self._max_backlog = max_backlog
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="audit")
        self._pending: list[AuditRecord] = []
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Future[None] | None = None
        self._failing = False
        self._closed = False

    async def start(self) -> None:
        """Open the log; raises OSError if it cannot be written."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._files.open)

    def check(self) -> None:
        """Raise ``AuditUnavailable`` while the log cannot be written."""
        if len(self._pending) >= self._max_backlog:
            raise AuditUnavailable("the audit log cannot be written")

    def record(self, event: str, caller: Caller, outcome: str, **fields: Any) -> None:
        """Record that ``event`` happened; ``fields`` name what it happened to."""
        self._pending.append(AuditRecord(time.time(), event, caller, outcome, fields))
        if self._timer is None and self._writing is None and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(_FLUSH_SECONDS, self._flush)

    def _flush(self) -> None:
        self._timer = None
        batch: list[AuditRecord] = []
        if not self._failing:
            batch, self._pending = self._pending, batch
        self._writing = asyncio.get_running_loop().run_in_executor(self._thread, self._files.write, batch)
        self._writing.add_done_callback(self._written)

    def _written(self, future: asyncio.Future[None]) -> None:
        self._writing = None
        error = future.exception()
        if error is not None and not self._failing:
            _log.error("the audit log cannot be written: %s", error)
        elif error is None and self._failing:
            _log.warning("the audit log can be written again")
        self._failing = error is not None
        if not self._closed and (self._failing or self._pending):
            pause = _RETRY_SECONDS if self._failing else _FLUSH_SECONDS
            self._timer = asyncio.get_running_loop().call_later(pause, self._flush)

    async def find(self, query: AuditQuery) -> list[dict[str, Any]]:
        """Events that were recorded, those still to be written included."""
        if self._pending and self._writing is None and not self._closed:
            if self._timer is not None:
                self._timer.cancel()
            self._flush()
        if self._writing is not None:
            await asyncio.wait([self._writing])
        return await asyncio.to_thread(find_events, self._directory, query)

    async def close(self) -> None:
        """Write what is left and close the log; closing it again does nothing."""
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._writing is not None:
            await asyncio.wait([self._writing])
        batch, self._pending = self._pending, []
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._write_last, batch)
        except OSError as error:
            _log.error("the last events of the audit log could not be written: %s", error)
        finally:
            self._thread.shutdown(wait=False)

    def _write_last(self, batch: list[AuditRecord]) -> None:
        try:
            self._files.write(batch)
        finally:
            self._files.close()

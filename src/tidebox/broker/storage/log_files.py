"""The logs of runs on the disk, for those who come when they are not in memory any more.

A log is one file of records: a head with the length of what follows, the entry's number and its kind, then the entry.
A program's output is in it as it was written. Records are appended in batches by a thread, a moment after the readers
have seen them, so a killed server loses next to nothing; a record that was torn by it is not read. The end of a run is
in the store, not here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from tidebox.broker.storage.log_frames import LogFrame
from tidebox.broker.storage.log_store import Extent, KeptLog, LogSink, LogStore, StoredLog
from tidebox.model.events import EgressSeen, OutputEvent, Preparing
from tidebox.model.log import Began, Heartbeat, InputClosed, LogEntry, PhaseChanged, Truncated
from tidebox.model.run import Phase

_log = logging.getLogger(__name__)
T = TypeVar("T")

# Long enough that a burst becomes one write.
_FLUSH_SECONDS = 0.05
_THREADS = 2
_READ_BYTES = 256 * 1024
_NAME = "stream.log"
_HEAD = struct.Struct(">IQB")
_TIME = struct.Struct(">d")
_STDOUT, _STDERR, _PHASE, _BEGAN, _TRUNCATED, _INPUT_CLOSED, _HEARTBEAT, _PREPARING, _EGRESS = range(9)


def encode(frame: LogFrame) -> bytes:
    """The record of an entry."""
    entry = frame.entry
    if isinstance(entry, OutputEvent):
        kind, data = (_STDOUT if entry.stream == "stdout" else _STDERR), entry.data
    elif isinstance(entry, PhaseChanged):
        kind, data = _PHASE, entry.phase.value.encode()
    elif isinstance(entry, Began):
        kind, data = _BEGAN, _TIME.pack(entry.at)
    elif isinstance(entry, Truncated):
        kind, data = _TRUNCATED, entry.reason.encode()
    elif isinstance(entry, InputClosed):
        kind, data = _INPUT_CLOSED, entry.reason.encode()
    elif isinstance(entry, Heartbeat):
        kind, data = _HEARTBEAT, _TIME.pack(entry.at)
    elif isinstance(entry, Preparing):
        kind, data = _PREPARING, entry.message.encode("utf-8", "replace")
    elif isinstance(entry, EgressSeen):
        kind, data = _EGRESS, msgspec.msgpack.encode(entry)
    else:
        raise ValueError("the end of a run is not in its log file")
    return _HEAD.pack(len(data), frame.seq, kind) + data


_DECODERS: dict[int, Callable[[bytes], LogEntry]] = {
    _STDOUT: lambda data: OutputEvent("stdout", data),
    _STDERR: lambda data: OutputEvent("stderr", data),
    _PHASE: lambda data: PhaseChanged(Phase(data.decode())),
    _BEGAN: lambda data: Began(_TIME.unpack(data)[0]),
    _TRUNCATED: lambda data: Truncated(data.decode()),
    _INPUT_CLOSED: lambda data: InputClosed(data.decode()),
    _HEARTBEAT: lambda data: Heartbeat(_TIME.unpack(data)[0]),
    _PREPARING: lambda data: Preparing(data.decode()),
    _EGRESS: lambda data: msgspec.msgpack.decode(data, type=EgressSeen),
}


class _Record(NamedTuple):
    seq: int
    kind: int
    data: bytes
    end: int
    """Where the next one begins."""


def _records(file: int, offset: int) -> Iterator[_Record]:
    """The whole records of a file from ``offset`` on."""
    buffer = b""
    while chunk := os.pread(file, _READ_BYTES, offset + len(buffer)):
        buffer += chunk
        start = 0
        while len(buffer) - start >= _HEAD.size:
            length, seq, kind = _HEAD.unpack_from(buffer, start)
            end = start + _HEAD.size + length
            if end > len(buffer):
                break
            yield _Record(seq, kind, buffer[start + _HEAD.size : end], offset + end)
            start = end
        buffer, offset = buffer[start:], offset + start


class LogFileReader:
    """A log file that is read; every method blocks."""

    def __init__(self, path: Path) -> None:
        """Open it; raises FileNotFoundError."""
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        self._offset = 0

    def read_from(self, seq: int, size: int) -> list[LogFrame]:
        """The entries from ``seq`` on, about ``size`` bytes of them; successive calls must not go back."""
        found: list[LogFrame] = []
        for record in _records(self._file, self._offset):
            if record.seq >= seq:
                found.append(LogFrame(record.seq, _DECODERS[record.kind](record.data)))
                size -= found[-1].size
            self._offset = record.end
            if size <= 0:
                break
        return found

    def extents(self, stream: str | None = None, seq: int = 0) -> list[Extent]:
        """Return the extents of output, of one stream or of both, from an entry on, in the order written."""
        found = []
        for record in _records(self._file, 0):
            name = {_STDOUT: "stdout", _STDERR: "stderr"}.get(record.kind)
            if name is not None and stream in (None, name) and record.seq >= seq:
                found.append(Extent(name, record.end - len(record.data), len(record.data)))
        return found

    def last_seq(self) -> tuple[int, int]:
        """The number of the last whole entry, and where it ends."""
        last = 0, 0
        for record in _records(self._file, 0):
            last = record.seq, record.end
        return last

    def read(self, pieces: Sequence[tuple[int, int]]) -> bytes:
        """The bytes of some places, each an offset and a length."""
        return b"".join(os.pread(self._file, length, offset) for offset, length in pieces)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)


class LocalLog(StoredLog):
    """A log file that is read beside the event loop."""

    def __init__(self, file: LogFileReader, thread: ThreadPoolExecutor) -> None:
        self._file = file
        self._thread = thread

    async def read_from(self, seq: int, size: int) -> list[LogFrame]:
        """The entries from ``seq`` on, about ``size`` bytes of them; successive calls must not go back."""
        return await self._call(self._file.read_from, seq, size)

    async def last_seq(self) -> int:
        """The number of the last whole entry."""
        seq, _ = await self._call(self._file.last_seq)
        return seq

    # Those who download a whole log do not hold up the threads that write.

    async def extents(self, stream: str | None = None, seq: int = 0) -> list[Extent]:
        """Return the extents of output, of one stream or of both, from an entry on, in the order written."""
        return await asyncio.to_thread(self._file.extents, stream, seq)

    async def read(self, pieces: Sequence[tuple[int, int]]) -> bytes:
        """The bytes of some places, each an offset and a length."""
        return await asyncio.to_thread(self._file.read, pieces)

    async def close(self) -> None:
        """Let go of the file."""
        await self._call(self._file.close)

    async def _call(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)


class LogFile(LogSink):
    """The log of a run that goes on, on its way to the disk."""

    def __init__(self, path: Path, thread: ThreadPoolExecutor) -> None:
        self.path = path
        self._thread = thread
        self._file: int | None = None
        self._pending: list[LogFrame] = []
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Future[None] | None = None
        self._failing = False

    def append(self, frame: LogFrame) -> None:
        """Write an entry soon."""
        self._pending.append(frame)
        if self._timer is None and self._writing is None:
            self._timer = asyncio.get_running_loop().call_later(_FLUSH_SECONDS, self._write_pending)

    def hurry(self) -> None:
        """Begin to write what was appended so far."""
        if self._pending and self._writing is None:
            self._write_pending()

    async def flush(self) -> None:
        """Wait until what was appended so far is written, as far as the disk takes it."""
        while self._pending or self._writing is not None:
            self.hurry()
            assert self._writing is not None
            await asyncio.wait([self._writing])

    async def close(self) -> None:
        """Write the rest and close the file."""
        await self.flush()
        if self._file is not None:
            file, self._file = self._file, None
            await asyncio.get_running_loop().run_in_executor(self._thread, os.close, file)

    def _write_pending(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch, self._pending = self._pending, []
        self._writing = asyncio.get_running_loop().run_in_executor(self._thread, self._write, batch)
        self._writing.add_done_callback(self._written)

    def _written(self, future: asyncio.Future[None]) -> None:
        self._writing = None
        error = future.exception()
        if error is not None and not self._failing:
            _log.error("the log %s cannot be written: %s", self.path, error)
        self._failing = error is not None
        if self._pending and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_FLUSH_SECONDS, self._write_pending)

    def _write(self, batch: list[LogFrame]) -> None:
        """Append to the file. What does not fit is left out: readers see by the numbers that it is missing."""
        if self._file is None:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._file = os.open(self.path, flags, 0o600)
        data = memoryview(b"".join(map(encode, batch)))
        before = os.fstat(self._file).st_size
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError:
            os.ftruncate(self._file, before)
            raise


class LogFiles(LogStore):
    """The log files of all runs, each in the directory of its run."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._thread = ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix="log")

    def _path(self, run_id: str) -> Path:
        return self._directory / run_id / "logs" / _NAME

    def new(self, run_id: str) -> LogFile:
        """The log of a run that begins."""
        return LogFile(self._path(run_id), self._thread)

    async def resume(self, run_id: str) -> tuple[LogFile, int]:
        """The log of a run that an earlier server began, and the number of its last entry."""
        return self.new(run_id), await self._call(self._repaired, self._path(run_id))

    @staticmethod
    def _repaired(path: Path) -> int:
        """The number of the last entry; what is torn after it is cut off."""
        try:
            log = LogFileReader(path)
        except FileNotFoundError:
            return 0
        try:
            seq, end = log.last_seq()
        finally:
            log.close()
        os.truncate(path, end)
        return seq

    async def open(self, run_id: str) -> LocalLog | None:
        """The log of a run as it is on the disk, if it is there."""
        try:
            return LocalLog(await self._call(LogFileReader, self._path(run_id)), self._thread)
        except FileNotFoundError:
            return None

    async def _call(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    async def kept(self) -> list[KeptLog]:
        """Every log there is, those first that were written last."""
        return await self._call(self._kept)

    def _kept(self) -> list[KeptLog]:
        try:
            entries = list(os.scandir(self._directory))
        except FileNotFoundError:
            return []
        found = []
        for entry in entries:
            try:
                status = self._path(entry.name).stat()
            except OSError:
                continue  # no log in it, or gone just now
            found.append(KeptLog(entry.name, status.st_mtime, status.st_size))
        return sorted(found, key=lambda log: log.modified, reverse=True)

    async def remove(self, run_id: str) -> None:
        """Remove the log of a run, and the directory of the run if nothing else is in it."""
        await self._call(self._remove, self._path(run_id).parent)

    @staticmethod
    def _remove(directory: Path) -> None:
        shutil.rmtree(directory, ignore_errors=True)
        try:
            directory.parent.rmdir()
        except OSError:
            pass  # there are artifacts of it yet

    def close(self) -> None:
        """Let the threads go when they are done."""
        self._thread.shutdown(wait=False)

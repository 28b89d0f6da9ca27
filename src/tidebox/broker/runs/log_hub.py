"""Run logs while they are written, for any number of readers; readers resume at a number.

A channel is the log of one run. It numbers the entries, and nobody else does; keeps the newest of them within a number
of bytes; hands them on to the file of the log; and ends once. A reader is a place in that history: it holds next to
nothing of its own, so readers cost the run nothing and cannot hold it up. One that begins before what is in memory is
given the rest from the file. One that keeps up no more, so that what it should read next has left the memory, is told
how much it missed (``Gap``) and goes on from there.

Channels of runs that are over stay in memory for those who come late, until newer ones need the room; then there is
the file.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from tidebox.broker.output_log import OutputLog
from tidebox.broker.storage.log_frames import Gap, LogFrame
from tidebox.broker.storage.log_store import LogSink, LogStore, StoredLog
from tidebox.model.log import Ended, Heartbeat, LogEntry
from tidebox.model.run import Reason, Run

# A reader holds on to no more than this while it waits for its client.
_BATCH_BYTES = 128 * 1024


class LogReader(Protocol):
    """A reader's position in the log of a run."""

    async def read(self) -> list[LogFrame | Gap]:
        """Return entries after the reader's position, waiting for at least one; empty when the log is over."""

    async def close(self) -> None:
        """Read no more."""


class LogChannel(OutputLog[LogFrame]):
    """The log of one run."""

    def __init__(self, *, max_bytes: int, last_seq: int = 0, begins_at: int = 1, file: LogSink | None = None) -> None:
        super().__init__(max_bytes, last_seq)
        self._file = file
        self.begins_at = begins_at
        """The number of the log's first entry, wherever that is kept."""
        self.readers = 0

    @property
    def first_seq(self) -> int:
        """The number of the oldest entry that is in memory, or of the next one."""
        return self.start + 1

    @property
    def last_seq(self) -> int:
        """The number of the newest entry."""
        return self.stop

    def publish(self, entry: LogEntry) -> LogFrame:
        """Append an entry."""
        if self.over:
            raise RuntimeError("the log has ended")
        frame = LogFrame(self.stop + 1, entry)
        self.append(frame)
        if self._file is not None and not isinstance(entry, Ended):
            self._file.append(frame)
        return frame

    def end(self, entry: Ended) -> None:
        """Append the last entry."""
        self.publish(entry)
        self.over = True

    def abandon(self) -> None:
        """Let the readers go although the run is not over: this server will not see its end."""
        self.finish()

    def hurry(self) -> None:
        """Begin to write the entries so far to the file: no more will come soon."""
        if self._file is not None:
            self._file.hurry()

    async def flush(self) -> None:
        """Wait until the entries so far are in the file."""
        if self._file is not None:
            await self._file.flush()

    async def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            await self._file.close()

    def frames_from(self, seq: int, size: int) -> list[LogFrame]:
        """Entries in memory from ``seq`` on, about ``size`` bytes of them and at least one if there is any."""
        return self.read(seq - 1, size)

    def read_from(
        self,
        seq: int | None = None,
        *,
        tail: bool = False,
        files: LogStore | None = None,
        run_id: str = "",
        on_drop: Callable[[int], None] | None = None,
    ) -> ChannelReader:
        """A reader that begins at ``seq``; without one at the oldest entry kept, or with ``tail`` at the next.

        A reader of a log that is over gets its end, whatever position it asks for.
        """
        latest = self.last_seq if self.over and self.start < self.stop else self.last_seq + 1
        if tail:
            start = latest
        elif seq is None:
            start = 1 if files is not None else self.first_seq
        else:
            start = min(max(seq, 1), latest)
        return ChannelReader(self, start, files, run_id, on_drop)


class ChannelReader:
    """A place in a log that is in memory, at least the newest part of it."""

    def __init__(
        self,
        channel: LogChannel,
        seq: int,
        files: LogStore | None,
        run_id: str,
        on_drop: Callable[[int], None] | None,
    ) -> None:
        self._channel = channel
        self._files = files
        self._run_id = run_id
        self._on_drop = on_drop
        self._stored: StoredLog | None = None
        self._live = False
        self._closed = False
        self.next_seq = seq
        """The number of the entry it will read next."""
        channel.readers += 1

    async def read(self) -> list[LogFrame | Gap]:
        """Return entries after the reader's position, waiting for at least one; empty when the log is over."""
        channel = self._channel
        while self.next_seq > channel.last_seq:
            if channel.over:
                return []
            await channel.changes.wait()
        if self.next_seq < channel.first_seq and not self._live and (stored := await self._from_file()):
            return self._following(stored)
        await self._leave_file()
        missed = channel.first_seq - self.next_seq
        if missed > 0 and self._live and self._on_drop is not None:
            self._on_drop(missed)
        self._live = True
        return self._following(channel.frames_from(self.next_seq, _BATCH_BYTES))

    def _following(self, frames: list[LogFrame]) -> list[LogFrame | Gap]:
        found = _with_gaps(self.next_seq, frames, self._channel.begins_at)
        if frames:
            self.next_seq = frames[-1].seq + 1
        else:
            found = [Gap(self.next_seq, self._channel.first_seq, self._channel.begins_at)]
            self.next_seq = self._channel.first_seq
        return found

    async def _from_file(self) -> list[LogFrame]:
        if self._files is None:
            return []
        # What left the memory just now may still be on its way.
        await self._channel.flush()
        if self._stored is None:
            self._stored = await self._files.open(self._run_id)
        if self._stored is None:
            return []
        return await self._stored.read_from(self.next_seq, _BATCH_BYTES)

    async def _leave_file(self) -> None:
        if self._stored is not None:
            stored, self._stored = self._stored, None
            await stored.close()

    async def close(self) -> None:
        """Read no more."""
        if not self._closed:
            self._closed = True
            self._channel.readers -= 1
            await self._leave_file()


class StoredReader:
    """A place in a log that is on the disk only, of a run that is over."""

    def __init__(self, files: LogStore, log: StoredLog | None, run: Run, seq: int | None, *, tail: bool) -> None:
        self._files = files
        self._log = log
        self._run = run
        self._tail = tail
        self._asked = seq
        self._next = max(seq or 1, 1)
        self._last = 0
        self._over = False

    async def read(self) -> list[LogFrame | Gap]:
        """Return the next entries; empty when the log is over."""
        if self._over:
            return []
        frames: list[LogFrame] = []
        if self._log is not None and not self._tail:
            frames = await self._log.read_from(self._next, _BATCH_BYTES)
        if frames:
            found = _with_gaps(self._next, frames, self._run.first_seq)
            self._last = frames[-1].seq
            self._next = self._last + 1
            return found
        self._over = True
        if not self._run.phase.terminal:
            return []
        return [LogFrame(await self._end_seq(), Ended(self._run))]

    async def _end_seq(self) -> int:
        if not self._last and self._log is not None:
            log = await self._files.open(self._run.id)
            if log is not None:
                self._last = await log.last_seq()
                await log.close()
        following = self._last + 1
        if self._run.reason in (Reason.SERVER_RESTARTED, Reason.NODE_LOST) and self._asked is not None:
            # Its readers have seen more than there is here of what the lost server wrote down: numbers do not go back.
            return max(following, self._asked)
        return following

    async def close(self) -> None:
        """Read no more."""
        if self._log is not None:
            log, self._log = self._log, None
            await log.close()


def _with_gaps(following: int, frames: list[LogFrame], first: int) -> list[LogFrame | Gap]:
    """Frames of a log that begins at ``first``, with a note wherever some are missing, from ``following`` on."""
    if not frames or frames[-1].seq - following + 1 == len(frames):
        return list(frames)
    found: list[LogFrame | Gap] = []
    for frame in frames:
        if frame.seq > following:
            found.append(Gap(following, frame.seq, first))
        found.append(frame)
        following = frame.seq + 1
    return found


class LogHub:
    """The channels of runs that go on, and of the last ones that ended."""

    def __init__(
        self,
        files: LogStore | None = None,
        *,
        buffer_bytes: int = 8 * 1024 * 1024,
        kept_bytes: int = 32 * 1024 * 1024,
        kept_channels: int = 1000,
        heartbeat_seconds: float = 10.0,
        on_drop: Callable[[int], None] | None = None,
    ) -> None:
        """``buffer_bytes`` of a run are in memory: so far may a reader be behind. ``on_drop`` is told of the others."""
        self.files = files
        self._buffer_bytes = buffer_bytes
        self._kept_bytes = kept_bytes
        self._kept_channels = kept_channels
        self._heartbeat_seconds = heartbeat_seconds
        self._on_drop = on_drop
        self._open: dict[str, LogChannel] = {}
        self._kept: OrderedDict[str, LogChannel] = OrderedDict()
        self._size = 0
        self._closing: set[asyncio.Task[None]] = set()
        self._heart: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to tell readers now and then that the server is still there."""
        self._heart = asyncio.get_running_loop().create_task(self._beat(), name="heartbeats")

    async def close(self) -> None:
        """Let go of everything."""
        if self._heart is not None:
            self._heart.cancel()
        if self._closing:
            await asyncio.wait(self._closing)
        if self.files is not None:
            self.files.close()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_seconds)
            now = time.time()
            for channel in self._open.values():
                if channel.readers:
                    channel.publish(Heartbeat(now))

    def open(self, run_id: str) -> LogChannel:
        """The channel of a new run."""
        file = self.files.new(run_id) if self.files is not None else None
        channel = self._open[run_id] = LogChannel(max_bytes=self._buffer_bytes, file=file)
        return channel

    async def resume(self, run_id: str, *, begins_at: int = 1) -> LogChannel:
        """The channel of a run that an earlier server accepted: it goes on where that one stopped.

        Of one that another node accepted the log is not here: numbers below ``begins_at`` may have been used there.
        """
        file, last_seq = None, 0
        if self.files is not None:
            file, last_seq = await self.files.resume(run_id)
        last_seq = max(last_seq, begins_at - 1)
        channel = self._open[run_id] = LogChannel(
            max_bytes=self._buffer_bytes, last_seq=last_seq, begins_at=begins_at, file=file
        )
        return channel

    def channel(self, run_id: str) -> LogChannel | None:
        """The channel of a run, if it is still in memory."""
        return self._open.get(run_id) or self._kept.get(run_id)

    async def reader(self, run: Run, seq: int | None = None, *, tail: bool = False) -> LogReader | None:
        """A reader of a run's log, from ``seq``, from its beginning, or with ``tail`` from now on; None without one."""
        channel = self.channel(run.id)
        if channel is not None:
            return channel.read_from(seq, tail=tail, files=self.files, run_id=run.id, on_drop=self._on_drop)
        if self.files is None:
            return None
        log = await self.files.open(run.id)
        return StoredReader(self.files, log, run, seq, tail=tail) if log is not None or not run.log_bytes else None

    async def stored(self, run_id: str) -> StoredLog | None:
        """The log of a run as a file with everything in it so far."""
        channel = self.channel(run_id)
        if channel is not None:
            await channel.flush()
        return await self.files.open(run_id) if self.files is not None else None

    async def snapshot(self, run: Run, seq: int | None = None) -> LogReader | None:
        """A reader of what is in a run's log so far, the end included if there is one; None without logs."""
        log = await self.stored(run.id)
        if self.files is None or (log is None and run.log_bytes):
            return None
        return StoredReader(self.files, log, run, seq, tail=False)

    def end(self, run_id: str, entry: Ended) -> None:
        """End the log of a run, and keep it for a while."""
        channel = self._open.pop(run_id)
        channel.end(entry)
        self._let_go(channel)
        self._kept[run_id] = channel
        self._size += channel.size
        while self._kept and (self._size > self._kept_bytes or len(self._kept) > self._kept_channels):
            _, oldest = self._kept.popitem(last=False)
            self._size -= oldest.size

    def abandon(self, run_id: str) -> None:
        """Let go of the log of a run that this server will not see the end of."""
        channel = self._open.pop(run_id)
        channel.abandon()
        self._let_go(channel)

    def _let_go(self, channel: LogChannel) -> None:
        closing = asyncio.get_running_loop().create_task(channel.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

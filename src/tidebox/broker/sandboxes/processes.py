"""Processes of sandboxes, wherever the sandboxes are: started, listed, read, written to, signalled and ended here.

The output of a process has one offset for both streams together. While clients read it, a process that is further
ahead of the slowest of them than a window waits, so that none misses anything; while nobody reads, the process runs on
and the oldest output is dropped beyond what is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from tidebox.broker.output_log import OutputLog
from tidebox.broker.sandboxes.sandbox import LiveSandbox
from tidebox.errors import InternalError, InvalidRequest, NotFound, QuotaExceeded, TideboxError
from tidebox.model.box import Command
from tidebox.model.events import Exited, OutputEvent, Started, StreamName
from tidebox.model.ids import new_id
from tidebox.model.limits import KIB, MIB
from tidebox.model.sandbox import Capability
from tidebox.runtime.base import Exec

WINDOW_BYTES = 256 * KIB
KEPT_BYTES = MIB
"""Of the output of a process that outlives its readers."""
INPUT_BYTES = 4 * MIB
"""Of input that a process has not read, before its client has to wait."""
KEPT_SECONDS = 600.0
"""For which the end of a process that outlives its readers can be asked for."""
MAX_KEPT = 64
# Each is looked at for every piece of output.
MOST_READERS = 16
# What a small piece costs all the same.
_PIECE_MEMORY = 256
# Pieces up to this length grow by what follows them: a program may write byte by byte.
_MERGED_BYTES = 4 * KIB
# The most that is read as one piece.
_PIECE_BYTES = 64 * KIB


class OutputPiece(NamedTuple):
    """Some output, and the offset behind it."""

    stream: StreamName
    data: bytes
    end: int

    @property
    def size(self) -> int:
        """About how many bytes of memory it takes."""
        return max(len(self.data), _PIECE_MEMORY)


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """Exit, duration and timeout of a process."""

    exited: Exited
    seconds: float
    """How long it ran."""
    timed_out: bool
    """Whether it was killed at its timeout."""


class OutputReader:
    """One client's position in the output of a process."""

    def __init__(self, process: ManagedProcess, offset: int) -> None:
        self.process = process
        self.offset = offset
        """Where the output goes on that it will read next."""

    async def read(self, seconds: float | None = None) -> list[OutputPiece] | None:
        """The output since the last call, at least one piece; none if nothing came in time, None at the end."""
        return await self.process.read(self, seconds)

    async def close(self) -> None:
        """Read no more. A process that does not outlive its readers is killed when its last one leaves."""
        await self.process.detach(self)


class ManagedProcess:
    """A running program, or the rest of one."""

    def __init__(
        self,
        running: Exec,
        use: contextlib.AsyncExitStack,
        *,
        detachable: bool,
        capability: Capability,
        terminal: bool,
    ) -> None:
        """``use`` keeps the sandbox in use, and is closed at the end."""
        self.id = new_id("proc")
        self.pid = 0
        self.detachable = detachable
        """Whether it outlives its readers."""
        self.capability = capability
        """The capability needed to start it, and to attach to it."""
        self.terminal = terminal
        self.end: ProcessEnd | None = None
        self.error: TideboxError | None = None
        self._exec = running
        self._use = use
        self._started = time.monotonic()
        self._timed_out = False
        self._ending = False
        self._timer: asyncio.TimerHandle | None = None
        self._output: OutputLog[OutputPiece] = OutputLog(KEPT_BYTES if detachable else 0)
        self._changes = self._output.changes
        self._readers: set[OutputReader] = set()
        self._input: deque[bytes | None] = deque()
        self._input_size = 0
        self._input_open = True
        self.input_taken = 0
        """How many bytes of its input do not wait here any more."""
        self._writing: asyncio.Task[None] | None = None
        self._on_end: list[Callable[[], None]] = []
        self._following = asyncio.get_running_loop().create_task(self._follow(), name="process-output")

    @property
    def over(self) -> bool:
        """Whether it has ended and everything it wrote is here."""
        return self.end is not None or self.error is not None

    async def started(self) -> None:
        """Wait until it runs; raises ExecFailed if it cannot be started."""
        while not self.pid:
            if self.over:
                raise self.error or InternalError("the program ended before it was started")
            await self._changes.wait()

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when it is over; at once if it is."""
        if self.over:
            callback()
        else:
            self._on_end.append(callback)

    # Output

    def attach(self, offset: int = 0) -> OutputReader:
        """Read from ``offset`` on, or from the oldest output that is still kept; others go on reading."""
        if offset > self._output.stop:
            end = self._output.stop
            raise InvalidRequest(f"offset: the output is {end} bytes long by now", field="offset", end=end)
        if len(self._readers) >= MOST_READERS:
            raise QuotaExceeded(f"a program has at most {MOST_READERS} readers at once", quota="readers")
        reader = OutputReader(self, max(offset, self._output.start))
        self._readers.add(reader)
        return reader

    async def detach(self, reader: OutputReader) -> None:
        """A client is gone. Without any, a process that does not outlive its readers is killed."""
        if reader not in self._readers:
            return
        self._readers.remove(reader)
        self._output.trim(self._unread)
        self._changes.wake()
        if not (self.detachable or self._readers):
            await self.kill()

    async def read(self, reader: OutputReader, seconds: float | None = None) -> list[OutputPiece] | None:
        """Return output after the reader's offset, waiting up to ``seconds``; None at the end."""
        output = self._output
        while reader.offset >= output.stop:
            if self.over:
                return None
            if not await self._changes.wait(seconds):
                return []
        pieces = _joined(output.read(reader.offset, WINDOW_BYTES), reader.offset)
        reader.offset = pieces[-1].end
        output.trim(self._unread)
        self._changes.wake()
        return pieces

    @property
    def _unread(self) -> int:
        """Up to where all readers have read."""
        return min((reader.offset for reader in self._readers), default=self._output.stop)

    def _add(self, stream: StreamName, data: bytes) -> None:
        output = self._output
        end = output.stop + len(data)
        last = output.last()
        if last is not None and last.stream == stream and len(last.data) + len(data) <= _MERGED_BYTES:
            output.extend_last(OutputPiece(stream, last.data + data, end), self._unread)
        else:
            output.append(OutputPiece(stream, data, end), self._unread)

    async def _follow(self) -> None:
        try:
            async for event in self._exec.events():
                if isinstance(event, OutputEvent):
                    self._add(event.stream, event.data)
                    # One that was killed writes no more: its end does not wait for a reader that stands still.
                    while self._output.stop - self._unread > WINDOW_BYTES and not self._ending:
                        await self._changes.wait()
                elif isinstance(event, Started):
                    self.pid = event.pid
                    self._changes.wake()
                elif isinstance(event, Exited):
                    # Its end comes after its output, so it may have ended long before the kill: then nothing killed it.
                    timed_out = self._timed_out and event.signal == signal.SIGKILL
                    self.end = ProcessEnd(event, time.monotonic() - self._started, timed_out)
        except TideboxError as error:
            self.error = error
        finally:
            if not self.over:
                self.error = InternalError("the program's output could not be followed to its end")
            if self._timer is not None:
                self._timer.cancel()
            if self._writing is not None:
                self._writing.cancel()
            self._output.finish()
            for callback in self._on_end:
                callback()
            await self._use.aclose()

    # Input

    async def feed(self, data: bytes, eof: bool, seconds: float) -> bool:
        """Send input once there is room for it, and wait until there is again; False if the program reads none of it
        for so long."""
        # Before as well: other clients may have filled it, or this one before it attached anew.
        if not await self._room_for_input(seconds):
            return False
        self.put_input(data, eof)
        return await self._room_for_input(seconds)

    async def _room_for_input(self, seconds: float) -> bool:
        while self._input_size > INPUT_BYTES and not self.over:
            size = self._input_size
            deadline = time.monotonic() + seconds
            while self._input_size == size and not self.over:
                if not await self._changes.wait(max(0.0, deadline - time.monotonic())):
                    return False
        return True

    def put_input(self, data: bytes, eof: bool = False) -> None:
        """Send input; it is dropped when the program is over or has closed it."""
        if not self._input_open or self.over:
            return
        if data:
            self._input.append(data)
            self._input_size += len(data)
        if eof:
            self._input.append(None)
            self._input_open = False
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._write(), name="process-input")

    async def _write(self) -> None:
        with contextlib.suppress(TideboxError):  # readers of the output see the error
            while self._input:
                data = self._input.popleft()
                if data is None:
                    await self._exec.end_input()
                else:
                    try:
                        await self._exec.write(data)
                    finally:
                        self._input_size -= len(data)
                        self.input_taken += len(data)
                        self._changes.wake()

    async def input_changed(self, taken: int) -> int:
        """Wait until more of its input was taken than that, or it is over; how much was."""
        while self.input_taken <= taken and not self.over:
            await self._changes.wait()
        return self.input_taken

    # Control

    async def signal(self, number: int) -> None:
        """Send a signal to the process."""
        if not self.over:
            await self._exec.signal(number)

    async def resize(self, rows: int, columns: int) -> None:
        """Give its terminal another size."""
        if not self.over:
            await self._exec.resize(rows, columns)

    async def kill(self) -> None:
        """End it and everything it started."""
        self._ending = True
        self._changes.wake()
        with contextlib.suppress(TideboxError):
            await self.signal(signal.SIGKILL)

    def end_after(self, seconds: float) -> None:
        """Kill it if it runs so long."""
        if self.over:
            return  # a timer that nobody stops would keep all of it until then
        self._timer = asyncio.get_running_loop().call_later(seconds, self._time_out)

    def _time_out(self) -> None:
        self._timed_out = not self._exec.ended
        # Kept so that it is not collected before it has run.
        self._killing = asyncio.get_running_loop().create_task(self.kill(), name="process-timeout")


def _joined(pieces: list[OutputPiece], offset: int) -> list[OutputPiece]:
    """The pieces from ``offset`` on, those of one stream put together: a frame for each byte would cost too much."""
    found: list[OutputPiece] = []
    for piece in pieces:
        data = piece.data
        if piece.end - len(data) < offset:
            data = data[offset - piece.end :]
        last = found[-1] if found else None
        if last is not None and last.stream == piece.stream and len(last.data) + len(data) <= _PIECE_BYTES:
            found[-1] = OutputPiece(piece.stream, last.data + data, piece.end)
        else:
            found.append(OutputPiece(piece.stream, data, piece.end))
    return found


async def _exec(
    sandbox: LiveSandbox, command: Command, request_id: str | None
) -> tuple[Exec, contextlib.AsyncExitStack]:
    """A program that runs in a sandbox, and what keeps the sandbox in use."""
    use = contextlib.AsyncExitStack()
    inside = await use.enter_async_context(sandbox.use(request_id))
    try:
        return await inside.exec(command), use
    except BaseException:
        await use.aclose()
        raise


class ProcessTable:
    """The processes of all sandboxes: those that run, and for a while those that outlived their readers."""

    def __init__(self) -> None:
        self._by_sandbox: dict[str, dict[str, ManagedProcess]] = {}
        self._starting: Counter[str] = Counter()
        """How many will outlive their readers, and have yet to start."""

    async def start(
        self,
        sandbox: LiveSandbox,
        command: Command,
        *,
        capability: Capability,
        detachable: bool = False,
        request_id: str | None = None,
    ) -> OutputReader:
        """Start a program, which keeps the sandbox in use until it is over; a reader of it from its first byte on.

        Raises ``ExecFailed`` if it cannot be started, and ``QuotaExceeded`` where too many outlive their readers.
        """
        if detachable:
            self._make_room(sandbox.id)
            self._starting[sandbox.id] += 1
        try:
            running, use = await _exec(sandbox, command, request_id)
            terminal = command.tty is not None
            process = ManagedProcess(running, use, detachable=detachable, capability=capability, terminal=terminal)
            reader = process.attach()
            try:
                await process.started()
            except asyncio.CancelledError:
                await process.kill()
                await reader.close()
                raise
            self._by_sandbox.setdefault(sandbox.id, {})[process.id] = process
        finally:
            if detachable:
                self._starting -= Counter([sandbox.id])  # which forgets sandboxes without any
        process.on_end(lambda: self._ended(sandbox.id, process))
        return reader

    def of_sandbox(self, sandbox_id: str) -> list[ManagedProcess]:
        """Return the processes of a sandbox, oldest first."""
        return list(self._by_sandbox.get(sandbox_id, {}).values())

    def find(self, sandbox_id: str, process_id: str) -> ManagedProcess:
        """Return a process of a sandbox; raises ``NotFound``."""
        process = self._by_sandbox.get(sandbox_id, {}).get(process_id)
        if process is None:
            raise NotFound("this sandbox has no program of that id", field="process_id")
        return process

    def _make_room(self, sandbox_id: str) -> None:
        kept = [process for process in self.of_sandbox(sandbox_id) if process.detachable]
        if len(kept) + self._starting[sandbox_id] < MAX_KEPT:
            return
        over = next((process for process in kept if process.over), None)
        if over is None:
            raise QuotaExceeded(
                f"the quota detachable programs of {MAX_KEPT} is used up", quota="processes", limit=MAX_KEPT
            )
        self._forget(sandbox_id, over.id)

    def _ended(self, sandbox_id: str, process: ManagedProcess) -> None:
        if process.detachable:
            asyncio.get_running_loop().call_later(KEPT_SECONDS, self._forget, sandbox_id, process.id)
        else:
            self._forget(sandbox_id, process.id)

    def _forget(self, sandbox_id: str, process_id: str) -> None:
        processes = self._by_sandbox.get(sandbox_id, {})
        processes.pop(process_id, None)
        if not processes:
            self._by_sandbox.pop(sandbox_id, None)

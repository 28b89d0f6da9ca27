"""Programs of sandboxes that a socket started, and what they wrote.

Output has one offset for both streams together. While a client is attached, a program that is further ahead of it
than a window waits; while none is, the program runs on and the oldest output is dropped beyond what is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from tidebox.api.dataplane import frames
from tidebox.broker.sandboxes import LiveSandbox
from tidebox.errors import Conflict, InternalError, InvalidRequest, NotFound, QuotaExceeded, TideboxError
from tidebox.model.box import Command
from tidebox.model.events import Exited, Output, Started, StreamName
from tidebox.model.ids import new_id
from tidebox.model.limits import KIB, MIB
from tidebox.model.result import exit_status
from tidebox.model.sandbox import Capability
from tidebox.runtime.base import Exec

WINDOW_BYTES = 256 * KIB
KEPT_BYTES = MIB
"""Of the output of a program that may be left running."""
INPUT_BYTES = 4 * MIB
"""Of input that a program has not read, before its client has to wait."""
KEPT_SECONDS = 600.0
"""For which the end of a program that was left running can be asked for."""
MAX_KEPT = 64
# A program that writes byte by byte must not cost a frame for each of them.
_PIECE_BYTES = 64 * KIB


class Piece(NamedTuple):
    """Some output, and the offset behind it."""

    stream: StreamName
    data: bytes
    end: int


class _Changes:
    """Those who wait for something to change."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    async def wait(self, seconds: float | None = None) -> bool:
        """Wait for a change; False if none came in time."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        done, _ = await asyncio.wait((waiter,), timeout=seconds)
        return bool(done)

    def wake(self) -> None:
        """Let everybody look again."""
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)


class Reader:
    """One client's place in the output of a program."""

    def __init__(self, process: Process, position: int) -> None:
        self._process = process
        self.position = position

    async def read(self, seconds: float | None = None) -> list[Piece] | None:
        """What was written since the last call, at least one piece; none if nothing came in time, None at the end."""
        return await self._process.read_on(self, seconds)


class Process:
    """A running program, or the rest of one."""

    def __init__(
        self,
        running: Exec,
        held: contextlib.AsyncExitStack,
        *,
        detachable: bool,
        capability: Capability,
        terminal: bool,
    ) -> None:
        self.id = new_id("proc")
        self.pid = 0
        self.detachable = detachable
        self.capability = capability
        """What it took to start it, and takes to attach to it."""
        self.terminal = terminal
        self.ending: dict[str, Any] | None = None
        self.error: TideboxError | None = None
        self._exec = running
        self._held = held
        self._started = time.monotonic()
        self._timed_out = False
        self._timer: asyncio.TimerHandle | None = None
        self._kept: deque[Piece] = deque()
        self._first = 0
        self._end = 0
        self._reader: Reader | None = Reader(self, 0)
        self._changes = _Changes()
        self._input: deque[bytes | None] = deque()
        self._input_size = 0
        self._input_open = True
        self._writing: asyncio.Task[None] | None = None
        self._on_end: list[Callable[[], None]] = []
        self._following = asyncio.get_running_loop().create_task(self._follow(), name="process-output")

    @property
    def over(self) -> bool:
        """Whether it has ended and everything it wrote is here."""
        return self.ending is not None or self.error is not None

    async def started(self) -> None:
        """Wait until it runs; raises ExecFailed if it cannot be started."""
        while not self.pid:
            if self.error is not None:
                raise self.error
            await self._changes.wait()

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when it is over."""
        self._on_end.append(callback)

    # Output

    def attach(self, offset: int = 0) -> Reader:
        """Read from ``offset`` on, or from the oldest output that is still there; whoever read before is told."""
        if offset > self._end:
            raise InvalidRequest(f"offset: the output is {self._end} bytes long by now", field="offset", end=self._end)
        self._reader = Reader(self, max(offset, self._first))
        self._changes.wake()
        return self._reader

    async def detach(self, reader: Reader) -> None:
        """The client is gone: the program is left running, or killed."""
        if self._reader is not reader:
            return
        self._reader = None
        self._changes.wake()
        if not self.detachable:
            await self.kill()

    async def read_on(self, reader: Reader, seconds: float | None) -> list[Piece] | None:
        """For readers."""
        while True:
            if self._reader is not reader:
                raise Conflict("another connection has taken this program over")
            if reader.position < self._end:
                break
            if self.over:
                return None
            if not await self._changes.wait(seconds):
                return []
        pieces = self._pieces_from(reader.position)
        reader.position = self._end
        self._trim()
        self._changes.wake()
        return pieces

    def _pieces_from(self, offset: int) -> list[Piece]:
        found: list[Piece] = []
        for piece in self._kept:
            if piece.end <= offset:
                continue
            fresh = piece.data[-(piece.end - offset) :] if piece.end - len(piece.data) < offset else piece.data
            last = found[-1] if found else None
            if last and last.stream == piece.stream and len(last.data) + len(fresh) <= _PIECE_BYTES:
                found[-1] = Piece(piece.stream, last.data + fresh, piece.end)
            else:
                found.append(Piece(piece.stream, fresh, piece.end))
        return found

    def _trim(self) -> None:
        bound = KEPT_BYTES if self.detachable else 0
        read = self._reader.position if self._reader is not None else self._end
        while self._kept and self._end - self._first > bound and self._kept[0].end <= read:
            self._first = self._kept.popleft().end

    async def _follow(self) -> None:
        try:
            async for event in self._exec.events():
                if isinstance(event, Output):
                    self._end += len(event.data)
                    self._kept.append(Piece(event.stream, event.data, self._end))
                    self._trim()
                    self._changes.wake()
                    while self._reader is not None and self._end - self._reader.position > WINDOW_BYTES:
                        await self._changes.wait()
                elif isinstance(event, Started):
                    self.pid = event.pid
                    self._changes.wake()
                elif isinstance(event, Exited):
                    self.ending = ending(event, time.monotonic() - self._started)
                    if self._timed_out:
                        self.ending["timed_out"] = True
        except TideboxError as error:
            self.error = error
        finally:
            if not self.over:
                self.error = InternalError("the program's output could not be followed to its end")
            if self._timer is not None:
                self._timer.cancel()
            if self._writing is not None:
                self._writing.cancel()
            self._changes.wake()
            for callback in self._on_end:
                callback()
            await self._held.aclose()

    # Input

    @property
    def input_full(self) -> bool:
        """Whether the program has to read before more input is taken."""
        return self._input_size > INPUT_BYTES and not self.over

    async def input_taken(self, seconds: float) -> bool:
        """Wait until there is room for input; False if the program read none of it for so long."""
        while self.input_full:
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
        with contextlib.suppress(TideboxError):  # whoever reads the output is told
            while self._input:
                data = self._input.popleft()
                if data is None:
                    await self._exec.end_input()
                else:
                    await self._exec.write(data)
                    self._input_size -= len(data)
                    self._changes.wake()

    # Control

    async def signal(self, number: int) -> None:
        """Signal it."""
        if not self.over:
            await self._exec.signal(number)

    async def resize(self, rows: int, columns: int) -> None:
        """Give its terminal another size."""
        if not self.over:
            await self._exec.resize(rows, columns)

    async def kill(self) -> None:
        """End it and everything it started."""
        with contextlib.suppress(TideboxError):
            await self.signal(signal.SIGKILL)

    def end_after(self, seconds: float) -> None:
        """Kill it if it runs so long."""
        if self.over:
            return  # a timer that nobody stops would keep all of it until then
        self._timer = asyncio.get_running_loop().call_later(seconds, self._time_out)

    def _time_out(self) -> None:
        self._timed_out = True
        # Kept so that it is not collected before it has run.
        self._killing = asyncio.get_running_loop().create_task(self.kill(), name="process-timeout")


class Processes:
    """The programs of all sandboxes that may be left running."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[str, Process]] = {}

    def find(self, sandbox_id: str, process_id: str) -> Process:
        """One that was left running in a sandbox."""
        process = self._kept.get(sandbox_id, {}).get(process_id)
        if process is None:
            raise NotFound("this sandbox has no program of that id", field="process_id")
        return process

    def keep(self, sandbox_id: str, process: Process) -> None:
        """Let it be found until a while after its end."""
        kept = self._kept.setdefault(sandbox_id, {})
        kept[process.id] = process
        process.on_end(lambda: self._ended(sandbox_id, process))

    def check_room(self, sandbox_id: str) -> None:
        """Make room for one more, of those that are over; raises QuotaExceeded if all still run."""
        kept = self._kept.get(sandbox_id, {})
        if len(kept) < MAX_KEPT:
            return
        over = next((process for process in kept.values() if process.over), None)
        if over is None:
            raise QuotaExceeded(
                f"the quota detachable programs of {MAX_KEPT} is used up", quota="processes", limit=MAX_KEPT
            )
        del kept[over.id]

    def _ended(self, sandbox_id: str, process: Process) -> None:
        asyncio.get_running_loop().call_later(KEPT_SECONDS, self._forget, sandbox_id, process.id)

    def _forget(self, sandbox_id: str, process_id: str) -> None:
        kept = self._kept.get(sandbox_id, {})
        kept.pop(process_id, None)
        if not kept:
            self._kept.pop(sandbox_id, None)


async def start(sandbox: LiveSandbox, command: Command, *, capability: Capability, detachable: bool = False) -> Process:
    """Start a program, which keeps the sandbox in use until it is over; ExecFailed if it cannot be started."""
    held = contextlib.AsyncExitStack()
    box = await held.enter_async_context(sandbox.use())
    try:
        running = await box.exec(command)
    except BaseException:
        await held.aclose()
        raise
    process = Process(running, held, detachable=detachable, capability=capability, terminal=command.tty is not None)
    try:
        await process.started()
    except asyncio.CancelledError:
        await process.kill()
        raise
    return process


def ending(exited: Exited, seconds: float) -> dict[str, Any]:
    """How a program ended, as clients are told."""
    counted = exited.usage or {}
    usage: dict[str, int] = {}
    if (cpu := counted.get("cpu_us")) is not None:
        usage["cpu_time_ms"] = cpu // 1000
    memory = counted.get("memory_peak_bytes", counted.get("max_rss_bytes"))
    if memory is not None:
        usage["peak_memory_mb"] = -(-memory // MIB)
    if (kills := counted.get("oom_kills")) is not None:
        usage["oom_kills"] = kills
    return {
        "exit_code": exit_status(exited.code, exited.signal),
        "signal": frames.signal_name(exited.signal),
        "duration_ms": round(seconds * 1000),
        "resource_usage": usage,
    }

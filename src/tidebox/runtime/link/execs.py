"""A program that runs behind a link."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from tidebox import errors
from tidebox.model.box import Command
from tidebox.model.events import Event, Exited, OutputEvent, Started, StdinRefused
from tidebox.runtime.base import Exec
from tidebox.runtime.link.session import PACED_LIMIT, Item, MessageQueue
from tidebox.wire.messages import (
    OUTPUT_ACK_OVERHEAD,
    ExecExited,
    ExecFailed,
    ExecLimits,
    ExecOutputAck,
    ExecRequest,
    ExecResize,
    ExecSignal,
    ExecStarted,
    ExecStderr,
    ExecStdin,
    ExecStdinAck,
    ExecStdinError,
    ExecStdout,
    Rlimit,
)

if TYPE_CHECKING:
    from tidebox.runtime.link.link import Link

# Pieces of input for agents that do not say how large theirs may be.
STDIN_CHUNK_SIZE = 65_536


class LinkExec(MessageQueue, Exec):
    """The handle of one exec; also the iterator of its events."""

    def __init__(self, link: Link, id: int, limits: ExecLimits | None) -> None:
        # A window too large to be held in memory paces nobody.
        super().__init__(link, id, paced=limits is not None and limits.output_limit <= PACED_LIMIT)
        self._link = link
        self._limits = limits
        self._sent = 0
        self._accepted = 0
        self._refused = False
        self._consumed = 0
        self._acknowledged = 0
        self._finished = False
        self._ack_above = 0
        if limits is not None:
            # Late enough to be rare, early enough that the agent always has room for one more whole chunk.
            spare = limits.output_limit - limits.output_chunk_size - OUTPUT_ACK_OVERHEAD
            self._ack_above = max(0, min(limits.output_limit // 4, spare))

    def events(self) -> AsyncIterator[Event]:
        """Started, Output..., Exited; ExecFailed is raised when the program could not be started."""
        return self

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        if self._finished:
            raise StopAsyncIteration
        while True:
            event = self._event(await self.next())
            if event is not None:
                return event

    async def write(self, data: bytes | memoryview) -> None:
        """Send input, waiting while the program does not read; dropped once it has closed its input or ended."""
        view = memoryview(data)
        limits = self._limits
        chunk_size = limits.stdin_chunk_size if limits is not None else STDIN_CHUNK_SIZE
        while view and not (self._refused or self.ended):
            chunk = view[:chunk_size]
            if limits is not None and self._sent + len(chunk) - self._accepted > limits.input_limit:
                await self.changed()
                continue
            self._link.send_data(ExecStdin, chunk, self.id)
            self._sent += len(chunk)
            view = view[len(chunk) :]
            await self._link.drain()
        self.check()

    async def end_input(self) -> None:
        """Close standard input."""
        if not self.ended:
            self._link.send_data(ExecStdin, b"", self.id)

    async def signal(self, number: int) -> None:
        """Signal the process group; nothing happens after the end."""
        if not self.ended:
            self._link.send(ExecSignal(signal=number), self.id)

    async def resize(self, rows: int, columns: int) -> None:
        """New size of the terminal."""
        if not self.ended:
            self._link.send(ExecResize(rows=rows, cols=columns), self.id)

    def deliver(self, item: Item, terminal: bool) -> None:
        """Acks and refusals free a waiting writer at once, before the reader gets to them."""
        if isinstance(item, ExecStdinAck):
            # Never beyond what was sent: a hostile agent must not make us buffer without end.
            self._accepted = min(max(self._accepted, item.consumed), self._sent)
            self.wake()
            return
        if isinstance(item, ExecStdinError):
            self._refused = True
        super().deliver(item, terminal)

    def _event(self, item: Item) -> Event | None:
        if isinstance(item, ExecStdout):
            self._consume(len(item.data))
            return OutputEvent("stdout", bytes(item.data))
        if isinstance(item, ExecStderr):
            self._consume(len(item.data))
            return OutputEvent("stderr", bytes(item.data))
        if isinstance(item, ExecStarted):
            return Started(item.pid)
        if isinstance(item, ExecExited):
            self._finished = True
            return Exited(item.code if item.signal is None else None, item.signal, _numbers(item))
        if isinstance(item, ExecFailed):
            self._finished = True
            raise errors.ExecFailed(item.message, kind=item.kind, errno=item.errno, stage=item.stage)
        if isinstance(item, ExecStdinError):
            return StdinRefused(item.message)
        return None

    def _consume(self, size: int) -> None:
        if self._limits is None:
            return
        self._consumed += size + OUTPUT_ACK_OVERHEAD
        if self._consumed - self._acknowledged > self._ack_above and not self.ended:
            self._link.send(ExecOutputAck(consumed=self._consumed), self.id)
            self._acknowledged = self._consumed


def _numbers(exited: ExecExited) -> dict[str, int] | None:
    if exited.usage is None:
        return None
    return {key: value for key, value in exited.usage.items() if isinstance(key, str) and isinstance(value, int)}


def exec_request(command: Command) -> ExecRequest:
    """A command as the agent takes it."""
    rows, columns = command.tty or (24, 80)
    rlimits = []
    if command.cpu_seconds is not None:
        rlimits.append(Rlimit(resource="cpu", soft=command.cpu_seconds, hard=command.cpu_seconds + 1))
    return ExecRequest(
        cmd=command.argv[0],
        args=list(command.argv[1:]),
        env=[f"{name}={value}" for name, value in command.env.items()],
        cwd=command.cwd,
        tty=command.tty is not None,
        rows=rows,
        cols=columns,
        rlimits=rlimits,
    )

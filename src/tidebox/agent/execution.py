"""One exec: its streams, its end, and what the host is told about both."""

from __future__ import annotations

import errno
import fcntl
import os
import termios
from struct import Struct

from tidebox.agent import pty
from tidebox.agent.fd_writer import FdWriter
from tidebox.agent.flow import CHUNK_SIZE, INPUT_LIMIT, UNPACED_INPUT_LIMIT, OutputWindow
from tidebox.agent.loop import HANGUP, READ
from tidebox.wire.messages import ExecExited, ExecStdinAck, ExecStdinError, ExecStdout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Callable

    from tidebox.agent.flow import InputBrake
    from tidebox.agent.host_channel import HostChannel
    from tidebox.agent.loop import Loop, Timer
    from tidebox.wire.cbor import Buffer
    from tidebox.wire.fields import DataMessage, Message

# How long a background process that still holds the output may keep an ended exec open.
GRACE_SECONDS = 0.1
# A window with less room counts as closed, so that a nearly full one does not end in messages of a few bytes.
_SMALLEST_CHUNK = 4096
_INT = Struct("i")


class OutputPipe:
    """The agent's end of a program's output."""

    __slots__ = ("fd", "message_type", "watched", "owed")

    def __init__(self, fd: int, message_type: type[DataMessage]) -> None:
        self.fd = fd
        self.message_type = message_type
        self.watched = False
        # Once the exec has to end: bytes still to be sent of what was in the pipe at that moment.
        self.owed: int | None = None


class AgentExecution:
    """Moves one program's bytes, from the moment it runs until ``exited`` is sent."""

    def __init__(
        self,
        id: int,
        host: HostChannel,
        loop: Loop,
        brake: InputBrake,
        streams: Sequence[OutputPipe],
        terminal: int | None,
        stdin: int,
        paced: bool,
        on_end: Callable[[AgentExecution], None],
        collect: Callable[[], None],
    ) -> None:
        self.id = id
        self.pid = 0
        self.leaf: int | None = None
        self.mark: int | None = None
        self.running = False  # the program has replaced the agent's copy, or is a builtin
        self.muted = False  # nobody listens any more, and the id may be another exec's by now
        self.early_signals: list[int] = []
        self._host = host
        self._loop = loop
        self._brake = brake
        self._streams = streams
        self._terminal = terminal
        self._paced = paced
        self._window = OutputWindow(paced)
        self._stdin = FdWriter(loop, stdin, self._stdin_taken, self._stdin_failed)
        self._stdin_done = False
        self._stdin_received = 0
        self._stdin_consumed = 0
        self._stdin_acknowledged = 0
        self._status: int | None = None
        self._usage: dict[str, Any] = {}
        self._grace: Timer | None = None
        self._on_end = on_end
        self._collect = collect
        # Reads whether the program could be started, while that is not known.
        self.unsettled: Callable[[], None] | None = None

    @property
    def reaped(self) -> bool:
        """The main process is gone."""
        return self._status is not None

    @property
    def silent(self) -> bool:
        """Every output stream has ended."""
        return all(stream.fd < 0 for stream in self._streams)

    def send(self, message: Message) -> None:
        """Tell the host, if it still wants to know."""
        if not self.muted:
            self._host.send(self.id, message)

    # Output

    def listen(self) -> None:
        """Start to read the output."""
        for stream in self._streams:
            self._watch(stream)

    def acknowledged(self, consumed: int) -> None:
        """The client consumed output: go on with what waited for that."""
        closed = self._window.room < _SMALLEST_CHUNK
        self._window.acknowledged(consumed)
        if closed:
            self._resume()

    def mute(self) -> None:
        """The client is gone: go on without it."""
        self.muted = True
        self._window.lift()
        if self.running:
            self._resume()

    def _watch(self, stream: OutputPipe) -> None:
        if stream.fd >= 0 and not stream.watched:
            self._loop.watch(stream.fd, READ, lambda events: self._readable(stream, events))
            stream.watched = True

    def _unwatch(self, stream: OutputPipe) -> None:
        if stream.watched:
            self._loop.forget(stream.fd)
            stream.watched = False

    def _readable(self, stream: OutputPipe, events: int) -> None:
        # After a hang-up the rest and the end can be read in one go.
        self._pump(stream, to_the_end=bool(events & HANGUP))
        if self.silent and not self.reaped:
            # Most programs end when their output does; asking now saves a round of the loop.
            self._collect()
            return
        self._end_if_complete()

    def _resume(self) -> None:
        for stream in self._streams:
            if stream.fd >= 0 and stream.owed != 0:
                self._watch(stream)
                self._pump(stream, to_the_end=self.reaped)
        self._end_if_complete()

    def _pump(self, stream: OutputPipe, to_the_end: bool) -> None:
        while stream.fd >= 0:
            room = self._room(stream)
            if room <= 0:
                return
            try:
                data = os.read(stream.fd, room)
            except BlockingIOError:
                if stream.owed is not None:
                    stream.owed = 0
                return
            except OSError:
                data = b""  # EIO: the last process closed the terminal
            if not data:
                self._close(stream)
                return
            if not self.muted:
                self._window.sent(len(data))
                self._host.send_data(self.id, stream.message_type, data)
            if stream.owed is not None:
                stream.owed -= len(data)
            if not to_the_end:
                return

    def _room(self, stream: OutputPipe) -> int:
        """How much to read now; when it is nothing, the stream is left alone until there is room."""
        if stream.owed == 0:
            self._unwatch(stream)
            return 0
        room = CHUNK_SIZE
        if not self.muted:
            room = self._window.room
            if room < _SMALLEST_CHUNK:
                self._unwatch(stream)
                return 0
            if self._host.outbox.full:
                if stream.watched:
                    self._unwatch(stream)
                    self._host.outbox.wait(lambda: self._room_again(stream))
                return 0
        return room if stream.owed is None else min(room, stream.owed)

    def _room_again(self, stream: OutputPipe) -> None:
        if stream.fd >= 0 and not stream.watched:
            self._watch(stream)
            self._pump(stream, to_the_end=self.reaped)
            self._end_if_complete()

    def _close(self, stream: OutputPipe) -> None:
        self._unwatch(stream)
        os.close(stream.fd)
        stream.fd = -1

    # Input

    def stdin(self, data: Buffer) -> None:
        """Input for the program; empty ends it."""
        if len(data) == 0:
            # A terminal has no end of input of its own: ^D is a key.
            if self._terminal is None and not self._stdin_done:
                self._stdin_done = True
                self._stdin.finish(self._stdin.close)
            return
        self._stdin_received += len(data)
        if self._stdin_done:
            self._count_stdin(len(data))
            return
        self._stdin.put(data)
        if self._stdin.size > (INPUT_LIMIT if self._paced else UNPACED_INPUT_LIMIT):
            if self._paced:
                self._stdin_overflow()
            else:
                self._brake.hold(self._stdin, self._stdin_overflow)

    def _stdin_taken(self, count: int) -> None:
        self._count_stdin(count)
        self._brake.progress(self._stdin, self._stdin.size <= UNPACED_INPUT_LIMIT // 2)

    def _count_stdin(self, count: int) -> None:
        self._stdin_consumed += count
        if self._paced and self._stdin_consumed - self._stdin_acknowledged >= INPUT_LIMIT // 4:
            self._stdin_acknowledged = self._stdin_consumed
            self.send(ExecStdinAck(consumed=self._stdin_consumed))

    def _stdin_overflow(self) -> None:
        self._stdin.close()
        self._stdin_failed(OSError(errno.ENOBUFS, "the program does not read its input; the rest is dropped"))

    def _stdin_failed(self, error: OSError) -> None:
        self._brake.release(self._stdin)
        self._stdin_done = True
        self.send(
            ExecStdinError(
                errno=error.errno,
                errno_name=errno.errorcode.get(error.errno or 0),
                message=f"{error.strerror} (os error {error.errno})",
            )
        )
        # What was queued will never be read: a client that waits for room must not wait for ever.
        self._count_stdin(self._stdin_received - self._stdin_consumed)

    # Control

    def resize(self, rows: int, cols: int) -> None:
        """New size of the terminal, if there is one."""
        if self._terminal is not None and self._streams[0].fd >= 0:
            pty.resize(self._terminal, rows, cols)

    # End

    def ended(self, status: int, usage: Any) -> None:
        """The main process was reaped: send what it left in the pipes, then ``exited``."""
        self._status = status
        self._usage = {
            "cpu_us": int((usage.ru_utime + usage.ru_stime) * 1_000_000),
            "max_rss_bytes": usage.ru_maxrss * 1024,
        }
        for stream in self._streams:
            self._pump(stream, to_the_end=True)
        if not self.silent:
            self._grace = self._loop.later(GRACE_SECONDS, self._grace_over)
        self._end_if_complete()

    def _grace_over(self) -> None:
        """The program has ended: its own bytes are sent or in the pipe, which a background process may still hold."""
        for stream in self._streams:
            if stream.fd >= 0:
                stream.owed = _INT.unpack(fcntl.ioctl(stream.fd, termios.FIONREAD, bytes(_INT.size)))[0]
        self._resume()

    def _end_if_complete(self) -> None:
        if self._status is None or any(stream.fd >= 0 and stream.owed != 0 for stream in self._streams):
            return
        if self._grace is not None:
            self._grace.cancel()
        self._on_end(self)

    def report_exit(self, usage: dict[str, int]) -> None:
        """Send ``exited``."""
        status = self._status or 0
        signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        code = os.WEXITSTATUS(status) if signal is None else -1
        self._usage.update(usage)
        self.send(ExecExited(code=code, signal=signal, usage=self._usage))

    def release(self) -> list[int]:
        """Close the exec's own descriptors; return output that a background process still holds open to the caller."""
        self._brake.release(self._stdin)
        self._stdin.close()
        held = []
        for stream in self._streams:
            if stream.fd >= 0:
                self._unwatch(stream)
                held.append(stream.fd)
                stream.fd = -1
        return held


def terminal_stream(master: int) -> OutputPipe:
    """All output of a terminal comes as stdout."""
    return OutputPipe(master, ExecStdout)

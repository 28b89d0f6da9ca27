"""The program a single-use box was made for: its bytes come straight from it, only its end from its template.

One hop less in either direction is what makes a parked cell fast. The pipes are this process's own, the program holds
their other ends and nothing else: what it does to them is done to itself.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import marshal
import os
import socket
import termios
from collections import deque
from collections.abc import AsyncIterator, Callable
from functools import partial
from struct import Struct
from typing import NamedTuple

from tidebox import errors
from tidebox.model.box import Command
from tidebox.model.events import Event, Exited, OutputEvent, Started, StdinRefused, StreamName
from tidebox.runtime.base import Exec
from tidebox.runtime.native.descriptors import Descriptors
from tidebox.runtime.native.spawner import ORDER_FORMAT

# The first child of a pid namespace's init.
FIRST_PID = 2
# How long a background process that still holds the output may keep an ended program open.
GRACE_SECONDS = 0.1
# A reader this far behind holds its program back.
HIGH_WATER = 1 << 20
LOW_WATER = 1 << 18
_DEFAULT_PIPE = 1 << 16
# For programs that print much: they wait less often for each other, this process and the program.
_LARGE_PIPE = 1 << 18
_ORDER_SIZE = Struct("=I")
_LARGEST_REPORT = 4096
# Its init, its workspace, and what its network leads to.
_ANSWER_DESCRIPTORS = 5
_INT = Struct("i")
_BUILTIN_PREFIX = "tidebox:"
# As the template packs an end, and a program that it could not begin (errno, then the step); they differ in size.
_END = Struct("=iqq")
_FAILURE = Struct("=i")
STEPS = ("process", "rlimit", "user", "cwd", "confine", "exec")


class _Stream:
    """This end of one output; ``owed`` is what is still to be read of it once only strangers can write more."""

    __slots__ = ("fd", "name", "owed", "large")

    def __init__(self, fd: int, name: StreamName) -> None:
        self.fd = fd
        self.name = name
        self.owed: int | None = None
        self.large = False


class Report(NamedTuple):
    """The end of a program: its wait status, or at which step and with which errno it did not begin."""

    step: str
    number: int
    cpu_us: int
    max_rss: int

    @classmethod
    def parse(cls, data: bytes) -> Report | None:
        """None for what no box of ours sends."""
        if len(data) == _END.size:
            return cls("", *_END.unpack(data))
        step = data[_FAILURE.size :].decode("latin-1")
        if step not in STEPS:
            return None
        (number,) = _FAILURE.unpack_from(data)
        return cls(step, number, 0, 0)


class Ends:
    """The descriptors that connect this process with a box: our ends, and ``theirs`` as the box takes them.

    That is a socket to the agent; for a ``single`` program one to its template, and the program's standard streams. All
    or none: a process without a free descriptor opens no box and loses nothing.
    """

    def __init__(self, single: bool) -> None:
        opened: list[tuple[int, int]] = []
        try:
            opened.append(_sockets(socket.SOCK_SEQPACKET if single else socket.SOCK_STREAM))
            if single:
                stdin_theirs, stdin = os.pipe()
                opened.append((stdin, stdin_theirs))
                opened.append(os.pipe())
                opened.append(os.pipe())
        except OSError as error:
            for fd in (fd for pair in opened for fd in pair):
                os.close(fd)
            raise errors.ProvisionFailed(f"no descriptors left for a box: {error.strerror}", step="pipes") from error
        self.theirs = tuple(end for _, end in opened)
        self.ours = [end for end, _ in opened]
        for fd in self.ours:
            os.set_blocking(fd, False)

    def give_away(self) -> None:
        """The box has its ends."""
        for fd in self.theirs:
            os.close(fd)

    def close(self) -> None:
        """There will be no box: let go of ours."""
        for fd in self.ours:
            os.close(fd)


def builtin_of(command: Command | None) -> list[str] | None:
    """Return the order to our own software in a box, where that is all the command says: it can come with the box."""
    if command is None or not command.argv[0].startswith(_BUILTIN_PREFIX) or command != Command(argv=command.argv):
        return None
    return [command.argv[0].removeprefix(_BUILTIN_PREFIX), *command.argv[1:]]


def pack_order(command: Command) -> bytes:
    """A program as a box takes it; ExecFailed for one that needs an agent."""
    if command.tty is not None:
        raise _not_single()
    argv = [argument.encode("utf-8", "surrogateescape") for argument in command.argv]
    env = {
        name.encode("utf-8", "surrogateescape"): value.encode("utf-8", "surrogateescape")
        for name, value in command.env.items()
    }
    data = marshal.dumps(
        {"argv": argv, "env": env, "cwd": command.cwd.encode(), "cpu": command.cpu_seconds or 0}, ORDER_FORMAT
    )
    return _ORDER_SIZE.pack(len(data)) + data


def _not_single() -> errors.ExecFailed:
    return errors.ExecFailed("this box is for one program, on pipes", kind="single")


def _sockets(kind: int) -> tuple[int, int]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    return ours.detach(), theirs.detach()


class PipedExec(Exec):
    """The handle of that program; also the iterator of its events."""

    def __init__(
        self,
        ends: Ends,
        descriptors: Descriptors,
        on_answer: Callable[[bytes, list[int]], None],
        on_failure: Callable[[str], None],
    ) -> None:
        """``on_answer`` is given what the box says when it stands, or that it does not; ``on_failure`` the step at
        which it died without a word."""
        self.ended = False
        self.started = False
        self._on_answer = on_answer
        self._on_failure = on_failure
        self._stands = False
        self._loop = asyncio.get_running_loop()
        self._descriptors = descriptors
        control, self._stdin, stdout, stderr = ends.ours
        self._control = socket.socket(fileno=control)
        self._streams = [_Stream(stdout, "stdout"), _Stream(stderr, "stderr")]
        self._events: deque[Event] = deque()
        self._size = 0
        self._listening = False
        self._report: Report | None = None
        self.lost = False
        self._finished = False
        self._grace: asyncio.TimerHandle | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._command = ""
        descriptors.watch(control, self._on_control)

    async def start(self, command: Command, *, ordered: bool = False) -> None:
        """Order the program, the only one that this box will have, unless it was ``ordered`` with the box."""
        if self.started:
            raise _not_single()
        order = b"" if ordered else pack_order(command)
        self._command = command.argv[0]
        self.started = True
        self._events.append(Started(FIRST_PID))
        # Before any other input. A box that does not take it is dead, which its control socket tells.
        try:
            await self._feed(order)
        except BrokenPipeError:
            pass

    # Output

    def events(self) -> AsyncIterator[Event]:
        """Started, Output..., Exited; ExecFailed is raised when the program could not be started."""
        return self

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        while not self._events:
            if self._finished:
                raise StopAsyncIteration
            if self._report is not None and not self._open_streams():
                return self._last_event(self._report)
            if self.lost:
                raise errors.BoxGone("the box is gone")
            self._listen()
            await self._changed()
        event = self._events.popleft()
        if isinstance(event, OutputEvent):
            self._size -= len(event.data)
        return event

    def _on_control(self) -> None:
        descriptors: list[int] = []
        try:
            if self._stands:
                data = self._control.recv(_LARGEST_REPORT)
            else:
                data, descriptors, _, _ = socket.recv_fds(
                    self._control, _LARGEST_REPORT, _ANSWER_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
                )
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not self._stands and data and len(data) != _END.size:
            self._stands = bool(descriptors)
            self._on_answer(data, list(descriptors))
            return
        if not self._stands:
            self._on_failure("init" if data else "template")
        self._on_report(data)

    def _on_report(self, data: bytes) -> None:
        """The end; what the program wrote before is in the pipes by then."""
        self._descriptors.forget(self._control.fileno())
        self.ended = True
        self._report = Report.parse(data)
        self.lost = self._report is None or not self.started
        for stream in self._open_streams():
            self._read(stream)
        if self._open_streams():
            self._grace = self._loop.call_later(GRACE_SECONDS, self._grace_over)
        self._wake()

    def _last_event(self, report: Report) -> Event:
        self._finished = True
        if report.step:
            kind = "bad_cwd" if report.step == "cwd" else report.step
            if report.step == "exec" and report.number == errno.ENOENT:
                kind = "not_found"
            message = f"cannot start {self._command!r}: {os.strerror(report.number)}"
            raise errors.ExecFailed(message, kind=kind, errno=report.number)
        usage = {"cpu_us": report.cpu_us, "max_rss_bytes": report.max_rss}
        if os.WIFSIGNALED(report.number):
            return Exited(None, os.WTERMSIG(report.number), usage)
        return Exited(os.WEXITSTATUS(report.number), None, usage)

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _changed(self) -> None:
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        await waiter

    def _open_streams(self) -> list[_Stream]:
        return [stream for stream in self._streams if stream.fd >= 0]

    def _listen(self) -> None:
        if not self._listening and self._size <= LOW_WATER:
            self._listening = True
            for stream in self._open_streams():
                self._descriptors.watch(stream.fd, partial(self._readable, stream))

    def _readable(self, stream: _Stream) -> None:
        self._read(stream)
        # Of streams that end one after the other only the last is news.
        if self._events or self._report is not None:
            self._wake()

    def _read(self, stream: _Stream) -> None:
        """Read what is there, as long as the reader of the events keeps up."""
        while stream.fd >= 0:
            if self._size > HIGH_WATER:
                self._pause()
                return
            room = _LARGE_PIPE if stream.owed is None else min(_LARGE_PIPE, stream.owed)
            try:
                data = os.read(stream.fd, room)
            except BlockingIOError:
                return
            if not data:
                self._close_stream(stream)
                return
            self._events.append(OutputEvent(stream.name, data))
            self._size += len(data)
            if stream.owed is not None:
                stream.owed -= len(data)
                if not stream.owed:
                    self._close_stream(stream)
            if len(data) < _DEFAULT_PIPE:
                if self._report is None:
                    return
            elif not stream.large:
                stream.large = True
                try:
                    fcntl.fcntl(stream.fd, fcntl.F_SETPIPE_SZ, _LARGE_PIPE)
                except OSError:
                    pass  # above the user's allowance for pipes: the default size works too

    def _pause(self) -> None:
        if self._listening:
            self._listening = False
            for stream in self._open_streams():
                self._descriptors.forget(stream.fd)

    def _close_stream(self, stream: _Stream) -> None:
        self._descriptors.forget(stream.fd)
        os.close(stream.fd)
        stream.fd = -1

    def _grace_over(self) -> None:
        """End the grace: a background process has the output now; what the program wrote is in the pipe or was read."""
        for stream in self._open_streams():
            stream.owed = _INT.unpack(fcntl.ioctl(stream.fd, termios.FIONREAD, bytes(_INT.size)))[0]
            if not stream.owed:
                self._close_stream(stream)
            else:
                self._read(stream)
        self._wake()

    # Input

    async def write(self, data: bytes) -> None:
        """Send input, waiting while the program does not read; dropped once it has closed its input or ended."""
        try:
            await self._feed(data)
        except BrokenPipeError as error:
            self._events.append(StdinRefused(f"{error.strerror} (os error {error.errno})"))
            self._close_stdin()
            self._wake()
        if self.lost:
            raise errors.BoxGone("the box is gone")

    async def _feed(self, data: bytes) -> None:
        view = memoryview(data)
        while view and self._stdin >= 0 and not self.ended:
            try:
                view = view[os.write(self._stdin, view) :]
            except BlockingIOError:
                await self._writable()

    async def _writable(self) -> None:
        """Wait until the program has read something, or anything else happened."""
        self._loop.add_writer(self._stdin, self._wake)
        try:
            await self._changed()
        finally:
            if self._stdin >= 0:
                self._loop.remove_writer(self._stdin)

    async def end_input(self) -> None:
        """Close standard input."""
        self._close_stdin()

    def _close_stdin(self) -> None:
        if self._stdin >= 0:
            self._loop.remove_writer(self._stdin)
            os.close(self._stdin)
            self._stdin = -1

    # Control

    async def signal(self, number: int) -> None:
        """Signal the process group; nothing happens after the end."""
        if not self.ended:
            # A box that is dead already tells so in the other direction.
            try:
                self._control.send(marshal.dumps({"signal": int(number)}, ORDER_FORMAT))
            except OSError:
                pass

    async def resize(self, rows: int, columns: int) -> None:
        """It has no terminal."""

    def close(self) -> None:
        """Let go of the pipes; a caller that still waits for an event is told that there will be none."""
        self.ended = True
        self.lost = self.lost or self._report is None
        if self._grace is not None:
            self._grace.cancel()
        self._descriptors.forget(self._control.fileno())
        self._control.close()
        self._close_stdin()
        for stream in self._open_streams():
            self._close_stream(stream)
        self._wake()

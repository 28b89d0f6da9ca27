"""A host for tests: drives a real agent process over a socketpair, blocking, one message at a time."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tidebox.wire import files as fs
from tidebox.wire.bulk import BulkOffer, BulkRecord
from tidebox.wire.connection import HostConnection, Inbound
from tidebox.wire.fields import Message
from tidebox.wire.files import FsData, FsRequest, FsResponse
from tidebox.wire.generations import GENERATION
from tidebox.wire.messages import (
    OUTPUT_ACK_OVERHEAD,
    Bootstrap,
    Error,
    ExecExited,
    ExecFailed,
    ExecOutputAck,
    ExecRequest,
    ExecStarted,
    ExecStderr,
    ExecStdin,
    ExecStdout,
)

PATIENCE = 30.0
SOURCE = Path(__file__).resolve().parents[2] / "src"
VERSIONS = ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
M = TypeVar("M", bound=Message)


@functools.cache
def interpreters() -> dict[str, str]:
    """Version and real path of every Python on PATH that the agent must run under, that of the tests included."""
    found = {"{}.{}".format(*sys.version_info[:2]): sys.executable}
    for version in VERSIONS:
        program = shutil.which(f"python{version}")
        if program is None or version in found:
            continue
        # A version manager's shim may be there without the interpreter, and is slow when it is.
        answer = subprocess.run(
            [program, "-c", "import sys; print(sys.executable)"], capture_output=True, text=True, check=False
        )
        if answer.returncode == 0:
            found[version] = answer.stdout.strip()
    return dict(sorted(found.items(), key=lambda item: VERSIONS.index(item[0])))


class Outcome:
    """Everything an exec sent."""

    def __init__(self) -> None:
        self.started: ExecStarted | None = None
        self.stdout = b""
        self.stderr = b""
        self.end: ExecExited | ExecFailed | Error | None = None
        self.kinds: list[str] = []

    @property
    def exited(self) -> ExecExited:
        """The regular end."""
        assert isinstance(self.end, ExecExited), self.end
        return self.end

    @property
    def failed(self) -> ExecFailed:
        """The end of what could not be started."""
        assert isinstance(self.end, ExecFailed), self.end
        return self.end


class Peer:
    """The host's end of the stream."""

    def __init__(
        self, python: str, generation: int = GENERATION, *, boot: bool = True, program: Sequence[str] = ()
    ) -> None:
        """``program`` is run with the number of its socket instead of the plain agent."""
        self.generation = generation
        self.sock, theirs = socket.socketpair()
        self.sock.settimeout(PATIENCE)
        with theirs:
            number = str(theirs.fileno())
            arguments = ["-m", "tidebox.agent", "--fd", number, "--generation", str(generation)]
            if not boot:
                arguments.append("--no-bootstrap")
            if program:
                arguments = [program[0], number, *program[1:]]
            self.process = subprocess.Popen(
                [python, "-S", *arguments],
                pass_fds=[theirs.fileno()],
                env={"PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1", "SECRET": "of the host"},
            )
        self.connection = HostConnection(generation)
        self._next_id = 0
        self._waiting: list[Inbound | BulkRecord] = []
        self._consumed: dict[int, int] = {}

    def boot(self, bootstrap: Bootstrap | None = None) -> None:
        """The whole boot sequence, pipelined."""
        self.sock.sendall(self.connection.boot(bootstrap or Bootstrap()))
        self.until_ready()

    def until_ready(self) -> None:
        """Wait for core.ready."""
        while self.connection.ready is None:
            self._receive()
        self._waiting.clear()

    def new_id(self) -> int:
        """An id that was not used before."""
        self._next_id += 1
        return self._next_id

    def send(self, id: int, *messages: Message) -> None:
        """Send messages in one piece."""
        self.sock.sendall(b"".join(self.connection.encode(message, id) for message in messages))

    def next(self, id: int) -> Any:
        """The next message or record of that id."""
        for index, item in enumerate(self._waiting):
            if item.id == id:
                del self._waiting[index]
                return item if isinstance(item, BulkRecord) else item.message
        while True:
            item = self._receive()
            if item.id == id:
                return item if isinstance(item, BulkRecord) else item.message
            self._waiting.append(item)

    def expect(self, id: int, kind: type[M]) -> M:
        """The next message of that id, which must be of that kind."""
        message = self.next(id)
        assert isinstance(message, kind), message
        return message

    def silent(self, id: int, seconds: float) -> bool:
        """Whether nothing comes for that id in that time."""
        deadline = time.monotonic() + seconds
        try:
            while not any(item.id == id for item in self._waiting):
                left = deadline - time.monotonic()
                if left <= 0:
                    return True
                self.sock.settimeout(left)
                self._waiting.append(self._receive())
        except TimeoutError:
            return True
        finally:
            self.sock.settimeout(PATIENCE)
        return False

    def _receive(self) -> Inbound | BulkRecord:
        while True:
            item = self.connection.next_item()
            if item is not None:
                return item
            count = self.sock.recv_into(self.connection.reader.buffer())
            assert count, "the agent closed the connection"
            self.connection.reader.received(count)

    # Execs

    def start(self, cmd: str, *args: str, **fields: Any) -> int:
        """Start a program; its id."""
        id = self.new_id()
        self.start_with(id, cmd, *args, **fields)
        return id

    def start_with(self, id: int, cmd: str, *args: str, **fields: Any) -> None:
        """Start a program under that id."""
        self._consumed.pop(id, None)
        self.send(id, ExecRequest(cmd=cmd, args=list(args), **fields))

    def sh(self, script: str, **fields: Any) -> int:
        """Start a shell script."""
        return self.start("sh", "-c", script, **fields)

    def consumed(self, id: int, size: int) -> None:
        """Acknowledge one output message of that size."""
        self._consumed[id] = self._consumed.get(id, 0) + size + OUTPUT_ACK_OVERHEAD
        if self.generation >= ExecOutputAck.GENERATION:
            # An agent that was told to end may have done so: what it said before is still read.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.send(id, ExecOutputAck(consumed=self._consumed[id]))

    def finish(self, id: int) -> Outcome:
        """Wait for the end of an exec."""
        outcome = Outcome()
        while outcome.end is None:
            message = self.next(id)
            outcome.kinds.append(type(message).__name__)
            if isinstance(message, ExecStarted):
                outcome.started = message
            elif isinstance(message, ExecStdout):
                outcome.stdout += message.data
                self.consumed(id, len(message.data))
            elif isinstance(message, ExecStderr):
                outcome.stderr += message.data
                self.consumed(id, len(message.data))
            elif isinstance(message, (ExecExited, ExecFailed, Error)):
                outcome.end = message
        return outcome

    def run(self, cmd: str, *args: str, stdin: bytes | None = b"", **fields: Any) -> Outcome:
        """Run a program with this input to its end."""
        id = self.start(cmd, *args, **fields)
        if stdin is not None:
            for start in range(0, len(stdin), 65536):
                self.send(id, ExecStdin(data=stdin[start : start + 65536]))
            self.send(id, ExecStdin(data=b""))
        return self.finish(id)

    def run_sh(self, script: str, **fields: Any) -> Outcome:
        """Run a shell script to its end."""
        return self.run("sh", "-c", script, **fields)

    # Files

    def fs(self, operation: fs.Operation, id: int | None = None) -> FsResponse:
        """One operation that is answered at once."""
        id = self.new_id() if id is None else id
        self.send(id, FsRequest(op=operation))
        return self.expect(id, FsResponse)

    def open(self, path: str | os.PathLike[str], **options: Any) -> int:
        """A file handle."""
        response = self.fs(fs.OpenFile(path=os.fspath(path), options=fs.OpenOptions(**options)))
        assert isinstance(response.data, fs.HandleData), response
        return response.data.handle

    def read(self, handle: int, offset: int = 0, length: int | None = None) -> bytes:
        """A streamed read."""
        id = self.new_id()
        self.send(id, FsRequest(op=fs.Read(handle=handle, offset=offset, len=length)))
        data = b""
        while True:
            message = self.next(id)
            if isinstance(message, FsResponse):
                assert message.ok, message
                return data
            data += message.data

    def write(self, handle: int, *chunks: bytes, offset: int = 0, length: int | None = None) -> FsResponse:
        """A streamed write."""
        id = self.new_id()
        self.send(id, FsRequest(op=fs.Write(handle=handle, offset=offset, len=length)))
        for chunk in chunks:
            self.send(id, FsData(data=chunk))
        self.send(id, FsData(data=b""))
        return self.expect(id, FsResponse)


def offer(credit: int = 8 << 20, payload: int = 3 << 20) -> BulkOffer:
    """A bulk offer as the real client makes it."""
    return BulkOffer(format=1, max_record_payload=payload, guest_to_host_credit_limit=credit)


@contextlib.contextmanager
def running(
    python: str, generation: int = GENERATION, *, boot: bool = True, program: Sequence[str] = ()
) -> Iterator[Peer]:
    """An agent, ready; it ends when its host is gone."""
    peer = Peer(python, generation, boot=boot, program=program)
    try:
        if boot:
            peer.boot()
        else:
            peer.until_ready()
        yield peer
    finally:
        peer.sock.close()
        try:
            peer.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            peer.process.kill()
            peer.process.wait()
            raise

"""Programs and watches in a sandbox of another server, each over a socket of that server's dataplane."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from tidebox.broker.sandboxes.files import SandboxFiles
from tidebox.broker.sandboxes.providers.peer import failure
from tidebox.broker.sandboxes.providers.remote_files import RemoteFiles
from tidebox.broker.sandboxes.sandbox import SandboxOperations
from tidebox.errors import (
    BoxGone,
    ExecFailed,
    InvalidRequest,
    ProviderUnavailable,
    QuotaExceeded,
    ServerProtocolError,
    TideboxError,
)
from tidebox.model.box import Command
from tidebox.model.events import Event, Exited, OutputEvent, Started
from tidebox.model.launch import WORKSPACE
from tidebox.model.limits import KIB, MIB
from tidebox.protocols.codec import encode
from tidebox.protocols.dataplane import frames
from tidebox.protocols.dataplane.frames import Start, Stderr, Stdout, Terminal, raw
from tidebox.protocols.dataplane.routes import WatchRequest
from tidebox.runtime.base import BoxWatch, Exec
from tidebox.sdk.error_decoding import from_told
from tidebox.sdk.errors import ClientClosed, ConnectionLost
from tidebox.sdk.message_socket import MessageSocket
from tidebox.sdk.sandboxes.process import next_frame
from tidebox.sdk.sandboxes.watch import AsyncWatch
from tidebox.untrusted_files.tree_watch import ChangeKind, TreeChange

if TYPE_CHECKING:
    from tidebox.broker.sandboxes.providers.remote_sandbox import RemoteSandbox

_READY_SECONDS = 30.0
# After these a program that was started will not go on.
_FINAL = (ExecFailed, InvalidRequest, QuotaExceeded, BoxGone)
_PIECE_BYTES = 128 * KIB
# Of input that a program there does not read: less than that server keeps before it reads no more frames.
_UNTAKEN_BYTES = MIB


class RemoteOperations(SandboxOperations):
    """Programs and watches over sockets, files by requests, as clients of that server would."""

    def __init__(self, sandbox: RemoteSandbox, request_id: str | None) -> None:
        self._sandbox = sandbox
        # So that the logs of both servers speak of the same request.
        self._headers = {} if request_id is None else {"X-Request-ID": request_id}

    @property
    def files(self) -> SandboxFiles:
        """The files of the remote sandbox."""
        return RemoteFiles(self._sandbox, self._headers)

    async def exec(self, command: Command) -> Exec:
        """Start a program."""
        start = Start(
            command=raw(command.argv),
            cwd=command.cwd,
            env=raw(command.env),
            stdin=True,
            tty=None if command.tty is None else Terminal(*command.tty),
            input_acks=True,
        )
        async with self._sandbox.granted() as grant:
            socket = await MessageSocket.open(self._sandbox.http, grant.exec_url, grant.token, self._headers)
            try:
                await socket.send(encode(start))
            except BaseException:
                await socket.close(at_once=True)
                raise
        return RemoteExec(socket)

    async def watch(self, path: str, recursive: bool) -> BoxWatch:
        """Be told of changes in a directory of the workspace."""
        asked = WatchRequest(path, recursive)
        try:
            async with asyncio.timeout(_READY_SECONDS), self._sandbox.granted() as grant:
                watch = await AsyncWatch.open(self._sandbox.http, self._sandbox, grant, asked, self._headers)
        except TimeoutError:
            raise ProviderUnavailable("the server of the sandbox does not answer") from None
        return RemoteWatch(watch)


class RemoteExec(Exec):
    """A program that runs there; it is killed there when the connection is lost."""

    def __init__(self, socket: MessageSocket) -> None:
        self.ended = False
        self._socket = socket
        self._acks = False
        """Whether that server tells how much input was taken."""
        self._sent = self._taken = 0
        self._room = asyncio.Event()

    async def events(self) -> AsyncIterator[Event]:
        """Yield its events. Little is read ahead of the reader here, so a program there waits for a client here."""
        started = over = False
        try:
            while not over:
                frame = await next_frame(self._socket)
                if isinstance(frame, Stdout | Stderr):
                    yield OutputEvent("stdout" if isinstance(frame, Stdout) else "stderr", frame.bytes())
                elif isinstance(frame, frames.Ready):
                    started, self._acks = True, frame.input_acks
                    yield Started(frame.pid)
                elif isinstance(frame, frames.InputTaken):
                    self._taken = frame.bytes
                    self._room.set()
                elif isinstance(frame, frames.Exit):
                    over = self.ended = True
                    yield _exited(frame)
                elif isinstance(frame, frames.Error):
                    error = failure(from_told(frame.error))
                    # Others answer a single frame.
                    if not started or isinstance(error, _FINAL):
                        raise error
        except (ConnectionLost, ClientClosed, ServerProtocolError) as error:
            raise _broken(error) from None
        finally:
            self.ended = True
            await self._socket.close(at_once=not over)

    async def write(self, data: bytes) -> None:
        """Send input, waiting while it is not taken: what is under way would be in the way of a signal."""
        for start in range(0, len(data), _PIECE_BYTES):
            while self._acks and self._sent - self._taken >= _UNTAKEN_BYTES:
                self._room.clear()
                await self._room.wait()
            piece = data[start : start + _PIECE_BYTES]
            self._sent += len(piece)
            for message in frames.input_frames(piece):
                await self._socket.send(message)

    async def end_input(self) -> None:
        """Close its input."""
        await self._socket.send(encode(frames.Stdin(eof=True)))

    async def signal(self, number: int) -> None:
        """Send a signal to the program."""
        await self._socket.send(encode(frames.Signal(signal.Signals(number).name)))

    async def resize(self, rows: int, columns: int) -> None:
        """Change the size of its terminal."""
        await self._socket.send(encode(frames.Resize(rows, columns)))


class RemoteWatch(BoxWatch):
    """A watch of a directory on the other server."""

    def __init__(self, watch: AsyncWatch) -> None:
        self._watch = watch

    async def changes(self) -> list[TreeChange]:
        """Wait for the next one."""
        try:
            change = await self._watch.read()
        except (ConnectionLost, ClientClosed, ServerProtocolError) as error:
            raise _broken(error) from None
        except TideboxError as error:
            raise failure(error) from None
        if change is None:
            return []
        source = None if change.source is None else _relative(change.source)
        return [TreeChange(ChangeKind(change.kind), _relative(change.path), change.is_directory, source)]

    async def close(self) -> None:
        """Watch nothing any more."""
        await self._watch.close()


def _exited(frame: frames.Exit) -> Exited:
    counted = {
        "cpu_us": (frame.resource_usage.cpu_time_ms, 1000),
        "memory_peak_bytes": (frame.resource_usage.peak_memory_mb, MIB),
        "oom_kills": (frame.resource_usage.oom_kills, 1),
    }
    usage = {name: round(number * factor) for name, (number, factor) in counted.items() if number is not None}
    return Exited(frame.exit_code, frames.signal_number(frame.signal), usage)


def _relative(path: str) -> str:
    return path.removeprefix(WORKSPACE).lstrip("/")


def _broken(error: TideboxError) -> TideboxError:
    """Return the error for a connection that ended early."""
    if isinstance(error, ServerProtocolError):
        return ProviderUnavailable("the server of the sandbox does not speak this protocol")
    return BoxGone("the connection to the sandbox was lost")

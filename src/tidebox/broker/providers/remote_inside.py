"""Programs and watches in a sandbox of another server, each over a socket of that server's dataplane."""

from __future__ import annotations

import asyncio
import base64
import binascii
import errno
import signal
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlencode

import msgspec
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, ConnectionClosedOK

from tidebox.broker.sandboxes import Inside, Pass
from tidebox.errors import (
    BoxGone,
    ExecFailed,
    FileOperationFailed,
    InvalidRequest,
    LimitOutOfRange,
    ProviderUnavailable,
    QuotaExceeded,
    TideboxError,
)
from tidebox.files.watching import Change, Kind
from tidebox.model.box import Command
from tidebox.model.events import Event, Exited, Output, Started
from tidebox.model.launch import WORKSPACE
from tidebox.model.limits import KIB, MIB
from tidebox.runtime.base import Exec, Watch

if TYPE_CHECKING:
    from tidebox.broker.providers.remote_sandbox import RemoteSandbox

_INPUT_BYTES = 128 * KIB
_READY_SECONDS = 30.0
_ERRORS: dict[str, type[TideboxError]] = {
    "EXEC_FAILED": ExecFailed,
    "INVALID_REQUEST": InvalidRequest,
    "LIMIT_OUT_OF_RANGE": LimitOutOfRange,
    "RATE_LIMITED": QuotaExceeded,
    "BACKEND_UNAVAILABLE": BoxGone,
}
# What a code of the dataplane means here, so that it is answered by the same code.
_ERRNOS = {
    "FILE_NOT_FOUND": errno.ENOENT,
    "FILE_ACCESS_DENIED": errno.EACCES,
    "FILE_CONFLICT": errno.EEXIST,
    "NO_SPACE": errno.ENOSPC,
}


class _Error(msgspec.Struct):
    code: str
    message: str = ""


class _Frame(msgspec.Struct):
    """Any frame of the other server, of which each has some of the fields."""

    type: str
    pid: int = 0
    data: str = ""
    encoding: Literal["utf8", "base64"] = "utf8"
    exit_code: int | None = None
    signal: str | None = None
    resource_usage: dict[str, int] = msgspec.field(default_factory=dict)
    path: str = ""
    entry: str = ""
    source: str | None = None
    error: _Error | None = None


_decode = msgspec.json.Decoder(_Frame).decode
_encode = msgspec.json.Encoder().encode


class RemoteInside(Inside):
    """What is done over sockets here is done over sockets there."""

    def __init__(self, sandbox: RemoteSandbox) -> None:
        self._sandbox = sandbox

    async def exec(self, command: Command) -> Exec:
        """Start a program."""
        socket, _ = await self._sandbox.connect("/v1/exec/ws")
        wires = _Wires(socket)
        start: dict[str, Any] = {
            "type": "start",
            "command": command.argv,
            "cwd": command.cwd,
            "env": command.env,
            "stdin": True,
        }
        if command.tty is not None:
            start["tty"] = dict(zip(("rows", "cols"), command.tty, strict=True))
        try:
            await wires.send(start)
        except BaseException:
            await wires.close()
            raise
        return RemoteExec(wires)

    async def watch(self, path: str, recursive: bool) -> Watch:
        """Be told of changes in a directory of the workspace."""
        query = urlencode({"path": path, "recursive": str(recursive).lower()})
        socket, shown = await self._sandbox.connect(f"/v1/files/watch?{query}")
        wires = _Wires(socket)
        try:
            async with asyncio.timeout(_READY_SECONDS):
                while (frame := await wires.next()).type != "ready":
                    if frame.error is not None:
                        raise _failure(frame.error)
        except TimeoutError:
            await wires.close()
            raise ProviderUnavailable("the server of the sandbox does not answer") from None
        except BaseException:
            await wires.close()
            raise
        return RemoteWatch(wires, self._sandbox, shown)


class _Wires:
    """One socket: frames in, frames out."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    async def send(self, frame: dict[str, Any]) -> None:
        """Send a frame, as soon as the other side takes it."""
        try:
            await self._socket.send(_encode(frame).decode())
        except ConnectionClosed:
            raise _cut_off() from None

    async def next(self) -> _Frame:
        """The next frame; raises ``EOFError`` where the other side is done."""
        try:
            return _decode(await self._socket.recv())
        except ConnectionClosedOK:
            raise EOFError from None
        except ConnectionClosed:
            raise _cut_off() from None
        except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
            raise ProviderUnavailable("the server of the sandbox does not speak this protocol") from None

    async def close(self) -> None:
        """Be done with it."""
        await self._socket.close()


class RemoteExec(Exec):
    """A program that runs there; it is killed there when the connection is lost."""

    def __init__(self, wires: _Wires) -> None:
        self.ended = False
        self._wires = wires

    async def events(self) -> AsyncIterator[Event]:
        """What comes of it. Nothing is read ahead of who reads here, so a program there waits for a client here."""
        try:
            started = False
            while not self.ended:
                frame = await self._wires.next()
                if frame.type in ("stdout", "stderr"):
                    yield _output(frame)
                elif frame.type == "ready":
                    started = True
                    yield Started(frame.pid)
                elif frame.type == "exit":
                    self.ended = True
                    yield _exited(frame)
                elif frame.error is not None and (not started or frame.error.code in _ERRORS):
                    raise _failure(frame.error)
        except EOFError:
            raise _cut_off() from None
        finally:
            self.ended = True
            await self._wires.close()

    async def write(self, data: bytes) -> None:
        """Send input, waiting while it is not taken."""
        for start in range(0, len(data), _INPUT_BYTES):
            piece = base64.b64encode(data[start : start + _INPUT_BYTES]).decode()
            await self._wires.send({"type": "stdin", "data": piece, "encoding": "base64"})

    async def end_input(self) -> None:
        """Close its input."""
        await self._wires.send({"type": "stdin", "eof": True})

    async def signal(self, number: int) -> None:
        """Signal it."""
        await self._wires.send({"type": "signal", "signal": signal.Signals(number).name})

    async def resize(self, rows: int, columns: int) -> None:
        """Change the size of its terminal."""
        await self._wires.send({"type": "resize", "rows": rows, "cols": columns})


class RemoteWatch(Watch):
    """Changes there. Who watches must show a new pass before the last one has expired."""

    def __init__(self, wires: _Wires, sandbox: RemoteSandbox, shown: Pass) -> None:
        self._wires = wires
        self._sandbox = sandbox
        self._shown = shown

    async def changes(self) -> list[Change]:
        """Wait for the next one."""
        while True:
            try:
                async with asyncio.timeout(max(0.0, self._shown.renew_at - time.time())):
                    frame = await self._wires.next()
            except TimeoutError:
                self._shown = await self._sandbox.pass_()
                await self._wires.send({"type": "auth", "token": self._shown.token})
                continue
            except EOFError:
                return []
            if frame.error is not None:
                raise _failure(frame.error)
            try:
                return [_change(frame)]
            except ValueError:
                continue  # what is no change: the answer to a pass

    async def close(self) -> None:
        """Watch nothing any more."""
        await self._wires.close()


def _output(frame: _Frame) -> Output:
    stream: Literal["stdout", "stderr"] = "stderr" if frame.type == "stderr" else "stdout"
    if frame.encoding == "utf8":
        return Output(stream, frame.data.encode())
    try:
        return Output(stream, base64.b64decode(frame.data, validate=True))
    except (binascii.Error, ValueError):
        raise ProviderUnavailable("the server of the sandbox does not speak this protocol") from None


def _exited(frame: _Frame) -> Exited:
    number = None
    if frame.signal is not None:
        name = f"SIG{frame.signal}"
        number = signal.Signals[name].value if name in signal.Signals.__members__ else None
        if number is None and frame.signal.isdecimal():
            number = int(frame.signal)
    counted = frame.resource_usage
    usage = {
        there: counted[name] * factor
        for name, there, factor in (
            ("cpu_time_ms", "cpu_us", 1000),
            ("peak_memory_mb", "memory_peak_bytes", MIB),
            ("oom_kills", "oom_kills", 1),
        )
        if name in counted
    }
    return Exited(frame.exit_code if number is None else None, number, usage)


def _change(frame: _Frame) -> Change:
    kind = Kind(frame.type)
    source = None if frame.source is None else _relative(frame.source)
    return Change(kind, _relative(frame.path), frame.entry == "directory", source)


def _relative(path: str) -> str:
    return path.removeprefix(WORKSPACE).lstrip("/")


def _failure(error: _Error) -> TideboxError:
    if error.code.startswith("FILE_") or error.code == "NO_SPACE":
        return FileOperationFailed(error.message, errno=_ERRNOS.get(error.code))
    found = _ERRORS.get(error.code)
    return found(error.message) if found is not None else ProviderUnavailable("the server of the sandbox refuses")


def _cut_off() -> BoxGone:
    return BoxGone("the connection to the sandbox was lost")

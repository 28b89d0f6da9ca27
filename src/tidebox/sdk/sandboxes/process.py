"""A program in a sandbox and the socket it is reached through."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Self

from tidebox.errors import ServerProtocolError
from tidebox.protocols.codec import encode
from tidebox.protocols.dataplane import frames
from tidebox.sdk.closeable import AsyncCloseable
from tidebox.sdk.errors import ConnectionLost
from tidebox.sdk.http_client import HttpClient
from tidebox.sdk.message_socket import MessageSocket
from tidebox.sdk.sandboxes.results import Chunk, Ending, ending_of


async def verify_token(http: HttpClient, url: str, token: str) -> frames.AuthOk:
    """Authenticate with a token, and return what it covers; raises if it is refused."""
    socket = await MessageSocket.open(http, url, token)
    try:
        await socket.send(encode(frames.Auth(token)))
        frame = await _receive(socket)
    finally:
        await socket.close()
    if not isinstance(frame, frames.AuthOk):
        raise ServerProtocolError("the sandbox did not say whether the token is good")
    return frame


async def next_frame(socket: MessageSocket) -> frames.Frame:
    """The next frame of a type that is known."""
    while (message := await socket.receive()) is not None:
        if (frame := frames.decode_frame(message)) is not None:
            return frame
    raise ConnectionLost("the sandbox closed the connection before the program was over")


async def _receive(socket: MessageSocket) -> frames.Frame:
    """The same, but an error that the sandbox tells of is raised."""
    frame = await next_frame(socket)
    if isinstance(frame, frames.Error):
        raise socket.failed(frame.error)
    return frame


class AsyncProcess(AsyncCloseable):
    """A program that runs in a sandbox; iterate over it for its output as it comes.

    One task reads. Closing it ends the program, unless that was started to go on without anybody.
    """

    def __init__(self, socket: MessageSocket) -> None:
        self._socket = socket
        self._ending: Ending | None = None
        self.pid = 0
        """Its number in the sandbox."""
        self.id: str | None = None
        """The id by which ``attach`` finds it, if it was started to go on without anybody."""
        self.offset = 0
        """The offset of its next output, of both streams together, after what was read; known if it has an id."""

    @classmethod
    async def start(cls, http: HttpClient, url: str, token: str, request: frames.Start) -> Self:
        """Start a program, or attach to one, as the ``start`` frame says."""
        message = encode(request)
        process = cls(await MessageSocket.open(http, url, token))
        try:
            await process._socket.send(message)
            frame = await _receive(process._socket)
            if not isinstance(frame, frames.Ready):
                raise ServerProtocolError("the sandbox did not say that the program runs")
        except BaseException:
            await process.close()
            raise
        process.pid, process.id, process.offset = frame.pid, frame.process_id, frame.offset or 0
        return process

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        while (chunk := await self.read()) is not None:
            yield chunk

    async def read(self) -> Chunk | None:
        """The next piece of output; None when the program is over.

        What the sandbox has to say against something that was sent to the program is raised here.
        """
        while self._ending is None:
            frame = await _receive(self._socket)
            if isinstance(frame, frames.Stdout | frames.Stderr):
                data = frame.bytes()
                self.offset = frame.offset if isinstance(frame.offset, int) else self.offset + len(data)
                return Chunk("stdout" if isinstance(frame, frames.Stdout) else "stderr", data)
            if isinstance(frame, frames.Exit):
                self._ending = Ending(**ending_of(frame))
                await self.close()
        return None

    async def wait(self) -> Ending:
        """Wait for its end, and return how it ended; what it still prints until then is passed over."""
        while await self.read() is not None:
            pass
        assert self._ending is not None
        return self._ending

    async def write(self, data: bytes | str) -> None:
        """Give it input; waits while it is too far behind with reading."""
        for message in frames.input_frames(data.encode() if isinstance(data, str) else data):
            await self._socket.send(message)

    async def end_input(self) -> None:
        """Let it read the end of its input."""
        await self._socket.send(encode(frames.Stdin(eof=True)))

    async def signal(self, name: str) -> None:
        """Signal it: ``INT``, ``TERM``, ``KILL`` and so on."""
        await self._socket.send(encode(frames.Signal(name)))

    async def resize(self, rows: int, columns: int) -> None:
        """Give its terminal another size."""
        await self._socket.send(encode(frames.Resize(rows, columns)))

    async def close(self) -> None:
        """End the connection, and with it the program, unless that was started to go on without anybody."""
        # One that ends by that may still write, and nobody wants to know.
        await self._socket.close(at_once=self._ending is None and self.id is None)

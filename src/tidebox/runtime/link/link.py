"""One socket to one agent, shared by everything that happens in its box."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from tidebox import errors
from tidebox.runtime.link.execs import LinkExec
from tidebox.runtime.link.files import LinkFiles
from tidebox.runtime.link.session import MessageQueue
from tidebox.runtime.link.stream import Connect, SocketStream, Stream, StreamReceiver
from tidebox.runtime.link.tcp import TcpStream
from tidebox.wire.bulk import BulkRecord
from tidebox.wire.connection import HostConnection
from tidebox.wire.errors import UnsupportedByPeer, WireError
from tidebox.wire.frames import FLAG_TERMINAL, Frame
from tidebox.wire.generations import FLOW_CONTROL_GENERATION, GENERATION
from tidebox.wire.messages import (
    Bootstrap,
    ExecRequest,
    Ping,
    Pong,
    Ready,
    RelayClientDisconnected,
    Shutdown,
    Touch,
    Touched,
)

if TYPE_CHECKING:
    from tidebox.wire.cbor import Buffer
    from tidebox.wire.fields import DataMessage, Message

    Answer = TypeVar("Answer", bound=Message)

# The protocol gives a guest this long to boot.
READY_TIMEOUT = 180.0
# Fewer wake-ups per large frame; the kernel gives as much of it as net.core.wmem_max allows.
SEND_BUFFER = 1 << 20
# Pieces up to this size are joined: one copy costs less than one more system call.
JOIN_BELOW = 32_768


class Link:
    """The host's end of an agent connection; make one with ``Link.open``, or ``Link.to`` an agent that is known."""

    def __init__(self, connection: socket.socket | Connect, generation: int, through_relay: bool) -> None:
        self._connection = HostConnection(generation, through_relay=through_relay)
        self._sessions: dict[int, MessageQueue] = {}
        self._holding: set[object] = set()
        self._ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self._closed = asyncio.get_running_loop().create_future()
        self._writable = asyncio.Event()
        self._writable.set()
        self._error: errors.TideboxError | None = None
        self._route: Callable[[Frame], None] | None = None
        self.files = LinkFiles(self)
        self.on_lost: Callable[[], None] | None = None
        connect = _over(connection) if isinstance(connection, socket.socket) else connection
        self._stream = connect(self)

    @classmethod
    def to(cls, connection: socket.socket | Connect, presumed: Ready, bootstrap: Bootstrap | None = None) -> Link:
        """A link to an agent whose answer is known; ``wait_ready`` tells when it has given it.

        With ``bootstrap`` the agent is booted first.
        """
        link = cls(connection, GENERATION, False)
        link._connection.presume(presumed)
        if bootstrap is not None:
            link._stream.write(link._connection.boot(bootstrap))
        return link

    @classmethod
    async def open(
        cls,
        sock: socket.socket,
        *,
        bootstrap: Bootstrap | None = None,
        through_relay: bool = False,
        generation: int = GENERATION,
        ready_within: float = READY_TIMEOUT,
    ) -> Link:
        """Take over a connected stream socket and shake hands.

        With ``bootstrap`` the agent is booted; otherwise it is expected to be ready by itself, as it is behind a relay.
        """
        link = cls(sock, generation, through_relay)
        if bootstrap is not None:
            # Both answers of the host are known beforehand, so the agent never waits for us.
            link._stream.write(link._connection.boot(bootstrap))
        await link.wait_ready(ready_within)
        return link

    async def wait_ready(self, ready_within: float = READY_TIMEOUT) -> None:
        """Wait until the agent has said that it is ready."""
        try:
            async with asyncio.timeout(ready_within):
                await asyncio.shield(self._ready)
        except TimeoutError:
            error = errors.BoxGone(f"the agent was not ready after {ready_within:g} s")
            self._end(error)
            raise error from None
        except asyncio.CancelledError:
            self._end(errors.BoxGone("the link was given up before the agent was ready"))
            raise

    @property
    def generation(self) -> int:
        """The agreed generation."""
        return self._connection.negotiated

    @property
    def ready(self) -> Ready:
        """The ready message by which the agent described itself."""
        assert self._connection.ready is not None
        return self._connection.ready

    @property
    def ready_frame(self) -> bytes:
        """The agent's ready message as it came, for a relay to repeat."""
        assert self._connection.ready_frame is not None
        return bytes(self._connection.ready_frame.raw)

    @property
    def gone(self) -> bool:
        """The connection has ended."""
        return self._error is not None

    def supports(self, message_type: type[Message]) -> bool:
        """Whether the agent knows a message type."""
        return self._connection.supports(message_type)

    def open_exec(self, request: ExecRequest) -> LinkExec:
        """Start a program; its first event tells whether it runs. Sends without waiting."""
        limits = self.ready.exec_limits if self.generation >= FLOW_CONTROL_GENERATION else None
        execution = LinkExec(self, self.allocate_id(), limits)
        self.start(execution, request)
        return execution

    async def connect_tcp(self, host: str, port: int) -> TcpStream:
        """Connect from inside the box."""
        stream = TcpStream(self, self.allocate_id())
        self.start(stream, stream.request(host, port))
        await stream.connected()
        return stream

    async def ping(self) -> None:
        """Wait until the agent answers."""
        await self._call(Ping(), Pong)

    async def touch(self) -> int:
        """Count as activity; the agent's activity number."""
        return (await self._call(Touch(), Touched)).activity_seq

    def shutdown(self) -> None:
        """Ask the agent to end every process and stop; ``wait_closed`` tells when it did."""
        self.send(Shutdown(), 0)

    async def wait_closed(self) -> None:
        """Wait until the connection has ended, for any reason."""
        await asyncio.shield(self._closed)

    async def close(self) -> None:
        """Drop the connection; everything pending fails with BoxGone."""
        self._end(errors.BoxGone("the link was closed"))
        await self.wait_closed()

    # For the sessions and the relay.

    def allocate_id(self) -> int:
        """An id of our own range that nothing is waiting for."""
        self.check()
        return self._connection.ids.allocate(self._sessions)

    def start(self, session: MessageQueue, request: Message) -> None:
        """Send the first message of a session and route what comes back to it."""
        self.send(request, session.id)
        self.expect(session)

    def expect(self, session: MessageQueue) -> None:
        """Route what comes for a session that the agent knows of already."""
        self._sessions[session.id] = session

    def check(self) -> None:
        """Raise when the connection has ended."""
        if self._error is not None:
            raise self._error

    def send(self, message: Message, id: int) -> None:
        """Send one message."""
        self.check()
        try:
            frame = self._connection.encode(message, id)
        except UnsupportedByPeer as error:
            raise errors.UnsupportedOperation(str(error), needs=error.needs, speaks=error.speaks) from None
        self._stream.write(frame)

    def send_data(self, message_type: type[DataMessage], data: Buffer, id: int) -> None:
        """Send a data message without copying large data."""
        self.send_pieces(self._connection.data_pieces(message_type, data, id))

    def send_pieces(self, pieces: Sequence[Buffer]) -> None:
        """Send one encoded frame."""
        self.check()
        if sum(map(len, pieces)) <= JOIN_BELOW:
            self._stream.write(b"".join(pieces))
        else:
            for piece in pieces:
                self._stream.write(piece)

    @property
    def writable(self) -> bool:
        """Whether ``drain`` would return at once."""
        return self._writable.is_set()

    async def drain(self) -> None:
        """Wait while the agent reads slower than we write."""
        if not self._writable.is_set():
            await self._writable.wait()
        self.check()

    def hold(self, session: object) -> None:
        """Stop reading from the agent."""
        if not self._holding:
            self._stream.pause_reading()
        self._holding.add(session)

    def release(self, session: object) -> None:
        """Read on, when nobody else holds."""
        if session in self._holding:
            self._holding.remove(session)
            if not self._holding:
                self._stream.resume_reading()

    def forget(self, session: MessageQueue) -> None:
        """Drop frames of that id from now on."""
        if self._sessions.get(session.id) is session:
            del self._sessions[session.id]

    def route_foreign(self, route: Callable[[Frame], None] | None) -> None:
        """Give frames whose id is not ours to a relay."""
        self._route = route

    def client_disconnected(self, start: int, end: int) -> None:
        """Tell the agent that a relay client is gone."""
        self.send(RelayClientDisconnected(id_start=start, id_end_exclusive=end), 0)

    # The stream's side.

    def get_buffer(self) -> memoryview:
        """Large frames are received straight into their own memory."""
        return self._connection.reader.buffer()

    def received(self, count: int) -> None:
        """Take the frames that are whole now."""
        self._connection.reader.received(count)
        try:
            while (frame := self._connection.next_frame()) is not None:
                self._take(frame)
        except WireError as error:
            self._end(errors.AgentProtocolError(str(error)))

    def disconnected(self) -> None:
        """The agent is gone, or nobody wants to speak to it any more."""
        if self.on_lost is not None:
            self.on_lost()
        self._end(errors.BoxGone("the agent is gone"))
        if not self._closed.done():
            self._closed.set_result(None)

    def pause_writing(self) -> None:
        """Let writers wait."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Let writers go on."""
        self._writable.set()

    def _take(self, frame: Frame) -> None:
        if frame.id and frame.id not in self._connection.ids:
            if self._route is not None:
                self._route(frame)
            return
        item = self._connection.read(frame)
        if item is None:
            return
        if isinstance(item, BulkRecord):
            session = self._sessions.get(item.id)
            if session is not None:
                session.deliver(item, False)
            return
        message = item.message
        if isinstance(message, Ready) and not self._ready.done():
            self._ready.set_result(message)
            return
        terminal = bool(message.FLAGS & FLAG_TERMINAL)
        session = self._sessions.pop(frame.id, None) if terminal else self._sessions.get(frame.id)
        if session is not None:
            session.deliver(message, terminal)

    async def _call(self, request: Message, answer_type: type[Answer]) -> Answer:
        session = MessageQueue(self, self.allocate_id())
        self.start(session, request)
        try:
            answer = await session.next()
        finally:
            session.abandon()
        if not isinstance(answer, answer_type):
            raise errors.AgentProtocolError(f"expected {answer_type.WIRE}, got another message")
        return answer

    def _end(self, error: errors.TideboxError) -> None:
        """The first error is the one everybody sees."""
        if self._error is not None:
            return
        self._error = error
        if not self._ready.done():
            self._ready.set_exception(error)
            # Nobody waits for it any more when open() was cancelled.
            self._ready.exception()
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            session.fail(error)
        self._writable.set()
        self._stream.abort()


def _over(sock: socket.socket) -> Connect:
    def connect(owner: StreamReceiver) -> Stream:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        return SocketStream(sock, owner)

    return connect

"""One box, as the egress process serves it: its listener, its questions for names, its limits and its counts."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import cast

from tidebox.egress import dns, messages
from tidebox.egress.connection import LIMIT, EgressConnection
from tidebox.egress.dialling import Dial
from tidebox.egress.dns_server import DnsServer
from tidebox.egress.interceptor import Interceptor
from tidebox.egress.names import Names
from tidebox.egress.rate_limits import TokenBucket
from tidebox.egress.relay import ConnectionStopped
from tidebox.egress.resolver import Resolver
from tidebox.model.egress import NO_MATCH, POLICY_CHANGED, Address, EgressPolicy

# How often a box may connect or ask for a name in a second, for a while and at once: others wait for the same process.
_PER_SECOND, _AT_ONCE = 1000.0, 1000.0
# Of these, what a connection that is opened counts for: two handshakes of TLS take so much longer.
_OPENED = 10.0
_MOST_PER_TURN = 32
_MOST_UNSENT = 1 << 20
_LONGEST_NAME = 253


class ServedBox(asyncio.Protocol):
    """Also the protocol of the stream by which the server tells of it."""

    def __init__(
        self,
        ends: list[socket.socket],
        resolver: Resolver,
        dial: Dial,
        intercept: Callable[[messages.Serve], Interceptor | None],
        has_room: Callable[[], bool],
        on_closed: Callable[[ServedBox], None],
    ) -> None:
        """``ends`` are its listener and the sockets for its questions; ``has_room`` says whether there may be one
        connection more."""
        self._loop = asyncio.get_running_loop()
        self._listener, *others = ends
        self._resolver = resolver
        self.dial = dial
        self.interceptor: Interceptor | None = None
        self._intercept = intercept
        self._has_room = has_room
        self._on_closed = on_closed
        self._reader = messages.process_reader()
        self._transport: asyncio.WriteTransport | None = None
        self.policy = EgressPolicy(())
        self.names = Names(self.policy, {}, resolver, self._pinned)
        self._bounds = messages.BoxLimits()
        self._rate: TokenBucket | None = None
        self._pace = TokenBucket(_PER_SECOND, _AT_ONCE)
        self.questions = DnsServer(self, others, self._pace)
        self._serving = False
        self._closed = False
        self.tasks: dict[asyncio.Task[None], EgressConnection] = {}
        self._seen: set[tuple[object, ...]] = set()
        self._connections = self._denied = self._untold = 0
        self._bytes = {True: 0, False: 0}

    # The server's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # That of uvloop is no subclass.
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._reader.feed(data):
                if isinstance(message, messages.Serve):
                    self._serve(message)
                elif isinstance(message, messages.CountRequest):
                    self._answer(message)
        except messages.Broken:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.close()

    def _serve(self, message: messages.Serve) -> None:
        self.policy = message.policy()
        self.interceptor = self._intercept(message)
        self._bounds = message.bounds
        self._rate = TokenBucket(message.bounds.rate, message.bounds.rate) if message.bounds.rate else None
        if self._serving:
            self.names.follow(self.policy)
            for task, connection in self.tasks.items():
                if not connection.still_allowed():
                    connection.note_denied(POLICY_CHANGED)
                    task.cancel()
            return
        self.names = Names(self.policy, message.pins, self._resolver, self._pinned)
        self._serving = True
        self._listen()
        self.questions.listen()

    def _answer(self, message: messages.CountRequest) -> None:
        if message.close:
            self.drop()
        self._tell(
            messages.Counted(
                message.number,
                self._connections,
                self._denied,
                self._bytes[True],
                self._bytes[False],
                self._untold,
            )
        )

    def _tell(self, message: messages.ToServer) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(messages.encode(message))

    def drop(self) -> None:
        """Close every connection, those too that nobody has accepted yet."""
        for task in self.tasks:
            task.cancel()
        if self._serving and not self._closed:
            while (waiting := self._accept()) is not None:
                waiting.close()

    def close(self) -> None:
        """The box is gone."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._listener)
        self._listener.close()
        self.questions.close()
        for task in self.tasks:
            task.cancel()
        self.names.close()
        if self._transport is not None:
            self._transport.close()
        self._on_closed(self)

    # Connections

    def _listen(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._listener, self._on_connection)

    def _rest(self, seconds: float) -> None:
        """Leave others their turn: what comes meanwhile waits in the kernel, where there is room for little."""
        self._loop.remove_reader(self._listener)
        self._loop.call_later(seconds, self._listen)

    def _accept(self) -> socket.socket | None:
        try:
            return self._listener.accept()[0]
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
                self._rest(1.0)
            return None

    def _on_connection(self) -> None:
        for _ in range(_MOST_PER_TURN):
            client = self._accept()
            if client is None:
                return
            client.setblocking(False)
            self._connections += 1
            if len(self.tasks) >= self._bounds.connections or not self._has_room() or self._is_spent():
                self.denied(None, None, None, LIMIT)
                client.close()
            else:
                connection = EgressConnection(self, client)
                task = self._loop.create_task(connection.run())
                self.tasks[task] = connection
                task.add_done_callback(self._forget)
            pause = self._pace.take(1)
            if pause:
                return self._rest(pause)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self.tasks.pop(task, None)
        if not task.cancelled():
            task.exception()

    def _is_spent(self) -> bool:
        return sum(self._bytes.values()) >= self._bounds.bytes

    def count(self, size: int, outbound: bool) -> float:
        self._bytes[outbound] += size
        if self._is_spent():
            raise ConnectionStopped(LIMIT)
        return 0.0 if self._rate is None else self._rate.take(size)

    def opening(self) -> None:
        self._pace.take(_OPENED - 1)

    # Names

    async def look_up(self, name: str) -> dns.DnsAnswer:
        return await self.names.look_up(name)

    def denied_name(self, name: str, address: Address | None) -> None:
        self.denied(name[:_LONGEST_NAME].lower(), address, None, self.policy.denied_name(name))

    def _pinned(self, name: str, addresses: tuple[Address, ...]) -> None:
        self._tell(messages.Pinned(name, tuple(map(str, addresses))))

    # What is told of it

    def allowed(self, host: str | None, address: Address, port: int, rule: str | None) -> None:
        self._see(messages.SeenConnection(True, host, str(address), port, rule, None))

    def denied(self, host: str | None, address: Address | None, port: int | None, reason: str) -> None:
        self._denied += 1
        text = None if address is None else str(address)
        self._see(messages.SeenConnection(False, host, text, port, None, reason or NO_MATCH))

    def _see(self, seen: messages.SeenConnection) -> None:
        """Tell of the first of each kind; the others are counted."""
        kind = (seen.allowed, seen.host, seen.address, seen.port, seen.reason)
        if kind in self._seen:
            return
        unsent = 0 if self._transport is None else self._transport.get_write_buffer_size()
        if len(self._seen) >= messages.MOST_SEEN or unsent > _MOST_UNSENT:
            self._untold += 1
            return
        self._seen.add(kind)
        self._tell(seen)

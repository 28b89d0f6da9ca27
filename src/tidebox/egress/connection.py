"""One connection of a box: from the address that its program meant to the last byte."""

from __future__ import annotations

import asyncio
import functools
import socket
import struct
from typing import Protocol

from tidebox.egress import dns, dns_server, sniffing
from tidebox.egress.dialling import Dial
from tidebox.egress.dns_server import DnsServer
from tidebox.egress.interceptor import InterceptedConnection, Interceptor
from tidebox.egress.names import Names
from tidebox.egress.relay import ByteRelay, ConnectionStopped, Scan
from tidebox.model.egress import (
    DNS_MISMATCH,
    NO_MATCH,
    Address,
    EgressDecision,
    normal_name,
    parse_address,
)

HEAD_SECONDS = 15.0
"""Seconds that the first bytes of a program, once there are some, may take to show a name."""
_GOODBYE_SECONDS = 2.0
_GOODBYE_BYTES = 1 << 18
_HTTP_PORT = 80
_LONGEST_NAME = 253
_ESTABLISHED = 1
_LINGER = {True: struct.pack("ii", 1, 0), False: struct.pack("ii", 0, 0)}
LIMIT = "limit"
# Programs connect to the same again and again, and to read an address takes longer than to accept a connection.
_address = functools.lru_cache(maxsize=4096)(parse_address)


class ConnectionBox(Protocol):
    """The box, as a connection needs it."""

    names: Names
    questions: DnsServer
    dial: Dial
    interceptor: Interceptor | None
    """None where no secret is put into its requests."""

    def count(self, size: int, outbound: bool) -> float:
        """Bytes that go by: how long to wait before the next; raises ``ConnectionStopped``."""

    def opening(self) -> None:
        """Count an intercepted connection, which costs more than one that is passed on."""

    def allowed(self, host: str | None, address: Address, port: int, rule: str | None) -> None:
        """Take note."""

    def denied(self, host: str | None, address: Address | None, port: int | None, reason: str) -> None:
        """Take note."""


class EgressConnection:
    """Decides about a connection, dials, and copies bytes until its end."""

    def __init__(self, box: ConnectionBox, client: socket.socket) -> None:
        """``client`` is reset when it is closed, and does not wait with what it is given, as its listener has it."""
        self._box = box
        self._client = client
        self._upstream: socket.socket | None = None
        self._relay: ByteRelay | None = None
        self._over: asyncio.Future[ConnectionStopped | None] = asyncio.get_running_loop().create_future()
        self._ended_well = False
        """Whether both sides have said all; else they are told that they have not."""
        self._address: Address | None = None
        self._port = 0
        self._host: str | None = None

    @property
    def last(self) -> float | None:
        """Time of the last byte; None before there can be one."""
        return None if self._relay is None else self._relay.last

    def still_allowed(self) -> bool:
        """Whether the rules of the box, as they are now, allow it."""
        if self._address is None:
            return True
        return self._box.names.decide(self._address).seen(self._host).allowed

    def note_denied(self, reason: str) -> None:
        """Tell why it is ended."""
        self._box.denied(self._host, self._address, self._port, reason)

    async def run(self) -> None:
        """Serve the connection to its end; cancelling this resets it."""
        try:
            await self._serve()
        except OSError:
            pass  # one of the two is gone
        finally:
            if self._relay is not None:
                self._relay.close()
            for sock in (self._client, self._upstream):
                if sock is not None:
                    if self._ended_well:
                        reset_at_close(sock, False)
                    sock.close()

    async def _serve(self) -> None:
        meant, self._port = self._client.getsockname()[:2]
        try:
            self._address = address = _address(meant)
        except ValueError:
            return self._box.denied(None, None, self._port, NO_MATCH)
        if address.is_loopback and self._port == dns_server.PORT:
            try:
                await self._box.questions.converse(self._client)
            except dns.MalformedDns:
                return None
            return self._on_over(None)
        if address.is_loopback:
            # It found the listener itself, which is nobody's address.
            return self._box.denied(None, address, self._port, NO_MATCH)
        verdict = await self._decide(address)
        if not verdict.allowed:
            return await self._deny(verdict, http=self._port == _HTTP_PORT)
        try:
            self._upstream = await self._box.dial(address, self._port)
        except TimeoutError:
            return None
        reset_at_close(self._upstream)
        self._relay = ByteRelay(self._client, self._upstream, self._box.count, self._on_over)
        # Servers that speak first are heard before anything is known of what the program says.
        self._relay.answer()
        interceptor = self._box.interceptor
        seen = None
        if verdict.names is not None or interceptor is not None:
            seen = await self._look()
        if seen is not None:
            self._host = None if seen.name is None else seen.name[:_LONGEST_NAME]
            verdict = _hold_against(verdict, seen)
            if not verdict.allowed:
                self._relay.close()
                return await self._deny(verdict, http=seen.protocol == "http")
        self._allow(verdict)
        if interceptor is not None and seen is not None:
            host = self._secret_host(interceptor, seen)
            if host is not None:
                self._relay.close()
                return await self._hand_over(interceptor, host)
        scans = [] if interceptor is None else [interceptor.scan()]
        if seen is not None and verdict.names is not None:
            scans.append(_watch(seen))
        self._relay.ask(_together([scan for scan in scans if scan is not None]))
        stop = await self._over
        if stop is not None:
            self.note_denied(str(stop))

    def _secret_host(self, interceptor: Interceptor, seen: sniffing.Sniffed) -> str | None:
        """The name for which the connection is opened: one that stands for this very address."""
        host = normal_name(seen.name) if seen.protocol == "tls" and seen.name is not None else None
        if host is None or self._address is None or not interceptor.opens(host):
            return None
        return host if host in self._box.names.of(self._address) else None

    async def _hand_over(self, interceptor: Interceptor, host: str) -> None:
        assert self._address is not None
        assert self._upstream is not None
        self._box.opening()
        intercepted = InterceptedConnection(
            client=self._client,
            upstream=self._upstream,
            host=host,
            address=self._address,
            port=self._port,
            count=self._count,
            deny=self.note_denied,
        )
        try:
            await interceptor.run(intercepted)
        except ConnectionStopped as stop:
            self.note_denied(str(stop))
        else:
            self._on_over(None)

    def _count(self, size: int, outbound: bool) -> float:
        assert self._relay is not None
        self._relay.last = asyncio.get_running_loop().time()
        return self._box.count(size, outbound)

    def _on_over(self, stop: ConnectionStopped | None) -> None:
        if not self._over.done():
            self._over.set_result(stop)
            self._ended_well = stop is None

    def _allow(self, verdict: EgressDecision) -> None:
        assert self._address is not None
        host = self._host
        if host is None and verdict.names:
            host = min(verdict.names)
        self._box.allowed(host, self._address, self._port, verdict.rule)

    async def _decide(self, address: Address) -> EgressDecision:
        names = self._box.names
        verdict = names.decide(address)
        if not verdict.allowed:
            # The name that leads here may be on its way.
            await names.settled()
            verdict = names.decide(address)
        return verdict

    async def _look(self) -> sniffing.Sniffed | None:
        """Sniff the program's first bytes, which stay in the socket; None if it never sends any."""
        loop = asyncio.get_running_loop()
        known = 0
        patience: asyncio.TimerHandle | None = None
        late = False

        def lose_patience() -> None:
            nonlocal late
            late = True
            wake()

        def wake() -> None:
            if not waiter.done():
                waiter.set_result(None)

        data = _peek(self._client)
        try:
            while True:
                if data is None:
                    waiter: asyncio.Future[None] = loop.create_future()
                    loop.add_reader(self._client, wake)
                    self._over.add_done_callback(lambda _: wake())
                    try:
                        await waiter
                    finally:
                        loop.remove_reader(self._client)
                    if self._over.done():
                        return None
                    data = _peek(self._client)
                if not data:
                    return None
                found = sniffing.sniff(data)
                if found is not sniffing.NEEDED:
                    assert isinstance(found, sniffing.Sniffed)
                    return found
                if len(data) == known and self._has_ended():
                    # That was all it says, and no name is in it.
                    return sniffing.OTHER
                if late or len(data) == known:
                    return sniffing.hidden(data)
                if not known:
                    # Have the kernel make room for all that may be needed: it is not taken out meanwhile.
                    self._client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, sniffing.LARGEST + 1)
                known = len(data)
                # Not woken again before there is more than this.
                self._client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, known + 1)
                data = None
                patience = patience or loop.call_later(HEAD_SECONDS, lose_patience)
        finally:
            if patience is not None:
                patience.cancel()
            if known:
                self._client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)

    def _has_ended(self) -> bool:
        """Whether the program will send no more than what has come."""
        return self._client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != _ESTABLISHED

    async def _deny(self, verdict: EgressDecision, *, http: bool) -> None:
        assert verdict.reason is not None
        self._box.denied(self._host, self._address, self._port, verdict.reason)
        if http:
            await self._forbid(verdict.reason)

    async def _forbid(self, reason: str) -> None:
        """Tell a program of HTTP why, and take what it still says: else the kernel resets before it has read this."""
        subject = self._host if self._host is not None and self._host.isprintable() else str(self._address)
        text = f"egress denied: {reason}: {subject} is not what the rules of this sandbox allow\n".encode(
            "ascii", "replace"
        )
        head = (
            "HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain\r\nConnection: close\r\n"
            f"X-Tidebox-Egress: {reason}\r\nContent-Length: {len(text)}\r\n\r\n"
        )
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_GOODBYE_SECONDS):
                await loop.sock_sendall(self._client, head.encode() + text)
                self._client.shutdown(socket.SHUT_WR)
                left = _GOODBYE_BYTES
                while left > 0 and (data := await loop.sock_recv(self._client, 1 << 16)):
                    left -= len(data)
        except TimeoutError:
            return
        self._on_over(None)


def _peek(sock: socket.socket) -> bytes | None:
    """Peek at the bytes that have come; None if there are none yet."""
    try:
        return sock.recv(sniffing.LARGEST, socket.MSG_PEEK)
    except BlockingIOError:
        return None


def _watch(seen: sniffing.Sniffed) -> Scan | None:
    """Return a scan of the bytes that follow the sniffed ones, where those may show another name."""
    if seen.protocol == "tls":
        watch: sniffing.FirstLine | sniffing.Hellos = sniffing.Hellos(seen.name)
    elif seen.may_turn:
        watch = sniffing.FirstLine()
    else:
        return None

    def scan(data: memoryview) -> None:
        if not watch.over and not watch.feed(bytes(data)):
            raise ConnectionStopped(DNS_MISMATCH)

    return scan


def _together(scans: list[Scan]) -> Scan | None:
    def scan(data: memoryview) -> None:
        for each in scans:
            each(data)

    return scan if scans else None


def _hold_against(verdict: EgressDecision, seen: sniffing.Sniffed) -> EgressDecision:
    """The decision once the program has shown a name, or has hidden it."""
    if seen.contradictory and verdict.names is not None:
        return EgressDecision(reason=DNS_MISMATCH)
    return verdict.seen(seen.name)


def reset_at_close(sock: socket.socket, resets: bool = True) -> None:
    """Have the kernel send a reset when the socket is closed, also when it does so because this process was killed."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER[resets])
    except OSError:
        pass  # it is gone

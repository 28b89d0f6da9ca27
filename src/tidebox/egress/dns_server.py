"""The DNS server of one box: answers its programs' questions for names, by datagrams and by connections."""

from __future__ import annotations

import asyncio
import socket
from typing import Protocol

from tidebox.egress import dns
from tidebox.egress.rate_limits import TokenBucket
from tidebox.model.egress import Address

PORT = 53
_MOST_PER_TURN = 32
_MOST_ASKING = 256
_STREAM_SECONDS = 15.0
"""Seconds that a connection may stay without a question."""


class DnsBox(Protocol):
    """The box, as its questions need it."""

    async def look_up(self, name: str) -> dns.DnsAnswer:
        """Resolve a name for a program."""

    def denied_name(self, name: str, address: Address | None) -> None:
        """Record that a name, or the address it stands for, was denied."""


class DnsServer:
    """Answers on the DNS sockets of a box."""

    def __init__(self, box: DnsBox, sockets: list[socket.socket], pace: TokenBucket) -> None:
        """``pace`` is how often the box may ask, together with what else it may do so often."""
        self._loop = asyncio.get_running_loop()
        self._box = box
        self._sockets = sockets
        self._pace = pace
        self._asking: set[asyncio.Task[None]] = set()
        self._closed = False

    def listen(self) -> None:
        """Begin to answer."""
        for sock in self._sockets:
            self._loop.add_reader(sock, self._on_question, sock)

    def close(self) -> None:
        """Answer nothing any more."""
        self._closed = True
        for sock in self._sockets:
            self._loop.remove_reader(sock)
            sock.close()
        for task in self._asking:
            task.cancel()

    def _on_question(self, sock: socket.socket) -> None:
        for _ in range(_MOST_PER_TURN):
            try:
                data, asker = sock.recvfrom(dns.LARGEST_QUESTION + 1)
                question = dns.parse_question(data)
            except (BlockingIOError, ConnectionError):
                return
            except dns.MalformedDns:
                continue
            finally:
                pause = self._pace.take(1)
            if len(self._asking) >= _MOST_ASKING:
                continue
            task = self._loop.create_task(self._respond(sock, question, asker))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)
            if pause:
                self._loop.remove_reader(sock)
                self._loop.call_later(pause, self._question_again, sock)
                return

    def _question_again(self, sock: socket.socket) -> None:
        if not self._closed:
            self._loop.add_reader(sock, self._on_question, sock)

    async def _respond(self, sock: socket.socket, question: dns.DnsQuestion, asker: tuple[str, int]) -> None:
        answer = await self._answer(question, question.room)
        try:
            sock.sendto(answer, asker)
        except OSError:
            pass  # its asker will ask again

    async def _answer(self, question: dns.DnsQuestion, room: int) -> bytes:
        code = question.problem
        addresses: tuple[Address, ...] = ()
        if not code:
            answer = await self._box.look_up(question.name)
            code, addresses = answer.code, answer.addresses
            if code == dns.REFUSED:
                # Those that it has are such that the box may not connect to.
                self._box.denied_name(question.name, addresses[0] if addresses else None)
                addresses = ()
        return dns.make_answer(question, code, addresses, room)

    async def converse(self, sock: socket.socket) -> None:
        """Answer the questions that come over one connection, each behind its length, until its end; raises
        ``dns.MalformedDns`` where something else comes."""
        while True:
            try:
                async with asyncio.timeout(_STREAM_SECONDS):
                    size = int.from_bytes(await self._take(sock, 2), "big")
                    if size > dns.LARGEST_QUESTION:
                        raise dns.MalformedDns
                    question = dns.parse_question(await self._take(sock, size))
                    answer = await self._answer(question, dns.LARGEST_MESSAGE)
                    await self._loop.sock_sendall(sock, len(answer).to_bytes(2, "big") + answer)
            except (EOFError, TimeoutError):
                return
            await asyncio.sleep(self._pace.take(1))

    async def _take(self, sock: socket.socket, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = await self._loop.sock_recv(sock, size - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data

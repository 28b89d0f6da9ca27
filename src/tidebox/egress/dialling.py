"""Connects to an address outside."""

from __future__ import annotations

import asyncio
import base64
import errno
import os
import re
import socket
from collections.abc import Awaitable, Callable
from urllib.parse import unquote, urlsplit

from tidebox.model.egress import Address, parse_address

SECONDS = 20.0
_LARGEST_ANSWER = 8192

Dial = Callable[[Address, int], Awaitable[socket.socket]]


def through(proxy: str) -> Dial:
    """A way to dial by a proxy's CONNECT, to addresses alone: no proxy resolves a name anew."""
    parts = urlsplit(proxy)
    host, port = parts.hostname or "", parts.port or 80
    credential = ""
    if parts.username is not None:
        plain = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        credential = f"Proxy-Authorization: Basic {base64.b64encode(plain.encode()).decode()}\r\n"

    async def dial_through(address: Address, target: int) -> socket.socket:
        loop = asyncio.get_running_loop()
        place = f"[{address}]:{target}" if address.version == 6 else f"{address}:{target}"
        async with asyncio.timeout(SECONDS):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            sock = await dial(parse_address(str(found[0][4][0])), port)
            try:
                request = f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n{credential}\r\n"
                await loop.sock_sendall(sock, request.encode())
                head = await _take_head(sock)
                if not re.match(rb"HTTP/1\.[01] 2[0-9][0-9]\b", head):
                    raise ConnectionRefusedError
            except BaseException:
                sock.close()
                raise
        return sock

    return dial_through


async def _take_head(sock: socket.socket) -> bytes:
    """The proxy's answer, and not a byte of what follows it: that is the server's."""
    loop = asyncio.get_running_loop()
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        piece = await loop.sock_recv(sock, 1)
        if not piece or len(head) >= _LARGEST_ANSWER:
            raise ConnectionResetError
        head += piece
    return head


async def dial(address: Address, port: int) -> socket.socket:
    """A non-blocking socket that is connected; raises OSError and TimeoutError."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        failure = sock.connect_ex((str(address), port))
        if failure == errno.EINPROGRESS:
            failure = await _connected(sock)
        if failure:
            raise OSError(failure, os.strerror(failure))
    except BaseException:
        sock.close()
        raise
    return sock


async def _connected(sock: socket.socket) -> int:
    """Wait for a connection that is being made; what it failed with, if it did."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()

    def end(failure: type[Exception] | None = None) -> None:
        if not over.done():
            over.set_result(None) if failure is None else over.set_exception(failure)

    # By hand: what the loop has for it takes longer than to connect within a machine.
    loop.add_writer(sock, end)
    limit = loop.call_later(SECONDS, end, TimeoutError)
    try:
        await over
    finally:
        limit.cancel()
        loop.remove_writer(sock)
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)

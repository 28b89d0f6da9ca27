"""TLS over a non-blocking socket, one side of a connection that is looked into."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

_CHUNK = 1 << 16
Passed = Callable[[int, bool], float]
"""Told how many bytes were moved, and whether they were received; how long to wait before the next."""


def upstream_context(ca_file: Path | None = None) -> ssl.SSLContext:
    """Make the context that verifies servers: by the system's certificates, and by those of the operator."""
    context = ssl.create_default_context()
    if ca_file is not None:
        context.load_verify_locations(ca_file)
    context.set_alpn_protocols(["http/1.1"])
    return context


class TlsStream:
    """Bytes in the clear on one side, those of TLS on the socket."""

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        *,
        server_hostname: str | None = None,
        passed: Passed = lambda size, received: 0.0,
    ) -> None:
        """A client's side with ``server_hostname``, which is then verified; else a server's."""
        self._sock = sock
        self._passed = passed
        self._loop = asyncio.get_running_loop()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_hostname is None, server_hostname=server_hostname
        )
        self._writing = asyncio.Lock()

    async def handshake(self) -> None:
        """Shake hands; raises ``ssl.SSLError`` and ``OSError``."""
        while True:
            try:
                self._tls.do_handshake()
                return await self._flush()
            except ssl.SSLWantReadError:
                await self._flush()
                if not await self._receive():
                    raise ConnectionResetError from None
            except ssl.SSLError:
                # The other side is told why.
                await self._flush()
                raise

    async def read(self) -> bytes:
        """The next bytes; none at the end."""
        while True:
            try:
                return self._tls.read(_CHUNK)
            except ssl.SSLWantReadError:
                await self._flush()
                if not await self._receive():
                    return b""
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""

    async def write(self, data: bytes) -> None:
        """Send bytes, waiting while the other side does not read."""
        view = memoryview(data)
        while view:
            view = view[self._tls.write(view[:_CHUNK]) :]
            await self._flush()

    async def close(self) -> None:
        """Say that nothing more is sent."""
        try:
            self._tls.unwrap()
        except ssl.SSLError:
            pass  # it wants to hear the same of the other side, which need not be waited for
        await self._flush()

    async def _flush(self) -> None:
        # Two may have written: their bytes go out in the order in which they were made.
        async with self._writing:
            while data := self._outgoing.read(_CHUNK):
                await self._loop.sock_sendall(self._sock, data)
                await self._rest(len(data), received=False)

    async def _receive(self) -> bool:
        data = await self._loop.sock_recv(self._sock, _CHUNK)
        if not data:
            self._incoming.write_eof()
            return False
        self._incoming.write(data)
        await self._rest(len(data), received=True)
        return True

    async def _rest(self, size: int, *, received: bool) -> None:
        pause = self._passed(size, received)
        if pause > 0:
            await asyncio.sleep(pause)

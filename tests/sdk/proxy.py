"""What stands between a client and a server, and loses connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

from tests.api.conftest import RunningServer


class Proxy:
    """Hands bytes on; a connection is cut when so many have come from one side."""

    def __init__(self, address: tuple[str, int], cuts: Iterator[int | None], of_client: bool) -> None:
        self._address = address
        self._cuts = cuts
        self._of_client = of_client
        self.url = ""
        self.requests: list[bytes] = []
        """The beginning of each connection's request."""
        self.cut = 0
        """How many connections were cut."""
        self.handed_on = 0
        """How many bytes came from the clients."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, OSError):
            writer.transport.abort()  # closed before anything was asked
            return
        self.requests.append(head)
        limit = next(self._cuts)
        from_server, to_server = await asyncio.open_connection(*self._address)
        to_server.write(head)
        there = asyncio.create_task(self._copy(reader, to_server, limit if self._of_client else None, count=True))
        back = asyncio.create_task(self._copy(from_server, writer, None if self._of_client else limit, count=False))
        try:
            done, _ = await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
            self.cut += any(task.result() for task in done)
        finally:
            for task in (there, back):
                task.cancel()
            for stream in (writer, to_server):
                stream.transport.abort()

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int | None, *, count: bool
    ) -> bool:
        """Until one side is done, or so many bytes have come: whether that was it."""
        left = limit
        try:
            while data := await reader.read(65536 if left is None else min(65536, left + 1)):
                if left is not None:
                    if len(data) > left:
                        return True
                    left -= len(data)
                writer.write(data)
                if count:
                    self.handed_on += len(data)
                await writer.drain()
        except OSError:
            pass
        return False


@asynccontextmanager
async def cutting(
    server: RunningServer, cuts: Iterator[int | None], *, of_client: bool = False
) -> AsyncIterator[Proxy]:
    """A proxy whose connections are cut after that many bytes, one after the other; with None not at all.

    Counted is what the server sends or, with ``of_client``, what the client does after its first header.
    """
    proxy = Proxy(server.address, cuts, of_client)
    listener = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    async with listener:
        yield proxy

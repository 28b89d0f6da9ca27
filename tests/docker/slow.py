"""A socket that leads to a daemon, and makes its clients wait."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path


class SlowSocket:
    """Passes every connection on, after a while and not before it may."""

    def __init__(self, target: Path, path: Path) -> None:
        self.path = path
        self.seconds = 0.0
        """How long connections wait."""
        self.open = asyncio.Event()
        """While it is not set they wait for it, too."""
        self.open.set()
        self._target = target
        self._serving: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one connection on."""
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        with contextlib.suppress(OSError, asyncio.CancelledError), contextlib.closing(writer):
            await asyncio.sleep(self.seconds)
            await self.open.wait()
            daemon_reader, daemon_writer = await asyncio.open_unix_connection(str(self._target))
            with contextlib.closing(daemon_writer):
                await asyncio.gather(_pass_on(reader, daemon_writer), _pass_on(daemon_reader, writer))

    async def close(self) -> None:
        """End what is still passed on."""
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving)


async def _pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
        target.write_eof()


@contextlib.asynccontextmanager
async def slow_socket(target: Path) -> AsyncIterator[SlowSocket]:
    """A socket of this kind for as long as the context lasts; at first nobody waits."""
    with tempfile.TemporaryDirectory(prefix="tidebox-slow-") as directory:
        slow = SlowSocket(target, Path(directory, "docker.sock"))
        async with await asyncio.start_unix_server(slow.serve, str(slow.path)):
            yield slow
            await slow.close()

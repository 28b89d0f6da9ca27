"""The rows of ``tidebox bench`` that go through a server's socket, with the client library, on a server of their own.

The client is in the measuring process and takes its share of the processor, as any client on the machine would.
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

import uvloop

from tidebox.cli.figures import Effort, Row, Samples, Title
from tidebox.cli.forwarder import Forwarder
from tidebox.cli.server_bench import ServerBench
from tidebox.cli.yardsticks import BareProgram, pss
from tidebox.errors import TideboxError
from tidebox.model.limits import KIB, MIB
from tidebox.sdk import AsyncClient

Answer = TypeVar("Answer")

AT_ONCE = 8
FIRST_BYTE_MILLISECONDS = 20.0
CONNECTION_KIB = 64.0

_HELLO = {"python": "print('hello')", "javascript": "console.log('hello')"}
_LINE = "All work and no play makes Jack a dull boy, said the \\\\ tide to the \\t shore.\\n"
_OPENING_AT_ONCE = 50


class Hello(NamedTuple):
    """One run, in milliseconds from the request."""

    first_byte: float
    result: float


class SocketBench(ServerBench):
    """Programs of a client of the socket."""

    def __init__(self, effort: Effort, data_dir: Path, interpreters: Mapping[str, str]) -> None:
        with _many_descriptors():
            super().__init__(effort, data_dir, interpreters)
        # The client is not what is measured, and shares the processors with what is.
        self._loop = asyncio.Runner(loop_factory=uvloop.new_event_loop)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.close()
        super().__exit__(kind, error, trace)

    def rows(self) -> Iterator[Row]:
        """Every row, as it is measured."""
        python = BareProgram(self._interpreters["python3"], "-c", _HELLO["python"])
        client = self._call(self._connect(self._server.url, self._server.key))
        try:
            hellos, bare = self._hellos(client, "python", python)
            yield from _hello_rows("Python", "bare python3 -c", hellos, bare, p50=0.35, p95=0.8)
            yield _first_byte_row(hellos)
            yield from self._javascript(client)
            yield self._sustained(client, python)
            yield self._stream(client)
        finally:
            self._call(client.close())
        yield self._idle_connections()

    def _javascript(self, client: AsyncClient) -> Iterator[Row]:
        name, limits = "bare node -e", {"p50": 0.3, "p95": 0.7}
        node = self._interpreters.get("node")
        if node is None:
            title = Title(
                what="JavaScript hello, socket", yardstick=name, hold=limits["p50"], better="lower", unit="ms"
            )
            yield title.skipped("node is not installed")
            return
        hellos, bare = self._hellos(client, "javascript", BareProgram(node, "-e", _HELLO["javascript"]))
        yield from _hello_rows("JavaScript", name, hellos, bare, **limits)

    def _hellos(self, client: AsyncClient, language: str, bare: BareProgram) -> tuple[list[Hello], list[float]]:
        return self._in_turns(lambda: self._call(_hello(client, language)), bare.seconds)

    def _sustained(self, client: AsyncClient, bare: BareProgram) -> Row:
        count = self._effort.runs_per_round
        ours, theirs = [], []
        for _ in range(self._effort.rounds):
            self._server.rest()
            start = time.perf_counter()
            self._call(_many_hellos(client, count))
            # Refilling and cleaning up are part of the price.
            ours.append(count / (self._server.rest() - start))
            theirs.append(bare.per_second(count, AT_ONCE))
        title = Title(
            what=f"Python hello, {AT_ONCE} at once, socket",
            yardstick=f"bare python3 -c, {AT_ONCE} at once",
            hold=1.5,
            better="higher",
            unit="runs/s",
        )
        return title.row(ours, theirs)

    def _stream(self, client: AsyncClient) -> Row:
        """The same program by the same client, from a box and from a server that is nothing but a pipe's other end."""
        size = self._effort.stream_bytes
        ours, theirs = [], []
        with Forwarder(self._interpreters["python3"]) as bare:
            plain = self._call(self._connect(bare.url, "none"))
            try:
                for number in range(1 + self._effort.transfers):
                    self._server.rest()
                    mine = self._call(_stream(client, size))
                    self._server.rest()
                    other = self._call(_stream(plain, size))
                    if number:
                        ours.append(mine)
                        theirs.append(other)
            finally:
                self._call(plain.close())
        title = Title(
            what=f"{size // MIB} MiB of output, socket",
            yardstick="pipe + JSON WebSocket",
            hold=0.5,
            better="higher",
            unit="MB/s",
        )
        return title.row(ours, theirs)

    def _idle_connections(self) -> Row:
        count = self._effort.connections
        row = Row(
            what=f"server memory per idle client of {count}",
            yardstick="PSS",
            hold=f"<= {CONNECTION_KIB:g} KiB",
            unit="KiB",
        )
        with _many_descriptors():
            # What a server loads or makes with its first client is not the client's.
            self._call(self._grown(1))
            self._server.rest()
            each = Samples.of([self._call(self._grown(count)) / count / KIB])
        return replace(row, met=each.p50 <= CONNECTION_KIB, value=each.p50, ours=each)

    async def _grown(self, count: int) -> int:
        """By how many bytes the server grows with so many clients."""
        before = pss(self._server.pid)
        async with AsyncExitStack() as clients:
            opening = asyncio.Semaphore(_OPENING_AT_ONCE)

            async def open_one() -> None:
                async with opening:
                    client = await self._connect(self._server.url, self._server.key)
                    clients.push_async_callback(client.close)
                    await client.ping()

            await asyncio.gather(*(open_one() for _ in range(count)))
            return pss(self._server.pid) - before

    async def _connect(self, url: str, key: str) -> AsyncClient:
        client = AsyncClient(url, api_key=key, connect_timeout=60)
        await client.connect()
        return client

    def _call(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        return self._loop.run(work)


async def _hello(client: AsyncClient, language: str) -> Hello:
    start = time.perf_counter()
    execution = await client.start(_HELLO[language], language)
    first = 0.0
    async for _ in execution:
        first = first or time.perf_counter() - start
    result = await execution.result()
    seconds = time.perf_counter() - start
    if result.stdout != "hello\n" or not result.ok:
        raise TideboxError(f"a box did not say hello but {result!r}")
    return Hello(first * 1000, seconds * 1000)


async def _many_hellos(client: AsyncClient, count: int) -> None:
    numbers = iter(range(count))

    async def worker() -> None:
        for _ in numbers:
            result = await client.run(_HELLO["python"])
            if not result.ok:
                raise TideboxError(f"a box did not say hello but {result!r}")

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))


async def _stream(client: AsyncClient, size: int) -> float:
    """MB/s of output that a client sees."""
    block = f"('{_LINE}' * 1000)[:65536]"
    program = f"import sys\nblock = {block}\nfor _ in range({size // 65536}): sys.stdout.write(block)"
    start = time.perf_counter()
    execution = await client.start(program, output=size, timeout=300)
    received = 0
    async for _, text in execution:
        received += len(text)
    result = await execution.result()
    seconds = time.perf_counter() - start
    if received != size or not result.ok:
        raise TideboxError(f"{received} of {size} bytes came, then {result.outcome.value} {result.stderr[:200]}")
    return size / seconds / 1e6


def _hello_rows(
    language: str, yardstick: str, ours: list[Hello], bare: list[float], *, p50: float, p95: float
) -> Iterator[Row]:
    values = [each.result for each in ours]
    what = f"{language} hello, socket"
    yield Title(what=what, yardstick=yardstick, hold=p50, better="lower", unit="ms").row(values, bare)
    slow = Title(what=f"{what}, p95", yardstick=yardstick, hold=p95, better="lower", unit="ms", ours="p95")
    yield slow.row(values, bare)


def _first_byte_row(hellos: list[Hello]) -> Row:
    ours = Samples.of([each.first_byte for each in hellos])
    return Row(
        what="first byte of output, socket, p99",
        yardstick="none",
        hold=f"< {FIRST_BYTE_MILLISECONDS:g} ms",
        unit="ms",
        met=ours.p99 < FIRST_BYTE_MILLISECONDS,
        value=ours.p99,
        ours=ours,
    )


@contextmanager
def _many_descriptors() -> Iterator[None]:
    """As many open files as the machine allows, for this process and the server that it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

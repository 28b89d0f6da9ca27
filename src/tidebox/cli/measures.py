"""Measurements of ``tidebox bench``: each figure beside its yardstick, the two taken in turns in the same run.

Absolute times are noise on shared machines, ratios are not; and what refills or cleans up in the background must not
run while the yardstick does, or the ratio flatters us. So every sample waits until the engine is at rest.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Coroutine, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvloop

from tidebox.cli.figures import Effort, Row, Samples, Title
from tidebox.cli.sandbox_measures import SandboxBench
from tidebox.cli.service_measures import ServiceBench
from tidebox.cli.socket_measures import SocketBench
from tidebox.cli.yardsticks import BareProgram, YardstickFailed, bubblewrap, pipe_megabytes_per_second, pss_of_boxes
from tidebox.config import Settings, load_settings
from tidebox.embedded import Answer, Engine, agent_at, call_on, run_on
from tidebox.errors import TideboxError
from tidebox.model.box import BoxSpec
from tidebox.model.limits import MIB

WARM_UP = 3
IDLE_SECONDS = 0.5
AT_ONCE = 8
# What an installation keeps ready unless it is told otherwise.
CELLS = Settings().pool_python
BLANKS = Settings().pool_blank
PARKED_MIB = 4.0
TRANSFER_MB_PER_SECOND = 300.0
TRANSFER_RATIO = 0.3

_PYTHON_HELLO = "print('hello')"
_NODE_HELLO = "console.log('hello')"
# A parked interpreter is told from one that still prepares itself by the quiet afterwards.
_REST_SECONDS = 0.02


class Bench:
    """Engines on a loop and thread of their own, as ``tidebox.run`` has one."""

    def __init__(self, effort: Effort, directory: Path) -> None:
        self._effort = effort
        self._directory = directory
        self.interpreters: Mapping[str, str] = {}
        """Those of the boxes, by the commands that start them; known with the first row."""
        # As the library has it.
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="bench", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the loop."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def rows(self) -> Iterator[Row]:
        """Every row, as it is measured."""
        with self._engine(pool_python=CELLS) as engine:
            self.interpreters = engine.runtime.interpreters
            python = BareProgram(self.interpreters["python3"], "-c", _PYTHON_HELLO)
            yield self._hello(engine, "Python hello, parked cell", "bare python3 -c", python, hold=0.2)
            yield self._parked_memory(engine)
        with self._engine(pool_python=CELLS, pool_blank=BLANKS) as engine:
            yield self._sustained(engine, python)
        with self._engine(pool_blank=BLANKS) as engine:
            yield self._hello(engine, "Python hello, blank box", "bare python3 -c", python, hold=0.5)
        with self._engine() as engine:
            for idle in (0.0, IDLE_SECONDS):
                what = "Python hello, pool empty" + (f", after {idle:g} s of idle" if idle else "")
                yield self._hello(engine, what, "bare python3 -c", python, hold=0.5, idle=idle)
            yield self._cold_shell(engine)
            yield from self._transfers(engine)
        yield self._node()

    def _hello(
        self, engine: Engine, what: str, name: str, bare: BareProgram, *, hold: float, idle: float = 0.0, **program: Any
    ) -> Row:
        count = self._effort.idle_samples if idle else self._effort.samples
        ours, theirs = [], []
        for number in range(WARM_UP + count):
            self._rest(engine)
            time.sleep(idle)
            mine = self._hello_seconds(engine, **program or {"code": _PYTHON_HELLO})
            self._rest(engine)
            time.sleep(idle)
            other = bare.seconds()
            if number >= WARM_UP:
                ours.append(mine * 1000)
                theirs.append(other * 1000)
        return Title(what=what, yardstick=name, hold=hold, better="lower", unit="ms").row(ours, theirs)

    def _hello_seconds(self, engine: Engine, **program: Any) -> float:
        start = time.perf_counter()
        result = self._call(run_on(engine, **program))
        seconds = time.perf_counter() - start
        if result.stdout != b"hello\n" or not result.ok:
            raise TideboxError(f"a box did not say hello but {result!r}")
        return seconds

    def _node(self) -> Row:
        what, name = "JavaScript hello, parked cell", "bare node -e"
        with self._engine(pool_node=1) as engine:
            node = self.interpreters.get("node")
            if node is None:
                title = Title(what=what, yardstick=name, hold=0.25, better="lower", unit="ms")
                return title.skipped("node is not installed")
            bare = BareProgram(node, "-e", _NODE_HELLO)
            return self._hello(engine, what, name, bare, hold=0.25, code=_NODE_HELLO, language="javascript")

    def _cold_shell(self, engine: Engine) -> Row:
        what, name, words = "sh hello, cold box", "bwrap --unshare-all sh -c", ("/bin/sh", "-c", "echo hello")
        bare = bubblewrap(*words)
        try:
            if bare is None:
                raise YardstickFailed("bwrap is not installed")
            return self._hello(engine, what, name, bare, hold=1.0, command=["sh", *words[1:]])
        except YardstickFailed as error:
            return Title(what=what, yardstick=name, hold=1.0, better="lower", unit="ms").skipped(str(error))

    def _sustained(self, engine: Engine, bare: BareProgram) -> Row:
        count = self._effort.runs_per_round
        ours, theirs = [], []
        for _ in range(self._effort.rounds):
            self._rest(engine)
            start = time.perf_counter()
            self._call(_many_hellos(engine, count))
            ours.append(count / (time.perf_counter() - start))
            self._rest(engine)
            theirs.append(bare.per_second(count, AT_ONCE))
        title = Title(
            what=f"Python hello, {AT_ONCE} at once",
            yardstick=f"bare python3 -c, {AT_ONCE} at once",
            hold=1.5,
            better="higher",
            unit="runs/s",
        )
        return title.row(ours, theirs)

    def _parked_memory(self, engine: Engine) -> Row:
        row = Row(
            what="memory of a parked Python cell with its init",
            yardstick="PSS",
            hold=f"<= {PARKED_MIB:g} MiB",
            unit="MiB",
        )
        self._rest(engine)
        try:
            sizes = [size / MIB for size in pss_of_boxes(os.getpid())]
        except PermissionError:
            return replace(row, skipped="only root may read the memory of a box's processes")
        ours = Samples.of(sizes)
        return replace(row, met=ours.p50 <= PARKED_MIB, value=ours.p50, ours=ours)

    def _transfers(self, engine: Engine) -> Iterator[Row]:
        """A file into a box and out again, by a client in another process."""
        size = self._effort.transfer_bytes
        spec = BoxSpec(kind="sandbox", sandbox_id="sb-bench")
        box = self._call(engine.runtime.open(spec))
        try:
            path = str(self._directory / "run" / "agents" / "sb-bench.sock")
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as client:
                speeds = [client.submit(transfer, path, size).result() for _ in range(1 + self._effort.transfers)]
        finally:
            self._call(box.close())
        into, out_of, pipe = (list(column) for column in zip(*speeds[1:], strict=True))
        for what, values in (
            ("file into a box, through the relay", into),
            ("file out of a box, through the relay", out_of),
        ):
            title = Title(
                what=what,
                yardstick="bytes through a pipe",
                hold=TRANSFER_RATIO,
                better="higher",
                unit="MB/s",
                enough=TRANSFER_MB_PER_SECOND,
            )
            yield title.row(values, pipe)

    @contextmanager
    def _engine(self, **pool: int) -> Iterator[Engine]:
        """An engine that keeps the cells named, and no others."""
        sizes = {"pool_python": 0, "pool_blank": 0, "pool_node": 0, "pool_elixir": 0} | pool
        engine = self._call(self._start(sizes))
        try:
            yield engine
        finally:
            self._call(engine.close())

    async def _start(self, sizes: dict[str, int]) -> Engine:
        engine = Engine(load_settings(data_dir=self._directory, **sizes))
        try:
            # A machine that cannot do it says why here; a pool would only try again and again.
            await run_on(engine, _PYTHON_HELLO)
        except BaseException:
            await engine.close()
            raise
        engine.start()
        return engine

    def _rest(self, engine: Engine) -> None:
        self._call(_at_rest(engine))
        time.sleep(_REST_SECONDS)

    def _call(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        # As the library does.
        return call_on(self._loop, work)


async def _at_rest(engine: Engine) -> None:
    """Wait until the pool is full again and nothing of earlier boxes is left to remove."""
    await engine.driver.close()
    await engine.pool.filled()


async def _many_hellos(engine: Engine, count: int) -> None:
    """So many that refilling and cleaning up are part of the price."""
    numbers = iter(range(count))

    async def worker() -> None:
        for _ in numbers:
            result = await run_on(engine, _PYTHON_HELLO)
            if not result.ok:
                raise TideboxError(f"a box did not say hello but {result!r}")

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    await _at_rest(engine)


def transfer(path: str, size: int) -> tuple[float, float, float]:
    """MB/s into the box at a relay's socket, out of it, and through a pipe."""
    into, out_of = asyncio.run(_transfer(path, size))
    return into, out_of, pipe_megabytes_per_second(size)


async def _transfer(path: str, size: int) -> tuple[float, float]:
    link = await agent_at(Path(path))
    try:
        content = os.urandom(size)
        start = time.perf_counter()
        await link.files.write("/workspace/transfer", content)
        written = time.perf_counter()
        received = 0
        async for chunk in link.files.read("/workspace/transfer"):
            received += len(chunk)
        read = time.perf_counter()
    finally:
        await link.close()
    if received != size:
        raise TideboxError(f"{received} of {size} bytes came back")
    return size / (written - start) / 1e6, size / (read - written) / 1e6


def measure(effort: Effort) -> Iterator[Row]:
    """All rows, one by one."""
    with tempfile.TemporaryDirectory(prefix="tidebox-bench-") as directory:
        bench = Bench(effort, Path(directory))
        try:
            yield from bench.rows()
        finally:
            bench.close()
        with SocketBench(effort, Path(directory, "served"), bench.interpreters) as through_the_socket:
            yield from through_the_socket.rows()
        with ServiceBench(effort, Path(directory, "service"), bench.interpreters) as through_the_service:
            yield from through_the_service.rows()
        with SandboxBench(effort, Path(directory, "sandboxes"), bench.interpreters) as of_sandboxes:
            yield from of_sandboxes.rows()

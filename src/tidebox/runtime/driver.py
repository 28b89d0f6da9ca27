"""One execution: a cell is taken, given the program, watched, stopped, measured and thrown away."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace

from tidebox.errors import BoxGone, ExecFailed, StartupTimeout
from tidebox.model.box import Command
from tidebox.model.events import Exited, Output
from tidebox.model.launch import WORKSPACE, Program
from tidebox.model.order import Ending, Order, Sink
from tidebox.model.result import ExecError, Outcome, Usage, conclude
from tidebox.model.switch import Switch
from tidebox.runtime.base import Box, Exec, Runner, Runtime
from tidebox.runtime.pool import CellKey, Pool
from tidebox.runtime.program import encode_program

# Behind the host's own clock, for the case that the host cannot keep it.
CPU_GRACE_SECONDS = 2
_BREATH_SECONDS = 0.001
_NEVER_STARTED = Ending(
    outcome=Outcome.CANCELLED, exit_code=None, signal=None, usage=Usage(wall_seconds=0.0), captured=None
)


class Driver(Runner):
    """Runs orders on one runtime."""

    def __init__(self, runtime: Runtime, pool: Pool) -> None:
        self._runtime = runtime
        self._pool = pool
        self._over: dict[Box, asyncio.TimerHandle] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def run(self, order: Order, sink: Sink, cancel: Switch | None = None) -> Ending:
        """Run ``order``; events go to ``sink`` as they come. Raises only for failures that are not the program's."""
        started = await self._start_in_time(order, cancel)
        if started is None:
            return _NEVER_STARTED
        box, program = started
        try:
            ending = await _Watch(box, program, order, sink, cancel).ending()
        except BaseException:
            self._close(box)
            raise
        # Nothing runs in it any more, and whoever waits for the ending has the processor first.
        self._over[box] = asyncio.get_running_loop().call_later(_BREATH_SECONDS, self._close, box)
        return ending

    def _close(self, box: Box) -> None:
        self._over.pop(box, None)
        task = box.begin_close()
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _start_in_time(self, order: Order, cancel: Switch | None) -> tuple[Box, Exec] | None:
        """The program in its box; None if it was cancelled before it was there."""
        limit = asyncio.timeout(order.startup_timeout)

        def give_up() -> None:
            if not limit.expired():
                limit.reschedule(asyncio.get_running_loop().time())

        try:
            async with limit:
                if cancel is not None:
                    cancel.on_set(give_up)
                return await self._start(order)
        except TimeoutError:
            if not limit.expired():
                raise
        finally:
            if cancel is not None:
                cancel.forget(give_up)
        if cancel is not None and cancel.is_set():
            return None
        raise StartupTimeout(f"the program could not be started within {order.startup_timeout:g} s", step="start")

    async def _start(self, order: Order) -> tuple[Box, Exec]:
        launch, limits = order.launch, order.spec.limits
        program = launch.program
        cpu_seconds = int(limits.timeout) + 1 + CPU_GRACE_SECONDS
        if not launch.direct:
            block = encode_program(program, cpu_seconds)
            key = CellKey.of(self._runtime, launch.cell, order.spec)
            if not order.files and order.prepare is None:
                plain = None
                if program.mode == "exec" and not program.source:
                    plain = _command(program.arguments, program, cpu_seconds)
                started = await self._pool.take(key, limits, block, plain)
            elif (started := await self._pool.take(key, limits)) is not None:
                box, parked = started
                with self._closing_if_failed(box):
                    await _fill(box, order, order.files)
                    await parked.write(block)
            if started is not None:
                return started
        files = dict(order.files)
        if program.path and program.source:
            # What a parked process would have written.
            files[program.path] = program.source
        box = await self._runtime.open(order.spec)
        with self._closing_if_failed(box):
            await _fill(box, order, files)
            return box, await box.exec(_command(launch.command, program, cpu_seconds))

    @contextlib.contextmanager
    def _closing_if_failed(self, box: Box) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._close(box)
            raise

    async def close(self) -> None:
        """Wait until nothing of the finished executions is left."""
        for box, timer in list(self._over.items()):
            timer.cancel()
            self._close(box)
        if self._closing:
            await asyncio.gather(*self._closing)


def _complete(usage: Usage, exited: Exited | None) -> Usage:
    """Where no cgroup counts: what the agent learned when it reaped the program."""
    counted = exited.usage if exited is not None else None
    if counted is None or usage.cpu_seconds is not None:
        return usage
    cpu = counted.get("cpu_us")
    return replace(
        usage,
        cpu_seconds=None if cpu is None else cpu / 1e6,
        memory_peak=usage.memory_peak or counted.get("max_rss_bytes"),
    )


def _command(argv: tuple[str, ...], program: Program, cpu_seconds: int) -> Command:
    return Command(argv=argv, env=dict(program.env), cwd=program.cwd, cpu_seconds=cpu_seconds)


async def _fill(box: Box, order: Order, files: Mapping[str, bytes]) -> None:
    if order.prepare is not None:
        await order.prepare(box)
    if files:
        await box.put({path.removeprefix(WORKSPACE + "/"): content for path, content in files.items()})


class _Watch:
    """Follows one program until it is over, by itself or because a limit was reached."""

    def __init__(self, box: Box, program: Exec, order: Order, sink: Sink, cancel: Switch | None) -> None:
        self._box = box
        self._program = program
        self._order = order
        self._sink = sink
        self._cancel = cancel
        self._reason: Outcome | None = None
        self._not_started: ExecError | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._helpers: list[asyncio.Task[None]] = []

    async def ending(self) -> Ending:
        loop = asyncio.get_running_loop()
        started = time.monotonic()
        timer = loop.call_later(self._order.spec.limits.timeout, self._time_out)
        if self._order.stdin:
            self._helpers.append(loop.create_task(self._feed(self._order.stdin)))
        else:
            await self._end_input()
        if self._cancel is not None:
            self._cancel.on_set(self._on_cancel)
        if self._order.kill is not None:
            self._order.kill.on_set(self._on_kill)
        try:
            exited = await self._follow()
        finally:
            # Whoever may end it later holds nothing of it.
            if self._cancel is not None:
                self._cancel.forget(self._on_cancel)
            if self._order.kill is not None:
                self._order.kill.forget(self._on_kill)
            timer.cancel()
            for helper in self._helpers:
                helper.cancel()
            await (self._stopping or self._box.stop())
        wall = time.monotonic() - started
        usage = _complete(replace(await self._box.usage(), wall_seconds=wall), exited)
        if self._reason is None and exited is None and not usage.oom_kills:
            raise BoxGone("the box died before its program ended")
        code, number = (exited.code, exited.signal) if exited is not None else (None, int(signal.SIGKILL))
        outcome = self._reason or conclude(exit_code=code, signal=number, oom_kills=usage.oom_kills)
        if outcome not in (Outcome.EXITED, Outcome.SIGNALED):
            code = None
        captured = None
        if self._order.capture is not None:
            captured = await self._box.capture(self._order.capture)
        if self._order.harvest is not None:
            await self._order.harvest(self._box)
        return Ending(
            outcome=outcome,
            exit_code=code,
            signal=number,
            usage=usage,
            captured=captured,
            not_started=self._not_started,
        )

    def _time_out(self) -> None:
        # A program that is over and only not read to its end was in time.
        if not self._program.ended:
            self._end(Outcome.TIMEOUT)

    def _end(self, reason: Outcome) -> None:
        """Kill the box; the first reason stands."""
        if self._reason is None:
            self._reason = reason
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self._box.stop())

    async def _follow(self) -> Exited | None:
        left = self._order.spec.limits.output
        try:
            async for event in self._program.events():
                if isinstance(event, Output):
                    if self._reason is Outcome.OUTPUT_LIMIT:
                        continue
                    if len(event.data) > left:
                        event = replace(event, data=event.data[:left])
                        self._end(Outcome.OUTPUT_LIMIT)
                    left -= len(event.data)
                    if not event.data:
                        continue
                await self._sink(event)
                if isinstance(event, Exited):
                    return event
        except BoxGone:
            return None
        except ExecFailed as error:
            # An interpreter that the image does not have is not the program's own failure.
            if self._order.launch.direct or self._order.launch.program.mode != "exec":
                raise
            self._not_started = ExecError(self._order.launch.command[0], error.details.get("errno") or errno.EIO)
            return Exited(self._not_started.exit_code)
        return None

    async def _feed(self, stdin: bytes | AsyncIterator[bytes]) -> None:
        """Standard input, beside the output: a program may do either first."""
        with contextlib.suppress(BoxGone):  # the program's end tells the rest
            if isinstance(stdin, bytes):
                await self._program.write(stdin)
            else:
                async for chunk in stdin:
                    await self._program.write(chunk)
        await self._end_input()

    async def _end_input(self) -> None:
        try:
            await self._program.end_input()
        except BoxGone:
            pass  # as above

    def _on_cancel(self) -> None:
        self._helpers.append(asyncio.get_running_loop().create_task(self._end_gently()))

    async def _end_gently(self) -> None:
        if self._reason is None:
            self._reason = Outcome.CANCELLED
        await self._program.signal(signal.SIGTERM)
        await asyncio.sleep(self._order.cancel_grace)
        self._end(Outcome.CANCELLED)

    def _on_kill(self) -> None:
        self._end(Outcome.CANCELLED)

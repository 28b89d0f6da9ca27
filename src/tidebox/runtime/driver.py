"""One execution: a cell is taken, given the program, watched, stopped, measured and thrown away."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import posixpath
import signal
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace

from tidebox.errors import BoxGone, ExecFailed, StartupTimeout, TideboxError
from tidebox.model.box import BoxSpec, Command
from tidebox.model.events import Event, Exited, OutputEvent, Started
from tidebox.model.execution_request import ExecutionOutcome, ExecutionRequest, Sink
from tidebox.model.launch import WORKSPACE, Compilation, Program
from tidebox.model.one_shot_flag import OneShotFlag
from tidebox.model.result import ExecError, Outcome, Usage, conclude
from tidebox.runtime.base import NO_FILES, Box, BoxFiles, Exec, Runner, Runtime
from tidebox.runtime.diagnostics import Diagnostics
from tidebox.runtime.kept import KeptBoxes
from tidebox.runtime.pool import CellKey, Pool
from tidebox.runtime.program import encode_program

# Behind the host's own clock, for the case that the host cannot keep it.
CPU_GRACE_SECONDS = 2
_BREATH_SECONDS = 0.001
NEVER_STARTED = ExecutionOutcome(
    outcome=Outcome.CANCELLED, exit_code=None, signal=None, usage=Usage(wall_seconds=0.0), captured=None
)


class Driver(Runner):
    """Runs orders on one runtime."""

    def __init__(self, runtime: Runtime, pool: Pool) -> None:
        self._runtime = runtime
        self._pool = pool
        self._over: dict[Box, asyncio.TimerHandle] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._kept = KeptBoxes(self._close)

    async def run(
        self, order: ExecutionRequest, sink: Sink, cancel: OneShotFlag | None = None, files: BoxFiles = NO_FILES
    ) -> ExecutionOutcome:
        """Run ``order``; events go to ``sink`` as they come. Raises only for failures that are not the program's."""
        started = await self._start_in_time(order, cancel, files)
        if started is None:
            return NEVER_STARTED
        box, program = started
        if order.on_egress is not None and order.spec.egress is not None:
            box.on_egress(order.on_egress)
        try:
            ending = await _Watch(box, program, order, sink, cancel).ending(files)
        except BaseException:
            self._close(box)
            raise
        # One with a compiler's directory has what boxes of other programs have not, and one that leads out has this
        # program's rules.
        keeps = files.keep_as and order.launch.compilation is None and not order.spec.has_network
        if keeps and box.features.renews and not box.gone and files.is_in(box):
            self._kept.put(files.keep_as, self._shape(order), box)
            return ending
        # Nothing runs in it any more, and the task that waits for the ending has the processor first.
        self._over[box] = asyncio.get_running_loop().call_later(_BREATH_SECONDS, self._close, box)
        return ending

    def _close(self, box: Box) -> None:
        self._over.pop(box, None)
        task = box.begin_close()
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _shape(self, order: ExecutionRequest) -> CellKey:
        return CellKey.of(self._runtime, order.launch.cell, order.spec).blank

    def let_go(self, name: str) -> None:
        """Close the box that is kept under a name, if there is one."""
        self._kept.drop(name)

    async def _start_in_time(
        self, order: ExecutionRequest, cancel: OneShotFlag | None, kept: BoxFiles
    ) -> tuple[Box, Exec] | None:
        """The program in its box; None if it was cancelled before it was there."""
        limit = asyncio.timeout(order.startup_timeout)

        def give_up() -> None:
            if not limit.expired():
                limit.reschedule(asyncio.get_running_loop().time())

        try:
            async with limit:
                if cancel is not None:
                    cancel.on_set(give_up)
                return await self._start(order, kept)
        except TimeoutError:
            if not limit.expired():
                raise
        finally:
            if cancel is not None:
                cancel.forget(give_up)
        if cancel is not None and cancel.is_set():
            return None
        raise StartupTimeout(f"the program could not be started within {order.startup_timeout:g} s", step="start")

    async def _start(self, order: ExecutionRequest, kept: BoxFiles) -> tuple[Box, Exec]:
        launch, limits = order.launch, order.spec.limits
        program = _with_variables(launch.program, order.spec)
        if launch.compilation is not None:
            return await self._start_compiler(order, launch.compilation, program, kept)
        cpu_seconds = _cpu_seconds(limits.timeout)
        again = await self._again(order, kept) if kept.keep_as else None
        if again is not None:
            with self._closing_if_failed(again):
                await _fill(again, NO_FILES, _files_of(order, program))
                return again, await again.exec(_command(launch.command, program, cpu_seconds))
        key = CellKey.of(self._runtime, launch.cell, order.spec)
        if not launch.direct:
            block = encode_program(program, cpu_seconds)
            if launch.cell == "python" and program.mode != "exec":
                source = program.source or order.files.get(posixpath.join(program.cwd, program.path), b"")
                if preload := self._runtime.preload_for(order.spec.image, source):
                    key = key._replace(preload=preload)
            if not order.files and not kept.has_input:
                plain = None
                if program.mode == "exec" and not program.path:
                    plain = _command(program.arguments, program, cpu_seconds)
                started = await self._pool.take(key, limits, block, plain)
            elif (started := await self._pool.take(key, limits)) is not None:
                box, parked = started
                with self._closing_if_failed(box):
                    await _fill(box, kept, order.files)
                    await parked.write(block)
            if started is not None:
                if order.spec.egress is not None:
                    with self._closing_if_failed(started[0]):
                        await started[0].allow(order.spec.egress)
                return started
        # One that leads out is opened with its rules.
        blank = await self._pool.take_blank(key, limits) if not order.spec.has_network else None
        box = blank or await self._runtime.open(order.spec)
        with self._closing_if_failed(box):
            await _fill(box, kept, _files_of(order, program))
            return box, await box.exec(_command(launch.command, program, cpu_seconds))

    async def _start_compiler(
        self, order: ExecutionRequest, compilation: Compilation, program: Program, kept: BoxFiles
    ) -> tuple[Box, Exec]:
        files = dict(order.files)
        if program.path:
            files[program.path] = program.source
        box = await self._runtime.open(replace(order.spec, scratch="exec" if compilation.executes else "noexec"))
        with self._closing_if_failed(box):
            await _fill(box, kept, files)
            cpu_seconds = _cpu_seconds(order.spec.limits.compile_timeout)
            return box, await box.exec(_command(compilation.command, program, cpu_seconds))

    async def _again(self, order: ExecutionRequest, kept: BoxFiles) -> Box | None:
        """The box of the last run of the same session, where it has the files that this one would be given."""
        box = self._kept.take(kept.keep_as, self._shape(order))
        if box is None:
            return None
        try:
            if kept.is_in(box):
                await box.renew(order.spec.limits)
                return box
        except TideboxError:
            pass  # a fresh one serves as well
        except BaseException:
            self._close(box)
            raise
        self._close(box)
        return None

    @contextlib.contextmanager
    def _closing_if_failed(self, box: Box) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._close(box)
            raise

    async def close(self) -> None:
        """Wait until nothing of the finished executions is left."""
        self._kept.drop_all()
        for box, timer in list(self._over.items()):
            timer.cancel()
            self._close(box)
        if self._closing:
            await asyncio.gather(*self._closing)


def _complete(usage: Usage, exited: Exited | None) -> Usage:
    """Complete ``usage``, where no cgroup counts or not for all below it, by what the agent learned when it reaped."""
    counted = exited.usage if exited is not None else None
    if counted is None:
        return usage
    kills = counted.get("oom_kills", 0)
    if kills > usage.oom_kills:
        usage = replace(usage, oom_kills=kills)
    if None not in (usage.cpu_seconds, usage.memory_peak):
        return usage
    cpu = counted.get("cpu_us")
    return replace(
        usage,
        cpu_seconds=usage.cpu_seconds if cpu is None or usage.cpu_seconds is not None else cpu / 1e6,
        memory_peak=usage.memory_peak or counted.get("max_rss_bytes"),
    )


def _cpu_seconds(timeout: float) -> int:
    return int(timeout) + 1 + CPU_GRACE_SECONDS


def _files_of(order: ExecutionRequest, program: Program) -> dict[str, bytes]:
    """The files of an order, with what a parked process would have written itself; a program may be empty."""
    files = dict(order.files)
    if program.path and program.mode in ("exec", "script"):
        files[program.path] = program.source
    return files


def _with_variables(program: Program, spec: BoxSpec) -> Program:
    """The program with what it is to know of its way out; what it was given itself stays."""
    if spec.egress is None or not spec.egress.environment:
        return program
    return replace(program, env=tuple({**spec.egress.environment, **dict(program.env)}.items()))


def _command(argv: tuple[str, ...], program: Program, cpu_seconds: int) -> Command:
    return Command(argv=argv, env=dict(program.env), cwd=program.cwd, cpu_seconds=cpu_seconds)


async def _fill(box: Box, kept: BoxFiles, files: Mapping[str, bytes]) -> None:
    if kept.has_input:
        await kept.copy_in(box)
    if files:
        await box.put({path.removeprefix(WORKSPACE + "/"): content for path, content in files.items()})


class _Watch:
    """Follows one program until it is over, by itself or because a limit was reached."""

    def __init__(
        self, box: Box, program: Exec, order: ExecutionRequest, sink: Sink, cancel: OneShotFlag | None
    ) -> None:
        self._box = box
        self._program = program
        self._order = order
        self._sink = sink
        self._cancel = cancel
        self._reason: Outcome | None = None
        self._not_started: ExecError | None = None
        self._made = False
        """Whether what is followed was made by the compiler."""
        self._left = order.spec.limits.output
        self._stopping: asyncio.Task[None] | None = None
        self._helpers: list[asyncio.Task[None]] = []

    async def ending(self, files: BoxFiles) -> ExecutionOutcome:
        started = time.monotonic()
        if self._cancel is not None:
            self._cancel.on_set(self._on_cancel)
        if self._order.kill is not None:
            self._order.kill.on_set(self._on_kill)
        diagnostics: Diagnostics | None = None
        try:
            if (compilation := self._order.launch.compilation) is None:
                exited = await self._run(again=False)
            else:
                diagnostics = Diagnostics(compilation.diagnostic)
                exited = await self._compile(diagnostics)
                if exited is not None and exited.code == 0 and self._reason is None:
                    diagnostics = None
                    exited = await self._run(again=True)
        finally:
            # Those that could end it later keep no reference to it.
            if self._cancel is not None:
                self._cancel.forget(self._on_cancel)
            if self._order.kill is not None:
                self._order.kill.forget(self._on_kill)
            for helper in self._helpers:
                helper.cancel()
            await (self._stopping or self._box.stop())
        wall = time.monotonic() - started
        usage = _complete(replace(await self._box.usage(), wall_seconds=wall), exited)
        if self._reason is None and exited is None and not usage.oom_kills:
            raise BoxGone("the box died before its program ended")
        code, number = (exited.code, exited.signal) if exited is not None else (None, int(signal.SIGKILL))
        outcome = self._reason or conclude(exit_code=code, signal=number, oom_kills=usage.oom_kills)
        place = None
        if diagnostics is not None and outcome in (Outcome.EXITED, Outcome.SIGNALED):
            # What ended was the compiler.
            outcome, place = Outcome.COMPILE_FAILED, diagnostics.first_place()
        if outcome not in (Outcome.EXITED, Outcome.SIGNALED, Outcome.COMPILE_FAILED):
            code = None
        captured = None
        if self._order.capture is not None:
            captured = await self._box.capture(self._order.capture)
        await files.collect(self._box)
        return ExecutionOutcome(
            outcome=outcome,
            exit_code=code,
            signal=number,
            usage=usage,
            captured=captured,
            not_started=self._not_started,
            image_digest=self._box.image_digest or None,
            place=place,
        )

    async def _compile(self, diagnostics: Diagnostics) -> Exited | None:
        """Follow the compiler, which ``self._program`` is for that long."""

        async def show(event: Event) -> None:
            if isinstance(event, OutputEvent):
                diagnostics.add(event.data)
                # The program's own output is the program's alone.
                event = replace(event, stream="stderr")
            if not isinstance(event, Exited):
                await self._sink(event)

        timer = self._set_timer(self._order.spec.limits.compile_timeout, Outcome.COMPILE_TIMEOUT)
        try:
            await self._end_input()
            return await self._follow(show)
        finally:
            timer.cancel()

    async def _run(self, *, again: bool) -> Exited | None:
        """Follow the program. Where something else was started in its place, that is over, and it is started now."""
        limits = self._order.spec.limits
        show = self._sink
        if again:
            launch = self._order.launch
            program = _with_variables(launch.program, self._order.spec)
            self._program = await self._box.exec(_command(launch.command, program, _cpu_seconds(limits.timeout)))
            self._made = launch.compilation is not None and launch.compilation.executes

            async def show(event: Event) -> None:
                # The sink was told already that it started.
                if not isinstance(event, Started):
                    await self._sink(event)

        timer = self._set_timer(limits.timeout, Outcome.TIMEOUT)
        try:
            if self._order.stdin:
                self._helpers.append(asyncio.get_running_loop().create_task(self._feed(self._order.stdin)))
            else:
                await self._end_input()
            return await self._follow(show)
        finally:
            timer.cancel()

    def _set_timer(self, seconds: float, outcome: Outcome) -> asyncio.TimerHandle:
        def time_out() -> None:
            # A program that is over and only not read to its end was in time.
            if not self._program.ended:
                self._end(outcome)

        return asyncio.get_running_loop().call_later(seconds, time_out)

    def _end(self, reason: Outcome) -> None:
        """Kill the box; the first reason stands."""
        if self._reason is None:
            self._reason = reason
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self._box.stop())

    async def _follow(self, show: Sink) -> Exited | None:
        try:
            async for event in self._program.events():
                if isinstance(event, OutputEvent):
                    if self._reason is Outcome.OUTPUT_LIMIT:
                        continue
                    if len(event.data) > self._left:
                        event = replace(event, data=event.data[: self._left])
                        self._end(Outcome.OUTPUT_LIMIT)
                    self._left -= len(event.data)
                    if not event.data:
                        continue
                await show(event)
                if isinstance(event, Exited):
                    return event
        except BoxGone:
            return None
        except ExecFailed as error:
            launch = self._order.launch
            cwd = launch.program.cwd if error.details.get("kind") == "bad_cwd" else None
            # An interpreter or a compiler that the image does not have is not the program's own failure. What the
            # compiler made of it is, also where that is nothing.
            if cwd is None and not self._made and (launch.direct or launch.program.mode != "exec" or launch.language):
                raise
            self._not_started = ExecError(launch.command[0], error.details.get("errno") or errno.EIO, cwd)
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

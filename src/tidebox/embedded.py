"""Tidebox without a server: the composition root of ``tidebox.run`` and of the commands that need no daemon."""

from __future__ import annotations

import asyncio
import atexit
import socket
import threading
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack

from tidebox.config import Settings, load_settings, session_environment
from tidebox.errors import InvalidRequest, StartupTimeout
from tidebox.model.box import BoxSpec, CaptureRule
from tidebox.model.events import Event, Output
from tidebox.model.launch import WORKSPACE, Cell, Launch, plan_code, plan_command
from tidebox.model.limits import Limits, make_limits
from tidebox.model.order import Ending, Order, Sink
from tidebox.model.result import Result
from tidebox.model.runtimes import Report
from tidebox.model.switch import Switch
from tidebox.runtime.base import Runtime, RuntimeSettings
from tidebox.runtime.driver import Driver
from tidebox.runtime.images import IMAGES
from tidebox.runtime.images import Image as Image
from tidebox.runtime.images import ImageStore as ImageStore
from tidebox.runtime.link import Link
from tidebox.runtime.pool import CellKey, Pool
from tidebox.runtime.registry import load
from tidebox.runtime.runners import Runners, RuntimeRunner

Answer = TypeVar("Answer")


class Engine:
    """The runtimes with their pools and drivers, living on one event loop; ``runtime`` and so on are the default's."""

    def __init__(
        self, settings: Settings | None = None, *, pool: bool = True, shapes: Sequence[BoxSpec] = (BoxSpec(),)
    ) -> None:
        """``shapes`` are those of the boxes that the pool keeps ready, each as many as the settings say.

        Raises ``RuntimeUnavailable`` where there is no runtime of the name that the settings say.
        """
        self.settings = settings or load_settings()
        self._shapes = shapes if pool else ()
        self.runners = Runners(self._make_runner, self.settings.default_runtime)
        default = self.runners.default
        self.runtime, self.pool, self.driver = default.runtime, default.pool, default.driver

    def _make_runner(self, name: str) -> RuntimeRunner:
        settings = self.settings
        runtime = load(name)(
            RuntimeSettings(
                data_dir=settings.data_dir,
                agent_sockets=settings.agent_sockets,
                python=settings.python,
                allow_weak_isolation=settings.allow_weak_isolation,
                allow_nested_filters=settings.allow_nested_filters,
                max_processes=settings.ulimit_nproc,
                environment=session_environment(),
            )
        )
        sizes = {shape: self._pool_sizes(runtime, shape) for shape in self._shapes}
        all_sizes = {key: size for found in sizes.values() for key, size in found.items()}
        pool = Pool(
            runtime,
            sizes=all_sizes,
            # Too large to be kept where nobody wants it.
            once_used=(key for key in all_sizes if key.kind == "elixir"),
            limits=Limits(),
            limits_of={key: shape.limits for shape, found in sizes.items() for key in found},
            max_age=settings.pool_max_age_sec,
        )
        return RuntimeRunner(runtime, pool, Driver(runtime, pool))

    def _pool_sizes(self, runtime: Runtime, shape: BoxSpec) -> dict[CellKey, int]:
        # A box that was opened beforehand waits under other limits than those of its program.
        if not runtime.features.adjusts:
            return {}
        settings = self.settings
        # Blank boxes first: they serve everything.
        sizes = {CellKey.of(runtime, "python", shape).blank: settings.pool_blank}
        kinds: list[tuple[Cell, str, int]] = [
            ("python", "python3", settings.pool_python),
            ("node", "node", settings.pool_node),
            ("elixir", "elixir", settings.pool_elixir),
        ]
        for kind, command, size in kinds if runtime.features.parks else ():
            if command in runtime.interpreters and runtime.parking(kind, shape.image) is not None:
                sizes[CellKey.of(runtime, kind, shape)] = size
        return sizes

    def start(self) -> None:
        """Begin to fill the pool."""
        self.runners.start()

    async def probe(self) -> Report:
        """What the runtime can enforce here; StartupTimeout if it does not tell in the time of a start."""
        seconds = self.settings.default_startup_timeout_sec
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return await self.runtime.probe()
        except TimeoutError:
            if not limit.expired():
                raise
            raise StartupTimeout(f"boxes could not be made ready within {seconds:g} s", step="start") from None

    async def close(self) -> None:
        """End everything; nothing is left behind."""
        await self.runners.close()

    async def run(
        self,
        launch: Launch,
        sink: Sink,
        *,
        limits: Limits,
        image: str = "host",
        stdin: bytes | AsyncIterator[bytes] | None = None,
        files: Mapping[str, bytes] | None = None,
        artifacts: Iterable[str] = (),
        cancel: Switch | None = None,
    ) -> Ending:
        """Run one program in a fresh box."""
        patterns = tuple(artifacts)
        # The file that holds the code is ours, not something the program made.
        main = launch.program.path.removeprefix(WORKSPACE + "/") if launch.program.source else ""
        order = Order(
            launch=launch,
            spec=BoxSpec(image=image, limits=limits),
            stdin=stdin,
            files={_inside_workspace(name): content for name, content in (files or {}).items()},
            capture=CaptureRule(patterns, exclude=frozenset({main})) if patterns else None,
            startup_timeout=self.settings.default_startup_timeout_sec,
        )
        return await self.runners.run(order, sink, cancel)


def image_store() -> ImageStore:
    """The images of this installation."""
    return ImageStore(load_settings().data_dir / IMAGES)


async def agent_at(path: Path) -> Link:
    """A client of the agent of a live sandbox, at the socket that the sandbox has for its clients."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(path))
    connection.setblocking(False)
    return await Link.open(connection, through_relay=True)


def _inside_workspace(name: str) -> str:
    relative = name.removeprefix(WORKSPACE + "/")
    if "\0" in name or any(part in ("", ".", "..") for part in relative.split("/")):
        raise InvalidRequest(f"not a file name inside {WORKSPACE}: {name!r}", field="files")
    return f"{WORKSPACE}/{relative}"


class Collector:
    """A sink that keeps the output."""

    def __init__(self) -> None:
        self.parts: dict[str, list[bytes]] = {"stdout": [], "stderr": []}

    async def __call__(self, event: Event) -> None:
        if isinstance(event, Output):
            self.parts[event.stream].append(event.data)


async def run_on(
    engine: Engine,
    code: str | bytes | None = None,
    language: str = "python",
    *,
    command: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes | str | None = None,
    files: Mapping[str, bytes] | None = None,
    artifacts: Iterable[str] = (),
    image: str = "host",
    cancel: Switch | None = None,
    **limits: Any,
) -> Result:
    """Run code, or a command, on ``engine`` and collect its output."""
    if command is not None:
        launch = plan_command(command, env=env)
    elif code is not None:
        launch = plan_code(language, code, env=env)
    else:
        raise InvalidRequest("give code or a command", field="code")
    collector = Collector()
    ending = await engine.run(
        launch,
        collector,
        limits=make_limits(**limits),
        image=image,
        stdin=stdin.encode() if isinstance(stdin, str) else stdin,
        files=files,
        artifacts=artifacts,
        cancel=cancel,
    )
    if ending.not_started is not None:
        collector.parts["stderr"].append(ending.not_started.stderr)
    return Result(
        outcome=ending.outcome,
        exit_code=ending.exit_code,
        signal=ending.signal,
        stdout=b"".join(collector.parts["stdout"]),
        stderr=b"".join(collector.parts["stderr"]),
        usage=ending.usage,
        artifacts=ending.captured.files if ending.captured else {},
        skipped_artifacts=ending.captured.skipped if ending.captured else 0,
    )


def call_on(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Answer]) -> Answer:
    """Run ``work`` on the loop of another thread and wait for it; whoever is interrupted over this cancels it.

    By a bare lock: the condition of a future makes the way there and back half as long again.
    """
    over = threading.Lock()
    over.acquire()
    tasks: list[asyncio.Task[Answer]] = []

    def start() -> None:
        tasks.append(loop.create_task(work))
        tasks[0].add_done_callback(lambda _: over.release())

    loop.call_soon_threadsafe(start)
    try:
        over.acquire()
    except BaseException:
        loop.call_soon_threadsafe(lambda: tasks[0].cancel())
        raise
    return tasks[0].result()


class _Background:
    """The process's own engine on a thread of its own, started by the first ``run`` and ended with the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._engine: Engine | None = None
        self._thread: threading.Thread | None = None

    def _started(self) -> tuple[asyncio.AbstractEventLoop, Engine]:
        with self._lock:
            if self._loop is None or self._engine is None:
                # Loaded by the first run and not with the library: it takes its time.
                import uvloop

                self._loop = uvloop.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="tidebox", daemon=True)
                self._thread.start()
                self._engine = call_on(self._loop, self._make())
                atexit.register(self.close)
            return self._loop, self._engine

    async def _make(self) -> Engine:
        engine = Engine()
        engine.start()
        return engine

    def run(self, *args: Any, **options: Any) -> Result:
        """``run_on`` on the engine's loop."""
        loop, engine = self._started()
        return call_on(loop, run_on(engine, *args, **options))

    def submit(self, *args: Any, **options: Any) -> Future[Result]:
        """Schedule that."""
        loop, engine = self._started()
        return asyncio.run_coroutine_threadsafe(run_on(engine, *args, **options), loop)

    def close(self) -> None:
        """End the engine; the next ``run`` starts a new one."""
        with self._lock:
            loop, engine, thread = self._loop, self._engine, self._thread
            self._loop = self._engine = self._thread = None
        if loop is None or engine is None or thread is None:
            return
        atexit.unregister(self.close)
        call_on(loop, engine.close())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


_background = _Background()


class RunOptions(TypedDict, total=False):
    """What else can be said of a program. Sizes are bytes, times seconds."""

    command: Sequence[str] | None
    """A program with its arguments, instead of code."""
    env: Mapping[str, str] | None
    stdin: bytes | str | None
    files: Mapping[str, bytes] | None
    """Name -> content, placed in ``/workspace``."""
    artifacts: Iterable[str]
    """Patterns of files to bring back."""
    image: str
    cancel: Switch | None
    timeout: float | None
    memory: int | None
    pids: int | None
    cpus: float | None
    cpu_shares: int | None
    output: int | None
    workspace: int | None
    inodes: int | None
    open_files: int | None
    file_size: int | None


def run(code: str | bytes | None = None, language: str = "python", **options: Unpack[RunOptions]) -> Result:
    """Run ``code`` in a fresh box and wait for its end.

    Options: ``command`` (a sequence, instead of code), ``env``, ``stdin``, ``files`` (name -> bytes, placed in
    /workspace), ``artifacts`` (patterns of files to bring back), ``image``, and the limits, which are the fields of
    ``tidebox.model.limits.Limits``: timeout, memory,
    pids, cpus, output, workspace, ... The first call starts the machinery and a pool of warm cells, which live as
    long as the process. Whoever is interrupted while he waits leaves no program running.
    """
    return _background.run(code, language, **options)


async def arun(code: str | bytes | None = None, language: str = "python", **options: Unpack[RunOptions]) -> Result:
    """``run`` for asynchronous callers: cancelling the call kills the box."""
    return await asyncio.wrap_future(_background.submit(code, language, **options))


def shut_down() -> None:
    """End the background engine of ``run`` now instead of with the process."""
    _background.close()

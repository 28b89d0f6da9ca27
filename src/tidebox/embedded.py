"""Tidebox without a server: the composition root of ``tidebox.run`` and of the commands that need no daemon."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, TypeVar, Unpack

from tidebox.config import Settings, load_settings, mirror_environment, package_environment, session_environment
from tidebox.errors import InvalidRequest, StartupTimeout, TideboxError
from tidebox.model.box import BoxSpec, CaptureRule
from tidebox.model.events import EgressSeen, Event, OutputEvent
from tidebox.model.execution_request import ExecutionOutcome, ExecutionRequest, Sink
from tidebox.model.ids import new_id
from tidebox.model.images import HOST
from tidebox.model.languages import Cell, Languages
from tidebox.model.launch import WORKSPACE, Launch, inside_workspace, plan_code, plan_command
from tidebox.model.limits import KIB, MIB, Limits, make_limits
from tidebox.model.one_shot_flag import OneShotFlag
from tidebox.model.packages import NO_PACKAGES, Packages, packages_of, policy_of
from tidebox.model.result import Result
from tidebox.model.runtimes import RuntimeReport, Start
from tidebox.runtime.base import Box, DockerSettings, EgressSettings, GvisorSettings, Runtime, RuntimeSettings
from tidebox.runtime.driver import Driver
from tidebox.runtime.images import IMAGES, check_importable
from tidebox.runtime.images import Image as Image
from tidebox.runtime.images import ImageStore as ImageStore
from tidebox.runtime.link import Link
from tidebox.runtime.pool import CellKey, Pool
from tidebox.runtime.program import encode_program
from tidebox.runtime.registry import load
from tidebox.runtime.runners import Runners, RuntimeRunner, Tell

if TYPE_CHECKING:
    from tidebox.model.recipes import Recipe
    from tidebox.model.requested_egress import BoxEgress, EgressRules, RequestedEgress
    from tidebox.runtime.packaging.packager import Packager

_log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

# Cells of each kind that is kept only because it was asked for.
_GUEST_CELLS = 2
# Programs by which an interpreter shows that it works, and how long they have for that.
_TELLS = {"python": "print('started')", "javascript": "console.log('started')"}
_TOLD = b"started\n"
_TELL_SECONDS = 20.0


class Engine:
    """The runtimes with their pools and drivers, living on one event loop; ``runtime`` and so on are the default's."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        pool: bool = True,
        shapes: Sequence[BoxSpec] = (BoxSpec(),),
        host_tools: bool = True,
    ) -> None:
        """``shapes`` are those of the boxes that the pool keeps ready, each as many as the settings say.

        ``host_tools`` says whether the machine's own compilers serve their languages.

        Raises ``RuntimeUnavailable`` where there is no runtime of the name that the settings say.
        """
        self.settings = settings or load_settings()
        self._shapes = shapes if pool else ()
        self.languages = self.settings.known_languages()
        images = {self.languages.named(name).name: image for name, image in self.settings.images_by_language.items()}
        self.runners = Runners(
            self._make_runner,
            self.settings.default_runtime,
            self._image_with,
            images,
            self.languages,
            host_tools=host_tools,
        )
        self._packager: Packager | None = None
        self._egress_rules: EgressRules | None = None
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
                docker=DockerSettings(
                    host=settings.docker_host,
                    seccomp=settings.docker_seccomp_profile(),
                    apparmor_profile=settings.docker_apparmor_profile,
                    runtime=settings.docker_runtime,
                    allowed_images=settings.docker_images,
                    prepull=settings.docker_prepull,
                ),
                gvisor=GvisorSettings(runsc=settings.gvisor_runsc, platforms=settings.gvisor_platforms),
                egress=_egress_settings(settings),
            )
        )
        if runtime.external:
            return self._make_external(runtime)
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
            most_guests=settings.pool_guests if runtime.features.parks and runtime.features.adjusts else 0,
            guest_sizes={
                "python": min(settings.pool_python, _GUEST_CELLS),
                "any": min(settings.pool_python, _GUEST_CELLS),
                "node": min(settings.pool_node, _GUEST_CELLS),
            },
        )
        return RuntimeRunner(runtime, pool, Driver(runtime, pool))

    def _make_external(self, runtime: Runtime) -> RuntimeRunner:
        """Boxes of another program's making are kept ready only where that was asked for, once they were used."""
        settings = self.settings
        warm = settings.warm_boxes(runtime.name) if self._shapes else 0
        pool = Pool(
            runtime,
            sizes={},
            limits=Limits(),
            max_age=settings.pool_max_age_sec,
            most_guests=settings.pool_guests if warm else 0,
            guest_sizes={"python": warm, "node": warm, "": warm},
        )
        return RuntimeRunner(runtime, pool, Driver(runtime, pool))

    @property
    def packager(self) -> Packager:
        """The packager, which puts packages on top of images; made at its first use."""
        if self._packager is None:
            # It comes with much that nobody needs who asks for no package.
            from tidebox.runtime.packaging.packager import PackageLimits, Packager

            settings = self.settings
            limits = PackageLimits(
                layer_bytes=settings.package_max_mb * MIB,
                cache_bytes=settings.package_cache_mb * MIB,
                tool_memory_bytes=settings.package_tool_memory_mb * MIB,
                tool_cpu_seconds=settings.package_tool_cpu_sec,
            )
            images = ImageStore(settings.data_dir / IMAGES)
            self._packager = Packager(images, self.runners.run, limits, package_environment())
        return self._packager

    async def _image_with(self, image: str, packages: Packages, tell: Tell, user: str) -> str:
        return await self.packager.image_with(image, packages, tell, user)

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
        """Begin to fill the pool, with the images that are to be warm from the start too."""
        self.runners.start()
        kinds: tuple[Cell, ...] = ("python", "node", "any")
        for image in self.settings.warm_images:
            try:
                for kind in kinds:
                    self.pool.want(CellKey.of(self.runtime, kind, BoxSpec(image=image)), Limits())
            except TideboxError as error:
                _log.warning("SANDBOX_WARM_IMAGES: %s", error.message)

    async def probe(self) -> RuntimeReport:
        """Probe which guarantees the runtime enforces here; StartupTimeout if it takes longer than a start may."""
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
        try:
            if self._packager is not None:
                await self._packager.close()
        finally:
            await self.runners.close()

    async def run(
        self,
        launch: Launch,
        sink: Sink,
        *,
        limits: Limits,
        runtime: str | None = None,
        image: str = HOST,
        packages: Packages = NO_PACKAGES,
        egress: RequestedEgress | None = None,
        stdin: bytes | AsyncIterator[bytes] | None = None,
        files: Mapping[str, bytes] | None = None,
        artifacts: Iterable[str] = (),
        cancel: OneShotFlag | None = None,
        on_egress: Callable[[EgressSeen], None] | None = None,
    ) -> ExecutionOutcome:
        """Run one program in a fresh box; raises ``RuntimeUnavailable`` where there is no runtime of that name."""
        if packages:
            policy_of(self.settings.packages, owner=True).check(packages)
        patterns = tuple(artifacts)
        # The file that holds the code is ours, not something the program made.
        main = launch.program.path.removeprefix(WORKSPACE + "/") if launch.program.source else ""
        order = ExecutionRequest(
            launch=launch,
            spec=BoxSpec(
                runtime=runtime,
                image=image,
                packages=packages,
                limits=limits,
                egress=await self._way_out(egress) if egress is not None else None,
            ),
            stdin=stdin,
            files={inside_workspace(name): content for name, content in (files or {}).items()},
            capture=CaptureRule(patterns, exclude=frozenset({main})) if patterns else None,
            startup_timeout=self.settings.default_startup_timeout_sec,
            on_egress=on_egress,
        )
        return await self.runners.run(order, sink, cancel)

    async def _way_out(self, ask: RequestedEgress) -> BoxEgress:
        """Decide the egress of a program whose user is the operator."""

        def agree() -> BoxEgress:
            if self._egress_rules is None:
                self._egress_rules = egress_rules(self.settings, embedded=True)
            return self._egress_rules.agree([ask], user="", owner=True, box=new_id("box"))

        # Files may have to be read for it, and tools be asked.
        return await asyncio.to_thread(agree)


def _egress_settings(settings: Settings) -> EgressSettings:
    return EgressSettings(
        resolver=settings.egress_resolver,
        secrets=settings.egress_secrets,
        ca_file=settings.egress_ca_file,
        proxy=settings.egress_proxy,
        connections=settings.egress_connections,
        connections_total=settings.egress_connections_total,
        bytes=settings.egress_max_mb * MIB,
        rate=settings.egress_rate_kib * KIB,
    )


def egress_rules(settings: Settings, *, embedded: bool) -> EgressRules:
    """Return the egress rules of the operator; raises ``InvalidRequest`` naming the setting that cannot be used.

    Without a server the user who runs a program is the operator: the program reaches what they name, within
    SANDBOX_EGRESS_ALLOWLIST where that is set.
    """
    from tidebox.egress.operator_rules import operator_rules

    return operator_rules(settings.egress_allowlist, settings.egress_secrets, mirror_environment(), embedded=embedded)


async def start_of(engine: Engine, language: str, image: str) -> Start | None:
    """How programs of a language start in an image, found by giving one to a parked interpreter; None where none do."""
    launch = plan_code(language, _TELLS[language])
    runtime = engine.runtime
    command = runtime.parking(launch.cell, image)
    try:
        if command is not None:
            block = encode_program(launch.program, int(_TELL_SECONDS))
            spec = BoxSpec(image=image, limits=Limits(timeout=_TELL_SECONDS))
            box = await runtime.open(spec, first=command, first_input=block)
            try:
                async with asyncio.timeout(_TELL_SECONDS):
                    if await _printed_by(box) == _TOLD:
                        return runtime.start_of(launch.cell, image)
            finally:
                await box.close()
        told = Collector()
        await engine.run(replace(launch, direct=True), told, limits=Limits(timeout=_TELL_SECONDS), image=image)
    except (TideboxError, TimeoutError):
        return None
    return "cold" if b"".join(told.parts["stdout"]) == _TOLD else None


async def _printed_by(box: Box) -> bytes:
    assert box.first is not None
    await box.first.end_input()
    return b"".join([event.data async for event in box.first.events() if isinstance(event, OutputEvent)])


def image_store() -> ImageStore:
    """The images of this installation."""
    return ImageStore(load_settings().data_dir / IMAGES)


def build_image(
    name: str,
    *,
    base: str = HOST,
    packages: Packages = NO_PACKAGES,
    preload: Sequence[str] = (),
    system_packages: Sequence[str] = (),
    suite: str | None = None,
    tell: Tell,
) -> Image:
    """Make an image: another one with packages on top, or a new root file system of Debian packages, or both.

    ``suite`` says of which release the latter are; there is a new root file system where it is given.
    """
    store = image_store()
    check_importable(name)
    if suite is None:
        image = store.resolve(base)
    elif not packages and not preload:
        return store.build(name, system_packages, suite)
    else:
        image = store.build(None, system_packages, suite)

    async def layered() -> str:
        engine = Engine(pool=False)
        try:
            return await engine.packager.image_with(image.name, packages, tell)
        finally:
            await engine.close()

    held = store.hold(image)
    try:
        found = store.resolve(asyncio.run(layered()))
        return store.tag(name, image, found, packages | image.packages, preload or image.preload)
    finally:
        for descriptor in held:
            os.close(descriptor)


def build_recipe(recipe: Recipe, name: str | None, *, suite: str, tell: Tell) -> Image:
    """Make the image of a recipe, under its own name or another; ``suite`` is the release of its Debian packages."""
    from tidebox.runtime import cooking

    store = image_store()
    if name is not None:
        check_importable(name)
    packages = cooking.packages_of(recipe)
    base = store.build(None, recipe.apt, suite, cooking.MADE_AT) if recipe.apt else store.resolve(HOST)
    held = store.hold(base)

    async def made() -> Image:
        engine = Engine(pool=False)
        try:
            image = store.resolve(await engine.packager.image_with(base.name, packages, tell))
            return await cooking.finished(recipe, image, store, engine.runners.run, tell)
        finally:
            await engine.close()

    try:
        return store.tag(name or recipe.image, base, asyncio.run(made()), packages, ())
    finally:
        for descriptor in held:
            os.close(descriptor)


async def agent_at(path: Path) -> Link:
    """A client of the agent of a live sandbox, at the socket that the sandbox has for its clients."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(path))
    connection.setblocking(False)
    return await Link.open(connection, through_relay=True)


class Collector:
    """A sink that keeps the output."""

    def __init__(self) -> None:
        self.parts: dict[str, list[bytes]] = {"stdout": [], "stderr": []}

    async def __call__(self, event: Event) -> None:
        if isinstance(event, OutputEvent):
            self.parts[event.stream].append(event.data)


class ProgramRunner(Protocol):
    """Runs programs, each in a fresh box: the engine here, or a server."""

    languages: Languages
    """The languages that code can be in."""

    async def run(
        self,
        launch: Launch,
        sink: Sink,
        *,
        limits: Limits,
        runtime: str | None = None,
        image: str = HOST,
        packages: Packages = NO_PACKAGES,
        egress: RequestedEgress | None = None,
        stdin: bytes | AsyncIterator[bytes] | None = None,
        files: Mapping[str, bytes] | None = None,
        artifacts: Iterable[str] = (),
        cancel: OneShotFlag | None = None,
        on_egress: Callable[[EgressSeen], None] | None = None,
    ) -> ExecutionOutcome:
        """Run one program; its events go to ``sink`` as they come."""


async def run_on(
    engine: ProgramRunner,
    code: str | bytes | None = None,
    language: str = "python",
    *,
    command: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes | str | None = None,
    files: Mapping[str, bytes] | None = None,
    artifacts: Iterable[str] = (),
    runtime: str | None = None,
    image: str = HOST,
    packages: Packages | Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    egress: Sequence[str] | Mapping[str, Any] | None = None,
    on_egress: Callable[[EgressSeen], None] | None = None,
    cancel: OneShotFlag | None = None,
    **limits: Any,
) -> Result:
    """Run code, or a command, on ``engine`` and collect its output."""
    bounds = make_limits(**limits)
    if command is not None:
        launch = plan_command(command, env=env)
    elif code is not None:
        launch = plan_code(language, code, env=env, memory=bounds.memory, languages=engine.languages)
    else:
        raise InvalidRequest("give code or a command", field="code")
    collector = Collector()
    ending = await engine.run(
        launch,
        collector,
        limits=bounds,
        runtime=runtime,
        image=image,
        packages=packages_of(packages),
        egress=_ask_of(egress) if egress is not None else None,
        on_egress=on_egress,
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


def _ask_of(given: Sequence[str] | Mapping[str, Any]) -> RequestedEgress:
    # Few need it, and it takes its time to load.
    from tidebox.model.requested_egress import requested_egress_of

    return requested_egress_of(given)


def call_on(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Answer]) -> Answer:
    """Run ``work`` on the loop of another thread and wait for it; an interrupt cancels it.

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
        """Schedule ``run_on`` on the engine's loop; return its future."""
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
    """Options of a program. Sizes are bytes, times seconds."""

    command: Sequence[str] | None
    """A program with its arguments, instead of code."""
    env: Mapping[str, str] | None
    stdin: bytes | str | None
    files: Mapping[str, bytes] | None
    """Name -> content, placed in ``/workspace``."""
    artifacts: Iterable[str]
    """Patterns of files to bring back."""
    runtime: str | None
    """By which way it is isolated: ``native``, ``docker`` or ``gvisor``."""
    image: str
    packages: Packages | Sequence[str] | Mapping[str, Sequence[str]] | None
    """Python packages, or packages by language, put on top of the image: ``["pandas"]``, ``{"node": ["zod"]}``."""
    egress: Sequence[str] | Mapping[str, Any] | None
    """Egress of the program: hosts, or an object as requests have it; nothing where it is not given."""
    on_egress: Callable[[EgressSeen], None] | None
    """Hears of the connections that it makes and is denied."""
    cancel: OneShotFlag | None
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
    compile_timeout: float | None


def run(code: str | bytes | None = None, language: str = "python", **options: Unpack[RunOptions]) -> Result:
    """Run ``code`` in a fresh box and wait for its end.

    Options: ``command`` (a sequence, instead of code), ``env``, ``stdin``, ``files`` (name -> bytes, placed in
    /workspace), ``artifacts`` (patterns of files to bring back), ``runtime`` (``native``, ``docker``, ``gvisor``),
    ``image``, ``packages`` (Python packages, or a mapping of python and node to packages; the first run with them waits
    until they are there), and the limits, which are the fields of ``tidebox.model.limits.Limits``: timeout, memory,
    pids, cpus, output, workspace, ... The first call starts the machinery and a pool of warm cells, which live as long
    as the process. An interrupt while it waits leaves no program running.
    """
    return _background.run(code, language, **options)


async def arun(code: str | bytes | None = None, language: str = "python", **options: Unpack[RunOptions]) -> Result:
    """``run`` for asynchronous callers: cancelling the call kills the box."""
    return await asyncio.wrap_future(_background.submit(code, language, **options))


def shut_down() -> None:
    """End the background engine of ``run`` now instead of with the process."""
    _background.close()

"""The gvisor runtime: every box is a sandbox of runsc, with our agent as its pid 1."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import shutil
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tidebox.errors import (
    BoxGone,
    GuaranteeMissing,
    PolicyUnsupported,
    ProvisionFailed,
    RuntimeUnavailable,
    TideboxError,
)
from tidebox.model.box import BoxSpec, Command
from tidebox.model.images import HOST
from tidebox.model.languages import Cell as CellKind
from tidebox.model.launch import WORKSPACE
from tidebox.model.runtimes import Features, ResolvedImage, RuntimeReport
from tidebox.runtime import launchers
from tidebox.runtime.base import Box, Runtime, RuntimeSettings
from tidebox.runtime.gvisor import probe, runsc
from tidebox.runtime.gvisor.box import GvisorBox
from tidebox.runtime.gvisor.bundle import Root, configuration, group_limits
from tidebox.runtime.gvisor.groups import Group, Groups
from tidebox.runtime.gvisor.places import Places, claiming, leftovers
from tidebox.runtime.gvisor.process import SandboxProcess
from tidebox.runtime.images import IMAGES, Image, ImageStore
from tidebox.runtime.link import Link
from tidebox.runtime.native import host
from tidebox.runtime.relay import Relay
from tidebox.runtime.shared.tools import agent_command, filter_path
from tidebox.wire.messages import EXEC_LIMITS, Bootstrap, EnvVar, Ready

_log = logging.getLogger(__name__)

# What the agent will say, which is this very software.
_READY = Ready(boot_time_ns=0, init_time_ns=0, ready_time_ns=0, exec_limits=EXEC_LIMITS)
# Each that is made or ended loads or frees system call filters of this machine's kernel: not many at once.
_STARTS_AT_ONCE, _ENDS_AT_ONCE = 8, 4
# How long the first sandbox of a platform may take: one that does not work may hang for ever.
_BOOT_SECONDS = 15.0
_READY_SECONDS = 60.0
_END_SECONDS = 10.0
_CLOSE_SECONDS = 15.0

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Usable:
    """A runsc that works here, and what goes with it."""

    runsc: runsc.Runsc
    platform: str
    report: RuntimeReport


@dataclass(frozen=True, slots=True)
class _Prepared:
    """The parts that a sandbox is started from: its bundle, cgroup and image."""

    name: str
    bundle: Path
    group: Group | None
    held: tuple[int, ...]
    """Descriptors that keep its image."""


class GvisorRuntime(Runtime):
    """Opens boxes by one runsc, which is looked for when it is first needed."""

    name = "gvisor"
    boundary = "user_kernel"
    shows_host = True
    external = True
    lazy = True

    def __init__(self, settings: RuntimeSettings) -> None:
        self._settings = settings
        self._directory = settings.data_dir / "gvisor"
        self._host = host.find_interpreters(settings.python, settings.environment.get("PATH"))
        self.interpreters = self._host.by_command()
        self._images = ImageStore(settings.data_dir / IMAGES)
        self._rootless = os.geteuid() != 0
        self._setpriv = shutil.which("setpriv", path="/usr/bin:/bin")
        self._groups = Groups()
        self._places: Places | None = None
        self._usable: _Usable | None = None
        self._numbers = itertools.count(1)
        self._starts = asyncio.Semaphore(_STARTS_AT_ONCE)
        self._ends = asyncio.Semaphore(_ENDS_AT_ONCE)
        self._work: dict[str, asyncio.Task[Any]] = {}
        self._boxes: set[GvisorBox] = set()
        self._undoing: set[asyncio.Task[None]] = set()
        self._left_behind = False
        self._closed = False

    @property
    def features(self) -> Features:
        grouped = self._groups.version > 0 if self._places is not None else not self._rootless
        return Features(parks=True, adjusts=grouped, freezes=grouped, relays=True)

    def resolve(self, image: str) -> ResolvedImage:
        found = self._images.resolve(image)
        return ResolvedImage(found.name, found.digest)

    def images(self) -> Sequence[ResolvedImage]:
        return [self.resolve(HOST), *(ResolvedImage(image.name, image.digest) for image in self._images.list())]

    def has_command(self, name: str) -> bool:
        return self._host.has(name)

    def parking(self, kind: CellKind, image: str, at_once: bool = False, preload: str = "") -> Command | None:
        # To park an interpreter takes longer than to start the program itself, where that waits already.
        if kind == "any" or at_once:
            return None
        return Command(argv=launchers.COMMANDS[kind])

    # The program

    def absence(self) -> str | None:
        try:
            runsc.find(self._settings.gvisor.runsc, self._settings.environment)
        except RuntimeUnavailable as error:
            return error.message
        return None

    async def tidy(self) -> None:
        if leftovers(self._directory):
            await self._once("places", self._open_places)

    async def _once(self, what: str, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """The result of work that all who need it share; it goes on when one of them gives up."""
        task = self._work.get(what)
        if task is None:
            task = self._work[what] = asyncio.get_running_loop().create_task(work(), name=f"gvisor: {what}")
            task.add_done_callback(lambda done: self._worked(what, done))
        try:
            found: Result = await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and self._closed and not _is_cancelled():
                # The work was told to stop, not the task that waits for it.
                raise RuntimeUnavailable("the runtime is closed") from None
            raise
        return found

    def _worked(self, what: str, task: asyncio.Task[Any]) -> None:
        self._work.pop(what, None)
        if not task.cancelled():
            task.exception()  # a task that waited has it; there may be none

    async def _open_places(self) -> Places:
        if self._places is None:
            self._places = await asyncio.to_thread(self._make_places)
        return self._places

    def _make_places(self) -> Places:
        """Become an owner of sandboxes, and remove what dead ones left."""
        self._groups.open()
        try:
            with claiming(self._directory):
                places = Places(self._directory)
                swept = places.sweep()
        except OSError as error:
            raise RuntimeUnavailable(f"gvisor: {self._directory}: {error.strerror}") from None
        if swept:
            _log.info("what %d servers that ended had left of sandboxes was removed", len(swept))
        return places

    async def _ready(self) -> _Usable:
        """A runsc that works, looked for again as long as there is none."""
        self._require_open()
        if self._usable is None:
            self._usable = await self._once("look", self._look)
            self.version = self._usable.runsc.version
        return self._usable

    def _require_open(self) -> None:
        if self._closed:
            raise RuntimeUnavailable("the runtime is closed")

    async def _look(self) -> _Usable:
        settings = self._settings.gvisor
        path = runsc.find(settings.runsc, self._settings.environment)
        places = await self._once("places", self._open_places)
        found = await asyncio.to_thread(runsc.look, path)
        await asyncio.to_thread(places.tools)
        await asyncio.to_thread(places.host, self._host)
        problems = {}
        for platform in settings.platforms or runsc.PLATFORMS:
            try:
                async with asyncio.timeout(_BOOT_SECONDS):
                    return _Usable(found, platform, await self._try_out(found, platform))
            except TimeoutError:
                problems[platform] = f"nothing came of it within {_BOOT_SECONDS:g} s"
            except RuntimeUnavailable:
                raise
            except TideboxError as error:
                problems[platform] = error.message
        reasons = "; ".join(f"{platform}: {problem}" for platform, problem in problems.items())
        raise RuntimeUnavailable(f"gvisor: {path} boots nothing here ({reasons})")

    async def _try_out(self, found: runsc.Runsc, platform: str) -> RuntimeReport:
        """Boot a sandbox and see from inside what holds there."""
        box = await self._open_on(found, platform, probe.SPEC, self._images.resolve(HOST), None, b"")
        try:
            facts = {
                "runsc": found.version,
                "platform": platform,
                "without root": "yes" if self._rootless else "no",
                "control groups": f"v{self._groups.version}" if self._groups.version else str(self._groups.problem),
                "egress": "no allow-lists: sandboxes have no network",
            }
            return await probe.examine(box, facts, self._groups.problem)
        finally:
            await box.close()

    async def probe(self) -> RuntimeReport:
        try:
            usable = await self._ready()
            # It may have been removed meanwhile.
            runsc.find(usable.runsc.path, self._settings.environment)
        except TideboxError as error:
            self._usable = None
            return probe.unavailable(error.message)
        return usable.report

    # Boxes

    async def open(
        self, spec: BoxSpec, *, first: Command | None = None, first_input: bytes = b"", spare: bool = False
    ) -> Box:
        if spec.has_network:
            raise PolicyUnsupported(
                "network_policy allowlist cannot be enforced by gvisor: its sandboxes have no network",
                field="network_policy",
            )
        image = self._images.resolve(spec.image)
        if image.layers:
            raise PolicyUnsupported(
                f"the runtime gvisor has no packages on top of its images, as {spec.image} has", field="image"
            )
        usable = await self._ready()
        self._require_guarantees(usable.report)
        return await self._open_on(usable.runsc, usable.platform, spec, image, first, first_input)

    def _require_guarantees(self, report: RuntimeReport) -> None:
        if self._settings.allow_weak_isolation or not report.missing:
            return
        missing = "; ".join(f"{finding.guarantee.value}: {finding.how}" for finding in report.missing)
        raise GuaranteeMissing(
            f"sandboxes of gVisor lack guarantees here ({missing}); `tidebox doctor` says what helps, "
            "SANDBOX_ALLOW_WEAK_ISOLATION=1 accepts boxes without them",
            guarantees=[finding.guarantee.value for finding in report.missing],
        )

    async def _open_on(
        self,
        found: runsc.Runsc,
        platform: str,
        spec: BoxSpec,
        image: Image,
        first: Command | None,
        first_input: bytes,
    ) -> GvisorBox:
        places = await self._once("places", self._open_places)
        async with self._starts:
            preparing = asyncio.get_running_loop().create_task(asyncio.to_thread(self._prepare, places, spec, image))
            try:
                prepared = await asyncio.shield(preparing)
            except asyncio.CancelledError:
                preparing.add_done_callback(self._forget_prepared)
                raise
            box: GvisorBox | None = None
            try:
                self._require_open()
                command = found.command(places.state, platform, self._rootless)
                box = self._start(
                    [*command, "run", f"--bundle={prepared.bundle}", prepared.name], prepared, spec, image
                )
                _watch_memory(box)
                if first is not None:
                    box.first = await box.exec(first)
                    if first_input:
                        await box.first.write(first_input)
                await self._settle(box)
                box.begin_counting()
                if spec.sandbox_id is not None:
                    box.relay = await Relay.open(box.link, self._settings.agent_sockets / f"{spec.sandbox_id}.sock")
                self._require_open()
            except BaseException:
                if box is not None:
                    self._later(_closed(box))
                else:
                    self._later(self._remove(prepared, None))
                raise
        self._boxes.add(box)
        box.on_gone(lambda: self._forget(box))
        return box

    def _prepare(self, places: Places, spec: BoxSpec, image: Image) -> _Prepared:
        """Prepare the start of a sandbox on this machine: hold its image, make its cgroup, write its bundle."""
        root = places.host(self._host) if image.rootfs is None else Root(image.rootfs)
        nested = self._settings.allow_nested_filters
        command = agent_command(filter_path(nested, spec.executable, guest=True))
        name = places.box_name(next(self._numbers))
        held = self._images.hold(image)
        group: Group | None = None
        try:
            group = self._groups.make()
            if group is not None:
                group.limit(group_limits(spec.limits, sandbox=spec.kind == "sandbox"))
            bundle = places.write_bundle(name, configuration(spec, root, tools=places.tools(), command=command))
        except OSError as error:
            self._let_go(held, group)
            raise ProvisionFailed(f"a sandbox could not be prepared: {error.strerror}", step="bundle") from None
        except BaseException:
            self._let_go(held, group)
            raise
        return _Prepared(name, bundle, group, held)

    def _let_go(self, held: tuple[int, ...], group: Group | None) -> None:
        for descriptor in held:
            os.close(descriptor)
        if group is not None:
            group.discard()

    def _forget_prepared(self, preparing: asyncio.Task[_Prepared]) -> None:
        if not preparing.cancelled() and preparing.exception() is None:
            self._later(self._remove(preparing.result(), None))

    def _start(self, command: list[str], prepared: _Prepared, spec: BoxSpec, image: Image) -> GvisorBox:
        entrances = prepared.group.entrances if prepared.group is not None else []
        try:
            process = SandboxProcess(command, entrances, self._setpriv)
        except OSError as error:
            raise ProvisionFailed(f"runsc could not be started: {error.strerror}", step="runsc") from None
        link = Link.to(process.connection, _READY, _bootstrap())

        async def remove(box: GvisorBox) -> None:
            await self._remove(prepared, box.process)

        return GvisorBox(prepared.name, image.digest, link, spec, self.features, process, prepared.group, remove)

    async def _settle(self, box: GvisorBox) -> None:
        """Wait until its agent speaks; why it does not is told by runsc."""
        try:
            await box.link.wait_ready(_READY_SECONDS)
        except BoxGone as error:
            with contextlib.suppress(TimeoutError):
                # Where it does not end, its agent's silence is all that can be told.
                await asyncio.wait_for(box.process.ended(), _END_SECONDS)
            usage = await box.usage()
            if usage.oom_kills:
                reason = "its memory does not suffice for the sandbox itself"
            else:
                reason = box.process.last_words or error.message
            raise ProvisionFailed(f"a sandbox of gVisor did not start: {reason}", step="runsc") from None

    async def _remove(self, prepared: _Prepared, process: SandboxProcess | None) -> None:
        """End what is left of a sandbox and remove its files."""
        gone = True
        async with self._ends:
            if process is not None:
                process.kill()
            if prepared.group is not None:
                gone = await prepared.group.remove()
            if process is not None:
                try:
                    async with asyncio.timeout(_END_SECONDS):
                        await process.ended()
                except TimeoutError:
                    gone = False
            if not gone:
                self._left_behind = True
                _log.warning("the sandbox %s does not end", prepared.name)
            if self._places is not None:
                await asyncio.to_thread(self._places.remove_box, prepared.name)
            for descriptor in prepared.held:
                os.close(descriptor)

    def _forget(self, box: GvisorBox) -> None:
        self._boxes.discard(box)
        # Nobody may close it; what is left goes all the same.
        self._later(_closed(box))

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._undoing.add(task)
        task.add_done_callback(self._undoing.discard)

    def live_boxes(self) -> int:
        return len(self._boxes)

    async def close(self) -> None:
        self._closed = True
        for task in list(self._work.values()):
            task.cancel()
        await asyncio.gather(*self._work.values(), return_exceptions=True)
        closing: set[asyncio.Task[None]] = {box.begin_close() for box in list(self._boxes)}
        while waiting := closing | self._undoing:
            done, late = await asyncio.wait(waiting, timeout=_CLOSE_SECONDS)
            closing -= done
            self._undoing -= done
            if late:
                for task in late:
                    task.cancel()
                self._left_behind = True
                break
        if self._places is not None:
            groups_gone = await asyncio.to_thread(self._groups.close)
            nothing_left = groups_gone and not self._left_behind
            await asyncio.to_thread(lambda places: places.close(nothing_left=nothing_left), self._places)
            self._places = None


def _is_cancelled() -> bool:
    current = asyncio.current_task()
    return current is not None and current.cancelling() > 0


def _watch_memory(box: GvisorBox) -> None:
    """Have the whole of it end when its memory does."""
    if box.group is not None:
        try:
            box.group.end_when_out_of_memory(box.exhaust)
        except OSError as error:
            raise ProvisionFailed(
                f"the memory of a box cannot be watched: {error.strerror}", step="control group"
            ) from None


async def _closed(box: GvisorBox) -> None:
    await box.close()


def _bootstrap() -> Bootstrap:
    environment = host.default_environment()
    return Bootstrap(
        default_cwd=WORKSPACE, default_env=[EnvVar(key=name, value=value) for name, value in environment.items()]
    )

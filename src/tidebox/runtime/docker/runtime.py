"""The docker runtime: every box is a container of an engine, with our agent as its pid 1."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import itertools
import logging
import os
import secrets
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tidebox.errors import (
    BoxGone,
    GuaranteeMissing,
    PolicyUnsupported,
    ProvisionFailed,
    RuntimeUnavailable,
    StartupTimeout,
    TideboxError,
    UnknownImage,
)
from tidebox.model.box import BoxSpec, Command
from tidebox.model.events import Preparing
from tidebox.model.images import LANGUAGE_IMAGES
from tidebox.model.languages import Cell as CellKind
from tidebox.model.launch import WORKSPACE
from tidebox.model.runtimes import Features, ResolvedImage, RuntimeReport
from tidebox.runtime import launchers
from tidebox.runtime.base import Box, Runtime, RuntimeSettings
from tidebox.runtime.docker import probe, seccomp
from tidebox.runtime.docker.box import DockerBox
from tidebox.runtime.docker.containers import EngineFacts, Hardening, ImageFacts, container_body
from tidebox.runtime.docker.endpoint import find_endpoint
from tidebox.runtime.docker.engine import DockerEngine, EngineRefused
from tidebox.runtime.docker.groups import Groups
from tidebox.runtime.docker.images import DockerImages
from tidebox.runtime.docker.removal import Removal
from tidebox.runtime.docker.tools import AgentVolume, make_scratch, remove_scratch
from tidebox.runtime.link import Link
from tidebox.runtime.relay import Relay
from tidebox.runtime.shared.owners import OwnerFile
from tidebox.runtime.shared.tools import agent_command, filter_path
from tidebox.wire.messages import EXEC_LIMITS, Bootstrap, EnvVar, Ready

if TYPE_CHECKING:
    from tidebox.runtime.native.guard import Guard

_log = logging.getLogger(__name__)

# What the agent will say, which is this very software.
_READY = Ready(boot_time_ns=0, init_time_ns=0, ready_time_ns=0, exec_limits=EXEC_LIMITS)
_STARTS_AT_ONCE = 16
# Uids that nothing of a machine has, and that an engine without root has too.
_FIRST_USER, _USERS = 20_000, 40_000
_HOME = "HOME"
_CLOSE_SECONDS = 15.0

Result = TypeVar("Result")
_MISSING = 404


@dataclass(slots=True)
class _Connected:
    """An engine that answered, and what goes with it."""

    engine: DockerEngine
    facts: EngineFacts
    tools: AgentVolume
    owner: OwnerFile
    removal: Removal
    groups: Groups
    report: RuntimeReport | None = None


class DockerRuntime(Runtime):
    """Opens boxes on one engine, which may come and go."""

    name = "docker"
    boundary = "container"
    external = True

    def __init__(self, settings: RuntimeSettings) -> None:
        self._settings = settings
        self.max_processes = settings.max_processes
        self.interpreters = {"python3": "python3", "node": "node", "sh": "sh"}
        self._images = DockerImages(settings.docker.allowed_images)
        self._directory: Path = settings.data_dir / "docker"
        self._numbers = itertools.count(1)
        self._work: dict[str, asyncio.Task[Any]] = {}
        self._starts = asyncio.Semaphore(_STARTS_AT_ONCE)
        self._connected: _Connected | None = None
        self._boxes: set[DockerBox] = set()
        self._users: set[int] = set()
        self._profiles: dict[bool, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._prepulling: asyncio.Task[None] | None = None
        self._closed = False
        self._guard: Guard | None = None

    @property
    def features(self) -> Features:
        adjusts = self._connected is None or self._connected.facts.updates(self._settings.docker.runtime)
        return Features(parks=True, adjusts=adjusts, renews=adjusts, freezes=True, relays=True)

    def resolve(self, image: str) -> ResolvedImage:
        return self._images.resolve(image)

    def images(self) -> Sequence[ResolvedImage]:
        return self._images.known()

    def parking(self, kind: CellKind, image: str, at_once: bool = False, preload: str = "") -> Command | None:
        # To park an interpreter takes longer than to start the program itself, where that waits already.
        if kind == "any" or at_once:
            return None
        return Command(argv=launchers.COMMANDS[kind])

    async def provide(self, image: str, tell: Callable[[Preparing], None]) -> None:
        connected = await self._connect()
        await self._images.provide(connected.engine, image, tell)

    def is_provided(self, image: str) -> bool:
        try:
            return self._images.facts(image) is not None
        except UnknownImage:
            return False  # the caller that asks for it is told so then

    # The engine

    async def _connect(self) -> _Connected:
        """The engine with all that is needed of it, looked for again as long as there is none."""
        if self._closed:
            raise RuntimeUnavailable("the runtime is closed")
        if self._connected is None:
            self._connected = await self._once("connect", self._look)
        return self._connected

    async def _once(self, what: str, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """The result of work that all who need it share; it goes on when one of them gives up."""
        task = self._work.get(what)
        if task is None:
            task = self._work[what] = asyncio.get_running_loop().create_task(work(), name=f"docker: {what}")
            task.add_done_callback(lambda _: self._work.pop(what))
        found: Result = await asyncio.shield(task)
        return found

    async def _look(self) -> _Connected:
        endpoint = await asyncio.to_thread(find_endpoint, self._settings.docker.host, self._settings.environment)
        engine = DockerEngine(endpoint)
        info, version = await engine.call("GET", "/info"), await engine.call("GET", "/version")
        with engine.understood("the engine itself"):
            facts = probe.facts_of(info, version)
        self._choose_runtime(facts)
        owner = await asyncio.to_thread(OwnerFile, self._directory)
        removal = Removal(engine, owner)
        self.version = facts.version

        async def python() -> str:
            image = await self._images.provide(engine, LANGUAGE_IMAGES["python"], lambda _: None)
            return image.id

        tools = AgentVolume(engine, facts.machine, owner.labels, python)
        connected = _Connected(engine, facts, tools, owner, removal, Groups(engine, facts))
        # What does not go holds nobody up.
        self._later(removal.sweep())
        if self._settings.docker.prepull:
            self._prepulling = asyncio.get_running_loop().create_task(
                self._images.prepull(engine, self._settings.docker.prepull, lambda event: _log.info(event.message)),
                name="docker: pulling images",
            )
        return connected

    def _choose_runtime(self, facts: EngineFacts) -> None:
        """See that the engine has the runtime that the settings name."""
        wanted = self._settings.docker.runtime
        if wanted is not None and wanted not in facts.runtimes:
            known = ", ".join(sorted(facts.runtimes)) or "none"
            raise RuntimeUnavailable(f"the engine has no runtime {wanted} (SANDBOX_DOCKER_RUNTIME); it has: {known}")

    async def probe(self) -> RuntimeReport:
        try:
            connected = await self._connect()
            await connected.engine.call("HEAD", "/_ping")
            report = await self._reported(connected)
            await self._look_at_defaults(connected.engine)
        except TideboxError as error:
            return probe.unavailable(error)
        return report

    async def _reported(self, connected: _Connected) -> RuntimeReport:
        """Return the probe's report on containers of this engine, made once for as long as it does not go away."""
        if connected.report is None:
            connected.report = await self._once("probe", lambda: self._try_out(connected))
        return connected.report

    async def _try_out(self, connected: _Connected) -> RuntimeReport:
        """See from inside a container what holds there; nothing of its image takes part in it."""
        engine = connected.engine
        await self._look_at_defaults(engine)
        present = next((self._images.facts(image.name) for image in self._images.known()), None)
        scratch = await make_scratch(engine, connected.owner.name) if present is None else None
        try:
            image = present or ImageFacts(name=str(scratch), id=str(scratch), digest="")
            await connected.tools.ensure(image.id)
            self._later(connected.tools.remove_others())
            spec = BoxSpec(image=image.name, executable=False)
            box = await self._open_in(connected, image, spec, None, b"")
            try:
                watched = self._guard.bounded if self._guard is not None else frozenset()
                return await probe.examine(box, connected.facts, spec, self._settings.docker, watched)
            finally:
                await box.close()
        finally:
            if scratch is not None:
                await remove_scratch(engine, connected.owner.name)

    async def _look_at_defaults(self, engine: DockerEngine) -> None:
        for name in dict.fromkeys(LANGUAGE_IMAGES.values()):
            try:
                await self._images.inspect(engine, name)
            except UnknownImage:
                continue  # not one of those that may be used

    # Boxes

    async def open(
        self, spec: BoxSpec, *, first: Command | None = None, first_input: bytes = b"", spare: bool = False
    ) -> Box:
        if spec.has_network:
            raise PolicyUnsupported(
                "network_policy allowlist cannot be enforced for containers: they have no network",
                field="network_policy",
            )
        connected = await self._connect()
        self._require_guarantees(await self._reported(connected))
        image = await self._images.provide(connected.engine, spec.image, lambda _: None)
        try:
            return await self._open_in(connected, image, spec, first, first_input)
        except EngineRefused as error:
            if not self._may_be_stale(error):
                raise
            # The image or the agent's volume was removed meanwhile.
            self._images.forget(spec.image)
            connected.tools.forget()
            image = await self._images.provide(connected.engine, spec.image, lambda _: None)
            await self._once("tools", lambda: connected.tools.ensure(image.id))
        return await self._open_in(connected, image, spec, first, first_input)

    def _may_be_stale(self, error: EngineRefused) -> bool:
        return error.status in (400, _MISSING)

    def _require_guarantees(self, report: RuntimeReport) -> None:
        if self._settings.allow_weak_isolation or not report.missing:
            return
        missing = "; ".join(f"{finding.guarantee.value}: {finding.how}" for finding in report.missing)
        raise GuaranteeMissing(
            f"containers of this engine lack guarantees ({missing}); `tidebox doctor` says what helps, "
            "SANDBOX_ALLOW_WEAK_ISOLATION=1 accepts boxes without them",
            guarantees=[finding.guarantee.value for finding in report.missing],
        )

    async def _open_in(
        self, connected: _Connected, image: ImageFacts, spec: BoxSpec, first: Command | None, first_input: bytes
    ) -> DockerBox:
        engine, owner = connected.engine, connected.owner
        name = f"tidebox-{owner.name}-{next(self._numbers)}"
        user = self._free_user()
        docker = self._settings.docker
        own_filter = docker.seccomp is None
        body = container_body(
            spec,
            image,
            connected.facts,
            Hardening(
                seccomp=await self._profile(connected.facts, spec.executable),
                apparmor=docker.apparmor_profile if connected.facts.apparmor else None,
                max_processes=self.max_processes,
                runtime=docker.runtime,
            ),
            user=user,
            command=agent_command(*([filter_path(self._settings.allow_nested_filters)] if own_filter else [])),
            tools=connected.tools.volume,
            labels=owner.labels,
        )
        made: asyncio.Task[Any] = asyncio.get_running_loop().create_task(
            engine.call("POST", "/containers/create", query={"name": name}, body=body)
        )
        box: DockerBox | None = None
        try:
            async with self._starts:
                answer = await asyncio.shield(made)
                with engine.understood("a new container"):
                    container = str(answer["Id"])
                await self._images.vet(engine, image, container)
                link = Link.to(await engine.attach(name), _READY, _bootstrap(image))
                box = DockerBox(
                    name,
                    image.digest,
                    engine,
                    connected.facts,
                    link,
                    spec,
                    self.features,
                    connected.removal.remove,
                    functools.partial(self._bound, connected.groups, container),
                )
                await _start(engine, box, first, first_input)
            if spec.sandbox_id is not None:
                box.relay = await Relay.open(link, self._settings.agent_sockets / f"{spec.sandbox_id}.sock")
            if self._closed:
                raise RuntimeUnavailable("the runtime is closed")
        except BaseException as error:
            self._users.discard(user)
            if self._guard is not None and box is not None:
                self._guard.forget(box)
            self._later(_undo(made, box, connected.removal, name))
            if isinstance(error, BoxGone | RuntimeUnavailable):
                self._suspect()
            raise
        self._boxes.add(box)
        box.on_gone(lambda: self._forget(box, user))
        return box

    async def _bound(self, groups: Groups, container: str, box: DockerBox, memory: int) -> None:
        """Have what engines leave open bounded in a container that runs, as far as it is within reach."""
        if box.group is None:
            box.group = await groups.of(container)
            # It looks at what only Linux has, and needs to be root for it.
            if box.group is not None and not box.gone and sys.platform == "linux" and os.geteuid() == 0:
                if self._guard is None:
                    from tidebox.runtime.native.guard import Guard

                    self._guard = Guard()
                self._guard.watch(box)
        await groups.limit_sockets(box.group, memory)

    async def _profile(self, facts: EngineFacts, executable: bool) -> str:
        """The system call profile, or its file: Podman reads it from there, on the machine that it is on."""
        if executable not in self._profiles:
            profile = self._settings.docker.seccomp or seccomp.profile(facts.machine, executable=executable)
            if facts.podman:
                path = self._directory / f"seccomp-{hashlib.sha256(profile.encode()).hexdigest()[:16]}.json"
                await asyncio.to_thread(path.write_text, profile)
                profile = str(path.absolute())
            self._profiles[executable] = profile
        return self._profiles[executable]

    def _free_user(self) -> int:
        """A uid that no other container of ours has: what the kernel counts by user is then counted by box."""
        if len(self._users) >= _USERS // 2:
            raise ProvisionFailed("too many containers at once", step="user")
        while (user := _FIRST_USER + secrets.randbelow(_USERS)) in self._users:
            pass
        self._users.add(user)
        return user

    def _forget(self, box: DockerBox, user: int) -> None:
        self._boxes.discard(box)
        if self._guard is not None:
            self._guard.forget(box)
        self._users.discard(user)
        # Nobody may close it; what its agent leaves goes all the same.
        box.begin_close()

    def _suspect(self) -> None:
        """The engine went away: what is known of it may not be so any more."""
        if self._connected is not None:
            self._connected.tools.forget()
            self._connected.report = None
        self._images.forget()

    def _later(self, work: Awaitable[None]) -> None:
        async def do() -> None:
            await work

        task = asyncio.get_running_loop().create_task(do())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def live_boxes(self) -> int:
        return len(self._boxes)

    async def close(self) -> None:
        self._closed = True
        if self._prepulling is not None:
            self._prepulling.cancel()
            await asyncio.gather(self._prepulling, return_exceptions=True)
        await asyncio.gather(*self._work.values(), return_exceptions=True)
        closing: set[asyncio.Task[None]] = {box.begin_close() for box in list(self._boxes)} | self._tasks
        if closing:
            # An engine that hangs keeps nobody: what it still has is known by its owner's name.
            _, late = await asyncio.wait(closing, timeout=_CLOSE_SECONDS)
            for task in late:
                task.cancel()
        if self._guard is not None:
            self._guard.close()
        if self._connected is not None:
            nothing_left = await self._connected.removal.close(_CLOSE_SECONDS)
            self._connected.owner.close(nothing_left=nothing_left and not self._boxes)


async def _start(engine: DockerEngine, box: DockerBox, first: Command | None, first_input: bytes) -> None:
    """Start a container, with its first program on the way: the agent finds it when it comes to life."""
    starting = asyncio.get_running_loop().create_task(engine.call("POST", f"/containers/{box.id}/start"))
    try:
        if not box.tight:
            # Nothing of the user's before its limits hold.
            await asyncio.shield(starting)
            await box.tighten()
        if first is not None:
            box.first = await box.exec(first)
            if first_input:
                await box.first.write(first_input)
        await asyncio.shield(starting)
    except BoxGone:
        # Why the engine would not start it says more than that it is not there.
        await asyncio.shield(starting)
        raise
    finally:
        starting.cancel()


async def _undo(made: asyncio.Task[Any], box: DockerBox | None, removal: Removal, name: str) -> None:
    """Remove a container that is of no use, also where it is only being made."""
    await asyncio.wait({made})
    if box is not None:
        await box.close()
    elif isinstance(made.exception(), StartupTimeout | BoxGone):
        removal.remove_when_made(name)
    else:
        await removal.remove(name)


def _bootstrap(image: ImageFacts) -> Bootstrap:
    environment = {**image.environment, _HOME: WORKSPACE}
    return Bootstrap(
        default_cwd=WORKSPACE, default_env=[EnvVar(key=name, value=value) for name, value in environment.items()]
    )

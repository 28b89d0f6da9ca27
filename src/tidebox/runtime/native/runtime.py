"""The native runtime: boxes made of namespaces, control groups and seccomp, without a daemon and without root."""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import os
import socket
from dataclasses import replace
from typing import Any

import tidebox
from tidebox.errors import GuaranteeMissing, PolicyUnsupported, ProvisionFailed, RuntimeUnavailable
from tidebox.model import preloads
from tidebox.model.box import BoxSpec, Command
from tidebox.model.languages import Cell as CellKind
from tidebox.model.limits import Limits
from tidebox.model.runtimes import Features, Gauge, ResolvedImage, RuntimeReport, Start
from tidebox.runtime import launchers
from tidebox.runtime.base import Box, Exec, Runtime, RuntimeSettings
from tidebox.runtime.images import HOST, IMAGES, Image, ImageStore
from tidebox.runtime.link import Link, exec_request
from tidebox.runtime.native import host, probe
from tidebox.runtime.native.box import NativeBox, cgroup_limits, file_systems
from tidebox.runtime.native.descriptors import Descriptors
from tidebox.runtime.native.guard import Guard
from tidebox.runtime.native.interpreter import copy_interpreter
from tidebox.runtime.native.outward import Outward, WaysOut, make_authority
from tidebox.runtime.native.piped import Ends, PipedExec, builtin_of
from tidebox.runtime.native.plan import (
    BOX_ROOT,
    MOST_BY_RLIMIT,
    WORKSPACE,
    BoxShape,
    LayerFacts,
    OwnFiles,
    box_plan,
    overlays,
    stage_plan,
    template_plan,
    trust_plan,
)
from tidebox.runtime.native.preloading import Preloading
from tidebox.runtime.native.spawner import SpawnerClient
from tidebox.runtime.native.templates import Templates
from tidebox.runtime.relay import Relay
from tidebox.wire.generations import GENERATION
from tidebox.wire.messages import EXEC_LIMITS, Ready

_log = logging.getLogger(__name__)

# What the agent will say, which is this very software.
_READY = Ready(boot_time_ns=0, init_time_ns=0, ready_time_ns=0, exec_limits=EXEC_LIMITS)
# Of its init, and of its workspace; and what its network leads to, where it leads out.
_BOX_DESCRIPTORS, _OUTWARD_DESCRIPTORS = 2, 3
# Of what all boxes have together no one gets more than this part.
_SHARES = 8
# What makes boxes may be killed over one, and then be asked once more while it dies.
_RETRIES = 2


class NativeRuntime(Runtime):
    """Opens boxes through one spawner, which is started when it is needed and again when it died."""

    name = "native"
    boundary = "namespaces"
    shows_host = True
    version = tidebox.__version__

    def __init__(self, settings: RuntimeSettings) -> None:
        self._host = host.find_interpreters(settings.python, settings.environment.get("PATH"))
        self.interpreters = self._host.by_command()
        self._images = ImageStore(settings.data_dir / IMAGES)
        self._sockets = settings.agent_sockets
        self._allow_weak_isolation = settings.allow_weak_isolation
        self._allow_nested_filters = settings.allow_nested_filters
        self.max_processes = settings.max_processes
        self._environment = settings.environment
        self._facts = host.gather(self._host)
        self._numbers = itertools.count(1)
        self._lock = asyncio.Lock()
        self._spawner: SpawnerClient | None = None
        self._descriptors: Descriptors | None = None
        self._spawner_facts: dict[str, Any] = {}
        self._templates = Templates()
        self._template_of: dict[NativeBox, str] = {}
        self._overlaid: set[str] = set()
        self._shapes: set[tuple[str, str]] = set()
        self._held: dict[str, tuple[int, ...]] = {}
        self._boxes: set[NativeBox] = set()
        self._guard = Guard()
        self._preloading = Preloading()
        self._ways_out = WaysOut(settings.egress)
        self._egress_problem: str | None = "it was not tried"
        self._closed = False

    @property
    def features(self) -> Features:
        # Without control groups nothing can be frozen.
        freezes = bool(self._spawner_facts.get("cgroup"))
        return Features(
            parks=True,
            adjusts=True,
            freezes=freezes,
            watches=True,
            relays=True,
            layers=True,
            egress=self._egress_problem is None,
        )

    def resolve(self, image: str) -> ResolvedImage:
        found = self._images.resolve(image)
        return ResolvedImage(found.name, found.digest)

    def images(self) -> list[ResolvedImage]:
        return [self.resolve(HOST), *(ResolvedImage(image.name, image.digest) for image in self._images.list())]

    def parking(self, kind: CellKind, image: str, at_once: bool = False, preload: str = "") -> Command | None:
        if kind == "python" and not _is_bare_host(found := self._images.resolve(image)):
            # A process that forks into boxes has power over boxes, so nothing of an image runs there: its Python is
            # started in the box. That takes longer than to start the program itself, where that waits already.
            ahead = (",".join([*found.preload, *preloads.modules_of("")]),) if preload else ()
            return None if at_once else Command(argv=(*launchers.COMMANDS[kind], *ahead))
        if kind not in ("any", "python"):
            return Command(argv=launchers.COMMANDS[kind])
        return Command(argv=["tidebox:python", "at-once"] if at_once else ["tidebox:python"])

    def start_of(self, kind: CellKind, image: str) -> Start:
        forked = kind in ("any", "python") and _is_bare_host(self._images.resolve(image))
        return "forked" if forked else super().start_of(kind, image)

    def has_command(self, name: str) -> bool:
        return self._host.has(name)

    def preload_for(self, image: str, source: bytes) -> str:
        wanted = preloads.sets_for(source)
        if wanted and _is_bare_host(self._images.resolve(image)):
            return self._preloading.best_of(wanted)
        return preloads.STANDARD if wanted else ""

    def is_warm(self, spec: BoxSpec) -> bool:
        if not spec.preload or not _is_bare_host(self._images.resolve(spec.image)):
            return True
        lives = self._spawner is not None and not self._spawner.gone.is_set()
        return lives and _template_name(self._images.resolve(spec.image), spec) in self._templates

    async def warm(self, spec: BoxSpec) -> None:
        if self.is_warm(spec):
            return
        image = self._images.resolve(spec.image)
        name = _template_name(image, spec)

        async def load(modules: tuple[str, ...]) -> dict[str, Any]:
            async with self._lock:
                spawner = await self._living_spawner()
                await self._start_template(spawner, name, image, spec)
            stage = stage_plan(self._facts, host_root=image.rootfs is None, overlay=name in self._overlaid)
            answer, _ = await spawner.request(
                "preload", template=name, modules=list(modules), stage=stage, root=BOX_ROOT
            )
            if "refused" not in answer and spawner is self._spawner:
                await self._note_template(spawner, name)
            return answer

        async def discard() -> None:
            self._templates.remove(name)
            if self._spawner is not None and not self._spawner.gone.is_set():
                await self._spawner.request("discard", template=name)

        await self._preloading.load(name, spec.preload, load, discard)

    async def probe(self) -> RuntimeReport:
        image, spec = self._images.resolve("host"), BoxSpec()
        name = _template_name(image, spec)
        try:
            await self._prepare(image, spec)
        except (RuntimeUnavailable, ProvisionFailed) as error:
            return probe.unavailable(error)
        await self._try_egress(name in self._overlaid)
        own = OwnFiles(overlay=name in self._overlaid, devices=self._spawner_facts["devices"])
        found = probe.report(self._spawner_facts, self._facts, own, self._guard.bounded)
        refused = "; ".join(f"{name}: {reason}" for name, reason in self._preloading.refused.items())
        told = {"not loaded before programs": refused} if refused else {}
        told["egress"] = self._egress_problem or "allow-lists: every connection is led to a process that decides"
        return replace(found, facts={**found.facts, **told})

    async def _try_egress(self, overlaid: bool) -> None:
        """Find out whether networks can lead out here."""
        if not overlaid:
            self._egress_problem = "no allow-lists: files of the image cannot be replaced for a box here"
            return
        try:
            await (await self._living_spawner()).request("egress")
            self._egress_problem = None
        except ProvisionFailed as error:
            self._egress_problem = f"no allow-lists: {probe.explain_egress(error)}"

    def expect_egress(self) -> None:
        if self._egress_problem is None:
            try:
                self._ways_out.egress.begin()
            except ProvisionFailed as error:
                _log.warning("%s", error.message)  # the first box that needs it tries again

    async def _require_egress(self) -> None:
        """Refuse a box with a way out where it cannot be had; tried here where nobody did before."""
        image, plain = self._images.resolve(HOST), BoxSpec()
        await self._prepare(image, plain)
        await self._try_egress(_template_name(image, plain) in self._overlaid)
        if self._egress_problem is not None:
            raise PolicyUnsupported(
                f"network_policy allowlist cannot be enforced here: {self._egress_problem}", field="network_policy"
            )

    async def open(
        self, spec: BoxSpec, *, first: Command | None = None, first_input: bytes = b"", spare: bool = False
    ) -> Box:
        image = self._images.resolve(spec.image)
        if not self.is_warm(spec):
            spec = replace(spec, preload="")
        return await self._open_or_retry(spec, image, first, first_input, spare)

    async def _open_or_retry(
        self, spec: BoxSpec, image: Image, first: Command | None, first_input: bytes, spare: bool
    ) -> NativeBox:
        for _ in range(_RETRIES):
            try:
                return await self._open(spec, image, first, first_input, spare)
            except ProvisionFailed as error:
                step = error.details.get("step")
                if step == "enter the hull" and error.details.get("errno") == errno.ESRCH:
                    continue  # somebody killed its init meanwhile
                if step not in ("spawner", "template"):
                    raise
                # The spawner or a template was killed under us; as a rule there is a new one by the time we ask again.
                self._forget_templates()
                spec = replace(spec, preload="")
        return await self._open(spec, image, first, first_input, spare)

    async def _open(
        self, spec: BoxSpec, image: Image, first: Command | None, first_input: bytes, spare: bool
    ) -> NativeBox:
        template = _template_name(image, spec)
        if spec.has_network and self._egress_problem is not None:
            await self._require_egress()
        with self._templates.in_use(template):
            return await self._open_from(template, spec, image, first, first_input, spare)

    async def _open_from(
        self, template: str, spec: BoxSpec, image: Image, first: Command | None, first_input: bytes, spare: bool
    ) -> NativeBox:
        spawner = await self._prepare(image, spec)
        self._require_guarantees(template)
        shape = await self._define_shape(spawner, template, image, spec)
        name = f"b{next(self._numbers)}"
        descriptors = self._watched()
        single = _is_single(spec)
        ends = Ends(single)
        builtin = builtin_of(first) if single else None
        authority = make_authority() if spec.has_authority else None
        # First of all: everything else is done while the box is made.
        try:
            answer = spawner.send(
                "open",
                descriptors=ends.theirs,
                box=name,
                template=template,
                shape=shape,
                single=single,
                builtin=builtin,
                own_steps=[] if authority is None else trust_plan(authority.certificate),
                cgroup=bool(self._spawner_facts["cgroup"]),
                leaves=not single,
                limits=cgroup_limits(spec.limits, spec.kind, agent=not single),
            )
        except BaseException:
            ends.close()
            raise
        finally:
            ends.give_away()
        link = piped = None
        started: Exec | None = None

        # Nothing is waited for: the box finds what it is to do when it comes to life.
        if single:
            piped = PipedExec(ends, descriptors, spawner.take_answer, lambda step: spawner.fail(answer, step))
        else:
            link = Link.to(socket.socket(fileno=ends.ours[0]), _READY)
            link.on_lost = lambda: spawner.give_up(answer, name)
        try:
            if first is not None and piped is not None:
                await piped.start(first, ordered=builtin is not None)
                started = piped
            elif first is not None and link is not None:
                started = link.open_exec(exec_request(first))
            if started is not None and first_input:
                await started.write(first_input)
            message, opened = await (asyncio.shield(answer) if link is not None else answer)
            if self._closed:
                raise _closed_already()
            if len(opened) != _BOX_DESCRIPTORS + (_OUTWARD_DESCRIPTORS if spec.has_network else 0):
                raise ProvisionFailed("no descriptors left for a box", step="pipes")
        except BaseException:
            if piped is not None:
                piped.close()
                spawner.abandon(answer, name)
            if link is not None:
                answer.add_done_callback(lambda done: _abandon(spawner, name, done))
                await link.close()
            raise
        pidfd, workspace, *leading = opened
        meter = spawner.meter(message, own_processes=0 if single else 1)
        box = NativeBox(
            name,
            image.digest,
            spawner,
            descriptors,
            link,
            piped,
            pidfd,
            workspace,
            meter,
            spec.kind,
            spec.limits,
            self.features,
            self._watch,
            Outward(self._ways_out, leading, authority) if leading else None,
        )
        box.first = started
        self._boxes.add(box)
        self._template_of[box] = template
        box.on_gone(lambda: self._forget(box))
        if not spare:
            self._watch(box)
        try:
            if spec.egress is not None:
                box.environment = spec.egress.environment
                await box.allow(spec.egress)
            if spec.sandbox_id is not None and link is not None:
                box.relay = await Relay.open(link, self._sockets / f"{spec.sandbox_id}.sock")
        except BaseException:
            await box.close()
            raise
        return box

    def _watch(self, box: NativeBox) -> None:
        # One that is dead would never be forgotten.
        if box in self._boxes:
            self._guard.watch(box)

    def _forget(self, box: NativeBox) -> None:
        self._boxes.discard(box)
        self._template_of.pop(box, None)
        self._guard.forget(box)

    def _watched(self) -> Descriptors:
        if self._descriptors is None:
            self._descriptors = Descriptors()
        return self._descriptors

    async def _define_shape(self, spawner: SpawnerClient, template: str, image: Image, spec: BoxSpec) -> str:
        """Tell the template once what boxes of this kind have in common; the name to order one by."""
        limits = spec.limits
        name = f"{limits.workspace} {limits.inodes} {limits.open_files} {limits.file_size} {self._processes(limits)}"
        if not self._spawner_facts["cgroup"]:
            name = f"{name} {limits.memory}"
        if (template, name) not in self._shapes:
            workspace_bytes, tmp_bytes, shm_bytes = file_systems(limits)
            shape = BoxShape(
                workspace_bytes=workspace_bytes,
                workspace_inodes=limits.inodes,
                tmp_bytes=tmp_bytes,
                shm_bytes=shm_bytes,
                executable=spec.executable,
                scratch=spec.scratch,
            )
            definition = {
                "plan": box_plan(
                    self._facts,
                    shape,
                    single=_is_single(spec),
                    host_root=image.rootfs is None,
                    own=OwnFiles(overlay=template in self._overlaid, devices=self._spawner_facts["devices"]),
                    layers=self._layers(image),
                ),
                "generation": GENERATION,
                "rlimits": self._rlimits(limits),
                "cwd": WORKSPACE,
                "env": [list(item) for item in host.default_environment().items()],
                "nested_filters": self._allow_nested_filters,
            }
            await spawner.request("shape", template=template, name=name, shape=definition)
            self._shapes.add((template, name))
        return name

    def _rlimits(self, limits: Limits) -> list[list[object]]:
        rlimits: list[list[object]] = [["nofile", limits.open_files], ["fsize", limits.file_size]]
        for name, most in MOST_BY_RLIMIT:
            together = self._spawner_facts["together"][name]
            rlimits.append([name, most if together is None else min(most, together // _SHARES)])
        if (processes := self._processes(limits)) is not None:
            rlimits.append(["nproc", processes])
        if not self._spawner_facts["cgroup"]:
            # Each process has it for itself. Not the address space: JavaScript engines reserve gigabytes of it that
            # they never use.
            rlimits.append(["data", limits.memory])
        return rlimits

    def _processes(self, limits: Limits) -> int | None:
        """RLIMIT_NPROC of a box; None where that would count the processes of others too.

        All there is without a cgroup. Behind one it is the same for all boxes, so that a cell can serve any of them.
        """
        two_ids = self._spawner_facts["two_ids"]
        if not probe.processes_are_counted_per_box(two_ids):
            return None
        if not self._spawner_facts["cgroup"]:
            return limits.pids
        # With one uid for both, init and what the agent keeps ready are counted too.
        return max(limits.pids, self.max_processes) + (0 if two_ids else 2)

    def _forget_templates(self) -> None:
        self._templates.clear()
        self._overlaid.clear()
        self._shapes.clear()

    async def close(self) -> None:
        # Callers that wait for a box meanwhile must not start everything anew.
        self._closed = True
        self._guard.close()
        await self._preloading.close()
        try:
            await asyncio.gather(*(box.close() for box in list(self._boxes)))
            await self._ways_out.close()
            if self._spawner is not None:
                await self._spawner.close()
        finally:
            # A close that is cancelled over this leaves nothing behind either.
            if self._spawner is not None:
                self._spawner.kill()
                self._spawner = None
            if self._descriptors is not None:
                self._descriptors.close()
                self._descriptors = None
            for descriptor in itertools.chain.from_iterable(self._held.values()):
                os.close(descriptor)
            self._held.clear()

    def live_boxes(self) -> int:
        return len(self._boxes)

    def gauges(self) -> list[Gauge]:
        return [
            Gauge("sandbox_spawner_up", "Whether the spawner lives.", int(self.spawner_pid() is not None)),
            Gauge("sandbox_templates", "Templates that boxes are forked from.", len(self._templates)),
            Gauge("sandbox_preload_refused", "Modules that cannot be loaded ahead.", len(self._preloading.refused)),
        ]

    def spawner_pid(self) -> int | None:
        """The running spawner, if there is one."""
        lives = self._spawner is not None and not self._spawner.gone.is_set()
        return self._spawner_facts.get("pid") if lives else None

    async def _prepare(self, image: Image, spec: BoxSpec) -> SpawnerClient:
        """A living spawner with a template of ``image``."""
        name = _template_name(image, spec)
        if self._spawner is not None and not self._spawner.gone.is_set() and name in self._templates:
            return self._spawner
        async with self._lock:
            spawner = await self._living_spawner()
            if name not in self._templates:
                await self._start_template(spawner, name, image, spec)
                await self._note_template(spawner, name)
            return spawner

    async def _note_template(self, spawner: SpawnerClient, name: str) -> None:
        """One more stands: where there are too many, those without boxes go, the least recently used first."""
        self._templates.add(name)
        for idle in self._templates.surplus({name, *self._template_of.values()}):
            await self._discard_template(spawner, idle)

    async def _hold(self, image: Image) -> tuple[int, ...]:
        """Hold the files of an image; others may have the lock that this takes for long."""
        holding = asyncio.ensure_future(asyncio.to_thread(self._images.hold, image))
        try:
            held = await asyncio.shield(holding)
        except asyncio.CancelledError:
            holding.add_done_callback(_let_go)
            raise
        if self._closed:
            _let_go(holding)
            raise _closed_already()
        return held

    async def _discard_template(self, spawner: SpawnerClient, name: str) -> None:
        self._templates.remove(name)
        self._overlaid.discard(name)
        self._shapes = {shape for shape in self._shapes if shape[0] != name}
        digest = name.split()[0]
        # Its files may go now, too.
        if not self._templates.of_image(digest):
            for descriptor in self._held.pop(digest, ()):
                os.close(descriptor)
        await spawner.request("discard", template=name)

    def _layers(self, image: Image) -> list[LayerFacts]:
        shared = self._facts.directories if image.rootfs is None else ()
        return [
            LayerFacts(str(layer.path), frozenset(path for path in shared if os.path.isdir(f"{layer.path}{path}")))
            for layer in image.layers
        ]

    async def _living_spawner(self) -> SpawnerClient:
        """The one there is, or a new one."""
        if self._spawner is None or self._spawner.gone.is_set():
            await self._start_spawner()
        assert self._spawner is not None
        return self._spawner

    async def _start_template(self, spawner: SpawnerClient, name: str, image: Image, spec: BoxSpec) -> None:
        if image.digest not in self._held:
            self._held[image.digest] = await self._hold(image)
        rootfs = None if image.rootfs is None else str(image.rootfs)
        layers = self._layers(image)
        plan = template_plan(
            self._facts,
            rootfs,
            spec.executable,
            self._spawner_facts["devices"],
            layers,
            egress=spec.has_network,
            scratch=bool(spec.scratch),
        )
        tried = overlays(self._facts, rootfs is None, layers)
        try:
            answer, _ = await spawner.request(
                "template",
                name=name,
                plan=plan,
                overlays=tried,
                agent=not _is_single(spec),
                egress=spec.has_network,
                loads=bool(spec.preload),
            )
        except ProvisionFailed as error:
            raise probe.explain(error) from error
        if not answer["overlay_errno"]:
            self._overlaid.add(name)
        elif layers:
            raise GuaranteeMissing(
                "packages cannot be on top of an image: overlay file systems cannot be mounted here "
                f"({os.strerror(answer['overlay_errno'])})",
                guarantees=["private_files"],
            )

    async def _start_spawner(self) -> None:
        if self._spawner is not None:
            await self._spawner.close()
        self._forget_templates()
        if self._closed:
            raise _closed_already()
        python = self._host.python
        copy = await asyncio.to_thread(copy_interpreter, python)
        try:
            spawner = SpawnerClient.start(
                python, copy, self._environment if os.getuid() != 0 else None, self._watched()
            )
        finally:
            if copy is not None:
                os.close(copy)
        self._spawner = spawner
        try:
            self._spawner_facts, _ = await spawner.request("facts")
            spawner.note_files(self._spawner_facts["files"])
            # That others live beside it is nothing to tell of.
            for reason in self._spawner_facts["left_alone"]:
                _log.info("control groups left alone: %s", reason)
        except BaseException as error:
            # Half of a start is of no use to the next who asks.
            spawner.kill()
            if not isinstance(error, ProvisionFailed):
                raise
            raise RuntimeUnavailable(f"the spawner did not start under {self._host.python}: {error.message}") from error

    def _require_guarantees(self, template: str) -> None:
        if self._allow_weak_isolation:
            return
        if template not in self._overlaid:
            raise GuaranteeMissing(
                "locks and watches on files of the image would be shared with other boxes: overlay file systems cannot "
                "be mounted here (that takes Linux 5.11, an image that is not on two of them already, and without root "
                "nothing mounted below system directories); "
                "SANDBOX_ALLOW_WEAK_ISOLATION=1 accepts boxes without",
                guarantees=["private_files"],
            )
        if self._spawner_facts["cgroup"]:
            return
        reason = self._spawner_facts["cgroup_problem"]
        raise GuaranteeMissing(
            f"memory and process limits cannot be enforced here ({reason}); `tidebox doctor` says what helps, "
            "SANDBOX_ALLOW_WEAK_ISOLATION=1 accepts boxes without them",
            guarantees=["memory", "pids", "cpu"],
        )


def _let_go(holding: asyncio.Future[tuple[int, ...]]) -> None:
    if not holding.cancelled() and holding.exception() is None:
        for descriptor in holding.result():
            os.close(descriptor)


def _closed_already() -> RuntimeUnavailable:
    return RuntimeUnavailable("the runtime is closed")


def _abandon(spawner: SpawnerClient, box: str, opened: asyncio.Future[tuple[dict[str, Any], list[int]]]) -> None:
    """A box that nobody waited for any more: its agent ends with the link, the rest goes here."""
    if opened.cancelled() or opened.exception() is not None:
        return
    for descriptor in opened.result()[1]:
        os.close(descriptor)
    spawner.let_go(box, given_up=False)


def _is_single(spec: BoxSpec) -> bool:
    """Whether a box is made for one program only: without an agent, of one process in a hull."""
    return spec.kind == "run" and not spec.scratch


def _is_bare_host(image: Image) -> bool:
    """Whether an image is the machine's own system, without anything on top."""
    return image.rootfs is None and not image.layers


def _template_name(image: Image, spec: BoxSpec) -> str:
    kind = "single" if _is_single(spec) else "agent"
    words = [image.digest, "exec" if spec.executable else "noexec", kind, *(["egress"] if spec.has_network else [])]
    words += [f"scratch-{spec.scratch}"] if spec.scratch else []
    return " ".join([*words, spec.preload] if spec.preload and _is_bare_host(image) else words)

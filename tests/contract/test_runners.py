"""A run goes to the runtime that it asks for, and to no other; runtimes are loaded and started when they are needed."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from tests.boxes import is_root
from tests.contract.runtimes import RUNTIMES_UNDER_TEST
from tidebox.broker.runs.planning import Planner, RequestedRun, Requester
from tidebox.broker.runs.run_plan import decode_plan, encode_plan
from tidebox.broker.sandboxes.sandbox import LocalSandbox
from tidebox.broker.sandboxes.warm_boxes import WarmBoxes
from tidebox.config import load_settings
from tidebox.embedded import Collector, Engine, run_on
from tidebox.errors import PolicyUnsupported, RuntimeUnavailable, TideboxError
from tidebox.model.box import BoxSpec, Command
from tidebox.model.events import Exited
from tidebox.model.policy import Policy, ResourceRequest
from tidebox.model.requested_egress import EgressRules
from tidebox.model.runtimes import BOUNDARIES, Features, ResolvedImage, RuntimeCatalog, RuntimeInfo, RuntimeReport
from tidebox.runtime import registry
from tidebox.runtime.base import Box
from tidebox.runtime.native.runtime import NativeRuntime
from tidebox.runtime.survey import Survey


class OtherRuntime(NativeRuntime):
    """A second runtime, which remembers for what it was asked."""

    name = "other"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.opened: list[BoxSpec] = []

    async def open(self, spec: BoxSpec, **options: Any) -> Box:
        self.opened.append(spec)
        return await super().open(spec, **options)


class Foreign(OtherRuntime):
    """One that does not have the image ``host``, and that comes and goes."""

    name = "foreign"
    shows_host = False
    external = True
    works = False
    probed = 0

    def resolve(self, image: str) -> ResolvedImage:
        return ResolvedImage(image, "")

    async def probe(self) -> RuntimeReport:
        self.probed += 1
        return RuntimeReport(self.name, self.works, (), None if self.works else "it is down")

    async def open(self, spec: BoxSpec, **options: Any) -> Box:
        if not self.works:
            raise RuntimeUnavailable("it is down")
        await super().open(spec, **options)
        raise RuntimeUnavailable("enough was seen")


class Unparked(OtherRuntime):
    """One in which nothing can be parked."""

    name = "unparked"

    def parking(self, *arguments: Any, **options: Any) -> None:
        return None


class Bare(Unparked):
    """One that has no optional part."""

    name = "bare"

    @property
    def features(self) -> Features:
        return Features()


@pytest.fixture
async def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Engine]:
    others = {kind.name: f"{kind.__module__}:{kind.__qualname__}" for kind in (OtherRuntime, Unparked, Bare, Foreign)}
    monkeypatch.setattr(registry, "RUNTIMES", {**registry.RUNTIMES, **others})
    settings = load_settings(data_dir=tmp_path, allow_weak_isolation=not is_root(), pool_python=0, pool_node=0)
    engine = Engine(settings)
    yield engine
    await engine.close()


def test_every_runtime_under_test_is_in_the_registry() -> None:
    assert set(RUNTIMES_UNDER_TEST) == set(registry.RUNTIMES)
    for name in registry.RUNTIMES:
        assert registry.load(name).name == name


def test_known_runtimes_that_are_absent_say_why() -> None:
    told = {info.name: (info.available, info.reason) for info in registry.known() if info.name not in registry.RUNTIMES}
    assert {"firecracker", "qemu"} <= told.keys()
    assert all(said == (False, f"this server has no {name} runtime") for name, said in told.items())


def test_what_is_known_of_a_runtime_is_what_its_class_says() -> None:
    for info in registry.known():
        assert info.boundary in BOUNDARIES
        if info.name in registry.RUNTIMES:
            assert info.boundary == registry.load(info.name).boundary
            assert not info.untrusted_eligible


def test_an_absent_default_runtime_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(RuntimeUnavailable, match="no qemu runtime"):
        Engine(load_settings(data_dir=tmp_path, default_runtime="qemu"))


def test_what_needs_linux_is_not_there_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert load_settings().default_runtime == "docker"
    with pytest.raises(RuntimeUnavailable, match="needs Linux") as refused:
        registry.load("native")
    assert "native" not in refused.value.details["suggested"]
    native = next(info for info in registry.known() if info.name == "native")
    assert (native.available, native.reason) == (False, "the native runtime needs Linux")


async def test_a_run_is_run_by_the_runtime_it_asks_for(engine: Engine) -> None:
    runtimes = RuntimeCatalog(engine.runners.resolve, registry.known())
    asked = RequestedRun(
        spec_version="1.0", command=["echo", "hello"], asked=ResourceRequest(), runtime="other", base_image="host"
    )
    facts, work = Planner(Policy(), runtimes, EgressRules()).plan(asked, None, ANYBODY)
    # As a server does that takes it up after a restart.
    order = decode_plan(encode_plan(work)).order(None)
    collector = Collector()
    ending = await engine.runners.run(order, collector)
    assert (facts.runtime, ending.exit_code, collector.parts["stdout"]) == ("other", 0, [b"hello\n"])
    other = engine.runners["other"].runtime
    assert isinstance(other, OtherRuntime)
    assert [spec.image for spec in other.opened] == ["host"]
    assert (await run_on(engine, command=["true"])).ok
    assert len(other.opened) == 1


async def test_others_than_the_default_are_loaded_when_they_are_asked_for(engine: Engine) -> None:
    assert [runner.runtime.name for runner in engine.runners] == ["native"]
    assert engine.runners["other"] is engine.runners["other"]
    assert [runner.runtime.name for runner in engine.runners] == ["native", "other"]
    with pytest.raises(RuntimeUnavailable, match="no qemu runtime"):
        engine.runners["qemu"]


@pytest.mark.parametrize("files", [{}, {"given.txt": b"given"}], ids=["alone", "with-files"])
@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("python", "import os, sys; print(sys.argv[0], sorted(os.listdir())); sys.exit(3)"),
        ("shell", "echo $0 $(ls); exit 3"),
    ],
)
async def test_what_cannot_be_parked_is_started_by_its_command(
    engine: Engine, tmp_path: Path, language: str, code: str, files: dict[str, bytes]
) -> None:
    plain = Engine(
        load_settings(data_dir=tmp_path, default_runtime="unparked", allow_weak_isolation=not is_root(), pool_blank=1)
    )
    plain.start()
    await plain.pool.filled()
    try:
        unparked = await run_on(plain, code, language, files=files)
        command = await run_on(plain, command=["sh", "-c", "echo plain"], files=files)
    finally:
        await plain.close()
    parked = await run_on(engine, code, language, files=files)
    assert (unparked.stdout, unparked.stderr, unparked.exit_code) == (parked.stdout, parked.stderr, 3)
    assert command.stdout == b"plain\n"


@pytest.mark.parametrize("language", ["python", "shell"])
async def test_an_empty_program_runs_without_a_cell(engine: Engine, language: str) -> None:
    for runtime in ("native", "unparked"):
        result = await run_on(engine, "", language, runtime=runtime)
        assert (result.exit_code, result.stderr) == (0, b"")


async def test_where_no_limits_can_be_changed_no_box_waits(engine: Engine) -> None:
    bare = engine.runners["bare"]
    bare.pool.start()
    await bare.pool.filled()
    assert bare.pool.parked_total() == bare.runtime.live_boxes() == 0


async def test_where_nothing_can_be_frozen_a_sandbox_rests_as_it_is(engine: Engine) -> None:
    stock = WarmBoxes(engine.runners["bare"].runtime, BoxSpec(kind="sandbox"), 0)
    fresh = await stock.open()
    sandbox = LocalSandbox(fresh.sandbox_id, "", fresh.box)
    assert await sandbox.suspend()
    assert not sandbox.frozen
    async with sandbox.use() as box:
        assert [event async for event in (await box.exec(Command(argv=["true"]))).events()][-1] == Exited(0, None, ANY)
    # Nor has it a socket for other clients.
    assert not engine.settings.agent_sockets.exists()
    await sandbox.close()


@pytest.mark.parametrize(
    ("command", "image"),
    [
        (["python3", "-c", ""], "python:3.12"),
        (["/usr/bin/python3.11", "x.py"], "python:3.12"),
        (["node", "-e", ""], "node:20-alpine"),
        (["sh", "-c", ""], "python:3.11-slim"),
        (["make"], "python:3.11-slim"),
    ],
)
async def test_a_runtime_without_the_image_host_gets_that_of_the_language(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], image: str
) -> None:
    monkeypatch.setattr(registry, "RUNTIMES", {"foreign": f"{Foreign.__module__}:Foreign"})
    monkeypatch.setattr(Foreign, "works", True)
    settings = load_settings(data_dir=tmp_path, default_runtime="foreign", language_images=("python=python:3.12",))
    engine = Engine(settings)
    foreign = engine.runtime
    assert isinstance(foreign, Foreign)
    try:
        for asked in ("host", "debian:12"):
            with pytest.raises(TideboxError):
                await run_on(engine, command=command, image=asked)
        assert [spec.image for spec in foreign.opened] == [image, "debian:12"]
        assert engine.runners.resolve("foreign", "host", "javascript").name == "node:20-alpine"
    finally:
        await engine.close()


async def test_one_that_comes_and_goes_is_probed_again_when_it_is_asked_for(engine: Engine) -> None:
    foreign = engine.runners["foreign"].runtime
    assert isinstance(foreign, Foreign)
    runtimes = RuntimeCatalog(engine.runners.resolve)
    survey = Survey(engine.runners, runtimes, patience=20)
    examining = survey.begin("foreign")
    # Until it is known it is not refused.
    assert runtimes.named("foreign").boundary == "namespaces"
    assert not (await examining).available
    with pytest.raises(RuntimeUnavailable) as refused:
        runtimes.named("foreign")
    assert refused.value.details["suggested"][0] == "native"
    foreign.works = True
    while not available(runtimes, "foreign"):
        await asyncio.sleep(0.05)
        with contextlib.suppress(RuntimeUnavailable):
            runtimes.named("foreign")
    # A run finds that it is gone again.
    foreign.works = False
    while available(runtimes, "foreign"):
        await asyncio.sleep(0.05)
        with pytest.raises(RuntimeUnavailable):
            await run_on(engine, "pass", runtime="foreign")
    assert foreign.probed < 10
    await survey.close()


def available(runtimes: RuntimeCatalog, name: str) -> bool:
    return any(info.name == name and info.available for info in runtimes.infos)


async def test_a_probe_that_does_not_end_is_given_up(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(self: Foreign) -> RuntimeReport:
        await asyncio.get_running_loop().create_future()
        raise AssertionError("that does not end")

    monkeypatch.setattr(Foreign, "probe", hang)
    runtimes = RuntimeCatalog(engine.runners.resolve)
    survey = Survey(engine.runners, runtimes, patience=0.05)
    assert await survey.begin("foreign") == RuntimeReport("foreign", False, (), "it did not answer within 0.05 s")
    assert not available(runtimes, "foreign")
    await survey.close()


ANYBODY = Requester("ada", owner=False)
STRONG = RuntimeInfo(name="strong", available=True, boundary="microvm")
MIDDLE = RuntimeInfo(name="middle", available=True, boundary="container")
WEAK = RuntimeInfo(name="weak", available=True, boundary="namespaces")
DOWN = RuntimeInfo(name="down", available=False, boundary="user_kernel")


@pytest.mark.parametrize(
    ("boundary", "wanted", "found"),
    [
        ("namespaces", None, "weak"),
        ("namespaces", "strong", "strong"),
        ("container", None, "middle"),
        ("container", "strong", "strong"),
        ("user_kernel", None, "strong"),
        ("microvm", None, "strong"),
    ],
)
def test_a_boundary_that_is_demanded_chooses_the_runtime(boundary: str, wanted: str | None, found: str) -> None:
    runtimes = RuntimeCatalog(no_image, (WEAK, MIDDLE, DOWN, STRONG))
    assert runtimes.choose(wanted, "weak", boundary).name == found


def no_image(*_: str) -> ResolvedImage:
    raise AssertionError("nobody asks for an image")


def test_a_boundary_that_there_is_not() -> None:
    asked: list[str] = []
    runtimes = RuntimeCatalog(no_image, (WEAK, MIDDLE, DOWN), asked.append)
    with pytest.raises(PolicyUnsupported) as weak:
        runtimes.choose("weak", "weak", "container")
    assert (weak.value.details["required"], weak.value.details["suggested"]) == ("container", ["middle"])
    with pytest.raises(RuntimeUnavailable) as none:
        runtimes.choose(None, "weak", "user_kernel")
    assert none.value.details == {"runtime": "weak", "available": False, "suggested": []}
    # It may have come up meanwhile.
    assert asked == ["down"]


@pytest.mark.parametrize(("trust", "runtime"), [("standard", "weak"), ("untrusted", "middle")])
def test_untrusted_runs_get_the_boundary_that_the_policy_demands(trust: str, runtime: str) -> None:
    runtimes = RuntimeCatalog(lambda _, image, __: ResolvedImage(image, ""), (WEAK, MIDDLE))
    policy = Policy(default_runtime="weak", untrusted_boundary="container")
    order = RequestedRun(
        spec_version="1.0", command=["true"], asked=ResourceRequest(trust_level=trust), base_image="host"
    )
    planner = Planner(policy, runtimes, EgressRules())
    facts, work = planner.plan(order, None, ANYBODY)
    assert facts.runtime == work.spec.runtime == runtime
    with pytest.raises(PolicyUnsupported):
        planner.plan(replace(order, runtime="weak", asked=ResourceRequest(trust_level="untrusted")), None, ANYBODY)

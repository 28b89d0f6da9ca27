"""A run goes to the runtime that it asks for, and to no other; runtimes are loaded and started when they are needed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from tests.boxes import is_root
from tests.contract.runtimes import RUNTIMES_UNDER_TEST
from tidebox.broker.planning import Planner, RunOrder
from tidebox.broker.sandboxes import Sandbox
from tidebox.broker.stock import Stock
from tidebox.broker.work import decode_work, encode_work
from tidebox.config import load_settings
from tidebox.embedded import Collector, Engine, run_on
from tidebox.errors import RuntimeUnavailable
from tidebox.model.box import BoxSpec, Command
from tidebox.model.events import Exited
from tidebox.model.policy import Policy, Request
from tidebox.model.runtimes import Features, Runtimes
from tidebox.runtime import registry
from tidebox.runtime.base import Box
from tidebox.runtime.native.runtime import NativeRuntime


class OtherRuntime(NativeRuntime):
    """A second runtime, which remembers for what it was asked."""

    name = "other"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.opened: list[BoxSpec] = []

    async def open(self, spec: BoxSpec, **options: Any) -> Box:
        self.opened.append(spec)
        return await super().open(spec, **options)


class Unparked(OtherRuntime):
    """One in which nothing can be parked."""

    name = "unparked"

    def parking(self, *arguments: Any, **options: Any) -> None:  # type: ignore[override]
        return None


class Bare(Unparked):
    """One that has no optional part."""

    name = "bare"

    @property
    def features(self) -> Features:
        return Features()


@pytest.fixture
async def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Engine]:
    others = {kind.name: f"{kind.__module__}:{kind.__qualname__}" for kind in (OtherRuntime, Unparked, Bare)}
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
    told = {info.name: (info.available, info.reason) for info in registry.absent()}
    assert told == {
        name: (False, f"this server has no {name} runtime") for name in ("docker", "gvisor", "firecracker", "qemu")
    }


def test_an_absent_default_runtime_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(RuntimeUnavailable, match="no docker runtime"):
        Engine(load_settings(data_dir=tmp_path, default_runtime="docker"))


async def test_a_run_is_run_by_the_runtime_it_asks_for(engine: Engine) -> None:
    reports = await engine.runners.probe()
    runtimes = Runtimes(
        lambda runtime, image: engine.runners[runtime].runtime.resolve(image), engine.runners.describe(reports)
    )
    asked = RunOrder(spec_version="1.0", command=["echo", "hello"], asked=Request(), runtime="other", base_image="host")
    facts, work = Planner(Policy(), runtimes).plan(asked, None)
    # As a server does that takes it up after a restart.
    order = decode_work(encode_work(work)).order(None)
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


async def test_where_no_limits_can_be_changed_no_box_waits(engine: Engine) -> None:
    bare = engine.runners["bare"]
    bare.pool.start()
    await bare.pool.filled()
    assert bare.pool.parked_total() == bare.runtime.live_boxes() == 0


async def test_where_nothing_can_be_frozen_a_sandbox_rests_as_it_is(engine: Engine) -> None:
    stock = Stock(engine.runners["bare"].runtime, BoxSpec(kind="sandbox"), 0)
    fresh = await stock.open()
    sandbox = Sandbox(fresh.sandbox_id, "", fresh.box)
    assert await sandbox.suspend()
    assert not sandbox.frozen
    async with sandbox.use() as box:
        assert [event async for event in (await box.exec(Command(argv=["true"]))).events()][-1] == Exited(0, None, ANY)
    # Nor has it a socket for other clients.
    assert not engine.settings.agent_sockets.exists()
    await sandbox.close()

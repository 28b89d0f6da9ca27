"""Podman by its Docker API: what holds there, what does not, and that it does the same otherwise."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.docker import podman
from tests.docker.daemon import ask
from tests.docker.images import BUSYBOX_IMAGE, PYTHON_IMAGE
from tests.patience import patient
from tests.runtimes import RUNTIME
from tidebox.config import load_settings
from tidebox.embedded import Engine, run_on
from tidebox.errors import GuaranteeMissing
from tidebox.model.box import BoxSpec, Command
from tidebox.model.events import Exited, OutputEvent
from tidebox.model.limits import MIB
from tidebox.model.result import Outcome

pytestmark = pytest.mark.skipif(RUNTIME != "docker", reason="Podman is part of `make test-runtimes`")


@pytest.fixture(scope="module")
def socket() -> Iterator[Path]:
    if (reason := podman.missing()) is not None:
        pytest.skip(reason)
    with podman.running([BUSYBOX_IMAGE, PYTHON_IMAGE]) as socket:
        yield socket


@pytest.fixture
async def engine(socket: Path, tmp_path: Path) -> AsyncIterator[Engine]:
    settings = load_settings(
        data_dir=tmp_path,
        default_runtime="docker",
        docker_host=f"unix://{socket}",
        allow_weak_isolation=True,
        default_startup_timeout_sec=patient(60),
    )
    engine = Engine(settings, pool=False)
    yield engine
    await engine.close()


async def test_what_it_cannot_bound_is_named_and_refused(engine: Engine, socket: Path, tmp_path: Path) -> None:
    report = await engine.runtime.probe()
    assert report.available
    assert [finding.guarantee.value for finding in report.missing] == ["disk"]
    strict = Engine(
        load_settings(data_dir=tmp_path / "strict", default_runtime="docker", docker_host=f"unix://{socket}"),
        pool=False,
    )
    with pytest.raises(GuaranteeMissing, match="number of files"):
        await strict.runtime.open(BoxSpec(image=BUSYBOX_IMAGE))
    await strict.close()


async def test_programs_end_as_they_do_elsewhere(engine: Engine) -> None:
    result = await run_on(
        engine,
        "import sys; print(sys.stdin.read()); open('out', 'w').write('kept'); sys.stderr.write('e' * 1_000_000)",
        image=PYTHON_IMAGE,
        stdin=b"given",
        artifacts=["out"],
    )
    assert (result.outcome, result.exit_code, result.text) == (Outcome.EXITED, 0, "given\n")
    assert len(result.stderr) == 1_000_000
    assert result.artifacts == {"out": b"kept"}
    killed = await run_on(engine, command=["sh", "-c", "kill -9 $$"], image=BUSYBOX_IMAGE)
    assert (killed.outcome, killed.signal) == (Outcome.SIGNALED, 9)
    large = await run_on(engine, "bytearray(200 << 20)", image=PYTHON_IMAGE, memory=64 * MIB, pids=8)
    assert large.outcome is Outcome.OOM
    slow = await run_on(engine, command=["sleep", "60"], image=BUSYBOX_IMAGE, timeout=1.0)
    assert slow.outcome is Outcome.TIMEOUT


async def test_a_box_is_frozen_and_leaves_nothing(engine: Engine, socket: Path) -> None:
    box = await engine.runtime.open(BoxSpec(image=BUSYBOX_IMAGE))

    async def said(*argv: str) -> bytes:
        program = await box.exec(Command(argv=argv))
        await program.end_input()
        events = [event async for event in program.events()]
        assert isinstance(events[-1], Exited)
        return b"".join(event.data for event in events if isinstance(event, OutputEvent))

    # It takes no other limits for a container that runs: so none is kept ready, or for another run.
    assert (box.features.adjusts, box.features.renews) == (False, False)
    await box.freeze()
    await box.thaw()
    assert await said("sh", "-c", "echo 1 > /tmp/a; echo 2 > b; cat /tmp/a b") == b"1\n2\n"
    await box.close()
    deadline = time.monotonic() + patient(30)
    while json.loads(await asyncio.to_thread(ask, socket, "GET", "/containers/json?all=1")):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)

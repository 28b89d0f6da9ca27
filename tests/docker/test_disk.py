"""An engine whose disk is full: new containers are refused by name, what runs goes on, and room is all it takes."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.docker.daemon import Daemon, missing, running
from tests.docker.images import BUSYBOX_IMAGE
from tests.patience import patient
from tidebox.config import load_settings
from tidebox.embedded import Engine, run_on
from tidebox.errors import TideboxError
from tidebox.model.run import Reason, conclusion_of_failure

_CHUNK = bytes(1 << 20)


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """A daemon with a small disk of its own."""
    if (reason := missing()) is not None:
        pytest.skip(reason)
    with running([BUSYBOX_IMAGE], disk="160m") as daemon:
        yield daemon


@contextlib.contextmanager
def full(daemon: Daemon) -> Iterator[None]:
    """Leave no room on its disk."""
    path = daemon.data / "fill"
    with path.open("wb", 0) as file, contextlib.suppress(OSError):
        for size in (1 << 20, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(_CHUNK[:size])
    try:
        assert os.statvfs(daemon.data).f_bavail == 0
        yield
    finally:
        path.unlink()


@pytest.fixture
async def engine(daemon: Daemon, tmp_path: Path) -> AsyncIterator[Engine]:
    engine = Engine(load_settings(data_dir=tmp_path, default_runtime="docker", docker_host=daemon.host), pool=False)
    yield engine
    await engine.close()


async def nothing_stays(daemon: Daemon) -> None:
    async with asyncio.timeout(patient(30)):
        while await asyncio.to_thread(daemon.containers):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def refusal(engine: Engine) -> TideboxError:
    async with asyncio.timeout(patient(30)):
        with pytest.raises(TideboxError, match="no space left") as refused:
            await run_on(engine, command=["true"], image=BUSYBOX_IMAGE)
    assert conclusion_of_failure(refused.value).reason is Reason.PROVISION_FAILED
    return refused.value


async def test_a_full_disk_is_named_keeps_nobody_and_is_got_over(daemon: Daemon, engine: Engine) -> None:
    # Before the agent is there, and so it is only half there.
    with full(daemon):
        await refusal(engine)
    assert (await run_on(engine, command=["true"], image=BUSYBOX_IMAGE)).exit_code == 0
    # Under a program, which needs nothing of that disk.
    await nothing_stays(daemon)
    working = ["sh", "-c", "sleep 3; echo on > file; cat file"]
    running = asyncio.create_task(run_on(engine, command=working, image=BUSYBOX_IMAGE))
    async with asyncio.timeout(patient(30)):
        while not any(found["State"] == "running" for found in await asyncio.to_thread(daemon.containers)):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    with full(daemon):
        await refusal(engine)
        assert (await running).text == "on\n"
        await refusal(engine)
    assert (await run_on(engine, command=["true"], image=BUSYBOX_IMAGE)).exit_code == 0
    await nothing_stays(daemon)

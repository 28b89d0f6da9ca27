"""An engine that is down, dies, hangs or loses a container: each has its name, nobody waits and nothing stays."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.docker.daemon import Daemon, ask, missing, running
from tests.docker.images import BUSYBOX_IMAGE, write_image
from tests.docker.slow import slow_socket
from tests.patience import patient
from tidebox.config import load_settings
from tidebox.embedded import Collector, Engine
from tidebox.errors import BoxGone, RuntimeUnavailable, StartupTimeout, UnknownImage
from tidebox.model.box import BoxSpec
from tidebox.model.execution_request import ExecutionOutcome, ExecutionRequest
from tidebox.model.launch import plan_command
from tidebox.model.limits import Limits
from tidebox.model.one_shot_flag import OneShotFlag
from tidebox.model.result import Outcome
from tidebox.runtime.docker.endpoint import parse_endpoint
from tidebox.runtime.docker.engine import DockerEngine
from tidebox.runtime.docker.removal import Removal
from tidebox.runtime.shared.owners import OwnerFile

OWNER, DEAD = "tidebox.owner", "0123456789abcdef"


@pytest.fixture(scope="module")
def docker_daemon() -> Iterator[Daemon]:
    """A daemon that these tests kill and stop; a test that ended it has started it again."""
    if (reason := missing()) is not None:
        pytest.skip(reason)
    with running([BUSYBOX_IMAGE]) as daemon:
        yield daemon


@pytest.fixture
async def engine(docker_daemon: Daemon, tmp_path: Path) -> AsyncIterator[Engine]:
    settings = load_settings(data_dir=tmp_path, default_runtime="docker", docker_host=docker_daemon.host)
    engine = Engine(settings, pool=False)
    yield engine
    await engine.close()


def order(*command: str, startup_timeout: float = patient(60.0), image: str = BUSYBOX_IMAGE) -> ExecutionRequest:
    return ExecutionRequest(
        launch=plan_command(command),
        spec=BoxSpec(image=image, limits=Limits(timeout=60)),
        startup_timeout=startup_timeout,
    )


async def run(engine: Engine, *command: str, cancel: OneShotFlag | None = None) -> ExecutionOutcome:
    return await engine.runners.run(order(*command), Collector(), cancel)


async def containers(daemon: Daemon) -> int:
    return len(await asyncio.to_thread(daemon.containers, OWNER))


async def owners(daemon: Daemon) -> set[str]:
    return {found["Labels"][OWNER] for found in await asyncio.to_thread(daemon.containers, OWNER)}


async def nothing_stays(daemon: Daemon) -> None:
    async with asyncio.timeout(patient(30)):
        while await containers(daemon):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def one_runs(engine: Engine, daemon: Daemon) -> asyncio.Task[ExecutionOutcome]:
    """A program that sleeps, once its container is there."""
    started = asyncio.Event()

    async def sink(_event: object) -> None:
        started.set()

    running = asyncio.create_task(engine.runners.run(order("sleep", "60"), sink))
    seen = asyncio.create_task(started.wait())
    await asyncio.wait({running, seen}, return_when=asyncio.FIRST_COMPLETED)
    if not started.is_set():
        seen.cancel()
        await running
    return running


async def test_an_engine_that_dies_under_a_program_is_told_and_serves_again_when_it_is_back(
    engine: Engine, docker_daemon: Daemon
) -> None:
    running = await one_runs(engine, docker_daemon)
    docker_daemon.kill()
    with pytest.raises(BoxGone):
        await running
    with pytest.raises(RuntimeUnavailable, match=str(docker_daemon.socket)):
        await run(engine, "true")
    assert not (await engine.probe()).available
    # Not in a thread: it would end with that.
    docker_daemon.start()
    assert (await run(engine, "true")).exit_code == 0
    await nothing_stays(docker_daemon)


async def test_a_container_that_somebody_removes_ends_its_program_and_no_other(
    engine: Engine, docker_daemon: Daemon
) -> None:
    running = await one_runs(engine, docker_daemon)
    # That of the probe may still be on its way out.
    (found,) = [each for each in await asyncio.to_thread(docker_daemon.containers, OWNER) if each["State"] == "running"]
    beside = await one_runs(engine, docker_daemon)
    await asyncio.to_thread(ask, docker_daemon.socket, "DELETE", f"/containers/{found['Id']}?force=1")
    with pytest.raises(BoxGone):
        await running
    assert not beside.done()
    beside.cancel()
    await asyncio.gather(beside, return_exceptions=True)
    await nothing_stays(docker_daemon)


async def test_an_engine_that_hangs_gives_startup_timeout_and_is_used_again_when_it_goes_on(
    engine: Engine, docker_daemon: Daemon
) -> None:
    assert (await run(engine, "true")).exit_code == 0
    os.kill(docker_daemon.pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        with pytest.raises(StartupTimeout):
            await engine.runners.run(order("true", startup_timeout=0.5), Collector())
        assert time.monotonic() - began < patient(10)
    finally:
        os.kill(docker_daemon.pid, signal.SIGCONT)
    assert (await run(engine, "true")).exit_code == 0
    await nothing_stays(docker_daemon)


async def test_an_engine_that_is_slow_keeps_nobody_and_leaves_nothing(docker_daemon: Daemon, tmp_path: Path) -> None:
    async with slow_socket(docker_daemon.socket) as slow:
        host = f"unix://{slow.path}"
        engine = Engine(load_settings(data_dir=tmp_path, default_runtime="docker", docker_host=host), pool=False)
        assert (await run(engine, "true")).exit_code == 0
        # Slow, but in time.
        slow.seconds = 0.2
        assert (await run(engine, "echo", "slowly")).exit_code == 0
        # Both are over while the engine has not answered, and has not even heard.
        slow.open.clear()
        with pytest.raises(StartupTimeout):
            await engine.runners.run(order("true", startup_timeout=0.3), Collector())
        cancel = OneShotFlag()
        starting = asyncio.create_task(run(engine, "true", cancel=cancel))
        await asyncio.sleep(0.1)
        cancel.set()
        assert (await starting).outcome is Outcome.CANCELLED
        slow.open.set()
        # What it was asked for in vain it makes all the same, and it goes.
        assert (await run(engine, "true")).exit_code == 0
        await engine.close()
        await nothing_stays(docker_daemon)


async def test_a_container_that_is_made_when_nobody_waits_any_more_is_removed(
    docker_daemon: Daemon, tmp_path: Path
) -> None:
    owner = OwnerFile(tmp_path)
    removal = Removal(DockerEngine(parse_endpoint(docker_daemon.host, {})), owner)
    removal.remove_when_made("tidebox-late")
    body = {"Image": BUSYBOX_IMAGE, "Cmd": ["true"], "Labels": owner.labels}
    await asyncio.to_thread(ask, docker_daemon.socket, "POST", "/containers/create?name=tidebox-late", body)
    await nothing_stays(docker_daemon)
    assert await removal.close(1)
    owner.close(nothing_left=True)


async def test_an_image_that_cannot_be_pulled_is_named(engine: Engine) -> None:
    with pytest.raises(UnknownImage, match="no-such-image"):
        await engine.runners.run(order("true", image="127.0.0.1:9/no-such-image:1"), Collector())


async def test_a_pull_that_hangs_ends_with_the_time_of_the_start(engine: Engine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as registry:
        port = registry.getsockname()[1]
        hanging = order("true", image=f"127.0.0.1:{port}/hangs:1", startup_timeout=0.5)
        with pytest.raises(StartupTimeout, match="hangs"):
            await engine.runners.run(hanging, Collector())


async def test_what_a_killed_server_left_is_removed_by_the_next_and_nothing_of_another(
    docker_daemon: Daemon, tmp_path: Path
) -> None:
    settings = [
        load_settings(data_dir=tmp_path / name, default_runtime="docker", docker_host=docker_daemon.host)
        for name in ("ours", "another")
    ]
    ours, another = (Engine(each, pool=False) for each in settings)
    await nothing_stays(docker_daemon)
    lives = await one_runs(another, docker_daemon)
    (owner,) = await owners(docker_daemon)
    await ours.probe()
    installation = (tmp_path / "ours" / "docker" / "installation").read_text()
    labels = {"tidebox.installation": installation, OWNER: DEAD}
    body = {"Image": BUSYBOX_IMAGE, "Cmd": ["true"], "Labels": labels}
    await asyncio.to_thread(ask, docker_daemon.socket, "POST", "/containers/create", body)
    assert {owner, DEAD} <= await owners(docker_daemon)
    after = Engine(settings[0], pool=False)
    await after.probe()
    async with asyncio.timeout(patient(30)):
        while DEAD in await owners(docker_daemon):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert owner in await owners(docker_daemon)
    assert not lives.done()
    lives.cancel()
    await asyncio.gather(lives, return_exceptions=True)
    for engine in (ours, another, after):
        await engine.close()
    await nothing_stays(docker_daemon)


async def test_a_volume_that_was_pruned_is_made_again(engine: Engine, docker_daemon: Daemon) -> None:
    assert (await run(engine, "true")).exit_code == 0
    await nothing_stays(docker_daemon)
    (volume,) = docker_daemon.volumes()
    await asyncio.to_thread(ask, docker_daemon.socket, "DELETE", f"/volumes/{volume}")
    assert (await run(engine, "true")).exit_code == 0


async def test_what_an_image_calls_a_volume_leaves_none(engine: Engine, docker_daemon: Daemon) -> None:
    name = "with-volume:1"
    query = urlencode({"fromSrc": "-", "repo": name, "changes": "VOLUME /data"})
    with tempfile.TemporaryFile() as archive:
        write_image(BUSYBOX_IMAGE, archive)
        archive.seek(0)
        await asyncio.to_thread(ask, docker_daemon.socket, "POST", f"/images/create?{query}", archive)
    assert (await run(engine, "true")).exit_code == 0
    await nothing_stays(docker_daemon)
    (volume,) = docker_daemon.volumes()
    # The agent's is made again, by a container of that image.
    await asyncio.to_thread(ask, docker_daemon.socket, "DELETE", f"/volumes/{volume}")
    assert (await engine.runners.run(order("true", image=name), Collector())).exit_code == 0
    await nothing_stays(docker_daemon)
    assert docker_daemon.volumes() == [volume]
    await asyncio.to_thread(ask, docker_daemon.socket, "DELETE", f"/images/{name}?force=1")


async def test_several_who_come_first_make_one_volume_and_do_not_disturb_each_other(
    engine: Engine, docker_daemon: Daemon, tmp_path: Path
) -> None:
    assert (await run(engine, "true")).exit_code == 0
    await nothing_stays(docker_daemon)
    for volume in docker_daemon.volumes():
        await asyncio.to_thread(ask, docker_daemon.socket, "DELETE", f"/volumes/{volume}")
    others = [
        Engine(
            load_settings(data_dir=tmp_path / str(number), default_runtime="docker", docker_host=docker_daemon.host),
            pool=False,
        )
        for number in range(3)
    ]
    for report in await asyncio.gather(*(each.runtime.probe() for each in others)):
        assert report.available, report.reason
    assert len(docker_daemon.volumes()) == 1
    for each in others:
        await each.close()
    await nothing_stays(docker_daemon)


async def test_volumes_of_other_versions_go_when_nobody_uses_them(engine: Engine, docker_daemon: Daemon) -> None:
    unused, used, anothers = "tidebox-tools-0123456789abcdef", "tidebox-tools-fedcba9876543210", "tidebox-tools-mine"
    for name in (unused, used, anothers):
        await asyncio.to_thread(ask, docker_daemon.socket, "POST", "/volumes/create", {"Name": name})
    mounts = [{"Type": "volume", "Source": used, "Target": "/used"}]
    body = {"Image": BUSYBOX_IMAGE, "Cmd": ["true"], "HostConfig": {"NetworkMode": "none", "Mounts": mounts}}
    user = json.loads(await asyncio.to_thread(ask, docker_daemon.socket, "POST", "/containers/create", body))["Id"]
    try:
        assert (await engine.probe()).available
        async with asyncio.timeout(patient(30)):
            while unused in await asyncio.to_thread(docker_daemon.volumes):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert {used, anothers} < set(await asyncio.to_thread(docker_daemon.volumes))
    finally:
        await asyncio.to_thread(docker_daemon.remove_container, user)
        for name in (used, anothers):
            await asyncio.to_thread(ask, docker_daemon.socket, "DELETE", f"/volumes/{name}")
    assert (await run(engine, "true")).exit_code == 0


async def test_a_cancelled_program_is_over_at_once(engine: Engine, docker_daemon: Daemon) -> None:
    cancel = OneShotFlag()
    running = asyncio.create_task(run(engine, "sleep", "20", cancel=cancel))
    while not await containers(docker_daemon):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    began = time.monotonic()
    cancel.set()
    assert (await running).outcome is Outcome.CANCELLED
    assert time.monotonic() - began < patient(10)
    await nothing_stays(docker_daemon)

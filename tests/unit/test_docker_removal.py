"""Containers that are to go: one that does not keeps no other, and what dead owners left holds nobody up."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
from pathlib import Path

import pytest

from tests.patience import patient
from tests.unit.engines import Serve, answer_of, engine_that
from tidebox.runtime.base import DockerSettings, RuntimeSettings
from tidebox.runtime.docker.removal import Removal
from tidebox.runtime.docker.runtime import DockerRuntime
from tidebox.runtime.shared.owners import INSTALLATION, OWNER, OwnerFile

DEAD = "0123456789abcdef"


def removing(asked: list[str], stuck: str, listed: list[dict[str, object]], *, hang: bool = False) -> Serve:
    """An engine that removes all but one of its containers: of that it says so, or nothing."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method, target, _ = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[0].split()
        if method == "DELETE":
            asked.append(target.partition("?")[0].rpartition("/")[2])
            if stuck in target and hang:
                await reader.read()
            writer.write(answer_of(b"{}", "500 Busy" if stuck in target else "200 OK"))
        else:
            writer.write(answer_of(json.dumps(listed if "/containers/json" in target else {}).encode()))
        await writer.drain()

    return serve


async def test_a_container_that_does_not_go_keeps_no_other(tmp_path: Path) -> None:
    asked: list[str] = []
    owner = OwnerFile(tmp_path / "docker")
    async with engine_that(tmp_path, removing(asked, "stuck", [])) as engine:
        removal = Removal(engine, owner)
        # The first of a set is not known: whichever it is, the others go.
        names = [f"tidebox-{number}" for number in range(8)]
        removal._owed.update(["stuck", *names])
        assert not await removal.close(patient(10))
        assert set(names) < set(asked)
        assert removal.owed == 1
    owner.close(nothing_left=False)


async def test_what_a_dead_owner_left_holds_nobody_up(tmp_path: Path) -> None:
    asked: list[str] = []
    listed: list[dict[str, object]] = []
    async with engine_that(tmp_path, removing(asked, "stuck", listed, hang=True)) as engine:
        docker = DockerSettings(host=engine.endpoint.name)
        runtime = DockerRuntime(RuntimeSettings(data_dir=tmp_path, agent_sockets=tmp_path, docker=docker))
        owner = OwnerFile(tmp_path / "docker")
        labels = {INSTALLATION: owner.installation, OWNER: DEAD}
        listed += [{"Id": name, "Names": [f"/{name}"], "Labels": labels} for name in ("stuck", "goes")]
        async with asyncio.timeout(patient(5)):
            connected = await runtime._connect()
            while not {"stuck", "goes"} <= set(asked):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        for task in list(runtime._tasks):
            task.cancel()
        connected.removal._owed.clear()
        await runtime.close()
        owner.close(nothing_left=True)


async def test_an_image_that_a_dead_owner_made_for_itself_goes_with_its_name(tmp_path: Path) -> None:
    asked: list[str] = []
    owner = OwnerFile(tmp_path / "docker")
    mark = tmp_path / "docker" / "owners" / DEAD
    mark.touch()
    async with engine_that(tmp_path, removing(asked, "none", [])) as engine:
        await Removal(engine, owner).sweep()
    assert asked == [f"tidebox-scratch:{DEAD}"]
    assert not mark.exists()
    owner.close(nothing_left=True)


def test_an_owner_is_seen_by_others_only_when_it_is_known_to_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = OwnerFile(tmp_path)
    seen: list[list[str]] = []
    lock = fcntl.flock

    def flock(descriptor: int, operation: int) -> None:
        # Another server looks in the very moment before the lock is taken.
        monkeypatch.setattr(fcntl, "flock", lock)
        seen.append(other.dead())
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    owner = OwnerFile(tmp_path)
    assert seen == [[]]
    assert other.lives(owner.name)
    assert sorted(os.listdir(tmp_path)) == ["installation", "owners"]
    for each in (owner, other):
        each.close(nothing_left=True)

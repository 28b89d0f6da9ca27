"""Real clients from PyPI drive a Tidebox agent through the relay."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.wire.agents import agent_link
from tidebox.runtime.relay import Relay
from tidebox.wire.generations import GENERATION

ROOT = Path(__file__).parents[2]
CLIENTS = {"0.6.14": ROOT / ".interop-06", "0.7.11": ROOT / ".interop-07"}
# What each client speaks.
CLIENT_GENERATION = {"0.6.14": 7, "0.7.11": 10}


@contextlib.asynccontextmanager
async def relay_at(path: Path, generation: int = GENERATION) -> AsyncIterator[None]:
    async with agent_link(generation) as link:
        relay = await Relay.open(link, path)
        try:
            yield
        finally:
            await relay.close()


async def drive(version: str, path: Path, scenario: str, agent_generation: int = GENERATION) -> dict[str, Any]:
    """Run one scenario of tests/interop/client.py with the real client."""
    speaks = min(CLIENT_GENERATION[version], agent_generation)
    process = await asyncio.create_subprocess_exec(
        CLIENTS[version] / "bin" / "python",
        ROOT / "tests" / "interop" / "client.py",
        path,
        scenario,
        path.with_name("file"),
        str(speaks),
        env={"PYTHONPATH": str(ROOT / "src"), "HOME": str(path.parent), "PATH": os.defpath},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(40):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    result: dict[str, Any] = json.loads(output)
    return result


@pytest.fixture(params=sorted(CLIENTS))
def version(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    assert CLIENTS[name].is_dir(), f"{CLIENTS[name].name} is missing: make it with `scripts/bootstrap --test`"
    return name


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.sock"


async def test_ping_and_touch(version: str, path: Path) -> None:
    async with relay_at(path):
        assert await drive(version, path, "ping") == {"pong": "core.pong", "touched": "core.touched"}


async def test_exec(version: str, path: Path) -> None:
    async with relay_at(path):
        assert await drive(version, path, "execute") == {
            "stdout": "out\n",
            "stderr": "err\n",
            "code": 7,
            "failed": "not_found",
        }


async def test_stdin_streams(version: str, path: Path) -> None:
    async with relay_at(path):
        result = await drive(version, path, "stdin")
    assert result == {"same": True, "code": 0, "acknowledged": CLIENT_GENERATION[version] >= 10}


async def test_files_up_and_down(version: str, path: Path) -> None:
    async with relay_at(path):
        result = await drive(version, path, "plain_files")
    assert result["written"]
    assert result["same"]
    assert result["missing"][0] is False
    assert "No such file or directory" in result["missing"][1]


async def test_bulk_up_and_down(path: Path) -> None:
    async with relay_at(path):
        assert await drive("0.7.11", path, "bulk_files") == {"written": True, "same": True, "finished": True}


async def test_a_slow_reader_does_not_stall_its_neighbour(path: Path) -> None:
    async with relay_at(path):
        result = await drive("0.7.11", path, "slow_reader")
    assert result == {"neighbour": "alive\n", "prompt": True, "total": 50_000_000}


async def test_programs_die_with_their_client(version: str, path: Path) -> None:
    async with relay_at(path):
        assert await drive(version, path, "leave_behind") == {"started": True}
        await asyncio.sleep(2)
        assert not path.with_name("file").exists()


async def test_an_agent_of_generation_five_refuses_only_ping(version: str, path: Path) -> None:
    async with relay_at(path, generation=5):
        refused = await drive(version, path, "ping", agent_generation=5)
        assert refused == {"pong": "core.error", "touched": "core.error"}
        assert (await drive(version, path, "execute", agent_generation=5))["code"] == 7

"""Real clients from PyPI drive a Tidebox agent through the relay: frame by frame, and with their whole SDK."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.running import (
    CLIENT_GENERATION,
    ENVIRONMENTS,
    boxed_relay_at,
    drive_client,
    drive_sdk,
    registered,
    relay_at,
)

IN_BOX = Path("/workspace/file")


@pytest.fixture(params=sorted(ENVIRONMENTS))
def version(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    assert ENVIRONMENTS[name].is_dir(), f"{ENVIRONMENTS[name].name} is missing: make it with `scripts/bootstrap --test`"
    return name


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.sock"


@pytest.fixture
def home() -> Iterator[Path]:
    """Short: a socket path has at most 107 bytes, and the client adds 60 of its own."""
    with tempfile.TemporaryDirectory(prefix="tb-") as directory:
        yield Path(directory)


async def test_ping_and_touch(version: str, path: Path) -> None:
    async with relay_at(path):
        assert await drive_client(version, path, "ping") == {"pong": "core.pong", "touched": "core.touched"}


async def test_exec(version: str, path: Path) -> None:
    async with relay_at(path):
        assert await drive_client(version, path, "execute") == {
            "stdout": "out\n",
            "stderr": "err\n",
            "code": 7,
            "failed": "not_found",
        }


async def test_stdin_streams(version: str, path: Path) -> None:
    async with relay_at(path):
        result = await drive_client(version, path, "stdin")
    assert result == {"same": True, "code": 0, "acknowledged": CLIENT_GENERATION[version] >= 10}


async def test_files_up_and_down(version: str, path: Path) -> None:
    async with relay_at(path):
        result = await drive_client(version, path, "plain_files")
    assert result["written"]
    assert result["same"]
    assert result["missing"][0] is False
    assert "No such file or directory" in result["missing"][1]


async def test_bulk_up_and_down(path: Path) -> None:
    async with relay_at(path):
        assert await drive_client("0.7.11", path, "bulk_files") == {"written": True, "same": True, "finished": True}


async def test_a_slow_reader_does_not_stall_another_client(path: Path) -> None:
    async with relay_at(path):
        result = await drive_client("0.7.11", path, "slow_reader")
    assert result == {"neighbour": "alive\n", "prompt": True, "total": 50_000_000}


async def test_programs_die_with_their_client(version: str, path: Path) -> None:
    async with relay_at(path):
        assert await drive_client(version, path, "leave_behind") == {"started": True}
        await asyncio.sleep(2)
        assert not path.with_name("file").exists()


async def test_an_agent_of_generation_five_does_not_know_ping(version: str, path: Path) -> None:
    async with relay_at(path, generation=5):
        refused = await drive_client(version, path, "ping", agent_generation=5)
        assert refused == {"pong": "core.error", "touched": "core.error"}
        assert (await drive_client(version, path, "execute", agent_generation=5))["code"] == 7


async def test_the_sdk_pings_and_executes(version: str, home: Path) -> None:
    with registered(version, home) as path:
        async with relay_at(path):
            assert await drive_sdk(version, home, "ping") == {"pong": True}
            ran = await drive_sdk(version, home, "execute")
    assert (ran["stdout"], ran["stderr"], ran["code"]) == ("out\n", "err\n", 3)
    assert "No such file or directory" in ran["failed"]


async def test_the_sdk_streams_stdin(version: str, home: Path) -> None:
    with registered(version, home) as path:
        async with relay_at(path):
            assert await drive_sdk(version, home, "stdin") == {"same": True, "code": 0}


async def test_the_sdk_transfers_files(version: str, home: Path) -> None:
    with registered(version, home) as path:
        async with relay_at(path):
            assert await drive_sdk(version, home, "transfer") == {"whole": True, "streamed": True}


async def test_the_sdk_reads_slowly(version: str, home: Path) -> None:
    with registered(version, home) as path:
        async with relay_at(path):
            assert await drive_sdk(version, home, "slow_reader") == {
                "neighbour": "alive\n",
                "prompt": True,
                "total": 20_000_000,
            }


async def test_the_sdk_refuses_only_ping_on_an_agent_of_generation_five(version: str, home: Path) -> None:
    with registered(version, home) as path:
        async with relay_at(path, generation=5):
            refused = await drive_sdk(version, home, "ping")
            assert "needs protocol generation 6, the sandbox speaks 5" in refused["text"]
            assert (await drive_sdk(version, home, "execute"))["code"] == 3


async def test_a_real_box_serves_the_client(version: str, path: Path) -> None:
    async with boxed_relay_at(path):
        assert (await drive_client(version, path, "ping"))["pong"] == "core.pong"
        assert (await drive_client(version, path, "execute"))["code"] == 7
        assert (await drive_client(version, path, "stdin"))["same"]
        assert (await drive_client(version, path, "plain_files", file=IN_BOX))["same"]
        if CLIENT_GENERATION[version] >= 10:
            assert (await drive_client(version, path, "bulk_files", file=IN_BOX))["finished"]
            assert (await drive_client(version, path, "slow_reader"))["prompt"]


async def test_a_real_box_serves_the_whole_sdk(version: str, home: Path) -> None:
    with registered(version, home) as path:
        async with boxed_relay_at(path):
            assert await drive_sdk(version, home, "ping") == {"pong": True}
            assert (await drive_sdk(version, home, "execute"))["code"] == 3
            assert await drive_sdk(version, home, "stdin") == {"same": True, "code": 0}
            assert await drive_sdk(version, home, "transfer", IN_BOX) == {"whole": True, "streamed": True}
            assert (await drive_sdk(version, home, "slow_reader"))["prompt"]

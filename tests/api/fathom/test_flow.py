"""Clients that read slowly, vanish, or never say goodbye: they hurt themselves and nobody else."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.api.conftest import NO_CELLS, RunningServer
from tests.api.fathom.client import Client, connected
from tests.api.fathom.conftest import assert_idle, levels

StartServer = Callable[..., RunningServer]

FOREVER = "import os, time; os.write(1, b'up\\n'); time.sleep(600)"
FLOOD = "import os\nblock = b'x' * 65536\nwhile True: os.write(1, block)"
COUNT = "import os\nfor n in range({blocks}): os.write(1, b'%08d' % n * 8192)"
MIB = 1 << 20


def memory_mib(pid: int) -> float:
    """What the server itself has in memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


def descriptors(pid: int) -> int:
    """How many it has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def stop_reading(client: Client) -> None:
    """As a client that hangs, or whose machine is gone: it takes nothing off the network, and answers no ping."""
    client.socket.transport.pause_reading()


def started_at_rest(start_server: StartServer, **settings: str) -> RunningServer:
    """A server that has loaded what it loads after the start, and waits long for the answer to a ping."""
    server = start_server(ws_heartbeat_sec="300", rate_limit="off", **settings)
    assert httpx2.get(f"{server.url}/api/v1/sandbox/health", headers=server.headers, timeout=60).status_code == 200
    return server


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> float:
    """Wait for something that can only be looked at; how long it took."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < seconds
        await asyncio.sleep(0.02)
    return time.monotonic() - started


def outcomes(server: RunningServer) -> list[str]:
    """How the executions of a server that has ended were recorded."""
    lines = [line for path in sorted((server.data_dir / "audit").iterdir()) for line in path.read_text().splitlines()]
    events: list[dict[str, Any]] = [json.loads(line) for line in lines]
    return [event["outcome"] for event in events if event["event"] == "sandbox.execution.ended"]


# -- Slow readers -----------------------------------------------------------------------------------------------------


async def test_a_slow_reader_holds_up_its_own_program_only(start_server: StartServer) -> None:
    server = started_at_rest(start_server)
    async with connected(server) as slow, connected(server) as other:
        await other.run("print(1)")
        before = memory_mib(server.pid)
        blocks = 1536
        id = await slow.start(COUNT.format(blocks=blocks), max_output_bytes=1 << 30, timeout_ms=60_000)
        stop_reading(slow)
        most = 0.0
        for _ in range(20):
            done = await other.run("print(1)")
            assert done.sequence == ["ack", "running", "stdout", "completed", "result"]
            assert done.result["duration_ms"] < 20_000
            most = max(most, memory_mib(server.pid))
        assert (await other.ping())["active_executions"] == 1
        # 96 MiB wait in the program.
        assert most - before < 32
        slow.socket.transport.resume_reading()
        done = await slow.finish(id)
        assert done.sequence == ["ack", "running", "stdout", "completed", "result"]
        assert done.stdout == "".join(f"{number:08d}" * 8192 for number in range(blocks))


async def test_executions_beside_a_flood_on_the_same_connection_get_through(client: Client) -> None:
    flood = await client.start(FLOOD, max_output_bytes=16 << 30)
    await client.next_of("stdout")
    for _ in range(3):
        done = await client.run("print(1)")
        assert done.stdout == "1\n"
        client.transcripts[flood].frames.clear()
        client.transcripts[flood].frames.append({"type": "cleared"})
    await client.cancel(flood)
    assert (await client.finish(flood)).sequence[-2:] == ["cancelled", "result"]


async def test_a_client_that_does_not_read_keeps_its_slot_no_longer_than_its_timeout(start_server: StartServer) -> None:
    server = started_at_rest(start_server, max_concurrent_runs="1")
    async with connected(server) as slow, connected(server) as other:
        id = await slow.start(FLOOD, max_output_bytes=16 << 30, timeout_ms=1500)
        await slow.next_of("stdout")
        stop_reading(slow)
        assert (await other.run("print(1)")).stdout == "1\n"
        slow.socket.transport.resume_reading()
        assert (await slow.finish(id)).sequence == ["ack", "running", "stdout", "timeout", "result"]


async def test_a_client_that_does_not_read_can_still_cancel(start_server: StartServer) -> None:
    server = started_at_rest(start_server, max_concurrent_runs="1")
    async with connected(server) as slow, connected(server) as other:
        id = await slow.start(FLOOD, max_output_bytes=16 << 30, timeout_ms=60_000)
        await slow.next_of("stdout")
        stop_reading(slow)
        await asyncio.sleep(0.5)
        for _ in range(10):
            await slow.send({"v": 1, "type": "ping"})
        await slow.cancel(id)
        assert (await other.run("print(1)")).stdout == "1\n"
        slow.socket.transport.resume_reading()
        done = await slow.finish(id)
        assert done.sequence[-2:] == ["cancelled", "result"]


async def test_answers_that_nobody_reads_are_bounded(start_server: StartServer) -> None:
    server = started_at_rest(start_server, **NO_CELLS)
    async with connected(server) as slow, connected(server) as other:
        await other.ping()
        before = memory_mib(server.pid)
        stop_reading(slow)
        ping = json.dumps({"v": 1, "type": "ping", "padding": "x" * 1000})
        sent = 0

        async def flood() -> None:
            nonlocal sent
            while True:
                await slow.socket.send(ping)
                sent += 1

        flooding, before_pause = asyncio.create_task(flood()), -1
        while before_pause != sent:
            before_pause = sent
            await asyncio.sleep(0.5)
        flooding.cancel()
        await asyncio.wait([flooding])
        await other.ping()
        assert memory_mib(server.pid) - before < 32
        slow.socket.transport.resume_reading()
        for _ in range(sent):
            assert (await slow.next())["type"] == "pong"


# -- Clients that are gone --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["close", "abort"])
async def test_programs_of_a_client_that_is_gone_are_killed_after_the_grace(
    start_server: StartServer, way: str
) -> None:
    server = start_server(orphan_grace_sec="6", max_concurrent_runs="2", rate_limit="off")
    async with connected(server) as client:
        for _ in range(2):
            await client.start(FOREVER)
            await client.next_of("stdout")
        await client.start(FOREVER)
        assert await client.ping() == {"active_executions": 2, "queue_depth": 1}
        if way == "abort":
            client.socket.transport.abort()
    gone = time.monotonic()
    assert levels(server)["sandbox_runs_active"] == 2
    await until(lambda: levels(server)["sandbox_runs_active"] == 0)
    assert 5.8 < time.monotonic() - gone < 60
    assert_idle(server)
    assert server.stop() == 0
    assert outcomes(server) == ["canceled_by_user"] * 3


async def test_programs_of_a_client_that_is_gone_may_end_within_the_grace(start_server: StartServer) -> None:
    server = start_server(orphan_grace_sec="50", rate_limit="off")
    async with connected(server) as client:
        await client.start("import time; print('up'); time.sleep(0.5)")
        await client.start(FLOOD, timeout_ms=700, max_output_bytes=16 << 30)
        await client.next_of("stdout")
    await until(lambda: levels(server)["sandbox_runs_active"] == 0)
    assert server.stop() == 0
    assert sorted(outcomes(server)) == ["execution_timeout", "exit_code_0"]


async def test_a_client_that_answers_no_ping_is_gone(start_server: StartServer) -> None:
    server = start_server(ws_heartbeat_sec="1", orphan_grace_sec="0.1", rate_limit="off")
    async with connected(server, ping_interval=None) as client:
        await client.start(FOREVER)
        await client.next_of("stdout")
        # Two heartbeats, answered while this loop is free.
        await asyncio.sleep(2.2)
        assert (await client.ping())["active_executions"] == 1
        stop_reading(client)
        await until(lambda: levels(server)["connections"] == 0)
        await until(lambda: levels(server)["sandbox_runs_active"] == 0)


async def test_a_client_that_is_gone_with_output_under_way_is_gone(start_server: StartServer) -> None:
    server = start_server(ws_heartbeat_sec="0.5", orphan_grace_sec="0.1", rate_limit="off")
    async with connected(server, ping_interval=None) as client:
        await client.start(FLOOD, max_output_bytes=16 << 30, timeout_ms=600_000)
        await client.next_of("stdout")
        stop_reading(client)
        await until(lambda: levels(server)["connections"] == 0)
        await until(lambda: levels(server)["sandbox_runs_active"] == 0)
    async with connected(server) as other:
        assert await other.ping() == {"active_executions": 0, "queue_depth": 0}


async def test_descriptors_and_tasks_do_not_grow_with_connections(start_server: StartServer) -> None:
    # Without cells, which have descriptors too and come when there is time.
    server = started_at_rest(start_server, orphan_grace_sec="0", pool_sandboxes="0", **NO_CELLS)

    async def visit(number: int) -> None:
        async with connected(server) as client:
            if number % 3 == 0:
                await client.start(FOREVER)
                await client.next_of("ack")
                client.socket.transport.abort()
            elif number % 3 == 1:
                await client.run("print(1)")
            else:
                await client.send("nonsense")

    # A start that is given up gives up its cgroup too: it takes a few until as many counters are open as ever will be.
    for _ in range(5):
        await asyncio.gather(*(visit(number) for number in range(12)))
    assert_idle(server)
    before, memory = descriptors(server.pid), memory_mib(server.pid)
    for _ in range(10):
        await asyncio.gather(*(visit(number) for number in range(12)))
    assert_idle(server)
    assert descriptors(server.pid) <= before + 8
    assert memory_mib(server.pid) - memory < 8

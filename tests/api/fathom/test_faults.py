"""Parts of the server are killed while programs run: clients are told, and the server goes on by itself."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed

from tests.api.conftest import RunningServer
from tests.api.fathom.client import Client, connected
from tests.api.fathom.conftest import assert_idle
from tests.boxes import count_leaves, descendants, init_of
from tests.runtimes import native_only

StartServer = Callable[..., RunningServer]

SUCCESS = ["ack", "running", "stdout", "completed", "result"]


def sleeper(seconds: int) -> str:
    """A program whose child can be told from all others on this machine."""
    return f"echo up; sleep {seconds}; :"


async def pids_of(server: RunningServer, seconds: int) -> list[int]:
    """The processes of the box in which a sleeper sleeps: the child, the program, the init."""
    name = f"sleep\0{seconds}\0".encode()
    await until(lambda: name in map(command_line, descendants(server.pid)))
    (child,) = (pid for pid in descendants(server.pid) if command_line(pid) == name)
    return [child, parent(child), init_of(child)]


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def parent(pid: int) -> int:
    """Its parent's pid; 0 if it has gone meanwhile."""
    try:
        return int(Path(f"/proc/{pid}/status").read_text().partition("PPid:\t")[2].split()[0])
    except OSError:
        return 0


def spawner_of(server: RunningServer) -> int:
    (spawner,) = (pid for pid in descendants(server.pid) if parent(pid) == server.pid)
    return spawner


def gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def start_sleepers(client: Client, first: int, number: int) -> list[str]:
    ids = [await client.start(sleeper(first + n), "shell", timeout_ms=600_000) for n in range(number)]
    for _ in ids:
        await client.next_of("stdout")
    return ids


@native_only("containers have no spawner, and their init is the engine's child")
async def test_a_killed_init_fails_its_execution_only(start_server: StartServer) -> None:
    server = start_server(rate_limit="off")
    async with connected(server) as client:
        victim, other = await start_sleepers(client, 7100, 2)
        processes = await pids_of(server, 7100)
        os.kill(processes[-1], signal.SIGKILL)
        done = await client.finish(victim)
        assert done.sequence == ["ack", "running", "stdout", "INTERNAL_ERROR"]
        assert done.error["retryable"] is True
        await until(lambda: gone(processes))
        assert (await client.run("print(1)", id=victim + "_again")).sequence == SUCCESS
        await client.cancel(other)
        assert (await client.finish(other)).sequence[-2:] == ["cancelled", "result"]
    assert_idle(server)


@native_only("containers have no spawner, and their init is the engine's child")
async def test_a_killed_spawner_fails_what_runs_and_is_replaced(start_server: StartServer) -> None:
    server = start_server(rate_limit="off", max_concurrent_runs="3")
    async with connected(server) as client, connected(server) as other:
        ids = await start_sleepers(client, 7200, 3)
        waiting = await other.start("print('waited')")
        await other.next_of("ack")
        killed = spawner_of(server)
        processes = descendants(killed)
        os.kill(killed, signal.SIGKILL)
        for done in await client.finish_all(ids):
            assert done.sequence == ["ack", "running", "stdout", "INTERNAL_ERROR"]
            assert done.error["retryable"] is True
        assert (await other.finish(waiting)).sequence == SUCCESS
        assert (await client.run("print(1)")).sequence == SUCCESS
        assert spawner_of(server) != killed
        await until(lambda: gone(processes))
        await until(lambda: count_leaves(killed)["leaves"] == 0)
    assert_idle(server)


@native_only("containers have no spawner, and their init is the engine's child")
async def test_killing_the_spawner_again_and_again(start_server: StartServer) -> None:
    server = start_server(rate_limit="off")
    async with connected(server) as client:
        for round in range(3):
            ids = await start_sleepers(client, 7300 + 10 * round, 2)
            os.kill(spawner_of(server), signal.SIGKILL)
            for done in await client.finish_all(ids):
                assert done.sequence[-1] == "INTERNAL_ERROR"
        assert (await client.run("print(1)")).sequence == SUCCESS
    assert_idle(server)


async def test_a_killed_server_leaves_nothing(start_server: StartServer) -> None:
    server = start_server(rate_limit="off")
    async with connected(server) as client:
        await start_sleepers(client, 7400, 3)
        processes = descendants(server.pid)
        helpers = [pid for pid in processes if parent(pid) == server.pid]
        server.process.kill()
        server.wait()
        with pytest.raises(ConnectionClosed):
            await client.next()
        await until(lambda: gone(processes))
        await until(lambda: all(count_leaves(helper)["leaves"] == 0 for helper in helpers))


async def test_a_server_that_is_told_to_stop_finishes_what_it_has(start_server: StartServer) -> None:
    server = start_server(rate_limit="off", drain_grace_sec="120")
    async with connected(server) as client:
        ids = [await client.start("sleep 0.2; echo done", "shell") for _ in range(50)]
        await client.next_of("running")
        server.process.send_signal(signal.SIGTERM)
        refused = await until_refused(client)
        assert refused["retryable"] is True
        for done in await client.finish_all(ids):
            assert done.sequence == SUCCESS
        closed = await until_closed(client)
        assert closed.rcvd is not None
        assert closed.rcvd.code == 1012
    assert server.wait() == 0


async def until_closed(client: Client) -> ConnectionClosed:
    """Read what is still sent: those that were taken on before the first refusal may be over last."""
    while True:
        try:
            await client.next()
        except ConnectionClosed as closed:
            return closed


async def until_refused(client: Client) -> dict[str, object]:
    """Start programs until the server takes no more: the signal may arrive after the first of them."""
    while True:
        id = await client.start("true", "shell")
        while not (frames := client.transcripts[id].frames if id in client.transcripts else []):
            await client.next()
        if frames[0]["type"] == "error":
            assert frames[0]["code"] == "SANDBOX_OVERLOADED"
            return frames[0]


@native_only("its processes are found below the spawner; test_left_behind looks at what others leave")
async def test_a_server_that_is_told_to_stop_does_not_wait_for_ever(start_server: StartServer) -> None:
    server = start_server(rate_limit="off", drain_grace_sec="0.5")
    async with connected(server) as client:
        ids = [await client.start(sleeper(7500), "shell", timeout_ms=600_000) for _ in range(50)]
        for _ in range(8):
            await client.next_of("stdout")
        spawner = spawner_of(server)
        processes = [spawner, *descendants(spawner)]
        server.process.send_signal(signal.SIGTERM)
        for done in await client.finish_all(ids):
            assert done.sequence in (["ack", "running", "stdout", "SANDBOX_OVERLOADED"], ["ack", "SANDBOX_OVERLOADED"])
    assert server.wait() == 0
    assert gone(processes)
    assert count_leaves(spawner)["leaves"] == 0


async def test_a_second_signal_ends_it_at_once(start_server: StartServer) -> None:
    server = start_server(rate_limit="off", drain_grace_sec="600")
    async with connected(server) as client:
        await start_sleepers(client, 7600, 2)
        started = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        await until_refused(client)
        server.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(server.wait) == 0
        assert time.monotonic() - started < 30

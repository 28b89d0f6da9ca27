"""Many who ask, release and expire at once: one sandbox for each scope, and nothing left behind."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2 as httpx

from tests.api.access.clients import SESSIONS, Client, wait_for
from tests.api.conftest import NO_CELLS, RunningServer


def rows(server: RunningServer) -> list[str]:
    """The ids of the bindings that the store knows and that have not ended."""
    with sqlite3.connect(server.data_dir / "meta" / "sandbox_store.db") as database:
        return [row[0] for row in database.execute("SELECT id FROM sandbox_bindings WHERE state != 'terminated'")]


def sockets(server: RunningServer) -> list[str]:
    """The sandboxes that have a box."""
    return sorted(file.stem for file in Path(server.data_dir / "run" / "agents").glob("*.sock"))


async def together(server: RunningServer, *requests: tuple[str, str, Any]) -> list[httpx.Response]:
    """Send requests at once."""
    limits = httpx.Limits(max_connections=len(requests))
    async with httpx.AsyncClient(base_url=server.url, headers=server.headers, timeout=60, limits=limits) as client:
        return await asyncio.gather(*(client.request(method, path, json=body) for method, path, body in requests))


async def test_a_hundred_who_ensure_at_once_get_one_sandbox(start_server: Callable[..., RunningServer]) -> None:
    for ready in ("0", "2"):
        server = start_server(rate_limit="off", pool_sandboxes=ready, **NO_CELLS)
        body = {"thread_id": "t", "mode": "ensure"}
        answers = await together(server, *[("POST", SESSIONS, body)] * 100)
        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.json()["session_id"] for answer in answers}) == 1
        made = {answer.json()["sandbox"]["id"] for answer in answers}
        assert len(made) == 1
        assert rows(server) == [answers[0].json()["session_id"]]
        if ready == "0":
            assert sockets(server) == list(made)


async def test_of_those_who_would_create_at_once_one_does(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(rate_limit="off", **NO_CELLS)
    body = {"scope": {"type": "workspace", "id": "w"}, "mode": "create_only"}
    answers = await together(server, *[("POST", SESSIONS, body)] * 30)
    assert sorted(answer.status_code for answer in answers) == [200, *[409] * 29]


async def test_acquire_and_ensure_of_one_thread_share_a_binding(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(rate_limit="off", **NO_CELLS)
    ensure = ("POST", SESSIONS, {"thread_id": "t", "mode": "ensure"})
    acquire = ("POST", "/sandbox/acquire", {"thread_id": "t", "assistant_id": "a"})
    answers = await together(server, *[ensure, acquire] * 20)
    assert len({answer.json()["session_id"] for answer in answers}) == 1


async def test_making_and_releasing_at_once_leaves_nothing(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(rate_limit="off", pool_sandboxes="0", **NO_CELLS)
    limits = httpx.Limits(max_connections=64)
    dice = random.Random(7)
    async with httpx.AsyncClient(base_url=server.url, headers=server.headers, timeout=60, limits=limits) as client:

        async def someone() -> None:
            for _ in range(12):
                thread = f"t{dice.randrange(4)}"
                if dice.random() < 0.5:
                    made = await client.post(SESSIONS, json={"thread_id": thread, "mode": "ensure"})
                    assert made.status_code in (200, 409), made.text
                    if made.status_code == 200 and dice.random() < 0.5:
                        gone = await client.delete(f"{SESSIONS}/{made.json()['session_id']}")
                        assert gone.status_code in (204, 404), gone.text
                else:
                    ended = await client.delete(f"/v1/sandbox/scopes/thread/{thread}")
                    assert ended.status_code == 204, ended.text

        await asyncio.gather(*(someone() for _ in range(16)))
        for number in range(4):
            assert (await client.delete(f"/v1/sandbox/scopes/thread/t{number}")).status_code == 204
    assert rows(server) == []
    wait_for(lambda: sockets(server) == [])


async def test_expiring_while_it_is_asked_for(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(rate_limit="off", hard_ttl_sec="1", reaper_interval_sec="0.1", pool_sandboxes="0", **NO_CELLS)
    async with httpx.AsyncClient(base_url=server.url, headers=server.headers, timeout=60) as client:

        async def someone() -> set[str]:
            seen = set()
            for _ in range(30):
                made = await client.post(SESSIONS, json={"thread_id": "t", "mode": "ensure"})
                assert made.status_code in (200, 409), made.text
                if made.status_code == 200:
                    seen.add(made.json()["session_id"])
                await asyncio.sleep(0.1)
            return seen

        seen = await asyncio.gather(*(someone() for _ in range(4)))
    assert len(set().union(*seen)) >= 2, "none expired"
    wait_for(lambda: rows(server) == [] and sockets(server) == [])


def test_a_release_during_the_making(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(rate_limit="off", pool_sandboxes="0", **NO_CELLS)
    with Client(server) as client:
        for number in range(10):
            started = client.negotiate(headers={"Prefer": "respond-async"}, thread_id=f"t{number}", mode="ensure")
            assert started.status_code == 423
            session_id = started.json()["error"]["details"]["binding_id"]
            assert client.of_session("DELETE", session_id).status_code == 204
    assert rows(server) == []
    wait_for(lambda: sockets(server) == [])

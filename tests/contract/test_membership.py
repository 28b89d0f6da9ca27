"""Servers that share a real PostgreSQL database: who judges whom, and what becomes of who cannot be heard of."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field

import psycopg
import pytest

from tests.contract import postgres
from tests.contract.database_proxy import Proxy, standing_before
from tests.contract.test_store_nodes import bring_to, own
from tests.contract.test_stores import make_run
from tests.unit.stage import until
from tidebox.cluster.lease import Pace
from tidebox.cluster.membership import Resident
from tidebox.cluster.shared import SharedMembership
from tidebox.errors import StoreUnavailable
from tidebox.model.node import Owner
from tidebox.store.base import Estate, Standing
from tidebox.store.sql.store import PostgresStore

pytestmark = pytest.mark.skipif(postgres.missing() is not None, reason=str(postgres.missing()))

# As long as a busy machine may keep a beat waiting: one that is late is a node that is lost.
PACE = Pace(beat=0.3, lapse=4.0, lease=6.0)


@dataclass
class Tenant(Resident):
    """Writes down what it is told."""

    told: list[str] = field(default_factory=list)
    inherited: list[str] = field(default_factory=list)
    at: float = 0.0

    async def stop(self) -> None:
        self.told.append("stop")

    async def abandon(self) -> None:
        self.told.append("abandon")

    async def recover(self, owner: Owner) -> None:
        self.told.append("recover")

    async def inherit(self, estate: Estate) -> None:
        self.at = time.monotonic()
        self.inherited += [run.id for run, _ in estate.runs]


@dataclass
class Node:
    membership: SharedMembership
    store: PostgresStore
    tenant: Tenant

    @property
    def epoch(self) -> int:
        return self.membership.owner.epoch


Join = Callable[..., Awaitable[Node]]


@pytest.fixture
def url(postgres_server: postgres.Server) -> str:
    return postgres_server.fresh_url()


@pytest.fixture
async def join(url: str) -> AsyncIterator[Join]:
    """Makes nodes."""
    made: list[Node] = []

    async def make(node_id: str, home: str | None = None) -> Node:
        store = PostgresStore(url)
        await store.start()
        node = Node(SharedMembership(store, node_id, home or node_id, PACE), store, Tenant())
        made.append(node)
        node.membership.register(node.tenant)
        await node.membership.join()
        node.membership.watch()
        return node

    yield make
    for node in made:
        await node.membership.close()
        await node.store.close()


async def beaten_twice(url: str) -> None:
    """Wait until every node that lives knows of the others."""
    seen: set[float] = set()

    def look() -> bool:
        with psycopg.connect(url) as connection:
            [[last]] = connection.execute("SELECT min(beat_at) FROM sandbox_nodes WHERE node_id <> 'dead'").fetchall()
        seen.add(last)
        return len(seen) > 2

    await until(look, 0.05)


def is_held(node: Node) -> bool:
    try:
        node.membership.check()
    except StoreUnavailable:
        return False
    return True


async def test_a_database_that_is_away_for_all_is_nobodys_death(
    join: Join, postgres_server: postgres.Server, url: str
) -> None:
    nodes = [await join("a"), await join("b")]
    epochs = [node.epoch for node in nodes]
    # It has beaten a moment ago, and never will again.
    dead = await nodes[0].store.join_node("dead", "dead", PACE.lease)
    await bring_to(nodes[0].store, own(make_run(), dead))
    await beaten_twice(url)
    postgres_server.kill()
    try:
        # All lose touch, and stop; all leases are over when the database is back.
        await until(lambda: all(node.tenant.told for node in nodes), 0.02)
        assert not any(is_held(node) for node in nodes)
        await asyncio.sleep(PACE.lease - PACE.lapse)
    finally:
        postgres_server.start()
        back = time.monotonic()
    await until(lambda: any(node.tenant.inherited for node in nodes), 0.02)
    assert all(is_held(node) for node in nodes)
    # They have been patient with each other: both are who they were. The third had its time.
    assert [node.epoch for node in nodes] == epochs
    assert [set(node.tenant.told) for node in nodes] == [{"stop"}, {"stop"}]
    assert sorted(node.tenant.inherited for node in nodes) == [[], ["run-1"]]
    assert min(node.tenant.at for node in nodes if node.tenant.at) - back >= PACE.lease


async def test_a_node_that_is_alone_does_not_stop_with_its_database(
    join: Join, postgres_server: postgres.Server, url: str
) -> None:
    node = await join("a")
    epoch = node.epoch
    await beaten_twice(url)
    postgres_server.kill()
    try:
        await until(lambda: not is_held(node), 0.02)
        await asyncio.sleep(PACE.beat)
    finally:
        postgres_server.start()
    await until(lambda: is_held(node), 0.02)
    assert (node.tenant.told, node.epoch) == ([], epoch)


@pytest.mark.parametrize("seconds", [-1000.0, 1000.0])
async def test_a_database_whose_clock_is_set_makes_nobody_lost(join: Join, url: str, seconds: float) -> None:
    nodes = [await join("a"), await join("b")]
    epochs = [node.epoch for node in nodes]
    # Long enough that both may judge, and then for as long as it takes to be judged.
    await asyncio.sleep(PACE.lease + PACE.beat)
    end = time.monotonic() + PACE.lease + 2 * PACE.beat
    while time.monotonic() < end:
        # What was written before the clock was set is as old, or as far ahead, as it was set.
        with psycopg.connect(url) as connection:
            connection.execute("UPDATE sandbox_nodes SET beat_at = beat_at - %s", [seconds])
        await asyncio.sleep(PACE.beat / 3)
    assert [node.epoch for node in nodes] == epochs
    assert [node.tenant.told for node in nodes] == [[], []]


async def test_two_servers_of_one_home_are_not_both_the_node(join: Join) -> None:
    first = await join("a", "home")
    # As only a copy of a whole machine can be: its directory is the same, and so is not in use.
    second = await join("a", "home")
    async with asyncio.timeout(30):
        await first.membership.superseded.wait()
    assert first.tenant.told == ["abandon"]
    assert not is_held(first)
    assert is_held(second)
    assert not second.tenant.told


@pytest.fixture
def proxy(url: str) -> Iterator[Proxy]:
    with standing_before(url) as made:
        yield made


async def test_beats_go_on_when_a_connection_swallows_them(proxy: Proxy) -> None:
    store = PostgresStore(proxy.url)
    await store.start()
    try:
        owner = await store.join_node("a", "home", PACE.lease)
        assert (await store.beat(owner)).standing is Standing.HELD
        proxy.swallow()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await store.beat(owner)
        # What was cut off has its moment to be noticed.
        async with asyncio.timeout(20):
            while True:
                with contextlib.suppress(StoreUnavailable, TimeoutError):
                    async with asyncio.timeout(2):
                        assert (await store.beat(owner)).standing is Standing.HELD
                        break
    finally:
        await store.close()

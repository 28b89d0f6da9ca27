"""A connection to a server, and what must be true of the server after each test."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.api.conftest import RunningServer
from tests.api.fathom.client import Client, connected
from tidebox.config import Settings


def levels(server: RunningServer) -> dict[str, float]:
    """What a server says of itself: its metrics that have no labels, and its Fathom connections."""
    text = httpx2.get(f"{server.url}/metrics", headers=server.headers, timeout=60).text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found = {sample.name: sample.value for sample in samples if not sample.labels}
    open_ones = [s.value for s in samples if s.name == "sandbox_ws_connections" and s.labels["component"] == "fathom"]
    return found | {"connections": sum(open_ones)}


def assert_idle(server: RunningServer, within: float = 30.0, kept: float | None = None) -> None:
    """Nothing runs or waits, nobody is connected, and there are no boxes but those kept for later."""
    deadline = time.monotonic() + within
    allowed = Settings().pool_sandboxes if kept is None else kept
    while True:
        now = levels(server)
        busy = {name: now[name] for name in ("sandbox_runs_active", "sandbox_queue_length", "connections")}
        if not any(busy.values()) and now["sandbox_boxes"] <= now["sandbox_pool_cells"] + allowed:
            return
        assert time.monotonic() < deadline, f"left behind: {now}"
        time.sleep(0.02)


@pytest.fixture
def idle_server(running_server: RunningServer) -> Iterator[RunningServer]:
    """The shared server, of which nothing may be left busy."""
    before = levels(running_server)
    yield running_server
    # Other tests leave sandboxes in it that live on.
    kept = before["sandbox_boxes"] - before["sandbox_pool_cells"]
    assert_idle(running_server, kept=max(kept, Settings().pool_sandboxes))


@pytest.fixture
async def client(idle_server: RunningServer) -> AsyncIterator[Client]:
    """A connection to the shared server."""
    async with connected(idle_server) as client:
        yield client

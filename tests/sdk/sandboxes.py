"""What the tests of sandboxes share."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable

from tests.api.conftest import RunningServer
from tidebox.sdk import AsyncAccess


def access_to(server: RunningServer) -> AsyncAccess:
    """A client of a server."""
    return AsyncAccess(server.url, api_key=server.key)


def calls(server: RunningServer, thread: str) -> list[str]:
    """What was asked of a server for a thread, as its audit log has it: ``negotiated``, ``refreshed`` and so on."""
    lines = [line for file in sorted((server.data_dir / "audit").iterdir()) for line in file.read_text().splitlines()]
    found = [json.loads(line) for line in lines]
    prefix = "sandbox.access."
    return [
        entry["event"].removeprefix(prefix)
        for entry in found
        if entry["event"].startswith(prefix) and entry.get("thread_id") == thread
    ]


async def until(condition: Callable[[], bool], seconds: float = 90.0) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


async def heard(server: RunningServer, thread: str, *expected: str) -> None:
    """This is what was asked of a server for a thread; its log is a little behind."""
    await until(lambda: len(calls(server, thread)) >= len(expected))
    assert calls(server, thread) == list(expected)


def our_tasks() -> list[str]:
    """What a client still does in the background."""
    return [name for task in asyncio.all_tasks() if (name := task.get_name()).startswith("tidebox")]

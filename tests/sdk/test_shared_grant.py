"""When a grant is asked for again, with a source that answers as the test says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from tests.sdk.sandboxes import our_tasks, until
from tidebox.errors import Expired, ProvisionFailed, TideboxError
from tidebox.sdk.sandboxes.grants import SandboxGrant
from tidebox.sdk.sandboxes.shared_grant import SharedGrant

GRANT = SandboxGrant(
    sandbox_id="sb-1",
    token="0",
    expires_at=0.0,
    http_url="http://h",
    exec_url="ws://h",
    shell_url="ws://h",
    watch_url="ws://h",
)


class Source:
    """Counts its grants in their tokens."""

    def __init__(self, life: float) -> None:
        self.life = life
        self.heard: list[str] = []
        self.refusals: list[TideboxError] = []

    def _grant(self) -> SandboxGrant:
        return replace(GRANT, token=str(len(self.heard)), expires_at=time.time() + self.life)

    async def ask(self, last: SandboxGrant | None) -> SandboxGrant:
        self.heard.append("ask")
        await asyncio.sleep(0)
        return self._grant()

    async def refresh(self, grant: SandboxGrant) -> SandboxGrant:
        self.heard.append("refresh")
        if self.refusals:
            raise self.refusals.pop()
        return self._grant()

    async def release(self, grant: SandboxGrant) -> None:
        self.heard.append(f"release {grant.token}")


@pytest.fixture(autouse=True)
async def nothing_is_left() -> AsyncIterator[None]:
    yield
    assert our_tasks() == []


async def test_a_refresh_that_fails_for_now_is_tried_again() -> None:
    source = Source(life=1.0)
    source.refusals = [ProvisionFailed("not now"), ProvisionFailed("not yet")]
    held = SharedGrant(source)
    first = await held.take(keep=False)
    second = await asyncio.wait_for(held.after(first), 30)
    assert second is not None
    assert source.heard == ["ask", "refresh", "refresh", "refresh"]
    await held.drop()
    assert source.heard[-1] == f"release {second.token}"


async def test_after_a_refused_refresh_the_next_use_asks_for_a_new_grant() -> None:
    source = Source(life=1.0)
    source.refusals = [Expired("lost")]
    held = SharedGrant(source)
    await held.take(keep=True)
    await until(lambda: our_tasks() == [])
    assert source.heard == ["ask", "refresh"]
    await asyncio.sleep(1.0)
    assert (await held.current()).token == "3"
    await until(lambda: len(source.heard) > 3)
    assert source.heard[:4] == ["ask", "refresh", "ask", "refresh"]
    await held.close()


async def test_many_whose_token_was_refused_ask_once() -> None:
    source = Source(life=600.0)
    held = SharedGrant(source)
    grant = await held.take(keep=True)
    fresh = await asyncio.gather(*(held.renewed(grant) for _ in range(10)))
    assert {each.token for each in fresh} == {"2"}
    await held.drop()


async def test_a_clock_that_is_wrong_is_no_reason_to_ask_all_the_time() -> None:
    source = Source(life=-3600.0)
    held = SharedGrant(source)
    await held.take(keep=True)
    await asyncio.gather(*(held.current() for _ in range(10)))
    assert source.heard == ["ask"]
    await held.drop()


async def test_who_waits_for_the_next_grant_is_told_that_none_will_come() -> None:
    held = SharedGrant(Source(life=600.0))
    waiting = asyncio.create_task(held.after(await held.take(keep=True)))
    await asyncio.sleep(0)
    await held.close()
    assert await asyncio.wait_for(waiting, 30) is None

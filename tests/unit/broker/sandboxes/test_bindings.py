"""The states of bindings: along the table only, whatever happens to their sandboxes meanwhile."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from tests.memory_store import DictStore
from tests.unit.stage import ADA, audited, until
from tidebox.broker.audit.audit_log import Audit
from tidebox.broker.sandboxes.bindings import Bindings
from tidebox.broker.sandboxes.leases import LeaseTerms
from tidebox.broker.sandboxes.live_binding import BindingMode, BindingRequest, LiveBinding
from tidebox.broker.sandboxes.providers.base import NO_EXTRAS, Provider, Providers, SandboxExtras
from tidebox.broker.sandboxes.providers.local_provider import LocalProvider
from tidebox.broker.sandboxes.providers.peer import Peer
from tidebox.broker.sandboxes.sandbox import AccessPass, LiveSandbox, SandboxOperations
from tidebox.broker.sandboxes.warm_boxes import WarmBoxes
from tidebox.cluster.membership import Membership
from tidebox.errors import InternalError, ProviderUnavailable, ProvisionFailed
from tidebox.model.box import BoxSpec
from tidebox.model.ids import new_id
from tidebox.model.principal import Actor
from tidebox.model.remote_servers import AUTO
from tidebox.model.runtimes import Features
from tidebox.model.sandbox import TRANSITIONS, Binding, Capability, SandboxState, Scope, ScopeType
from tidebox.runtime.base import Box, Runtime

ASK = BindingRequest(scope=Scope(ScopeType.THREAD, "t"), mode=BindingMode.ENSURE)
ILLEGAL = [(one, two) for one in SandboxState for two in SandboxState if two not in TRANSITIONS[one]]


class Toy(LiveSandbox):
    """A sandbox that does what a test tells it."""

    in_use = False
    frozen = False
    gone = False

    def __init__(self) -> None:
        super().__init__(new_id("sb"), "")
        self.callbacks: list[Callable[[], None]] = []
        self.suspending = asyncio.Event()
        self.may_suspend = asyncio.Event()

    def on_gone(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)

    def tell_gone(self) -> None:
        """Say what may have been true for a while."""
        self.gone = True
        for callback in self.callbacks:
            callback()

    def tell_use(self) -> None:
        """Say that it was used just now."""
        self._on_use(0.0)

    def use(self, request_id: str | None = None) -> AbstractAsyncContextManager[SandboxOperations]:
        raise NotImplementedError

    async def suspend(self) -> bool:
        self.suspending.set()
        await self.may_suspend.wait()
        return True

    async def issue_pass(self, actor: Actor, capabilities: frozenset[Capability]) -> AccessPass | None:
        return None

    async def revoke(self) -> None:
        pass

    def send_heartbeat(self) -> None:
        pass

    def verify_idle(self) -> None:
        pass

    async def close(self) -> None:
        pass


class Maker(Provider):
    """Makes toys when it may."""

    durable = False
    up = True
    busy = False
    silent_for = 0.0

    def __init__(self, name: str = "toys") -> None:
        self.name = name
        self.made: list[Toy] = []
        self.open = asyncio.Event()
        self.open.set()
        self.error: Exception | None = None

    async def start(self) -> None:
        pass

    def take(self) -> LiveSandbox | None:
        return None

    async def create(
        self, binding_id: str, like: LiveSandbox | None = None, extras: SandboxExtras = NO_EXTRAS
    ) -> LiveSandbox:
        await self.open.wait()
        if self.error is not None:
            raise self.error
        self.made.append(Toy())
        return self.made[-1]

    async def resume(self, binding_id: str) -> LiveSandbox | None:
        return None

    async def release(self, binding_id: str) -> None:
        pass

    async def close(self) -> None:
        pass


@pytest.fixture
def maker() -> Maker:
    return Maker()


@pytest.fixture
def other() -> Maker:
    return Maker("others")


@pytest.fixture
async def audit(tmp_path: Path) -> Audit:
    audit = Audit(tmp_path / "audit")
    await audit.start()
    return audit


@pytest.fixture
async def bindings(maker: Maker, other: Maker, audit: Audit) -> AsyncIterator[Bindings]:
    terms = LeaseTerms(idle_timeout=0.01, grace=3600.0)
    providers = Providers([maker, other])
    made = Bindings(store=DictStore(), audit=audit, membership=Membership(), providers=providers, terms=terms)
    await made.start()
    yield made
    await made.close()
    await audit.close()


def state_of(live: LiveBinding) -> SandboxState:
    return live.binding.state


def make_held(state: SandboxState) -> LiveBinding:
    now = time.time()
    return LiveBinding(
        Binding(
            id="bind-1",
            scope=ASK.scope,
            user="ada",
            provider="toys",
            state=state,
            created_at=now,
            active_at=now,
            lease_expires_at=now,
            expires_at=now,
        )
    )


@pytest.mark.parametrize(("before", "after"), ILLEGAL, ids=lambda state: state.value)
def test_a_step_that_the_table_lacks_is_refused_loudly(
    before: SandboxState, after: SandboxState, caplog: pytest.LogCaptureFixture
) -> None:
    live = make_held(before)
    with caplog.at_level(logging.ERROR), pytest.raises(InternalError):
        live.transition(after)
    assert live.binding.state is before
    assert f"{before.value} to {after.value}" in caplog.text


async def test_a_lost_sandbox_is_made_anew_before_it_says_that_it_is_lost(bindings: Bindings, maker: Maker) -> None:
    live, _ = await bindings.ensure(ADA, ASK)
    (first,) = maker.made
    first.gone = True
    maker.open.clear()
    again = asyncio.create_task(bindings.ensure(ADA, ASK))
    await until(lambda: live.starting is not None)
    assert state_of(live) is SandboxState.PROVISIONING
    # What is told of it from now on is history.
    first.tell_use()
    first.tell_gone()
    assert state_of(live) is SandboxState.PROVISIONING
    maker.open.set()
    async with asyncio.timeout(20):
        _, second = await again
    assert second is maker.made[1]
    assert state_of(live) is SandboxState.ACTIVE


async def test_a_lost_sandbox_is_audited_once(bindings: Bindings, maker: Maker, audit: Audit, tmp_path: Path) -> None:
    live, _ = await bindings.ensure(ADA, ASK)
    maker.made[0].tell_gone()
    maker.made[0].tell_gone()
    assert state_of(live) is SandboxState.FAILED
    await audit.close()
    lost = [event for event in audited(tmp_path / "audit") if event["event"] == "sandbox.access.lost"]
    assert len(lost) == 1


async def test_a_defect_in_the_making_leaves_no_binding_in_the_making(bindings: Bindings, maker: Maker) -> None:
    live, _ = await bindings.ensure(ADA, ASK)
    maker.made[0].tell_gone()
    maker.error = RuntimeError("a defect")
    with pytest.raises(RuntimeError):
        await bindings.ensure(ADA, ASK)
    assert state_of(live) is SandboxState.FAILED
    maker.error = None
    async with asyncio.timeout(20):
        await bindings.ensure(ADA, ASK)
    assert state_of(live) is SandboxState.ACTIVE


@pytest.mark.parametrize("meanwhile", ["used", "lost"])
async def test_what_happens_while_a_sandbox_is_frozen_stands(bindings: Bindings, maker: Maker, meanwhile: str) -> None:
    live, _ = await bindings.ensure(ADA, ASK)
    (toy,) = maker.made
    while state_of(live) is not SandboxState.IDLE:
        await bindings.reap()
        await asyncio.sleep(0.01)
    looking = asyncio.create_task(bindings.reap())
    async with asyncio.timeout(20):
        await toy.suspending.wait()
    if meanwhile == "used":
        toy.tell_use()
    else:
        toy.tell_gone()
    toy.may_suspend.set()
    await looking
    assert state_of(live) is (SandboxState.ACTIVE if meanwhile == "used" else SandboxState.FAILED)


async def test_a_busy_provider_is_passed_over(bindings: Bindings, maker: Maker, other: Maker) -> None:
    maker.busy = True
    live, sandbox = await bindings.ensure(ADA, ASK)
    assert (live.binding.provider, [sandbox], maker.made) == ("others", other.made, [])
    other.up = False
    live, _ = await bindings.ensure(ADA, replace(ASK, scope=Scope(ScopeType.THREAD, "busy but up")))
    assert live.binding.provider == "toys"


async def test_a_provider_opening_many_boxes_is_busy() -> None:
    opened = asyncio.Event()

    class Slow:
        features = Features()

        async def open(self, spec: BoxSpec) -> Box:
            await opened.wait()
            raise ProvisionFailed("closed", step="open")

    stock = WarmBoxes(cast(Runtime, cast(Any, Slow())), BoxSpec(), 0)
    provider = LocalProvider(stock, most_opening=3)
    asked = []
    while not provider.busy:
        asked.append(asyncio.create_task(provider.create("bind")))
        await asyncio.sleep(0)
        assert len(asked) < 10_000
    assert len(asked) == 3
    opened.set()
    await asyncio.wait(asked)
    assert [type(task.exception()) for task in asked] == [ProvisionFailed] * len(asked)
    assert not provider.busy


@pytest.mark.parametrize("preference", [AUTO, "toys"])
async def test_a_binding_leaves_a_provider_that_is_gone_for_good(
    bindings: Bindings, maker: Maker, other: Maker, preference: str
) -> None:
    live, _ = await bindings.ensure(ADA, ASK)
    maker.error = ProviderUnavailable("no answer")
    maker.silent_for = 3600.0
    maker.made[0].in_use = True
    await bindings.reap()
    assert state_of(live) is SandboxState.ACTIVE
    maker.made[0].in_use = False
    await bindings.reap()
    assert state_of(live) is SandboxState.FAILED
    if preference == AUTO:
        _, sandbox = await bindings.ensure(ADA, ASK)
        assert ([sandbox], live.binding.provider) == (other.made, "others")
    else:
        with pytest.raises(ProviderUnavailable):
            await bindings.ensure(ADA, replace(ASK, provider=preference))
        assert other.made == []


async def test_a_binding_stays_with_a_provider_that_is_silent_for_a_moment(
    bindings: Bindings, maker: Maker, other: Maker
) -> None:
    live, _ = await bindings.ensure(ADA, ASK)
    maker.made[0].tell_gone()
    maker.error = ProviderUnavailable("no answer")
    maker.silent_for = 0.001
    with pytest.raises(ProviderUnavailable):
        await bindings.ensure(ADA, ASK)
    assert (live.binding.provider, other.made) == ("toys", [])


async def test_a_server_is_silent_between_tries_that_fail() -> None:
    """One failure long ago says nothing of now."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        peer = Peer("gone", f"http://127.0.0.1:{taken.getsockname()[1]}", "key")
        for _ in range(2):
            assert peer.silent_for == 0.0
            with pytest.raises(ProviderUnavailable):
                await peer.ask("GET", "/")
        assert peer.silent_for > 0.0
        await peer.close()

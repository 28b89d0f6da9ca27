"""Sessions in the broker: turns, removal in steps that can be taken again, and what a reaper survives."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.memory_store import DictStore
from tests.unit.stage import ADA, BOB, ROOT, Stage, until
from tidebox.broker.audit.audit_log import Audit
from tidebox.broker.broker import Broker
from tidebox.broker.runs.journaled import Receipt
from tidebox.broker.runs.run_files import FileManager
from tidebox.broker.runs.run_plan import RunPlan
from tidebox.errors import NodeLost, NotFound, StoreUnavailable, WrongNode
from tidebox.model.box import BoxSpec
from tidebox.model.idempotency import Claim
from tidebox.model.ids import new_id
from tidebox.model.launch import plan_code
from tidebox.model.principal import Caller
from tidebox.model.run import Phase, Reason, RunFacts
from tidebox.model.session import Session
from tidebox.store.base import SessionCreation

MakeBroker = Callable[..., Awaitable[Broker]]


class Shelf(FileManager):
    """Remembers which sessions' files were to be removed."""

    def __init__(self) -> None:
        self.forgotten: list[str] = []
        self.fails = 0

    async def forget_session(self, session_id: str) -> None:
        if self.fails:
            self.fails -= 1
            raise OSError("the disk is away")
        self.forgotten.append(session_id)


class AwayStore(DictStore):
    """A store that can be taken away from the reaper."""

    away = False

    async def expired_sessions(self, now: float, node_id: str) -> list[Session]:
        if self.away:
            raise StoreUnavailable("the store is away")
        return await super().expired_sessions(now, node_id)


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
async def make_broker(stage: Stage, shelf: Shelf, tmp_path: Path) -> AsyncIterator[MakeBroker]:
    made: list[Broker] = []

    async def make(store: DictStore | None = None, **options: Any) -> Broker:
        options = {"reaper_interval": 0.01} | options
        broker = Broker(
            runner=stage, store=store or DictStore(), audit=Audit(tmp_path / "audit"), file_manager=shelf, **options
        )
        made.append(broker)
        await broker.start()
        return broker

    yield make
    for broker in made:
        await broker.close()
    await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})


def make_session(caller: Caller = ADA, ttl: float = 60.0) -> Session:
    now = time.time()
    return Session(
        id=new_id("ses"),
        caller=caller,
        runtime="native",
        base_image="host",
        spec_version="1.0",
        policy={},
        policy_hash="f00d",
        created_at=now,
        expires_at=now + ttl,
    )


async def submit(broker: Broker, session: Session | None = None, caller: Caller = ADA) -> Receipt:
    facts = RunFacts(
        runtime="native",
        base_image="host",
        spec_version="1.0",
        policy_hash="f00d",
        session_id=session.id if session is not None else None,
    )
    return await broker.runs.submit(caller, facts, RunPlan(launch=plan_code("python", ""), spec=BoxSpec()))


async def phase_of(broker: Broker, receipt: Receipt) -> Phase:
    return (await broker.runs.get(ROOT, receipt.run.id)).phase


async def test_runs_of_a_session_take_turns_in_their_order(make_broker: MakeBroker, stage: Stage) -> None:
    broker = await make_broker(max_concurrent=4)
    session = (await broker.sessions.create(ADA, make_session())).session
    receipts = [await submit(broker, session) for _ in range(3)]
    assert [receipt.run.phase for receipt in receipts] == [Phase.STARTING, Phase.QUEUED, Phase.QUEUED]
    assert all(receipt.expected_wait is not None for receipt in receipts[1:])
    for number in range(3):
        play = await stage.play(number)
        assert broker.load.active == 1
        play.finish()
    await until(lambda: broker.load.active == 0)
    assert [await phase_of(broker, receipt) for receipt in receipts] == [Phase.COMPLETED] * 3


async def test_a_session_that_waits_holds_up_nobody_else(make_broker: MakeBroker, stage: Stage) -> None:
    broker = await make_broker(max_concurrent=2)
    session = (await broker.sessions.create(ADA, make_session())).session
    await submit(broker, session)
    await submit(broker, session)
    alone = await submit(broker)
    assert alone.run.phase is Phase.STARTING
    # The slot that becomes free is not for the one whose session is busy.
    other = await submit(broker)
    assert other.run.phase is Phase.QUEUED
    (await stage.play(1)).finish()
    await until(lambda: len(stage.plays) == 3)
    assert broker.load.queued == 1


async def test_deleting_ends_its_runs_and_then_removes_its_files(
    make_broker: MakeBroker, stage: Stage, shelf: Shelf
) -> None:
    broker = await make_broker()
    session = (await broker.sessions.create(ADA, make_session())).session
    running, waiting = await submit(broker, session), await submit(broker, session)
    await stage.play(0)
    await broker.sessions.delete(ADA, session.id)
    for receipt in (running, waiting):
        run = await broker.runs.get(ADA, receipt.run.id)
        assert (run.phase, run.reason) == (Phase.KILLED, Reason.SESSION_DELETED)
    assert shelf.forgotten == [session.id]
    with pytest.raises(NotFound):
        await submit(broker, session)


async def test_several_who_delete_delete_once(make_broker: MakeBroker, shelf: Shelf) -> None:
    broker = await make_broker()
    session = (await broker.sessions.create(ADA, make_session())).session
    answers = await asyncio.gather(*(broker.sessions.delete(ADA, session.id) for _ in range(5)), return_exceptions=True)
    assert all(answer is None or isinstance(answer, NotFound) for answer in answers)
    assert shelf.forgotten == [session.id]


async def test_a_session_is_visible_to_its_owner_only(make_broker: MakeBroker) -> None:
    broker = await make_broker()
    session = (await broker.sessions.create(ADA, make_session())).session
    assert await broker.sessions.get(ROOT, session.id) == session
    for forbidden in (broker.sessions.get(BOB, session.id), broker.sessions.delete(BOB, session.id)):
        with pytest.raises(NotFound):
            await forbidden
    assert (await broker.sessions.list(ADA, limit=9, offset=0)).sessions == (session,)
    assert (await broker.sessions.list(BOB, limit=9, offset=0)).sessions == ()


async def test_the_reaper_ends_expired_sessions(make_broker: MakeBroker, stage: Stage, shelf: Shelf) -> None:
    broker = await make_broker()
    short, long = make_session(ttl=0.05), make_session()
    for session in (short, long):
        await broker.sessions.create(ADA, session)
    receipt = await submit(broker, short)
    await until(lambda: shelf.forgotten == [short.id])
    run = await broker.runs.get(ADA, receipt.run.id)
    assert (run.phase, run.reason) == (Phase.KILLED, Reason.SESSION_EXPIRED)
    assert (await broker.sessions.get(ADA, long.id)).id == long.id


async def test_the_reaper_goes_on_after_failures(make_broker: MakeBroker, shelf: Shelf) -> None:
    store = AwayStore()
    broker = await make_broker(store)
    store.away = True
    shelf.fails = 2
    session = make_session(ttl=0.01)
    await broker.sessions.create(ADA, session)
    await asyncio.sleep(0.05)
    assert shelf.forgotten == []
    store.away = False
    await until(lambda: shelf.forgotten == [session.id])


async def test_a_removal_that_was_interrupted_is_finished_by_the_next(make_broker: MakeBroker, shelf: Shelf) -> None:
    store = DictStore()
    session = make_session()
    first = await make_broker(store)
    await first.sessions.create(ADA, session)
    await store.close_session(session.id)
    with pytest.raises(NotFound):
        await first.sessions.get(ADA, session.id)
    await until(lambda: shelf.forgotten == [session.id])
    assert await store.session(session.id) is None


async def test_a_repeated_request_gets_the_first_session(make_broker: MakeBroker) -> None:
    broker = await make_broker()
    claim = Claim("sessions", "ada", "key", "body")
    receipts = await asyncio.gather(*(broker.sessions.create(ADA, make_session(), claim) for _ in range(5)))
    assert len({receipt.session.id for receipt in receipts}) == 1
    assert [receipt.answered is None for receipt in receipts].count(True) == 1


async def test_a_session_of_another_node_is_refused_and_one_of_a_lost_node_is_told_as_lost(
    make_broker: MakeBroker, shelf: Shelf
) -> None:
    store = DictStore()
    broker = await make_broker(store)
    own = (await broker.sessions.create(ADA, make_session())).session
    assert own.node_id == broker.membership.node_id
    assert await broker.sessions.here(ADA, own.id) == own
    await store.join_node("other", "its home", 8.0)
    theirs = replace(make_session(), node_id="other")
    await store.create_session(SessionCreation(session=theirs))
    assert await broker.sessions.get(ADA, theirs.id) == theirs
    for use in (broker.sessions.here, broker.sessions.delete):
        with pytest.raises(WrongNode) as refused:
            await use(ADA, theirs.id)
        assert refused.value.details == {"session_id": theirs.id, "node_id": "other"}
        with pytest.raises(NotFound):
            await use(BOB, theirs.id)
    # It is lost.
    me = await store.join_node("me", "my home", 8.0)
    await store.take_over(me, (await store.beat(me)).others, 1.0)
    for ask in (broker.sessions.get, broker.sessions.here):
        with pytest.raises(NodeLost) as lost:
            await ask(ADA, theirs.id)
        assert lost.value.details == {"session_id": theirs.id, "node_id": "other"}
    # It is back, and so are its sessions.
    await store.join_node("other", "its home", 8.0)
    assert await broker.sessions.get(ADA, theirs.id) == theirs
    await store.take_over(me, (await store.beat(me)).others, 1.0)
    await broker.sessions.delete(ADA, theirs.id)
    with pytest.raises(NotFound):
        await broker.sessions.get(ADA, theirs.id)

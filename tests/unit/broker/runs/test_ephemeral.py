"""The ephemeral door: slots, the queue, cancel, failures, shutting down."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.memory_store import DictStore
from tests.unit.stage import ADA, BOB, Stage, Tally, audited, ignore, make_ending, make_order, until
from tidebox.broker.audit.audit_log import Audit
from tidebox.broker.broker import Broker, BrokerLoad
from tidebox.broker.runs.ephemeral import EphemeralExecution
from tidebox.errors import AuditUnavailable, BoxGone, InternalError, Overloaded, QueueExpired, ShuttingDown
from tidebox.model.events import Event, OutputEvent
from tidebox.model.execution_request import ExecutionOutcome
from tidebox.model.principal import Caller, Principal
from tidebox.model.result import Outcome

MakeBroker = Callable[..., Broker]


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.fixture
def tally() -> Tally:
    return Tally()


@pytest.fixture
async def make_broker(stage: Stage, tally: Tally, tmp_path: Path) -> AsyncIterator[MakeBroker]:
    made: list[Broker] = []

    def make(**options: Any) -> Broker:
        made.append(Broker(runner=stage, store=DictStore(), audit=Audit(tmp_path), metrics=tally, **options))
        return made[-1]

    yield make
    for broker in made:
        await broker.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_free_slot_is_taken_at_once(make_broker: MakeBroker, stage: Stage, tally: Tally) -> None:
    broker = make_broker(max_concurrent=2)
    executions = [broker.execute(ADA, make_order(), ignore) for _ in range(2)]
    assert broker.load == BrokerLoad(active=2, queued=0)
    (await stage.play(1)).finish(make_ending(exit_code=3))
    (await stage.play(0)).finish()
    assert (await executions[1].ending()).exit_code == 3
    assert (await executions[0].ending()).outcome is Outcome.EXITED
    assert broker.load == BrokerLoad(active=0, queued=0)
    assert sorted(tally.ends) == ["exit_code_0", "exit_code_nonzero"]
    assert len(tally.waits) == 2
    assert executions[0].id != executions[1].id
    assert executions[0].id.startswith("ex-")


async def test_its_end_is_told_to_everyone_who_asks_whenever(make_broker: MakeBroker, stage: Stage) -> None:
    execution = make_broker().execute(ADA, make_order(), ignore)
    impatient = asyncio.ensure_future(execution.ending())
    patient = [asyncio.ensure_future(execution.ending()) for _ in range(3)]
    play = await stage.play(0)
    impatient.cancel()
    await asyncio.wait([impatient])
    play.finish()
    assert {(await waiting).outcome for waiting in patient} == {Outcome.EXITED}
    assert (await execution.ending()).outcome is Outcome.EXITED


async def test_more_than_the_slots_wait_and_more_than_the_queue_are_refused(
    make_broker: MakeBroker, stage: Stage, tally: Tally, tmp_path: Path
) -> None:
    broker = make_broker(max_concurrent=1, queue_max=2, queue_ttl=60.0)
    executions = [broker.execute(ADA, make_order(), ignore) for _ in range(3)]
    assert broker.load == BrokerLoad(active=1, queued=2)
    with pytest.raises(Overloaded) as raised:
        broker.execute(ADA, make_order(), ignore)
    assert raised.value.retryable
    assert raised.value.details["retry_after"] >= 1
    assert tally.refusals == ["queue_full"]
    for number, execution in enumerate(executions):
        (await stage.play(number)).finish()
        await execution.ending()
    assert stage.most_on_stage == 1
    await broker.close()
    events = Counter(line["event"] for line in audited(tmp_path))
    assert events == {
        "sandbox.execution.accepted": 3,
        "sandbox.execution.ended": 3,
        "sandbox.execution.refused": 1,
    }


async def test_an_execution_expires_in_the_queue(make_broker: MakeBroker, stage: Stage, tally: Tally) -> None:
    broker = make_broker(max_concurrent=1, queue_ttl=0.02)
    running = broker.execute(ADA, make_order(), ignore)
    waiting = broker.execute(ADA, make_order(), ignore)
    with pytest.raises(QueueExpired):
        await waiting.ending()
    assert tally.ends == ["queue_ttl_expired"]
    assert broker.load == BrokerLoad(active=1, queued=0)
    waiting.cancel()
    (await stage.play(0)).finish()
    await running.ending()
    assert len(stage.plays) == 1


async def test_one_that_waits_is_canceled_at_once_and_never_runs(make_broker: MakeBroker, stage: Stage) -> None:
    broker = make_broker(max_concurrent=1)
    running = broker.execute(ADA, make_order(), ignore)
    waiting = broker.execute(ADA, make_order(), ignore)
    waiting.cancel()
    waiting.cancel()
    ending = await waiting.ending()
    assert (ending.outcome, ending.usage.wall_seconds, ending.exit_code) == (Outcome.CANCELLED, 0.0, None)
    (await stage.play(0)).finish()
    await running.ending()
    assert len(stage.plays) == 1


async def test_a_running_execution_is_canceled_by_its_runner(make_broker: MakeBroker, stage: Stage) -> None:
    execution = make_broker().execute(ADA, make_order(), ignore)
    await stage.play(0)
    execution.cancel()
    execution.cancel()
    assert (await execution.ending()).outcome is Outcome.CANCELLED
    execution.cancel()
    assert (await execution.ending()).outcome is Outcome.CANCELLED


async def test_a_failure_of_the_machinery_is_its_caller_s_error(make_broker: MakeBroker, stage: Stage) -> None:
    broker = make_broker(max_concurrent=1)
    execution = broker.execute(ADA, make_order(), ignore)
    following = broker.execute(BOB, make_order(), ignore)
    (await stage.play(0)).fail(BoxGone("gone"))
    with pytest.raises(BoxGone):
        await execution.ending()
    (await stage.play(1)).finish()
    await following.ending()


async def test_a_defect_is_an_internal_error_and_keeps_its_words_out_of_the_log(
    make_broker: MakeBroker, stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    execution = make_broker().execute(ADA, make_order(), ignore)
    (await stage.play(0)).fail(KeyError("TOP-SECRET"))
    with caplog.at_level(logging.DEBUG), pytest.raises(InternalError) as raised:
        await execution.ending()
    assert "KeyError" in caplog.text
    assert "TOP-SECRET" not in caplog.text + raised.value.message
    assert raised.value.retryable


async def test_a_slow_listener_holds_up_nobody_else(make_broker: MakeBroker, stage: Stage) -> None:
    broker = make_broker()
    heard: list[Event] = []
    may_go_on = asyncio.Event()

    async def slow(event: Event) -> None:
        if isinstance(event, OutputEvent):
            await may_go_on.wait()
        heard.append(event)

    held_up = broker.execute(ADA, make_order(), slow)
    free = broker.execute(BOB, make_order(), ignore)
    saying = asyncio.ensure_future((await stage.play(0)).say(b"x"))
    (await stage.play(1)).finish()
    await free.ending()
    assert not saying.done()
    may_go_on.set()
    await saying
    (await stage.play(0)).finish()
    await held_up.ending()
    assert OutputEvent("stdout", b"x") in heard


async def test_draining_lets_what_there_is_end_and_refuses_the_rest(make_broker: MakeBroker, stage: Stage) -> None:
    broker = make_broker(max_concurrent=1)
    executions = [broker.execute(ADA, make_order(), ignore) for _ in range(2)]
    draining = asyncio.ensure_future(broker.drain(60.0))
    await asyncio.sleep(0)
    with pytest.raises(ShuttingDown):
        broker.execute(ADA, make_order(), ignore)
    for number in range(2):
        (await stage.play(number)).finish()
    await draining
    for execution in executions:
        assert (await execution.ending()).outcome is Outcome.EXITED


async def test_what_does_not_end_in_its_grace_is_canceled_as_a_failure_of_the_server(
    make_broker: MakeBroker, stage: Stage, tally: Tally
) -> None:
    broker = make_broker(max_concurrent=1)
    running, waiting = (broker.execute(ADA, make_order(), ignore) for _ in range(2))
    await stage.play(0)
    await broker.drain(0.01)
    for execution in (running, waiting):
        with pytest.raises(ShuttingDown):
            await execution.ending()
    assert tally.ends == ["server_shutdown"] * 2
    assert broker.load == BrokerLoad(0, 0)


@pytest.mark.parametrize("already_running", [True, False])
async def test_closing_ends_everything_at_once(make_broker: MakeBroker, stage: Stage, already_running: bool) -> None:
    broker = make_broker(max_concurrent=2)
    executions = [broker.execute(ADA, make_order(), ignore) for _ in range(4)]
    if already_running:
        await stage.play(1)
    await broker.close()
    for execution in executions:
        with pytest.raises(ShuttingDown):
            await execution.ending()
    assert broker.load == BrokerLoad(0, 0)
    assert stage.on_stage == 0


async def test_nothing_is_done_that_cannot_be_recorded(stage: Stage, tmp_path: Path, tally: Tally) -> None:
    broker = Broker(runner=stage, store=DictStore(), audit=Audit(tmp_path, max_backlog=0), metrics=tally)
    with pytest.raises(AuditUnavailable):
        broker.execute(ADA, make_order(), ignore)
    assert tally.refusals == ["audit_unavailable"]
    await broker.close()


@pytest.mark.parametrize("seed", range(5))
async def test_whatever_happens_everyone_accepted_is_told_one_end(
    make_broker: MakeBroker, stage: Stage, tally: Tally, tmp_path: Path, seed: int
) -> None:
    dice = random.Random(seed)
    broker = make_broker(
        max_concurrent=4, queue_max=20, queue_ttl=0.01, max_concurrent_per_user=2, queue_max_per_user=8
    )
    callers = [Caller(Principal(f"user-{number}"), "", "", "test") for number in range(5)]
    accepted: list[EphemeralExecution] = []
    ends: list[object] = []
    watching: list[asyncio.Task[None]] = []

    async def watch(execution: EphemeralExecution) -> None:
        try:
            ends.append((await execution.ending()).outcome)
        except (QueueExpired, BoxGone) as error:
            ends.append(type(error))

    def act() -> None:
        match dice.randrange(4):
            case 0 | 1:
                execution = broker.execute(dice.choice(callers), make_order(), ignore)
                accepted.append(execution)
                watching.append(asyncio.ensure_future(watch(execution)))
            case 2 if accepted:
                dice.choice(accepted).cancel()
            case 3 if unfinished := [play for play in stage.plays if not play.over]:
                play = dice.choice(unfinished)
                play.fail(BoxGone("gone")) if dice.random() < 0.2 else play.finish()

    for _ in range(600):
        try:
            act()
        except Overloaded:
            pass
        if dice.random() < 0.3:
            await asyncio.sleep(dice.choice([0, 0, 0, 0.002]))
        assert broker.load.active <= 4
        assert broker.load.queued <= 20
    for execution in accepted:
        execution.cancel()
    await asyncio.gather(*watching)
    assert len(ends) == len(accepted) == len(tally.ends)
    assert stage.most_on_stage <= 4
    assert broker.load == BrokerLoad(0, 0)
    await broker.close()
    lines = audited(tmp_path)
    counted = Counter(line["event"] for line in lines)
    assert counted["sandbox.execution.accepted"] == counted["sandbox.execution.ended"] == len(accepted)
    assert counted["sandbox.execution.refused"] == len(tally.refusals)
    for execution in accepted:
        own = [line["event"].rpartition(".")[2] for line in lines if line["execution_id"] == execution.id]
        assert own == ["accepted", "ended"]


async def test_an_execution_costs_few_turns_of_the_loop(make_broker: MakeBroker) -> None:
    broker = make_broker()
    turns = 0

    class AtOnce(Stage):
        async def run(self, *args: Any) -> ExecutionOutcome:
            return make_ending()

    broker._runner = AtOnce()
    execution = broker.execute(ADA, make_order(), ignore)
    ending = asyncio.ensure_future(execution.ending())
    while not ending.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns <= 3
    await until(lambda: broker.load == BrokerLoad(0, 0))

"""The journaled door: phases, log, idempotency, quotas, input, cancel, restarts, a store that goes away."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.memory_store import DictStore
from tests.unit.stage import ADA, BOB, ROOT, Stage, Tally, audited, ignore, make_ending, make_order, until
from tidebox.broker.audit.audit_log import Audit
from tidebox.broker.broker import Broker, BrokerLoad
from tidebox.broker.runs.journaled import Receipt, Retention
from tidebox.broker.runs.log_hub import LogHub, LogReader
from tidebox.broker.runs.quotas import Quotas
from tidebox.broker.runs.run_plan import RunPlan, encode_plan
from tidebox.broker.runs.stdin import StdinRules
from tidebox.broker.storage.log_files import LogFiles
from tidebox.broker.storage.log_frames import Gap, LogFrame
from tidebox.errors import (
    Conflict,
    Forbidden,
    IdempotencyConflict,
    NotFound,
    Overloaded,
    ProvisionFailed,
    QuotaExceeded,
    ShuttingDown,
    StoreInDoubt,
    StoreUnavailable,
)
from tidebox.model.box import BoxSpec
from tidebox.model.events import OutputEvent
from tidebox.model.idempotency import Answered, Claim
from tidebox.model.launch import plan_code
from tidebox.model.log import Began, Ended, InputClosed, LogEntry, PhaseChanged, Truncated
from tidebox.model.node import Owner
from tidebox.model.principal import Caller
from tidebox.model.result import Outcome
from tidebox.model.run import Conclusion, Phase, Reason, Run, RunFacts, Transition, ended
from tidebox.model.run_query import RunQuery
from tidebox.store.base import Creation, Estate

MakeBroker = Callable[..., Awaitable[Broker]]
FACTS = RunFacts(runtime="native", base_image="host", spec_version="1.0", policy_hash="f00d")


class DurableStore(DictStore):
    """Kept by the test from one server to the next, so that servers may rely on it."""

    durable = True


class UnreliableStore(DurableStore):
    """A store that can be taken away."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False
        self.missed = 0

    def _be_there(self) -> None:
        if self.away:
            self.missed += 1
            raise StoreUnavailable("the store is away")

    async def create_run(self, creation: Creation) -> Answered | None:
        self._be_there()
        return await super().create_run(creation)

    async def advance_run(self, run: Run, step: Transition) -> Run | None:
        self._be_there()
        return await super().advance_run(run, step)


class MuteStore(DurableStore):
    """A store that keeps things and does not say so."""

    def __init__(self) -> None:
        super().__init__()
        self.mute = 0
        self.away = False

    def _answer_or_not(self) -> None:
        if self.mute:
            self.mute -= 1
            raise StoreInDoubt("no answer")

    async def create_run(self, creation: Creation) -> Answered | None:
        found = await super().create_run(creation)
        self._answer_or_not()
        return found

    async def advance_run(self, run: Run, step: Transition) -> Run | None:
        found = await super().advance_run(run, step)
        self._answer_or_not()
        return found

    async def run(self, run_id: str) -> Run | None:
        if self.away:
            raise StoreUnavailable("the store is away")
        return await super().run(run_id)


class SlowStore(DictStore):
    """A store that takes its time, during which others come."""

    async def create_run(self, creation: Creation) -> Answered | None:
        await asyncio.sleep(0.001)
        return await super().create_run(creation)

    async def answered(self, claim: Claim, valid_after: float) -> Answered | None:
        await asyncio.sleep(0)
        return await super().answered(claim, valid_after)


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.fixture
def tally() -> Tally:
    return Tally()


@pytest.fixture
async def make_broker(stage: Stage, tally: Tally, tmp_path: Path) -> AsyncIterator[MakeBroker]:
    made: list[Broker] = []

    async def make(store: DictStore | None = None, **options: Any) -> Broker:
        audit = Audit(tmp_path / "audit")
        made.append(Broker(runner=stage, store=store or DictStore(), audit=audit, metrics=tally, **options))
        await made[-1].start()
        return made[-1]

    yield make
    for broker in made:
        await broker.close()
    await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})


def make_work(code: str = "", **options: Any) -> RunPlan:
    return RunPlan(launch=plan_code("python", code, env=options.pop("env", None)), spec=BoxSpec(), **options)


async def submit(broker: Broker, caller: Caller = ADA, claim: Claim | None = None, **work: Any) -> Receipt:
    return await broker.runs.submit(caller, FACTS, make_work(**work), claim)


async def entries(reader: LogReader) -> list[LogEntry]:
    """The rest of a log."""
    found: list[LogEntry] = []
    while batch := await reader.read():
        found += [item.entry for item in batch if isinstance(item, LogFrame)]
    return found


async def finished(broker: Broker, run: Run, caller: Caller = ADA) -> Run:
    """The run once it is over."""
    *_, last = await entries(await broker.runs.read_log(caller, run.id))
    assert isinstance(last, Ended)
    assert await broker.runs.get(caller, run.id) == last.run
    return last.run


async def test_a_run_from_its_beginning_to_its_end(
    make_broker: MakeBroker, stage: Stage, tally: Tally, tmp_path: Path
) -> None:
    broker = await make_broker()
    receipt = await submit(broker)
    assert (receipt.run.phase, receipt.answered, receipt.expected_wait) == (Phase.STARTING, None, None)
    assert receipt.run.started_at is not None
    play = await stage.play(0)
    await until(lambda: broker.load == BrokerLoad(1, 0))
    assert (await broker.runs.get(ADA, receipt.run.id)).phase is Phase.RUNNING
    await play.say(b"hello")
    play.finish()
    run = await finished(broker, receipt.run)
    assert (run.phase, run.reason, run.exit_code) == (Phase.COMPLETED, Reason.EXIT_ZERO, 0)
    assert run.usage == make_ending().usage
    assert (run.log_bytes, run.log_truncated) == (5, False)
    log = await entries(await broker.runs.read_log(ADA, run.id))
    assert [type(entry) for entry in log] == [PhaseChanged, PhaseChanged, Began, OutputEvent, Ended]
    assert (tally.ends, len(tally.waits)) == (["exit_code_0"], 1)
    await broker.close()
    lines = [line for line in audited(tmp_path / "audit") if line["event"] != "sandbox.run.log_read"]
    names = ["created", "starting", "running", "completed"]
    assert [line["event"] for line in lines] == [f"sandbox.run.{name}" for name in names]
    assert all(line["run_id"] == run.id and line["policy_hash"] == "f00d" for line in lines)
    assert (lines[-1]["exit_code"], lines[-1]["outcome"]) == (0, "exit_code_0")
    used = {"cpu_time_sec": 0.25, "wall_time_sec": 0.5, "peak_rss_mb": None, "log_bytes": 5, "artifact_bytes": 0}
    assert lines[-1]["resource_usage"] == used


async def test_both_doors_share_the_slots(make_broker: MakeBroker, stage: Stage) -> None:
    broker = await make_broker(max_concurrent=1)
    execution = broker.execute(BOB, make_order(), ignore)
    receipt = await submit(broker)
    assert receipt.run.phase is Phase.QUEUED
    assert receipt.run.started_at is None
    assert receipt.expected_wait is not None
    assert broker.load == BrokerLoad(1, 1)
    (await stage.play(0)).finish()
    await execution.ending()
    (await stage.play(1)).finish()
    run = await finished(broker, receipt.run)
    assert run.phase is Phase.COMPLETED
    log = await entries(await broker.runs.read_log(ADA, run.id))
    assert log[:2] == [PhaseChanged(Phase.QUEUED), PhaseChanged(Phase.STARTING)]


async def test_a_full_queue_makes_no_run(make_broker: MakeBroker, tally: Tally, tmp_path: Path) -> None:
    broker = await make_broker(max_concurrent=1, queue_max=0)
    await submit(broker)
    with pytest.raises(Overloaded):
        await submit(broker)
    assert (await broker.runs.list(ADA, RunQuery())).total == 1
    assert tally.refusals == ["queue_full"]
    await broker.close()
    assert [line["outcome"] for line in audited(tmp_path / "audit") if line["event"] == "sandbox.run.refused"] == [
        "queue_full"
    ]


async def test_a_run_that_waits_too_long_fails(make_broker: MakeBroker, stage: Stage) -> None:
    broker = await make_broker(max_concurrent=1, queue_ttl=0.01)
    await submit(broker)
    run = await finished(broker, (await submit(broker)).run)
    assert (run.phase, run.reason, run.started_at) == (Phase.FAILED, Reason.QUEUE_TTL_EXPIRED, None)
    assert len(stage.plays) == 1


@pytest.mark.parametrize("state", ["queued", "starting", "running"])
async def test_a_run_is_canceled_in_any_state(make_broker: MakeBroker, stage: Stage, state: str) -> None:
    broker = await make_broker(max_concurrent=1)
    if state == "queued":
        await submit(broker)
    if state == "starting":
        stage.doors_open.clear()
    receipt = await submit(broker)
    if state == "running":
        await stage.play(0)
    elif state == "starting":
        await until(lambda: len(stage.plays) == 1)
    for _ in range(3):
        await broker.runs.cancel(ADA, receipt.run.id)
    run = await finished(broker, receipt.run)
    assert (run.phase, run.reason, run.message) == (Phase.KILLED, Reason.CANCELED_BY_USER, "canceled_by_user")
    assert await broker.runs.cancel(ADA, run.id) == run
    log = await entries(await broker.runs.read_log(ADA, run.id))
    assert sum(isinstance(entry, Ended) for entry in log) == 1


async def test_a_run_is_canceled_before_it_did_anything(make_broker: MakeBroker, stage: Stage) -> None:
    broker = await make_broker()
    receipt = await submit(broker)
    await broker.runs.cancel(ADA, receipt.run.id)
    assert (await finished(broker, receipt.run)).phase is Phase.KILLED


async def test_a_program_that_cannot_be_started_in_time(make_broker: MakeBroker, stage: Stage) -> None:
    broker = await make_broker()
    stage.doors_open.clear()
    run = await finished(broker, (await submit(broker, startup_timeout=0.01)).run)
    assert (run.phase, run.reason) == (Phase.TIMED_OUT, Reason.STARTUP_TIMEOUT)
    assert broker.load == BrokerLoad(0, 0)


async def test_the_time_to_start_does_not_count_for_the_program(make_broker: MakeBroker, stage: Stage) -> None:
    broker = await make_broker()
    receipt = await submit(broker, startup_timeout=0.02)
    play = await stage.play(0)
    await asyncio.sleep(0.05)
    play.finish(make_ending(Outcome.TIMEOUT, None))
    run = await finished(broker, receipt.run)
    assert (run.phase, run.reason) == (Phase.TIMED_OUT, Reason.EXECUTION_TIMEOUT)


@pytest.mark.parametrize(
    ("error", "reason"),
    [(ProvisionFailed("no"), Reason.PROVISION_FAILED), (TimeoutError(), Reason.RUNTIME_ERROR)],
)
async def test_a_failure_of_the_machinery_fails_the_run(
    make_broker: MakeBroker, stage: Stage, error: Exception, reason: Reason
) -> None:
    broker = await make_broker()
    receipt = await submit(broker)
    (await stage.play(0)).fail(error)
    run = await finished(broker, receipt.run)
    assert (run.phase, run.reason) == (Phase.FAILED, reason)


async def test_a_program_that_is_over_before_it_is_said_to_have_begun(make_broker: MakeBroker, stage: Stage) -> None:
    broker = await make_broker()
    stage.announces = False
    receipt = await submit(broker)
    await until(lambda: len(stage.plays) == 1)
    stage.plays[0].finish()
    assert (await finished(broker, receipt.run)).phase is Phase.COMPLETED


async def test_the_log_is_cut_and_the_program_goes_on(make_broker: MakeBroker, stage: Stage) -> None:
    broker = await make_broker()
    receipt = await submit(broker, log_cap=10)
    play = await stage.play(0)
    assert play.order.spec.limits.output > 10**9
    for _ in range(4):
        await play.say(b"123456")
    play.finish()
    run = await finished(broker, receipt.run)
    assert (run.phase, run.log_bytes, run.log_truncated) == (Phase.COMPLETED, 10, True)
    log = await entries(await broker.runs.read_log(ADA, run.id))
    assert log[3:-1] == [OutputEvent("stdout", b"123456"), OutputEvent("stdout", b"1234"), Truncated("log_cap")]


async def test_readers_join_and_leave_while_the_program_writes(make_broker: MakeBroker, stage: Stage) -> None:
    broker = await make_broker()
    receipt = await submit(broker)
    id = receipt.run.id
    play = await stage.play(0)
    early = await broker.runs.read_log(ADA, id)
    await play.say(b"a")
    tail = await broker.runs.read_log(ADA, id, tail=True)
    await play.say(b"b")
    resumed = await broker.runs.read_log(ADA, id, 3)
    play.finish()
    *readings, first = [[type(entry) for entry in await entries(reader)] for reader in (tail, resumed, early)]
    assert readings == [[OutputEvent, Ended], [Began, OutputEvent, OutputEvent, Ended]]
    assert first == [PhaseChanged, PhaseChanged, Began, OutputEvent, OutputEvent, Ended]


async def test_input_reaches_the_program(make_broker: MakeBroker, stage: Stage) -> None:
    broker = await make_broker()
    receipt = await submit(broker, interactive=StdinRules(max_bytes=20))
    id = receipt.run.id
    # Also before the program runs.
    await broker.runs.write_stdin(ADA, id, b"one ")
    play = await stage.play(0)
    stdin = play.order.stdin
    assert isinstance(stdin, AsyncIterator)
    assert await anext(stdin) == b"one "
    with pytest.raises(NotFound):
        await broker.runs.write_stdin(BOB, id, b"x")
    with pytest.raises(Conflict):
        await broker.runs.write_stdin(ADA, id, b"x" * 20)
    assert [chunk async for chunk in stdin] == []
    play.finish()
    await finished(broker, receipt.run)
    assert InputClosed("stdin_max_bytes") in await entries(await broker.runs.read_log(ADA, id))
    with pytest.raises(Conflict, match="over"):
        await broker.runs.write_stdin(ADA, id, b"x")


async def test_input_ends_where_the_client_says(make_broker: MakeBroker, stage: Stage) -> None:
    broker = await make_broker()
    receipt = await submit(broker, interactive=StdinRules())
    play = await stage.play(0)
    await broker.runs.write_stdin(ADA, receipt.run.id, b"all")
    await broker.runs.close_stdin(ADA, receipt.run.id)
    stdin = play.order.stdin
    assert isinstance(stdin, AsyncIterator)
    assert [chunk async for chunk in stdin] == [b"all"]
    plain = await submit(broker, stdin=b"given")
    assert (await stage.play(1)).order.stdin == b"given"
    with pytest.raises(Conflict, match="interactive"):
        await broker.runs.write_stdin(ADA, plain.run.id, b"x")


async def test_a_run_is_its_user_s_alone(make_broker: MakeBroker) -> None:
    broker = await make_broker()
    run = (await submit(broker)).run
    await submit(broker, BOB)
    for forbidden in (broker.runs.get, broker.runs.cancel, broker.runs.read_log, broker.runs.close_stdin):
        for id in (run.id, "run-none"):
            with pytest.raises(NotFound) as raised:
                await forbidden(BOB, id)
            assert raised.value.message == "no such run"
    assert (await broker.runs.get(ROOT, run.id)).id == run.id
    assert (await broker.runs.list(BOB, RunQuery(user="ada"))).total == 1
    assert [found.user for found in (await broker.runs.list(BOB, RunQuery(user="ada"))).runs] == ["bob"]
    assert (await broker.runs.list(ROOT, RunQuery())).total == 2


def claim(body: str = "body", key: str = "k") -> Claim:
    return Claim("runs", "ada", key, body)


async def test_a_repeated_request_runs_once(make_broker: MakeBroker, stage: Stage) -> None:
    broker = await make_broker(max_concurrent=1, queue_max=0)
    first = await submit(broker, claim=claim())
    await stage.play(0)
    # Also when there would be no room for another.
    second = await submit(broker, claim=claim())
    assert second.run == first.run
    assert second.answered is not None
    assert second.answered.created_at == first.run.created_at
    with pytest.raises(IdempotencyConflict) as raised:
        await submit(broker, claim=claim("other"))
    assert raised.value.details["prior_id"] == first.run.id
    stage.plays[0].finish()
    await finished(broker, first.run)
    assert (await submit(broker, claim=claim())).run == first.run
    assert len(stage.plays) == 1


async def test_only_an_admin_sees_the_keys(make_broker: MakeBroker) -> None:
    broker = await make_broker()
    run = (await submit(broker, claim=claim())).run
    with pytest.raises(Forbidden):
        await broker.runs.list_answered(ADA)
    [answered] = await broker.runs.list_answered(ROOT, endpoint="runs", user="ada")
    assert (answered.object_id, answered.claim) == (run.id, claim())
    assert broker.store_mode == "memory"


async def test_an_old_key_is_used_again(make_broker: MakeBroker) -> None:
    broker = await make_broker(retention=Retention(claims=0.0))
    first, second = [await submit(broker, claim=claim()) for _ in range(2)]
    assert first.run.id != second.run.id


@pytest.mark.parametrize("store", [DictStore, SlowStore])
async def test_concurrent_identical_requests_make_one_run(
    make_broker: MakeBroker, stage: Stage, store: type[DictStore]
) -> None:
    broker = await make_broker(store(), max_concurrent=100)
    receipts = await asyncio.gather(*(submit(broker, claim=claim()) for _ in range(30)))
    assert len({receipt.run.id for receipt in receipts}) == 1
    assert sum(receipt.answered is None for receipt in receipts) == 1
    await stage.play(0)
    assert broker.load == BrokerLoad(1, 0)
    assert len(stage.plays) == 1


async def test_a_quota_holds_also_among_concurrent_requests(make_broker: MakeBroker, stage: Stage) -> None:
    broker = await make_broker(SlowStore(), max_concurrent=100, quotas=Quotas(unfinished_runs=3))
    answers = await asyncio.gather(*(submit(broker) for _ in range(10)), return_exceptions=True)
    assert sum(isinstance(answer, Receipt) for answer in answers) == 3
    assert sum(isinstance(answer, QuotaExceeded) for answer in answers) == 7
    assert broker.load == BrokerLoad(3, 0)
    await submit(broker, BOB)


async def test_a_caller_who_goes_away_leaves_a_whole_run(make_broker: MakeBroker, stage: Stage) -> None:
    broker = await make_broker(SlowStore())
    submitting = asyncio.ensure_future(submit(broker, claim=claim()))
    await until(lambda: broker.load == BrokerLoad(1, 0))
    submitting.cancel()
    await asyncio.wait([submitting])
    (await stage.play(0)).finish()
    again = await submit(broker, claim=claim())
    assert again.answered is not None
    assert (await finished(broker, again.run)).phase is Phase.COMPLETED
    assert broker.load == BrokerLoad(0, 0)


async def test_shutting_down_leaves_the_queue_to_the_next_server(
    make_broker: MakeBroker, stage: Stage, tmp_path: Path
) -> None:
    store = DurableStore()
    broker = await make_broker(store, max_concurrent=1)
    running = (await submit(broker)).run
    waiting = (await submit(broker, claim=claim(), code="later")).run
    await stage.play(0)
    log = await broker.runs.read_log(ADA, waiting.id)
    await broker.drain(0.01)
    with pytest.raises(ShuttingDown):
        await submit(broker)
    killed = await finished(broker, running)
    assert (killed.phase, killed.reason) == (Phase.KILLED, Reason.SERVER_SHUTDOWN)
    assert await entries(log) == [PhaseChanged(Phase.QUEUED)]
    await broker.close()
    assert (await broker.runs.get(ADA, waiting.id)).phase is Phase.QUEUED

    following = await make_broker(store)
    play = await stage.play(1)
    assert play.order.launch.program.source == b"later"
    assert (await submit(following, claim=claim())).run == waiting
    play.finish()
    assert (await finished(following, waiting)).phase is Phase.COMPLETED


async def test_without_a_durable_store_the_queue_ends_with_the_server(make_broker: MakeBroker, stage: Stage) -> None:
    broker = await make_broker(max_concurrent=1)
    runs = [(await submit(broker)).run for _ in range(2)]
    await broker.drain(0.01)
    for run in runs:
        over = await finished(broker, run)
        assert (over.phase, over.reason) == (Phase.KILLED, Reason.SERVER_SHUTDOWN)


@pytest.mark.parametrize("already_running", [True, False])
async def test_closing_at_once_writes_down_what_became_of_the_runs(
    make_broker: MakeBroker, stage: Stage, already_running: bool
) -> None:
    store = DurableStore()
    broker = await make_broker(store, max_concurrent=2)
    runs = [(await submit(broker)).run for _ in range(3)]
    if already_running:
        await stage.play(1)
    await broker.close()
    phases = [found.phase for run in runs if (found := await store.run(run.id)) is not None]
    assert phases == [Phase.KILLED, Phase.KILLED, Phase.QUEUED]
    assert stage.on_stage == 0


async def test_a_run_that_is_just_being_accepted_when_the_server_closes(make_broker: MakeBroker) -> None:
    store = SlowStore()
    broker = await make_broker(store)
    submitting = asyncio.ensure_future(submit(broker))
    await until(lambda: broker.load == BrokerLoad(1, 0))
    await broker.close()
    await asyncio.wait([submitting])
    assert broker.load == BrokerLoad(0, 0)
    page = await store.list_runs(RunQuery())
    assert all(run.phase.terminal for run in page.runs)


async def test_runs_of_a_killed_server_are_recovered(make_broker: MakeBroker, stage: Stage) -> None:
    store = DurableStore()
    left = {}
    for number, name in enumerate(("starting", "running", "queued")):
        left[name] = Run(id=name, caller=ADA, facts=FACTS, created_at=float(number))
        await store.create_run(Creation(run=left[name], work=encode_plan(make_work(name))))
    for name in ("starting", "running"):
        await store.advance_run(left[name], Transition(to=Phase.STARTING, at=5.0))
    await store.advance_run(left["running"], Transition(to=Phase.RUNNING, at=6.0))

    # What was acknowledged is not refused, however little room there is.
    broker = await make_broker(store, max_concurrent=1, queue_max=0)
    failed = await broker.runs.get(ADA, "running")
    assert (failed.phase, failed.reason) == (Phase.FAILED, Reason.SERVER_RESTARTED)
    assert broker.load == BrokerLoad(active=1, queued=1)
    for number, name in enumerate(("starting", "queued")):
        play = await stage.play(number)
        assert play.order.launch.program.source == name.encode()
        play.finish()
        assert (await finished(broker, await broker.runs.get(ADA, name))).phase is Phase.COMPLETED


async def test_a_run_that_cannot_be_read_does_not_stop_recovery_of_others(
    make_broker: MakeBroker, stage: Stage
) -> None:
    store = DurableStore()
    for number, (name, work) in enumerate((("broken", b"[1]"), ("whole", encode_plan(make_work("whole"))))):
        run = Run(id=name, caller=ADA, facts=FACTS, created_at=float(number))
        await store.create_run(Creation(run=run, work=work))
    broker = await make_broker(store)
    broken = await broker.runs.get(ADA, "broken")
    assert (broken.phase, broken.reason) == (Phase.FAILED, Reason.SERVER_RESTARTED)
    (await stage.play(0)).finish()
    assert (await finished(broker, await broker.runs.get(ADA, "whole"))).phase is Phase.COMPLETED


async def test_a_store_that_goes_away_holds_up_ends_but_loses_none(make_broker: MakeBroker, stage: Stage) -> None:
    store = UnreliableStore()
    broker = await make_broker(store)
    run = (await submit(broker)).run
    play = await stage.play(0)
    store.away = True
    with pytest.raises(StoreUnavailable):
        await submit(broker)
    play.finish()
    await until(lambda: store.missed > 1)
    assert broker.load == BrokerLoad(0, 0)
    assert (await broker.runs.get(ADA, run.id)).phase is Phase.RUNNING
    store.away = False
    assert (await finished(broker, run)).phase is Phase.COMPLETED


@pytest.mark.parametrize("max_concurrent", [1, 2])
async def test_a_step_whose_answer_is_lost_is_taken_all_the_same(
    make_broker: MakeBroker, stage: Stage, max_concurrent: int
) -> None:
    store = MuteStore()
    broker = await make_broker(store, max_concurrent=max_concurrent)
    first = (await submit(broker)).run
    play = await stage.play(0)
    # Accepted, starting where it had to wait for that, running, over: each step once without an answer.
    store.mute = 1
    second = (await submit(broker)).run
    store.mute = 1
    play.finish()
    assert (await finished(broker, first)).phase is Phase.COMPLETED
    store.mute = 2
    (await stage.play(1)).finish()
    assert (await finished(broker, second)).phase is Phase.COMPLETED
    assert store.mute == 0


async def test_a_run_in_doubt_is_ended(make_broker: MakeBroker, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidebox.broker.runs.journaled._PRUNE_SECONDS", 0.01)
    store = MuteStore()
    broker = await make_broker(store)
    store.mute, store.away = 1, True
    with pytest.raises(StoreUnavailable):
        await submit(broker)
    assert broker.load == BrokerLoad(0, 0)
    store.away = False
    [run] = (await store.list_runs(RunQuery())).runs
    while not run.phase.terminal:
        await asyncio.sleep(0.01)
        run = await broker.runs.get(ADA, run.id)
    assert (run.phase, run.reason) == (Phase.FAILED, Reason.RUNTIME_ERROR)
    assert not stage.plays


async def test_a_server_ends_also_when_the_store_is_away(make_broker: MakeBroker, stage: Stage) -> None:
    store = UnreliableStore()
    broker = await make_broker(store)
    run = (await submit(broker)).run
    await stage.play(0)
    log = await broker.runs.read_log(ADA, run.id, tail=True)
    store.away = True
    await broker.drain(0.01)
    await broker.close()
    assert await entries(log) == []
    assert (await store.run(run.id) or run).phase is Phase.RUNNING


async def test_a_run_that_somebody_else_ended_is_not_ended_again(make_broker: MakeBroker, stage: Stage) -> None:
    store = DurableStore()
    broker = await make_broker(store)
    run = (await submit(broker)).run
    play = await stage.play(0)
    log = await broker.runs.read_log(ADA, run.id, tail=True)
    lost = Conclusion(phase=Phase.FAILED, reason=Reason.SERVER_RESTARTED)
    theirs = await store.advance_run(run, ended(lost, 5.0))
    play.finish()
    assert await entries(log) == []
    assert await store.run(run.id) == theirs


async def test_a_node_that_cannot_be_heard_of_ends_what_runs_and_keeps_what_waits(
    make_broker: MakeBroker, stage: Stage
) -> None:
    broker = await make_broker(DurableStore(), max_concurrent=1)
    running, waiting = (await submit(broker)).run, (await submit(broker)).run
    await stage.play(0)
    await broker.runs.stop()
    over = await finished(broker, running)
    assert (over.phase, over.reason) == (Phase.FAILED, Reason.NODE_LOST)
    (await stage.play(1)).finish()
    assert (await finished(broker, waiting)).phase is Phase.COMPLETED


async def test_a_node_that_was_forgotten_lets_go_of_everything_and_ends_nothing(
    make_broker: MakeBroker, stage: Stage
) -> None:
    store = DurableStore()
    broker = await make_broker(store, max_concurrent=1)
    running, waiting = (await submit(broker)).run, (await submit(broker)).run
    await stage.play(0)
    log = await broker.runs.read_log(ADA, running.id, tail=True)
    # Another node has taken everything.
    theirs = {run.id: run for run, _ in await store.recover_runs(Owner("other", 1))}
    await broker.runs.abandon()
    assert broker.load == BrokerLoad(0, 0)
    assert await entries(log) == []
    assert [await store.run(run.id) for run in (running, waiting)] == [theirs[running.id], theirs[waiting.id]]
    with pytest.raises(Conflict, match="another server has this run"):
        await broker.runs.cancel(ADA, running.id)


async def test_what_is_inherited_is_done_once_however_often_it_is_told(make_broker: MakeBroker, stage: Stage) -> None:
    store = DurableStore()
    broker = await make_broker(store, max_concurrent=1)
    blocker = (await submit(broker)).run
    left = Run(id="left", caller=ADA, facts=FACTS, created_at=1.0, owner=blocker.owner, attempt=2)
    work = encode_plan(make_work("left"))
    await store.create_run(Creation(run=left, work=work))
    for _ in range(2):
        await broker.runs.inherit(Estate(runs=((left, work),)))
    assert broker.load == BrokerLoad(active=1, queued=1)
    (await stage.play(0)).finish()
    (await stage.play(1)).finish()
    assert (await finished(broker, left)).phase is Phase.COMPLETED
    # Numbers begin after all that may have been used before.
    log = await broker.runs.read_log(ADA, left.id, 3)
    first = (await log.read())[0]
    assert isinstance(first, Gap)
    assert first.delivered > 100_000


async def test_neither_code_nor_environment_nor_input_is_recorded(
    make_broker: MakeBroker, stage: Stage, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker = await make_broker()
    secret = "TOP-SECRET"
    facts = dataclasses.replace(FACTS, labels={"note": secret})
    work = make_work(secret, env={secret: secret}, stdin=secret.encode(), files={"/workspace/x": secret.encode()})
    run = (await broker.runs.submit(ADA, facts, work)).run
    play = await stage.play(0)
    await play.say(secret.encode())
    play.fail(RuntimeError(secret))
    await finished(broker, run)
    await broker.close()
    assert secret not in "".join(str(line) for line in audited(tmp_path / "audit")) + caplog.text


async def test_old_runs_and_keys_are_forgotten(
    make_broker: MakeBroker, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidebox.broker.runs.journaled._PRUNE_SECONDS", 0.001)
    store = DictStore()
    broker = await make_broker(store, retention=Retention(claims=0.01, runs=0.01))
    await submit(broker, claim=claim())
    (await stage.play(0)).finish()
    while (await store.list_runs(RunQuery())).total or await store.list_answered():  # noqa: ASYNC110 # time passes
        await asyncio.sleep(0.001)


async def test_the_oldest_logs_go_where_there_are_too_many(
    make_broker: MakeBroker, stage: Stage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tidebox.broker.runs.journaled._PRUNE_SECONDS", 0.001)
    logs = tmp_path / "runs"
    hub = LogHub(LogFiles(logs), kept_channels=0)
    broker = await make_broker(retention=Retention(log_bytes=1500), hub=hub)
    runs, plays = [], []
    for number in range(3):
        runs.append((await submit(broker)).run)
        plays.append(await stage.play(number))
        await plays[-1].say(b"x" * 1000)
        if number < 2:
            plays[-1].finish()
            await finished(broker, runs[-1])
    # The last one goes on, and is never among them.
    await until(lambda: os.listdir(logs) == [runs[2].id], 0.001)
    for gone in runs[:2]:
        for ask in (broker.runs.read_log, broker.runs.read_log_so_far, broker.runs.stored_log):
            with pytest.raises(NotFound, match="not kept any more"):
                await ask(ADA, gone.id)
    plays[2].finish()
    await finished(broker, runs[2])


async def test_logs_go_with_their_runs_and_a_store_that_is_away_is_asked_again(
    make_broker: MakeBroker, stage: Stage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tidebox.broker.runs.journaled._PRUNE_SECONDS", 0.001)
    store, logs = DictStore(), tmp_path / "runs"
    failures = 3

    async def prune(*, claims_before: float, runs_before: float) -> None:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise StoreUnavailable("the store is away")
        await DictStore.prune(store, claims_before=claims_before, runs_before=runs_before)

    monkeypatch.setattr(store, "prune", prune)
    broker = await make_broker(store, retention=Retention(claims=0.01, runs=0.05), hub=LogHub(LogFiles(logs)))
    run = (await submit(broker)).run
    play = await stage.play(0)
    await play.say(b"hello")
    play.finish()
    await finished(broker, run)
    assert os.listdir(logs) == [run.id]
    await until(lambda: not os.listdir(logs), 0.001)
    assert failures < 0

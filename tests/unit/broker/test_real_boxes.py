"""Both doors with real programs in real boxes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.boxes import BoxRunner, is_root, native, start_runner, stop_runner
from tests.memory_store import DictStore
from tests.unit.stage import ADA, BOB, ignore, until
from tidebox.broker.audit.audit_log import Audit
from tidebox.broker.broker import Broker, BrokerLoad
from tidebox.broker.runs.run_plan import RunPlan
from tidebox.broker.runs.stdin import StdinRules
from tidebox.broker.storage.log_frames import LogFrame
from tidebox.errors import BoxGone, ShuttingDown
from tidebox.model.box import BoxSpec
from tidebox.model.events import Event, Exited, OutputEvent, Started
from tidebox.model.execution_request import ExecutionRequest
from tidebox.model.launch import plan_code
from tidebox.model.limits import MIB, Limits
from tidebox.model.log import Began, Ended, LogEntry, PhaseChanged, Truncated
from tidebox.model.result import Outcome
from tidebox.model.run import Phase, Reason, Run, RunFacts

FACTS = RunFacts(runtime="native", base_image="host", spec_version="1.0", policy_hash="f00d")
Scenario = Callable[[Broker], Awaitable[None]]
Play = Callable[..., None]

STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up'); time.sleep(60)"


async def with_broker(runner: BoxRunner, scenario: Scenario, audit: Path, **options: Any) -> None:
    """Play a scenario with a broker of its own; nothing of it may be left."""
    broker = Broker(runner=runner.engine.driver, store=DictStore(), audit=Audit(audit), **options)
    await broker.start()
    try:
        await scenario(broker)
    finally:
        await broker.close()
    assert broker.load == BrokerLoad(0, 0)


@pytest.fixture
def play(box_run: BoxRunner, tmp_path: Path) -> Play:
    """Play a scenario on the engine's loop; no box may be left afterwards."""

    def run(scenario: Scenario, **options: Any) -> None:
        box_run.submit(with_broker(box_run, scenario, tmp_path, **options)).result(timeout=60)

    return run


def order(code: str, **limits: Any) -> ExecutionRequest:
    return ExecutionRequest(launch=plan_code("python", code), spec=BoxSpec(limits=Limits(**limits)))


async def over(broker: Broker, run: Run) -> tuple[Run, list[LogEntry]]:
    """A run once it is over, and its whole log."""
    reader = await broker.runs.read_log(ADA, run.id)
    entries: list[LogEntry] = []
    while batch := await reader.read():
        entries += [item.entry for item in batch if isinstance(item, LogFrame)]
    last = entries[-1]
    assert isinstance(last, Ended)
    return last.run, entries


async def is_running(broker: Broker, run: Run) -> None:
    """Wait until the program of a run has begun."""
    reader = await broker.runs.read_log(ADA, run.id)
    while not any(isinstance(item, LogFrame) and isinstance(item.entry, Began) for item in await reader.read()):
        pass


def text_of(entries: list[LogEntry]) -> str:
    return b"".join(entry.data for entry in entries if isinstance(entry, OutputEvent)).decode()


def test_an_execution_emits_its_events(play: Play) -> None:
    async def scenario(broker: Broker) -> None:
        events: list[Event] = []

        async def listen(event: Event) -> None:
            events.append(event)

        ending = await broker.execute(ADA, order("print('hi'); raise SystemExit(3)"), listen).ending()
        assert (ending.outcome, ending.exit_code) == (Outcome.EXITED, 3)
        assert ending.usage.wall_seconds > 0
        assert isinstance(events[0], Started)
        assert isinstance(events[-1], Exited)
        assert b"".join(event.data for event in events if isinstance(event, OutputEvent)) == b"hi\n"

    play(scenario)


def test_many_share_few_slots(play: Play) -> None:
    async def scenario(broker: Broker) -> None:
        loads: list[BrokerLoad] = []

        async def look(event: Event) -> None:
            loads.append(broker.load)

        executions = [broker.execute(caller, order("print(1)"), look) for caller in (ADA, BOB) * 5]
        endings = await asyncio.gather(*(execution.ending() for execution in executions))
        assert {ending.exit_code for ending in endings} == {0}
        assert max(load.active for load in loads) == 2

    play(scenario, max_concurrent=2)


def test_a_program_that_ignores_the_signal_is_killed(play: Play) -> None:
    async def scenario(broker: Broker) -> None:
        up = asyncio.Event()

        async def listen(event: Event) -> None:
            if isinstance(event, OutputEvent):
                up.set()

        execution = broker.execute(ADA, order(STUBBORN), listen)
        await up.wait()
        execution.cancel()
        ending = await execution.ending()
        assert (ending.outcome, ending.exit_code) == (Outcome.CANCELLED, None)
        assert ending.usage.wall_seconds < 30

    play(scenario)


def test_a_spawner_that_is_killed_fails_what_ran_and_nothing_after(tmp_path: Path) -> None:
    runner = start_runner(tmp_path / "data", pool_node=0, pool_python=1, allow_weak_isolation=not is_root())

    async def scenario(broker: Broker) -> None:
        started = asyncio.Event()

        async def listen(event: Event) -> None:
            started.set()

        execution = broker.execute(ADA, order("import time; time.sleep(60)"), listen)
        run = (await broker.runs.submit(ADA, FACTS, work("import time; time.sleep(60)"))).run
        await started.wait()
        await is_running(broker, run)
        pid = native(runner.engine).spawner_pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(BoxGone):
            await execution.ending()
        failed, _ = await over(broker, run)
        assert (failed.phase, failed.reason) == (Phase.FAILED, Reason.RUNTIME_ERROR)
        assert (await broker.execute(ADA, order("print(1)"), ignore).ending()).exit_code == 0

    try:
        runner.submit(with_broker(runner, scenario, tmp_path / "audit")).result(timeout=60)
    finally:
        stop_runner(runner)


def test_draining_kills_programs_after_the_grace(play: Play) -> None:
    async def scenario(broker: Broker) -> None:
        executions = [broker.execute(ADA, order("import time; time.sleep(60)"), ignore) for _ in range(4)]
        await until(lambda: broker.load == BrokerLoad(2, 2))
        await broker.drain(0.2)
        for execution in executions:
            with pytest.raises(ShuttingDown):
                await execution.ending()

    play(scenario, max_concurrent=2)


def test_closing_kills_what_runs_and_what_starts(play: Play) -> None:
    async def scenario(broker: Broker) -> None:
        started = asyncio.Event()

        async def listen(event: Event) -> None:
            started.set()

        executions = [broker.execute(ADA, order(STUBBORN), listen) for _ in range(3)]
        run = (await broker.runs.submit(ADA, FACTS, work(STUBBORN))).run
        await started.wait()
        await broker.close()
        for execution in executions:
            with pytest.raises(ShuttingDown):
                await execution.ending()
        ended, _ = await over(broker, run)
        assert (ended.phase, ended.reason) == (Phase.KILLED, Reason.SERVER_SHUTDOWN)

    play(scenario)


def work(code: str, timeout: float = 30.0, image: str = "host", workspace: int = 256 * MIB, **options: Any) -> RunPlan:
    spec = BoxSpec(image=image, limits=Limits(timeout=timeout, workspace=workspace))
    return RunPlan(launch=plan_code("python", code), spec=spec, **options)


def test_a_run_is_logged_as_it_goes(play: Play) -> None:
    async def scenario(broker: Broker) -> None:
        code = "import sys; print('å'); print('err', file=sys.stderr); print(open('in.txt').read(), sys.stdin.read())"
        run = (
            await broker.runs.submit(ADA, FACTS, work(code, files={"/workspace/in.txt": b"file"}, stdin=b"stdin"))
        ).run
        ended, entries = await over(broker, run)
        assert (ended.phase, ended.exit_code, ended.log_bytes) == (Phase.COMPLETED, 0, 18)
        assert ended.usage is not None
        kinds = [type(entry) for entry in entries]
        assert kinds[:3] == [PhaseChanged, PhaseChanged, Began]
        assert kinds.count(Ended) == 1
        assert sorted(text_of(entries).splitlines()) == ["err", "file stdin", "å"]

    play(scenario)


def test_an_interactive_run_answers(play: Play) -> None:
    async def scenario(broker: Broker) -> None:
        code = "import sys\nfor line in sys.stdin: print(line.strip().upper())"
        run = (await broker.runs.submit(ADA, FACTS, work(code, interactive=StdinRules()))).run
        reader = await broker.runs.read_log(ADA, run.id)
        for word in (b"one", b"two"):
            await broker.runs.write_stdin(ADA, run.id, word + b"\n")
            heard = b""
            while word.upper() not in heard:
                batch = await reader.read()
                heard += b"".join(item.entry.data for item in batch if _is_output(item))  # type: ignore[union-attr]
        await broker.runs.close_stdin(ADA, run.id)
        ended, _ = await over(broker, run)
        assert ended.phase is Phase.COMPLETED

    play(scenario)


def _is_output(item: object) -> bool:
    return isinstance(item, LogFrame) and isinstance(item.entry, OutputEvent)


def test_a_log_is_cut_where_it_may_not_grow(play: Play) -> None:
    async def scenario(broker: Broker) -> None:
        code = "import sys; sys.stdout.write('x' * 3_000_000); sys.exit(7)"
        run = (await broker.runs.submit(ADA, FACTS, work(code, log_cap=1_000_000))).run
        ended, entries = await over(broker, run)
        assert (ended.exit_code, ended.log_bytes, ended.log_truncated) == (7, 1_000_000, True)
        assert len(text_of(entries)) == 1_000_000
        assert entries.count(Truncated("log_cap")) == 1

    play(scenario)


@pytest.mark.parametrize(
    ("code", "options", "phase", "reason"),
    [
        ("import time; time.sleep(60)", {"timeout": 0.2}, Phase.TIMED_OUT, Reason.EXECUTION_TIMEOUT),
        ("import os; os.kill(os.getpid(), 9)", {}, Phase.FAILED, Reason.SIGNALED),
        ("print(1)", {"image": "no-such-image"}, Phase.FAILED, Reason.IMAGE_PULL_FAILED),
        # No cell is parked for a workspace of this size.
        ("print(1)", {"startup_timeout": 0.0, "workspace": 99 * MIB}, Phase.TIMED_OUT, Reason.STARTUP_TIMEOUT),
    ],
)
def test_a_run_reports_how_it_ended(
    play: Play, code: str, options: dict[str, Any], phase: Phase, reason: Reason
) -> None:
    async def scenario(broker: Broker) -> None:
        ended, _ = await over(broker, (await broker.runs.submit(ADA, FACTS, work(code, **options))).run)
        assert (ended.phase, ended.reason) == (phase, reason)

    play(scenario)


def test_a_run_is_canceled_while_it_starts_and_while_it_runs(play: Play) -> None:
    async def scenario(broker: Broker) -> None:
        for at_once in (True, False):
            run = (await broker.runs.submit(ADA, FACTS, work(STUBBORN))).run
            if not at_once:
                await is_running(broker, run)
            await broker.runs.cancel(ADA, run.id)
            ended, entries = await over(broker, run)
            assert (ended.phase, ended.message) == (Phase.KILLED, "canceled_by_user")
            assert [type(entry) for entry in entries].count(Ended) == 1

    play(scenario)

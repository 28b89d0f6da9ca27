"""One journaled run from its place in the queue to its terminal phase.

Only the worker advances its run: cancellation and shutdown go through the worker.
Each step is in the store before anybody hears of it, the last one before the log ends.
"""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import Callable
from dataclasses import replace

from tidebox.broker.internal_errors import internal_error
from tidebox.broker.run_metrics import RunMetrics
from tidebox.broker.runs.log_hub import LogChannel
from tidebox.broker.runs.log_writer import LogWriter
from tidebox.broker.runs.run_files import FileManager, RunFiles
from tidebox.broker.runs.run_plan import RunPlan
from tidebox.broker.runs.scheduler import Scheduler, Ticket, TicketState
from tidebox.broker.runs.stdin import StdinFeed
from tidebox.errors import QueueExpired, ShuttingDown, StoreInDoubt, StoreUnavailable, TideboxError
from tidebox.model.events import EgressSeen, Event, Exited, OutputEvent, Preparing, Started
from tidebox.model.log import Began, InputClosed, PhaseChanged, Truncated
from tidebox.model.one_shot_flag import OneShotFlag
from tidebox.model.packages import PACKAGE_ERRORS, Packages
from tidebox.model.result import Outcome
from tidebox.model.run import (
    NODE_LOST,
    TRANSITIONS,
    Conclusion,
    Phase,
    Reason,
    Run,
    Transition,
    conclusion_of,
    conclusion_of_failure,
    ended,
)
from tidebox.runtime.base import Runner
from tidebox.store.base import Store

_RETRY_SECONDS = 0.1
_LONGEST_RETRY_SECONDS = 5.0

CANCELED = Conclusion(phase=Phase.KILLED, reason=Reason.CANCELED_BY_USER, message=Reason.CANCELED_BY_USER.value)
_STARTUP_TIMEOUT = Conclusion(
    phase=Phase.TIMED_OUT, reason=Reason.STARTUP_TIMEOUT, message="the program could not be started in time"
)


class QueueOutcome(enum.Enum):
    """The outcome of waiting for a slot."""

    RUNS = "runs"
    EXPIRED = "expired"
    CANCELED = "canceled"
    LEFT = "left"


class _RunLost(Exception):
    """The run is no longer this worker's: its phase or owner changed, or its next phase cannot be stored."""


class Worker:
    """Carries out one run."""

    def __init__(
        self,
        user: str,
        plan: RunPlan,
        *,
        runner: Runner,
        store: Store,
        scheduler: Scheduler,
        metrics: RunMetrics,
        on_step: Callable[[Run], None],
        on_packages: Callable[[Run, Packages, str, str | None], None],
        on_egress: Callable[[Run, EgressSeen], None],
        file_manager: FileManager,
        lane: str | None = None,
    ) -> None:
        self.plan = plan
        self.ticket = Ticket(user, self._begin, self._expire, lane)
        self.stdin: StdinFeed | None = None
        self._runner = runner
        self._store = store
        self._scheduler = scheduler
        self._metrics = metrics
        self._on_step = on_step
        self._on_packages = on_packages
        self._on_egress = on_egress
        self._file_manager = file_manager
        self._files = RunFiles()
        self._verdict: Conclusion | None = None
        self._beginning: asyncio.Task[None] | None = None
        self._queue_outcome: asyncio.Future[QueueOutcome] = asyncio.get_running_loop().create_future()
        self._cancel = OneShotFlag()
        self._kill = OneShotFlag()
        self._shut_down = False
        self._startup: asyncio.Timeout | None = None
        self._image_digest: str | None = None
        self._run: Run | None = None
        self._channel: LogChannel | None = None

    # Requests from outside: cancel, kill, abandon, shut down.

    def cancel(self) -> None:
        """End the run: at once if it waits for a slot or its program has not begun, else by TERM and then KILL."""
        if self.ticket.state is TicketState.QUEUED:
            self._scheduler.release(self.ticket)
            self._decide(QueueOutcome.CANCELED)
            return
        self._cancel.set()
        if self._startup is not None and self._startup.when() is not None and not self._startup.expired():
            self._startup.reschedule(asyncio.get_running_loop().time())

    def kill(self, verdict: Conclusion) -> None:
        """End the run with ``verdict``, at once and without any grace."""
        if self._verdict is None:
            self._verdict = verdict
        self.cancel()
        self._kill.set()

    def abandon(self) -> None:
        """Give up the run, because another node has it: stop its program, and change nothing in the store."""
        if self.ticket.state is TicketState.QUEUED:
            self._scheduler.release(self.ticket)
            self._decide(QueueOutcome.LEFT)
        else:
            self.kill(NODE_LOST)

    def shut_down(self) -> None:
        """Cancel because the server ends. One that only waits stays in the queue if the store keeps it."""
        self._shut_down = True
        if self.ticket.state is TicketState.QUEUED and self._store.durable:
            self._scheduler.release(self.ticket)
            self._decide(QueueOutcome.LEFT)
        else:
            self.cancel()

    def _begin(self) -> None:
        self._decide(QueueOutcome.RUNS)

    def _expire(self) -> None:
        self._decide(QueueOutcome.EXPIRED)

    def _decide(self, outcome: QueueOutcome) -> None:
        if not self._queue_outcome.done():
            self._queue_outcome.set_result(outcome)

    @property
    def run(self) -> Run | None:
        """Its run as the store has it."""
        return self._run

    @property
    def phase(self) -> Phase:
        """The phase of its run."""
        return self._run.phase if self._run is not None else Phase.QUEUED

    # The life of the run.

    def attach(self, run: Run, channel: LogChannel) -> None:
        """Attach a run that is in the store, and its log."""
        self._run = run
        self._channel = channel
        if self.plan.interactive is not None:
            self.stdin = StdinFeed(self.plan.interactive, self._input_broken)

    async def carry_out(self) -> Run | None:
        """Bring the run to its end and return it as it is then; None if its end is not this server's to tell."""
        assert self._run is not None
        assert self._channel is not None
        log = LogWriter(self._channel, self.plan.log_cap, self._metrics)
        try:
            conclusion = await self._conclusion(self._channel, log)
            if conclusion is None:
                return None
            await self._wait_running_announced()
            log.flush()
            self._metrics.ended(conclusion, self.ticket.held)
            if conclusion.usage is not None and conclusion.usage.egress is not None:
                self._metrics.transferred(conclusion.usage.egress)
            if conclusion.phase not in TRANSITIONS[self._run.phase]:
                # It was over before it was said to have begun.
                await self._advance(Transition(to=Phase.RUNNING, at=time.time()))
            # A client that sees the end finds the whole log.
            await self._channel.flush()
            step = ended(
                conclusion,
                time.time(),
                log_bytes=log.written,
                log_truncated=log.truncated,
                artifact_bytes=self._files.artifact_bytes,
                left_out=self._files.left_out,
                image_digest=self._image_digest,
            )
            return await self._advance(step)
        except _RunLost:
            return None
        finally:
            if self.stdin is not None:
                self.stdin.close()
            await self._files.close()

    def _input_broken(self, rule: str) -> None:
        if self._channel is not None and not self._channel.over:
            self._channel.publish(InputClosed(rule))
            # What was sent against the rule, and after it, is dropped.
            self._channel.publish(Truncated(rule))
            self._metrics.truncated(rule)

    async def _conclusion(self, channel: LogChannel, log: LogWriter) -> Conclusion | None:
        try:
            outcome = await self._queue_outcome
            if outcome is QueueOutcome.LEFT:
                return None
            if outcome is QueueOutcome.CANCELED:
                return self._canceled()
            if outcome is QueueOutcome.EXPIRED:
                return conclusion_of_failure(QueueExpired("no slot became free in time"))
            return await self._execute(channel, log)
        except asyncio.CancelledError:
            # Told to stop without any grace. The end is still written down.
            self._shut_down = True
            return self._canceled()
        finally:
            self._scheduler.release(self.ticket)

    def _canceled(self) -> Conclusion:
        if self._shut_down:
            return conclusion_of_failure(ShuttingDown("the server was shut down"))
        return self._verdict or CANCELED

    async def _execute(self, channel: LogChannel, log: LogWriter) -> Conclusion:
        assert self._run is not None
        if self._run.phase is Phase.QUEUED:
            await self._advance(Transition(to=Phase.STARTING, at=time.time()))
        self._metrics.started(self.ticket.waited)
        channel.publish(PhaseChanged(Phase.STARTING))

        async def sink(event: Event) -> None:
            if isinstance(event, Started):
                if self._startup is not None and not self._startup.expired():
                    self._startup.reschedule(None)
                # The program does not wait for the store, but what it does is told only after it is known to run.
                self._beginning = asyncio.get_running_loop().create_task(self._announce_running(channel, time.time()))
                return
            if isinstance(event, Preparing):
                channel.publish(event)
                if event.layer is not None:
                    self._report_packages("built", event.layer)
                return
            await self._wait_running_announced()
            if isinstance(event, OutputEvent):
                log.write(event.stream, event.data)
            elif isinstance(event, Exited):
                log.flush()
                # While the box is stopped and measured.
                channel.hurry()

        order = self.plan.order(self.stdin.chunks() if self.stdin is not None else None, self._run.user)
        startup = asyncio.timeout(self.plan.startup_timeout)
        try:
            async with startup:
                self._startup = startup
                if self._cancel.is_set():
                    return self._canceled()
                self._files = self._file_manager.run_files(self._run, self.plan)
                await self._files.open()
                order = replace(order, kill=self._kill, on_egress=self._report_egress)
                ending = await self._runner.run(order, sink, self._cancel, self._files)
                self._image_digest = ending.image_digest
                if ending.not_started is not None:
                    await self._wait_running_announced()
                    log.write("stderr", ending.not_started.stderr)
        except TideboxError as error:
            if isinstance(error, PACKAGE_ERRORS) and self.plan.spec.packages:
                self._report_packages(error.code)
            return conclusion_of_failure(error)
        except _RunLost:
            raise
        except Exception as error:
            if not startup.expired():
                return conclusion_of_failure(internal_error("a run", error))
            return self._canceled() if self._cancel.is_set() else _STARTUP_TIMEOUT
        finally:
            self._startup = None
        if ending.outcome is Outcome.CANCELLED and (self._shut_down or self._verdict is not None):
            return replace(self._canceled(), signal=ending.signal, usage=ending.usage)
        if ending.outcome is Outcome.EXITED and ending.not_started is not None:
            return Conclusion(
                phase=Phase.FAILED,
                reason=Reason.EXEC_FAILED,
                message=f"the command could not be executed: {ending.not_started.reason}",
                exit_code=ending.exit_code,
                usage=ending.usage,
            )
        pids = self.plan.spec.limits.pids
        concluded = conclusion_of(ending.outcome, ending.exit_code, ending.signal, ending.usage, pids_limit=pids)
        if ending.outcome is Outcome.COMPILE_FAILED:
            place = f": {ending.place}" if ending.place is not None else ""
            return replace(concluded, message=f"the program could not be compiled{place}")
        return concluded

    def _report_egress(self, seen: EgressSeen) -> None:
        assert self._run is not None
        self._on_egress(self._run, seen)
        self._metrics.reached(seen)
        wanted = self.plan.egress is not None and self.plan.egress.events
        if wanted and self._channel is not None and not self._channel.over:
            self._channel.publish(seen)

    def _report_packages(self, outcome: str, layer: str | None = None) -> None:
        assert self._run is not None
        self._on_packages(self._run, self.plan.spec.packages, outcome, layer)

    async def _announce_running(self, channel: LogChannel, at: float) -> None:
        run = await self._advance(Transition(to=Phase.RUNNING, at=at))
        self._metrics.running(at - run.created_at)
        channel.publish(PhaseChanged(Phase.RUNNING))
        channel.publish(Began(at))

    async def _wait_running_announced(self) -> None:
        if self._beginning is not None:
            # A waiter that is cancelled leaves the step to be taken all the same.
            await asyncio.shield(self._beginning)
            self._beginning = None

    async def _advance(self, step: Transition) -> Run:
        """Take a step, however long the store is away, unless the server ends; raises where the run cannot take it."""
        assert self._run is not None
        pause = _RETRY_SECONDS
        in_doubt = False
        while True:
            try:
                following = await self._store.advance_run(self._run, step)
                if following is None and in_doubt:
                    following = await self._confirm_advance(self._run, step)
            except StoreUnavailable as error:
                in_doubt = in_doubt or isinstance(error, StoreInDoubt)
                if self._shut_down:
                    raise _RunLost from None
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_RETRY_SECONDS)
                continue
            if following is None:
                raise _RunLost
            self._run = following
            self._on_step(following)
            return following

    async def _confirm_advance(self, run: Run, step: Transition) -> Run | None:
        """The run as the store has it, if it took that step and only the answer was lost."""
        there = await self._store.run(run.id)
        finished_at = step.at if step.to.terminal else None
        # Nobody but its owner takes such a step at such a time.
        expected = (step.to, finished_at, run.owner, run.attempt)
        is_ours = there is not None and (there.phase, there.finished_at, there.owner, there.attempt) == expected
        return there if is_ours else None

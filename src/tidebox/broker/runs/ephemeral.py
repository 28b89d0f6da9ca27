"""One ephemeral execution: it waits for a slot, runs and ends once. Nothing of it is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidebox.broker.internal_errors import internal_error
from tidebox.broker.run_metrics import RunMetrics
from tidebox.broker.runs.scheduler import Scheduler, Ticket, TicketState
from tidebox.errors import QueueExpired, ShuttingDown, TideboxError
from tidebox.model.execution_request import ExecutionOutcome, ExecutionRequest, Sink
from tidebox.model.ids import new_id
from tidebox.model.one_shot_flag import OneShotFlag
from tidebox.model.principal import Caller
from tidebox.model.result import Outcome, Usage
from tidebox.model.run import Conclusion, conclusion_of, conclusion_of_failure
from tidebox.runtime.base import Runner

_NEVER_STARTED = ExecutionOutcome(
    outcome=Outcome.CANCELLED, exit_code=None, signal=None, usage=Usage(wall_seconds=0.0), captured=None
)


class EphemeralExecution:
    """An accepted execution: the handle that a surface holds."""

    def __init__(
        self,
        caller: Caller,
        order: ExecutionRequest,
        sink: Sink,
        *,
        runner: Runner,
        scheduler: Scheduler,
        metrics: RunMetrics,
        on_over: Callable[[EphemeralExecution], None],
    ) -> None:
        self.id = new_id("ex")
        self.caller = caller
        self.ticket = Ticket(caller.principal.user, self._begin, self._expire)
        self._order = order
        self._sink = sink
        self._runner = runner
        self._scheduler = scheduler
        self.metrics = metrics
        self._on_over = on_over
        self._cancel = OneShotFlag()
        self.over = OneShotFlag()
        self._shut_down = False
        self._task: asyncio.Task[None] | None = None
        self._ended: ExecutionOutcome | TideboxError | None = None

    async def ending(self) -> ExecutionOutcome:
        """How it ended, once it has; raises what kept it from ending by itself."""
        await self.over.wait()
        if isinstance(self.ended, TideboxError):
            raise self.ended
        return self.ended

    @property
    def ended(self) -> ExecutionOutcome | TideboxError:
        """How it ended, or what kept it from ending by itself, now that it is over."""
        assert self._ended is not None
        return self._ended

    @property
    def conclusion(self) -> Conclusion:
        """How it ended, as the conclusion of a run."""
        ended = self.ended
        if isinstance(ended, TideboxError):
            return conclusion_of_failure(ended)
        return conclusion_of(ended.outcome, ended.exit_code, ended.signal, ended.usage)

    def cancel(self) -> None:
        """End it: at once if it waits for a slot, else by TERM and, after a grace, KILL. May be called at any time."""
        if self.ticket.state is TicketState.QUEUED:
            self._scheduler.release(self.ticket)
            self._finish(_NEVER_STARTED)
        else:
            self._cancel.set()

    def shut_down(self) -> None:
        """Cancel it because the server ends, which its caller did not want and is told as an error."""
        self._shut_down = True
        self.cancel()

    async def abandon(self) -> None:
        """End it, after it was told to, without any grace, and wait until it has."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    def _begin(self) -> None:
        self.metrics.started(self.ticket.waited)
        self._task = asyncio.get_running_loop().create_task(self._run(), name=self.id)

    def _expire(self) -> None:
        self._finish(QueueExpired("no slot became free in time"))

    async def _run(self) -> None:
        ended: ExecutionOutcome | TideboxError
        try:
            ended = await self._runner.run(self._order, self._sink, self._cancel)
        except asyncio.CancelledError:
            ended = _NEVER_STARTED  # nobody but a server that ends cancels the task
        except TideboxError as error:
            ended = error
        except Exception as error:
            ended = internal_error("an execution", error)
        self._scheduler.release(self.ticket)
        self._finish(ended)

    def _finish(self, ended: ExecutionOutcome | TideboxError) -> None:
        if self._shut_down and isinstance(ended, ExecutionOutcome) and ended.outcome is Outcome.CANCELLED:
            ended = ShuttingDown("the server was shut down")
        self._ended = ended
        self._on_over(self)
        self.over.set()

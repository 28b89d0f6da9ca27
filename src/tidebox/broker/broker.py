"""The broker, which every surface talks to: journaled runs and ephemeral executions on one scheduler.

``execute`` is for what nobody needs to find again: it never touches the store and never waits. ``runs`` is for what
is found again: see ``tidebox.broker.runs.journaled``. Both are admitted, queued, recorded and counted alike.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from tidebox.broker.audit.audit_log import Audit
from tidebox.broker.audit.query import AuditQuery
from tidebox.broker.run_metrics import RunMetrics
from tidebox.broker.runs.admission_control import Capacity
from tidebox.broker.runs.ephemeral import EphemeralExecution
from tidebox.broker.runs.journaled import Retention, Runs
from tidebox.broker.runs.log_hub import LogHub
from tidebox.broker.runs.quotas import Quotas
from tidebox.broker.runs.run_files import FileManager
from tidebox.broker.runs.scheduler import Scheduler
from tidebox.broker.runs.sessions import Sessions
from tidebox.cluster.membership import Membership
from tidebox.errors import ShuttingDown, TideboxError
from tidebox.model.artifact import Artifact
from tidebox.model.egress import Allowlist
from tidebox.model.execution_request import ExecutionRequest, Sink
from tidebox.model.principal import Caller
from tidebox.model.run_series import Course
from tidebox.model.run_totals import Summary
from tidebox.runtime.base import Runner
from tidebox.store.base import Store


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    """How many programs run and wait."""

    active: int
    queued: int


class Broker:
    """Admits, schedules, runs and records."""

    def __init__(
        self,
        *,
        runner: Runner,
        store: Store,
        audit: Audit,
        max_concurrent: int = 8,
        queue_max: int = 100,
        queue_ttl: float = 120.0,
        max_concurrent_per_user: int | None = None,
        queue_max_per_user: int | None = None,
        quotas: Quotas | None = None,
        retention: Retention | None = None,
        metrics: RunMetrics | None = None,
        hub: LogHub | None = None,
        file_manager: FileManager | None = None,
        reaper_interval: float = 5.0,
        membership: Membership | None = None,
        allowlist: Allowlist | None = None,
    ) -> None:
        self._runner = runner
        self._store = store
        self._audit = audit
        self._metrics = metrics or RunMetrics()
        self._hub = hub or LogHub()
        self._scheduler = Scheduler(
            Capacity(
                max_concurrent=max_concurrent,
                queue_max=queue_max,
                queue_ttl=queue_ttl,
                max_concurrent_per_user=max_concurrent_per_user,
                queue_max_per_user=queue_max_per_user,
            )
        )
        retention = retention or Retention()
        quotas = quotas or Quotas()
        self._file_manager = file_manager = file_manager or FileManager()
        self.membership = membership = membership or Membership()
        self.runs = Runs(
            runner=runner,
            store=store,
            scheduler=self._scheduler,
            audit=audit,
            metrics=self._metrics,
            hub=self._hub,
            quotas=quotas,
            retention=retention,
            file_manager=file_manager,
            membership=membership,
            allowlist=allowlist,
        )
        membership.register(self.runs)
        self.sessions = Sessions(
            store=store,
            audit=audit,
            metrics=self._metrics,
            runs=self.runs,
            file_manager=file_manager,
            quotas=quotas,
            claims_kept=retention.claims,
            interval=reaper_interval,
            membership=membership,
        )
        self.recovered = asyncio.Event()
        """Set once runs of the previous process have been recovered: ``runs`` and ``sessions`` may be used."""
        self._executions: set[EphemeralExecution] = set()
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def load(self) -> BrokerLoad:
        """Return how many programs run and wait."""
        return BrokerLoad(self._scheduler.active, self._scheduler.queued)

    @property
    def capacity(self) -> Capacity:
        """Return the bounds on what runs and waits."""
        return self._scheduler.capacity

    @property
    def store_mode(self) -> str:
        """The kind of store that runs are kept in."""
        return self._store.mode

    async def start(self) -> None:
        """Start: open, and recover."""
        await self.open()
        await self.recover()

    async def open(self) -> None:
        """Be ready for executions; raises what keeps this broker from working at all."""
        await self._audit.start()
        await self._store.start()
        await self.membership.join()
        self._hub.start()

    async def recover(self) -> None:
        """Recover the runs and sessions of the previous process, and be ready for new ones.

        Apart from ``open``, because it waits until the store is loaded and has told what there is.
        """
        await self._file_manager.start()
        await self.runs.start()
        await self.sessions.start()
        self.membership.watch()
        self.recovered.set()

    async def ask_store(self) -> None:
        """Check that the store answers; raises ``StoreUnavailable``."""
        await self._store.run("")

    async def artifacts_of(self, run_id: str) -> list[Artifact]:
        """Return the records of the artifacts of a run."""
        return await self._store.artifacts(run_id)

    async def artifact_usage(self, *, limit: int, offset: int) -> list[tuple[str, int]]:
        """Users and how many bytes of artifacts they have, most first."""
        return await self._store.artifact_usage(limit, offset)

    async def summary(self, created_from: float, created_to: float, *, top: int) -> Summary:
        """Return totals of the runs created in a period."""
        return await self._store.summary(created_from, created_to, top)

    async def courses(self, begin: float, end: float, *, limit: int) -> list[Course]:
        """Return the courses of the runs that existed between two times, newest first."""
        return await self._store.courses(begin, end, limit)

    async def read_audit(self, query: AuditQuery) -> list[dict[str, Any]]:
        """Return events of the audit log."""
        return await self._audit.find(query)

    def execute(self, caller: Caller, order: ExecutionRequest, sink: Sink) -> EphemeralExecution:
        """Run ``order`` as soon as there is a slot; nothing of it is kept.

        ``sink`` is awaited for each event: a slow one holds up its own program only. Raises ``Overloaded``,
        ``ShuttingDown`` or ``AuditUnavailable`` instead of accepting what could not be run.
        """
        metrics = self._metrics.for_runtime(order.spec.runtime)
        execution = EphemeralExecution(
            caller,
            order,
            sink,
            runner=self._runner,
            scheduler=self._scheduler,
            metrics=metrics,
            on_over=self._execution_over,
        )
        try:
            if self._draining:
                raise ShuttingDown("the server is shutting down")
            self._audit.check()
            self._scheduler.enter(execution.ticket)
        except TideboxError as error:
            metrics.refused(error)
            self._audit.record("sandbox.execution.refused", caller, error.code, execution_id=execution.id)
            raise
        metrics.accepted()
        self._audit.record("sandbox.execution.accepted", caller, "accepted", execution_id=execution.id)
        self._executions.add(execution)
        self._idle.clear()
        return execution

    def _execution_over(self, execution: EphemeralExecution) -> None:
        self._executions.discard(execution)
        if not self._executions:
            self._idle.set()
        conclusion = execution.conclusion
        execution.metrics.ended(conclusion, execution.ticket.held)
        self._audit.record(
            "sandbox.execution.ended",
            execution.caller,
            conclusion.reason.value,
            execution_id=execution.id,
            exit_code=conclusion.exit_code,
        )

    async def drain(self, grace: float) -> None:
        """Refuse new work and wait for what there is; after ``grace`` seconds cancel the rest and wait for its end."""
        self._draining = True
        self.membership.drain()
        self.runs.refuse()
        try:
            async with asyncio.timeout(grace):
                await self._idle.wait()
                await self.runs.idle()
        except TimeoutError:
            self._shut_down()
            await self._idle.wait()
            await self.runs.idle()

    def _shut_down(self) -> None:
        self.runs.shut_down()
        for execution in list(self._executions):
            execution.shut_down()

    async def close(self) -> None:
        """End everything at once, without any grace."""
        self._draining = True
        self._shut_down()
        # A task that is cancelled before its first step does not even clean up.
        await asyncio.sleep(0)
        await self.sessions.close()
        await asyncio.gather(self.runs.close(), *(execution.abandon() for execution in self._executions))
        await self._hub.close()
        await self._file_manager.close()
        await self.membership.close()
        await self._store.close()
        await self._audit.close()

"""Journaled runs: stored, idempotent, and recovered by a server that is started later.

A run is accepted in one transaction of the store, together with its idempotency key and its user's quota, before its
caller hears of it. From then on it is owed an end: a worker of this server brings it there, or the next server does,
or another one on the same database.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from tidebox.broker.audit.audit_log import Audit
from tidebox.broker.audit.run_fields import audited
from tidebox.broker.internal_errors import internal_error
from tidebox.broker.run_metrics import RunMetrics
from tidebox.broker.runs.log_hub import LogChannel, LogHub, LogReader
from tidebox.broker.runs.quotas import Quotas, day_of
from tidebox.broker.runs.run_files import FileManager
from tidebox.broker.runs.run_plan import RunPlan, decode_plan, encode_plan
from tidebox.broker.runs.scheduler import Scheduler, TicketState
from tidebox.broker.runs.stdin import StdinFeed
from tidebox.broker.runs.worker import Worker
from tidebox.broker.storage.log_store import StoredLog
from tidebox.cluster.membership import Membership, Resident
from tidebox.errors import (
    Conflict,
    Forbidden,
    NodeLost,
    NotFound,
    ShuttingDown,
    StoreInDoubt,
    StoreUnavailable,
    TideboxError,
    WrongNode,
)
from tidebox.model.egress import Allowlist
from tidebox.model.events import EgressSeen
from tidebox.model.idempotency import Answered, Claim
from tidebox.model.ids import new_id
from tidebox.model.limits import MIB
from tidebox.model.log import Ended, PhaseChanged
from tidebox.model.node import NOBODY, Owner
from tidebox.model.packages import Packages
from tidebox.model.principal import Caller
from tidebox.model.run import (
    NODE_LOST,
    Conclusion,
    Phase,
    Reason,
    Run,
    RunFacts,
    Transition,
    conclusion_of_failure,
    ended,
)
from tidebox.model.run_query import RunPage, RunQuery
from tidebox.runtime.base import Runner
from tidebox.store.base import Creation, Estate, Store

_log = logging.getLogger(__name__)

_PRUNE_SECONDS = 60.0

_NOT_ACCEPTED = conclusion_of_failure(StoreUnavailable("the store did not say whether it had accepted the run"))
_RESTARTED = Conclusion(
    phase=Phase.FAILED, reason=Reason.SERVER_RESTARTED, message="the server was restarted while the program ran"
)


@dataclass(frozen=True, slots=True)
class Receipt:
    """The result of ``submit``."""

    run: Run
    """The run as it was when it was accepted."""
    answered: Answered | None = None
    """Where given, the request was a repeated one, and the run is that of the first."""
    expected_wait: float | None = None
    """About how many seconds a queued run will wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Retention of idempotency keys and runs, in seconds, and of logs, in bytes."""

    claims: float = 600.0
    runs: float = 24 * 3600.0
    log_bytes: int = 10 * 1024 * MIB
    """Of all logs together: what is older is forgotten before its time."""


class Runs(Resident):
    """Accepts, shows and ends journaled runs."""

    def __init__(
        self,
        *,
        runner: Runner,
        store: Store,
        scheduler: Scheduler,
        audit: Audit,
        metrics: RunMetrics,
        hub: LogHub,
        quotas: Quotas,
        retention: Retention,
        file_manager: FileManager,
        membership: Membership,
        allowlist: Allowlist | None = None,
    ) -> None:
        self._runner = runner
        self._store = store
        self._scheduler = scheduler
        self._audit = audit
        self._metrics = metrics
        self._hub = hub
        self._quotas = quotas
        self._retention = retention
        self._file_manager = file_manager
        self._membership = membership
        self._allowlist = allowlist
        """The upper bound of egress on this server."""
        self._working: dict[str, tuple[Worker, asyncio.Task[None]]] = {}
        self._accepting: set[asyncio.Task[Receipt]] = set()
        self._pruning: asyncio.Task[None] | None = None
        self._refusing = False
        self._in_doubt: set[str] = set()
        """Runs that may be in the store without anybody having been told."""

    async def start(self) -> None:
        """Recover the runs that an earlier server of this node left."""
        await self.recover(self._membership.owner)
        self._pruning = asyncio.get_running_loop().create_task(self._prune(), name="prune")

    # What becomes of this node, and of others.

    async def recover(self, owner: Owner) -> None:
        """Take up the unfinished runs of this node."""
        for run, work in await self._store.recover_runs(owner):
            async with self._or_ended(run, _RESTARTED):
                await self._recover_run(run, work)

    async def _recover_run(self, run: Run, work: bytes | None) -> None:
        if run.phase is Phase.RUNNING or work is None:
            # Some of it has been seen by its readers: it cannot be done again as if it had not.
            following = await self._store.advance_run(run, ended(_RESTARTED, time.time()))
            if following is not None:
                self._record(following)
            return
        if run.phase is Phase.STARTING:
            requeued = await self._store.advance_run(run, Transition(to=Phase.QUEUED, at=time.time()))
            if requeued is None:
                return
            run = requeued
        await self._queue(run, work)

    async def _queue(self, run: Run, work: bytes) -> None:
        worker = self._new_worker(run.user, self._under_current_rules(decode_plan(work)), run.facts.session_id)
        channel = await self._hub.resume(run.id, begins_at=run.first_seq)
        self._scheduler.reenter(worker.ticket)
        self._carry_out(worker, run, channel)

    def _under_current_rules(self, work: RunPlan) -> RunPlan:
        """Work that an earlier server accepted, under the allow-list of this one."""
        return work if work.egress is None else replace(work, egress=work.egress.under(self._allowlist))

    async def inherit(self, estate: Estate) -> None:
        """Go on with the runs that were taken over, and write down which were lost."""
        for run in estate.ended:
            self._record(run)
        for run, work in estate.runs:
            if run.id not in self._working:
                self._audit.record("sandbox.run.taken_over", run.caller, "queued", **audited(run))
                async with self._or_ended(run, NODE_LOST):
                    await self._queue(run, work)

    @contextlib.asynccontextmanager
    async def _or_ended(self, run: Run, conclusion: Conclusion) -> AsyncIterator[None]:
        """End a run that cannot be recovered, so that it does not stop recovery of the others."""
        try:
            yield
        except (msgspec.DecodeError, ValueError, OSError):
            _log.exception("a run cannot be taken up: %s", run.id)
            following = await self._store.advance_run(run, ended(conclusion, time.time()))
            if following is not None:
                self._record(following)

    async def stop(self) -> None:
        """End what has begun. What waits cannot begin while the store is away, and may still be this node's own."""
        for worker, _ in list(self._working.values()):
            if worker.ticket.state is TicketState.ACTIVE:
                worker.kill(NODE_LOST)

    async def abandon(self) -> None:
        """Let go of every run, and wait until that is done; no new one is accepted meanwhile."""
        while tasks := {task for _, task in self._working.values()} | self._accepting:
            for worker, _ in list(self._working.values()):
                worker.abandon()
            await asyncio.wait(tasks)

    # What surfaces ask for.

    async def submit(self, caller: Caller, facts: RunFacts, work: RunPlan, claim: Claim | None = None) -> Receipt:
        """Accept a run, or answer a repeated request as the first one was.

        Raises ``Overloaded``, ``QuotaExceeded``, ``IdempotencyConflict``, ``StoreUnavailable`` or ``ShuttingDown``,
        and then there is no run.
        """
        # A caller who goes away must leave neither half a run nor a slot that nobody uses.
        accepting = asyncio.get_running_loop().create_task(self._submit(caller, facts, work, claim))
        self._accepting.add(accepting)
        accepting.add_done_callback(self._accepting.discard)
        return await asyncio.shield(accepting)

    async def answered(self, claim: Claim) -> Receipt | None:
        """Return the stored answer to a repeated request (idempotency), whatever became of its run since."""
        prior = await self._store.answered(claim, time.time() - self._retention.claims)
        return _repeated(prior) if prior is not None else None

    async def get(self, caller: Caller, run_id: str) -> Run:
        """A run of the caller's own; an admin may see any."""
        working = self._working.get(run_id)
        # A worker takes no step that is not in the store.
        run = working[0].run if working is not None else await self._store.run(run_id)
        if run is None or not (run.user == caller.principal.user or caller.principal.is_admin):
            raise NotFound("no such run", run_id=run_id)
        return run

    async def list(self, caller: Caller, query: RunQuery) -> RunPage:
        """The caller's runs; an admin's query may name anybody, or nobody for everybody."""
        if not caller.principal.is_admin:
            query = replace(query, user=caller.principal.user)
        return await self._store.list_runs(query)

    async def list_answered(
        self, caller: Caller, *, endpoint: str | None = None, user: str | None = None, limit: int = 50, offset: int = 0
    ) -> Sequence[Answered]:
        """The idempotency keys in use, newest first; for admins."""
        if not caller.principal.is_admin:
            raise Forbidden("only an admin may see idempotency keys")
        return await self._store.list_answered(endpoint=endpoint, user=user, limit=limit, offset=offset)

    async def cancel(self, caller: Caller, run_id: str) -> Run:
        """Ask for the end of a run and return it as it is now, which may be over already."""
        run = await self.get(caller, run_id)
        working = self._working.get(run_id)
        if working is not None:
            self._audit.record("sandbox.run.cancel", caller, "requested", run_id=run_id)
            working[0].cancel()
        else:
            self._require_here(run)
        return run

    async def wait_finished(self, run: Run, within: float) -> Run:
        """Wait up to ``within`` seconds until the run has finished here; return it as it is then."""
        working = self._working.get(run.id)
        if working is None:
            return run
        worker, task = working
        await asyncio.wait({task}, timeout=within)
        return worker.run or run

    async def end_session(self, session_id: str, verdict: Conclusion) -> None:
        """Kill every run of a session, which takes no more of them, and wait until all are over."""
        while tasks := [task for worker, task in self._working.values() if worker.ticket.lane == session_id]:
            for worker, _ in list(self._working.values()):
                if worker.ticket.lane == session_id:
                    worker.kill(verdict)
            await asyncio.wait(tasks)
        self._runner.let_go(session_id)

    async def write_stdin(self, caller: Caller, run_id: str, data: bytes) -> None:
        """Send input to an interactive run, waiting while its program does not read."""
        await (await self._stdin(caller, run_id)).write(data)

    async def close_stdin(self, caller: Caller, run_id: str) -> None:
        """End the input of an interactive run."""
        (await self._stdin(caller, run_id)).close()

    def takes_input(self, run: Run) -> bool:
        """Whether input would reach the program of a run: it is interactive, its input is open, and it is here."""
        worker = self._working[run.id][0] if run.id in self._working else None
        return worker is not None and worker.stdin is not None and worker.stdin.open

    async def read_log(self, caller: Caller, run_id: str, seq: int | None = None, *, tail: bool = False) -> LogReader:
        """A reader of a run's log, from ``seq``, from the oldest entry kept, or with ``tail`` from now on."""
        run = await self.get(caller, run_id)
        self._require_here(run)
        reader = await self._hub.reader(run, seq, tail=tail)
        if reader is None:
            raise await self.elsewhere(run) or _no_log(run_id)
        self._audit.record("sandbox.run.log_read", caller, "allowed", run_id=run_id)
        return reader

    async def read_log_so_far(self, caller: Caller, run_id: str, seq: int | None = None) -> LogReader:
        """A reader of what is in a run's log now, from ``seq`` or from its beginning; it waits for nothing."""
        run = await self.get(caller, run_id)
        self._require_here(run)
        reader = await self._hub.snapshot(run, seq)
        if reader is None:
            raise await self.elsewhere(run) or _no_log(run_id)
        self._audit.record("sandbox.run.log_read", caller, "allowed", run_id=run_id)
        return reader

    def note_input(self, caller: Caller, run_id: str, size: int) -> None:
        """Record that the caller sent input to a run; never what."""
        self._audit.record("sandbox.run.input", caller, "sent", run_id=run_id, bytes=size)

    async def stored_log(self, caller: Caller, run_id: str) -> tuple[Run, StoredLog | None]:
        """A run, and its log as a file with everything in it so far."""
        run = await self.get(caller, run_id)
        log = await self._hub.stored(run_id)
        if log is None and (elsewhere := await self.elsewhere(run)) is not None:
            raise elsewhere
        if log is None and run.log_bytes:
            raise _no_log(run_id)
        self._audit.record("sandbox.run.log_read", caller, "allowed", run_id=run_id)
        return run, log

    async def elsewhere(self, run: Run) -> WrongNode | NodeLost | None:
        """Why the log and the files of a run are not here; None where they would be."""
        node_id = run.owner.node_id
        if node_id in (NOBODY.node_id, self._membership.node_id):
            return None
        if await self._store.has_node(node_id):
            return WrongNode(
                "another server has the log and the files of this run: ask that one", run_id=run.id, node_id=node_id
            )
        return NodeLost("the server that has the log and the files of this run is lost", run_id=run.id, node_id=node_id)

    def phases(self) -> Mapping[Phase, int]:
        """Count the unfinished runs in each phase."""
        return Counter(worker.phase for worker, _ in self._working.values())

    async def _stdin(self, caller: Caller, run_id: str) -> StdinFeed:
        run = await self.get(caller, run_id)
        stdin = self._working[run_id][0].stdin if run_id in self._working else None
        if stdin is None:
            self._require_here(run)
            state = "over" if run.phase.terminal else "not interactive"
            raise Conflict(f"the run takes no input: it is {state}", run_id=run_id)
        return stdin

    def _require_here(self, run: Run) -> None:
        """Refuse what only the server that has a run can do."""
        node_id = run.owner.node_id
        if not run.phase.terminal and node_id != self._membership.node_id:
            raise WrongNode("another server has this run: ask that one", run_id=run.id, node_id=node_id)

    # How a run is accepted.

    async def _submit(self, caller: Caller, facts: RunFacts, work: RunPlan, claim: Claim | None) -> Receipt:
        try:
            self._audit.check()
            return await self._accept(caller, facts, work, claim)
        except TideboxError as error:
            self._metrics.for_runtime(facts.runtime).refused(error)
            self._audit.record("sandbox.run.refused", caller, error.code, runtime=facts.runtime)
            raise

    async def _accept(self, caller: Caller, facts: RunFacts, work: RunPlan, claim: Claim | None) -> Receipt:
        if self._refusing:
            raise ShuttingDown("the server is shutting down")
        encoded = encode_plan(work)
        now = time.time()
        valid_after = now - self._retention.claims
        if claim is not None and (prior := await self._store.answered(claim, valid_after)) is not None:
            return _repeated(prior)
        owner = self._membership.owner
        worker = self._new_worker(caller.principal.user, work, facts.session_id)
        # A slot, or a place in the queue, before the run exists: what exists can be run.
        self._scheduler.enter(worker.ticket)
        has_slot = worker.ticket.state is TicketState.ACTIVE
        run = Run(
            id=new_id("run"),
            caller=caller,
            facts=facts,
            created_at=now,
            phase=Phase.STARTING if has_slot else Phase.QUEUED,
            started_at=now if has_slot else None,
            owner=owner,
        )
        creation = Creation(
            run=run,
            work=encoded,
            claim=claim,
            response=msgspec.json.encode(run) if claim is not None else b"",
            valid_after=valid_after,
            check=self._quotas.check if self._quotas.limited else None,
            used_since=day_of(now),
        )
        try:
            prior = await self._created(creation)
        except BaseException:
            self._scheduler.release(worker.ticket)
            raise
        if prior is not None:
            self._scheduler.release(worker.ticket)
            return _repeated(prior)
        self._audit.record("sandbox.run.created", caller, "accepted", **audited(run))
        self._metrics.for_runtime(facts.runtime).accepted()
        self._record(run)
        self._carry_out(worker, run, self._hub.open(run.id))
        return Receipt(run, expected_wait=None if has_slot else self._scheduler.expected_wait())

    async def _created(self, creation: Creation) -> Answered | None:
        """Create a run in the store, and look where that does not say whether it has."""
        run_id = creation.run.id
        try:
            return await self._store.create_run(creation)
        except StoreInDoubt:
            # Until it is known: where nobody can look now, nobody is told of a run, and none may be left.
            self._in_doubt.add(run_id)
            there = await self._store.run(run_id)
            self._in_doubt.discard(run_id)
            if there is None:
                raise
            return None

    async def _end_doubtful(self) -> None:
        """End the runs that are in the store although their callers were told that there are none."""
        for run_id in list(self._in_doubt):
            run = await self._store.run(run_id)
            if run is not None and not run.phase.terminal:
                following = await self._store.advance_run(run, ended(_NOT_ACCEPTED, time.time()))
                if following is not None:
                    self._record(following)
            self._in_doubt.discard(run_id)

    def _new_worker(self, user: str, work: RunPlan, session_id: str | None) -> Worker:
        # Runs of a session share its workspace, so they take turns.
        return Worker(
            user,
            work,
            lane=session_id,
            file_manager=self._file_manager,
            runner=self._runner,
            store=self._store,
            scheduler=self._scheduler,
            metrics=self._metrics.for_runtime(work.spec.runtime),
            on_step=self._record,
            on_packages=self._record_packages,
            on_egress=self._record_egress,
        )

    def _carry_out(self, worker: Worker, run: Run, channel: LogChannel) -> None:
        if run.phase is Phase.QUEUED:
            channel.publish(PhaseChanged(run.phase))
        worker.attach(run, channel)
        task = asyncio.get_running_loop().create_task(self._carried_out(worker, run), name=run.id)
        self._working[run.id] = worker, task

    async def _carried_out(self, worker: Worker, run: Run) -> None:
        over: Run | None = None
        try:
            over = await worker.carry_out()
        except Exception as error:
            internal_error("a run", error)
        finally:
            del self._working[run.id]
            if over is not None:
                self._hub.end(run.id, Ended(over))
            else:
                self._hub.abandon(run.id)

    def _record(self, run: Run) -> None:
        outcome = run.reason.value if run.reason is not None else run.phase.value
        self._audit.record(f"sandbox.run.{run.phase.value}", run.caller, outcome, **audited(run))

    def _record_packages(self, run: Run, packages: Packages, outcome: str, layer: str | None) -> None:
        event = "sandbox.packages.failed" if layer is None else "sandbox.packages.built"
        self._audit.record(event, run.caller, outcome, run_id=run.id, packages=packages.shown(), layer=layer)

    def _record_egress(self, run: Run, seen: EgressSeen) -> None:
        outcome = "allowed" if seen.allowed else "denied"
        about = {"run_id": run.id, "session_id": run.facts.session_id, "runtime": run.facts.runtime}
        self._audit.record(f"sandbox.run.egress_{outcome}", run.caller, seen.reason or outcome, **about, **seen.shown())

    # How everything ends.

    def refuse(self) -> None:
        """Accept no more runs."""
        self._refusing = True

    async def idle(self) -> None:
        """Wait until no run is under way or waits."""
        while tasks := {task for _, task in self._working.values()} | self._accepting:
            await asyncio.wait(tasks)

    def shut_down(self) -> None:
        """Cancel what there is, except what a later server can still do."""
        for worker, _ in self._working.values():
            worker.shut_down()

    async def close(self) -> None:
        """End everything without any grace."""
        self.refuse()
        if self._pruning is not None:
            self._pruning.cancel()
        # Again, because a run may just be accepted.
        while self._working or self._accepting:
            self.shut_down()
            # A task that is cancelled before its first step does not even clean up.
            await asyncio.sleep(0)
            tasks = {task for _, task in self._working.values()} | self._accepting
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    async def _prune(self) -> None:
        while True:
            await asyncio.sleep(_PRUNE_SECONDS)
            now = time.time()
            try:
                await self._end_doubtful()
                await self._store.prune(
                    claims_before=now - self._retention.claims, runs_before=now - self._retention.runs
                )
                await self._remove_logs()
            except (StoreUnavailable, OSError) as error:
                _log.warning("what is old could not be removed: %s", error)

    async def _remove_logs(self) -> None:
        """Remove the logs of runs that the store has forgotten, and the oldest where there are too many."""
        files = self._hub.files
        if files is None:
            return
        room = self._retention.log_bytes
        expired = time.time() - self._retention.runs
        for log in await files.kept():
            room -= log.size
            crowded = room < 0 and log.run_id not in self._working
            if crowded or (log.modified < expired and await self._store.run(log.run_id) is None):
                await files.remove(log.run_id)


def _no_log(run_id: str) -> NotFound:
    return NotFound("the log of this run is not kept any more", run_id=run_id)


def _repeated(prior: Answered) -> Receipt:
    return Receipt(msgspec.json.decode(prior.response, type=Run), answered=prior)

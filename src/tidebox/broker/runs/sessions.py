"""Sessions: made once however often they are asked for, and removed with everything that belongs to them.

A session ends in three steps, each of which can be taken again after a crash: the store lets it take no more runs,
its runs are killed and its files removed, and then it is forgotten.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, replace

import msgspec

from tidebox.broker.audit.audit_log import Audit
from tidebox.broker.internal_errors import internal_error
from tidebox.broker.run_metrics import RunMetrics
from tidebox.broker.runs.journaled import Runs
from tidebox.broker.runs.quotas import Quotas
from tidebox.broker.runs.run_files import FileManager
from tidebox.cluster.membership import Membership
from tidebox.errors import NodeLost, NotFound, StoreUnavailable, TideboxError, WrongNode
from tidebox.model.idempotency import Answered, Claim
from tidebox.model.principal import Caller, Principal
from tidebox.model.run import Conclusion, Phase, Reason
from tidebox.model.session import Session, SessionState
from tidebox.store.base import SessionCreation, SessionPage, SessionQuery, Store

_log = logging.getLogger(__name__)

_EXPIRED = Conclusion(phase=Phase.KILLED, reason=Reason.SESSION_EXPIRED, message=Reason.SESSION_EXPIRED.value)
_DELETED = Conclusion(phase=Phase.KILLED, reason=Reason.SESSION_DELETED, message=Reason.SESSION_DELETED.value)
_REAPER = Caller(Principal("system"), "", "", "reaper")


@dataclass(frozen=True, slots=True)
class SessionReceipt:
    """The result of ``create``."""

    session: Session
    answered: Answered | None = None
    """Where given, the request was a repeated one, and the session is that of the first."""


class Sessions:
    """Makes, shows and removes sessions."""

    def __init__(
        self,
        *,
        store: Store,
        audit: Audit,
        metrics: RunMetrics,
        runs: Runs,
        file_manager: FileManager,
        quotas: Quotas,
        claims_kept: float,
        interval: float,
        membership: Membership,
    ) -> None:
        self._store = store
        self._audit = audit
        self._metrics = metrics
        self._runs = runs
        self._file_manager = file_manager
        self._quotas = quotas
        self._claims_kept = claims_kept
        self._interval = interval
        self._membership = membership
        self._removing: dict[str, asyncio.Task[None]] = {}
        self._reaper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Recover sessions that have no owner, and start the reaper of expired ones."""
        await self._store.recover_sessions(self._membership.node_id)
        self._reaper = asyncio.get_running_loop().create_task(self._reap(), name="session reaper")

    async def close(self) -> None:
        """Look no more; a removal that was begun is finished by the next server."""
        if self._reaper is not None:
            self._reaper.cancel()
            await asyncio.wait([self._reaper])
        for task in self._removing.values():
            task.cancel()
        if self._removing:
            await asyncio.wait(self._removing.values())

    async def create(self, caller: Caller, session: Session, claim: Claim | None = None) -> SessionReceipt:
        """Make a session, or answer a repeated request as the first one was; raises as ``Runs.submit`` does."""
        self._audit.check()
        session = replace(session, node_id=self._membership.owner.node_id)
        creation = SessionCreation(
            session=session,
            claim=claim,
            response=msgspec.json.encode(replace(session, env={})) if claim is not None else b"",
            valid_after=session.created_at - self._claims_kept,
            check=self._quotas.check_sessions,
        )
        prior = await self._store.create_session(creation)
        if prior is not None:
            return SessionReceipt(msgspec.json.decode(prior.response, type=Session), prior)
        self._metrics.for_runtime(session.runtime).session_created()
        self._record("sandbox.session.created", caller, session, "created")
        return SessionReceipt(session)

    async def get(self, caller: Caller, session_id: str) -> Session:
        """A session of the caller's own that can be used; an admin may see any. ``NodeLost`` where its files are."""
        session = await self._known(caller, session_id)
        if not self._is_here(session) and not await self._store.has_node(session.node_id):
            raise NodeLost(
                "the server that has the files of this session is lost",
                session_id=session_id,
                node_id=session.node_id,
            )
        return session

    async def here(self, caller: Caller, session_id: str) -> Session:
        """As ``get``, of a session whose files are here; ``WrongNode`` where another server has them."""
        session = await self.get(caller, session_id)
        if not self._is_here(session):
            raise _elsewhere(session)
        return session

    async def _known(self, caller: Caller, session_id: str) -> Session:
        session = await self._store.session(session_id)
        mine = session is not None and (session.user == caller.principal.user or caller.principal.is_admin)
        if session is None or not mine or not session.usable(time.time()):
            raise NotFound("no such session", session_id=session_id)
        return session

    def _is_here(self, session: Session) -> bool:
        return session.node_id == self._membership.node_id

    async def list(self, caller: Caller, *, limit: int, offset: int) -> SessionPage:
        """The caller's sessions, newest first."""
        return await self._store.list_sessions(
            SessionQuery(user=caller.principal.user, state=SessionState.ACTIVE, limit=limit, offset=offset)
        )

    async def delete(self, caller: Caller, session_id: str) -> None:
        """Kill the runs of a session, remove its files, and forget it."""
        session = await self._known(caller, session_id)
        # What a lost node has of it goes when that one is back: it finds that there is no such session.
        if not self._is_here(session) and await self._store.has_node(session.node_id):
            raise _elsewhere(session)
        self._record("sandbox.session.deleted", caller, session, "deleted")
        await asyncio.shield(self._remove(session, _DELETED))

    def _remove(self, session: Session, verdict: Conclusion) -> asyncio.Task[None]:
        """Begin to remove a session, once however many ask for it."""
        task = self._removing.get(session.id)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._removed(session.id, verdict), name=session.id)
            self._removing[session.id] = task
            task.add_done_callback(lambda _: self._removing.pop(session.id))
        return task

    async def _removed(self, session_id: str, verdict: Conclusion) -> None:
        await self._store.close_session(session_id)
        await self._runs.end_session(session_id, verdict)
        await self._file_manager.forget_session(session_id)
        await self._store.delete_session(session_id)

    async def _reap(self) -> None:
        while True:
            try:
                for session in await self._store.expired_sessions(time.time(), self._membership.node_id):
                    if session.id not in self._removing:
                        self._record("sandbox.session.expired", _REAPER, session, "expired")
                    await asyncio.shield(self._remove(session, _EXPIRED))
            except StoreUnavailable as error:
                _log.warning("expired sessions could not be looked for: %s", error)
            except TideboxError as error:
                _log.warning("an expired session could not be removed: %s", error)
            except Exception as error:
                internal_error("the removal of a session", error)
            await asyncio.sleep(self._interval)

    def _record(self, event: str, caller: Caller, session: Session, outcome: str) -> None:
        self._audit.record(
            event,
            caller,
            outcome,
            session_id=session.id,
            owner=session.user,
            runtime=session.runtime,
            base_image=session.base_image,
            image_digest=session.image_digest,
            policy_hash=session.policy_hash,
            spec_version=session.spec_version,
        )


def _elsewhere(session: Session) -> WrongNode:
    return WrongNode(
        "another server has the files of this session: ask that one", session_id=session.id, node_id=session.node_id
    )

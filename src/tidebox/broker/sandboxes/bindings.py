"""Bindings: each scope has one sandbox, made once however many ask for it, and gone with everything of it.

What is live is known here, in one process and on one event loop; the store knows every binding, for the next server. Of
several servers on one database each has bindings of its own: what is bound at another one is not bound here. A
sandbox of this server dies with it: then its binding is kept, and the next who asks for it gets a new one. One that is
on another server is found there again.

A binding that ends is gone from here at once, and with it every token; only then are its box and its row removed. Who
asks for the same scope meanwhile waits for that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

from tidebox.broker.audit.audit_log import Audit
from tidebox.broker.internal_errors import internal_error
from tidebox.broker.sandboxes.ended_bindings import EndedBindings
from tidebox.broker.sandboxes.leases import LeaseTerms, due
from tidebox.broker.sandboxes.live_binding import BindingEnded, BindingMode, BindingRequest, LiveBinding
from tidebox.broker.sandboxes.providers.base import Provider, Providers, SandboxExtras
from tidebox.broker.sandboxes.provisioning import Provisioner
from tidebox.broker.sandboxes.sandbox import LiveSandbox
from tidebox.cluster.membership import Membership, Resident
from tidebox.errors import (
    Conflict,
    Expired,
    Forbidden,
    NotFound,
    QuotaExceeded,
    SandboxStarting,
    TideboxError,
)
from tidebox.model.ids import new_id
from tidebox.model.node import Owner
from tidebox.model.principal import Caller
from tidebox.model.run import Reason
from tidebox.model.sandbox import Binding, SandboxState, Scope
from tidebox.store.base import BindingCreation, Estate, Store

_RETRY_AFTER_SECONDS = 1.0
# What is not done by then ends with the runtime.
_CLOSE_SECONDS = 5.0
# A scope can be released while it is requested; but not each time.
_TRIES = 5


class Bindings(Resident):
    """Makes, finds and ends bindings."""

    def __init__(
        self,
        *,
        store: Store,
        audit: Audit,
        providers: Providers,
        terms: LeaseTerms,
        membership: Membership,
        max_per_user: int | None = None,
        claims_kept: float = 600.0,
    ) -> None:
        self.terms = terms
        self.providers = providers
        self._store = store
        self._membership = membership
        self._provisioner = Provisioner(providers, store, audit, terms, self._having)
        self._max_per_user = max_per_user
        self._claims_kept = claims_kept
        self._by_scope: dict[Scope, LiveBinding] = {}
        self._by_id: dict[str, LiveBinding] = {}
        self._ending: dict[Scope, asyncio.Task[None]] = {}
        self._ended_bindings = EndedBindings(store)

    async def start(self) -> None:
        """Recover the bindings that an earlier server of this node left; its local sandboxes are lost."""
        await self.providers.start()
        await self.recover(self._membership.owner)

    async def recover(self, owner: Owner) -> None:
        """Recover the bindings of this node."""
        now = time.time()
        for binding in await self._store.recover_bindings(owner.node_id):
            provider = self.providers.get(binding.provider)
            provider_with_it = provider if provider is not None and provider.durable else None
            # Users could not renew leases while there was no server.
            left = self.terms.leased(replace(binding, state=SandboxState.FAILED), now)
            live = LiveBinding(left if provider_with_it is not None else replace(left, sandbox_id=None))
            live.had_sandbox = live.unsaved = True
            live.recorded.set()
            self._by_scope[binding.scope] = self._by_id[binding.id] = live
            if provider_with_it is not None:
                live.transition(SandboxState.PROVISIONING)
                self._start(live, self._provisioner.resume(live, provider_with_it))

    async def stop(self) -> None:
        """End the sandboxes that are here: their scopes may have others by now. The bindings stay."""
        for live in list(self._by_id.values()):
            provider = self.providers.get(live.binding.provider)
            if live.usable is not None and provider is not None and not provider.durable:
                self._provisioner.discard(live.usable)

    async def abandon(self) -> None:
        """End every binding here, and nothing in the store: there they have ended, or are another server's."""
        endings = [self._end(live, keep=True, record=False) for live in list(self._by_id.values())]
        await asyncio.gather(*endings, return_exceptions=True)

    async def inherit(self, estate: Estate) -> None:
        """Audit the bindings that were lost with their node."""
        for binding in estate.bindings:
            self._provisioner.record("sandbox.access.lost", binding, Reason.NODE_LOST.value)

    async def close(self) -> None:
        """Let go of everything; the bindings stay in the store, and the boxes end with their runtime."""
        tasks = {live.starting for live in self._by_id.values() if live.starting is not None}
        tasks |= {*self._ending.values(), *self._provisioner.closing}
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_SECONDS)
        await self.providers.close()

    def count(self) -> dict[SandboxState, int]:
        """Count the bindings in each state."""
        found = dict.fromkeys(SandboxState, 0)
        for live in self._by_id.values():
            found[live.binding.state] += 1
        return found

    async def ensure(self, caller: Caller, request: BindingRequest) -> tuple[LiveBinding, LiveSandbox]:
        """The binding of a scope and its sandbox, made where the mode allows it and there is none.

        Raises ``NotFound`` or ``Conflict`` as the mode says, ``Forbidden`` for a scope of somebody else,
        ``SandboxStarting`` where it takes longer than ``request.wait``, ``QuotaExceeded``, and the error
        that keeps a box from being made.
        """
        for _ in range(_TRIES):
            try:
                live = await self._bound(caller, request)
                return live, await self._running(live, request)
            except BindingEnded:
                continue
        raise Conflict("the sandbox is released as often as it is asked for", scope=request.scope.id)

    def find(self, binding_id: str) -> LiveBinding | None:
        """The binding of that id, unless it has ended."""
        return self._by_id.get(binding_id)

    def of_scope(self, scope: Scope) -> LiveBinding | None:
        """The binding of a scope, unless it has ended."""
        return self._by_scope.get(scope)

    def _having(self, sandbox_id: str) -> list[LiveBinding]:
        """Return the bindings of a sandbox: one, or several of one user that share it."""
        return [live for live in self._by_id.values() if live.sandbox is not None and live.sandbox.id == sandbox_id]

    async def _bound(self, caller: Caller, request: BindingRequest) -> LiveBinding:
        live = self._by_scope.get(request.scope)
        if live is None:
            if not request.mode.creates:
                raise NotFound(f"this {request.scope.type.value} has no sandbox")
            return self._begin(caller, request)
        self._require_owner(caller, live.binding)
        if request.mode is BindingMode.CREATE_ONLY or (request.mode.creates and request.claim is not None):
            await self._settle(live, request)
        return live

    async def _settle(self, live: LiveBinding, request: BindingRequest) -> None:
        """See whether the request is one that was done before; without that nothing can be created twice."""
        replayed = False
        if request.claim is not None:
            await live.recorded.wait()
            if live.over:
                raise BindingEnded
            now = time.time()
            creation = BindingCreation(
                binding=replace(live.binding, id=new_id("bind"), created_at=now),
                claim=request.claim,
                valid_after=now - self._claims_kept,
            )
            bound = await self._store.create_binding(creation)
            if bound.created:
                # It ended meanwhile: what was written belongs to nobody.
                await self._store.delete_binding(creation.binding.id)
                raise BindingEnded
            replayed = bound.replayed
        if request.mode is BindingMode.CREATE_ONLY and not replayed:
            raise Conflict(f"this {request.scope.type.value} has a sandbox already", binding_id=live.binding.id)

    def _begin(self, caller: Caller, request: BindingRequest) -> LiveBinding:
        """Bind a scope that has no binding. Nobody comes in between: the rest is done by a task that all wait for."""
        candidates, like = self._chosen(caller, request)
        now = time.time()
        binding = Binding(
            id=new_id("bind"),
            scope=request.scope,
            user=caller.principal.user,
            provider=candidates[0].name,
            state=SandboxState.PROVISIONING,
            created_at=now,
            active_at=now,
            lease_expires_at=now + min(self.terms.lease_ttl, self.terms.hard_ttl),
            expires_at=now + self.terms.hard_ttl,
            node_id=self._membership.owner.node_id,
        )
        live = LiveBinding(binding)
        self._by_scope[request.scope] = self._by_id[binding.id] = live
        # Known now: when the task gets its turn, the end of this very binding may have begun.
        self._start(live, self._create(live, candidates, like, request, self._ending.get(request.scope)))
        return live

    def _chosen(self, caller: Caller, request: BindingRequest) -> tuple[list[Provider], LiveSandbox | None]:
        """Choose the providers for a new binding; with a usable hint, the one that made that sandbox."""
        candidates = self.providers.preferred(request.provider)
        for other in self._having(request.hint) if request.hint is not None else ():
            maker = self.providers.get(other.binding.provider)
            if other.binding.user == caller.principal.user and other.usable is not None and maker in candidates:
                assert maker is not None
                return [maker], other.usable
        return candidates, None

    async def _running(self, live: LiveBinding, request: BindingRequest) -> LiveSandbox:
        """The sandbox of a binding, made anew where it is lost."""
        wait = request.wait
        sandbox = live.usable
        if sandbox is not None:
            return sandbox
        if live.over:
            raise BindingEnded
        if live.starting is None:
            self._membership.check()
            if live.sandbox is not None:
                # It may be known to be gone before it has said so.
                self._provisioner.lose(live, live.sandbox)
            live.transition(SandboxState.PROVISIONING)
            candidates = self._provisioner.candidates(live.binding, request.provider)
            self._start(live, self._provisioner.provision(live, candidates, extras=_extras(request)))
        task = live.starting
        assert task is not None
        if wait > 0:
            await asyncio.wait([task], timeout=wait)
        if not task.done() or wait <= 0:
            raise SandboxStarting(
                "the sandbox is being made", retry_after=_RETRY_AFTER_SECONDS, binding_id=live.binding.id
            )
        task.result()
        sandbox = live.usable
        if sandbox is None:
            raise BindingEnded
        return sandbox

    def _start(self, live: LiveBinding, work: Coroutine[Any, Any, None]) -> None:
        def done(task: asyncio.Task[None]) -> None:
            live.starting = None
            if live.binding.state is SandboxState.PROVISIONING and not live.over:
                live.transition(SandboxState.FAILED)
            error = None if task.cancelled() else task.exception()
            if error is not None and not isinstance(error, (TideboxError, BindingEnded)):
                internal_error("the making of a sandbox", error)

        live.starting = asyncio.get_running_loop().create_task(work, name=f"start {live.binding.id}")
        live.starting.add_done_callback(done)

    async def _create(
        self,
        live: LiveBinding,
        candidates: list[Provider],
        like: LiveSandbox | None,
        request: BindingRequest,
        before: asyncio.Task[None] | None,
    ) -> None:
        """Let the store know of a new binding, and give it a sandbox; after the end of the scope's last one."""
        fresh = candidates[0].take() if like is None and not _extras(request) else None
        try:
            if before is not None:
                await asyncio.wait([before])
            if live.over:
                raise BindingEnded
            now = live.binding.created_at
            state = SandboxState.ACTIVE if fresh is not None else SandboxState.PROVISIONING
            sandbox_id = fresh.id if fresh is not None else None
            creation = BindingCreation(
                binding=replace(live.binding, state=state, sandbox_id=sandbox_id),
                claim=request.claim,
                valid_after=now - self._claims_kept,
                check=self._check_quota,
            )
            bound = await self._store.create_binding(creation)
            if bound.binding.node_id != live.binding.node_id:
                raise Conflict(
                    f"another server has the sandbox of this {live.binding.scope.type.value}: ask that one",
                    node_id=bound.binding.node_id,
                )
            if not bound.created:
                # One whose end the store could not be told of.
                self._by_id.pop(live.binding.id, None)
                self._ended_bindings.withdraw(bound.binding.id)
                live.binding = replace(live.binding, id=bound.binding.id)
                if not live.over:
                    self._by_id[live.binding.id] = live
            live.recorded.set()
            taken, fresh = fresh, None
            await self._provisioner.provision(live, candidates, taken, like, _extras(request))
        except BaseException:
            if fresh is not None:
                self._provisioner.discard(fresh)
            if not live.over:
                await asyncio.shield(self._end(live, keep=False, started=False))
            raise
        finally:
            live.recorded.set()

    def _check_quota(self, live: int) -> None:
        limit = self._max_per_user
        if limit is not None and live >= limit:
            raise QuotaExceeded(f"no more than {limit} sandboxes for one user", quota="sandboxes", limit=limit)

    async def get(self, caller: Caller, binding_id: str) -> Binding:
        """A binding of the caller's own; an admin may see any."""
        live = await self.get_live(caller, binding_id, admin=True)
        in_use = live.usable is not None and live.usable.in_use
        return replace(live.binding, active_at=time.time()) if in_use else live.binding

    def list(self, caller: Caller, *, everybody: bool = False) -> list[Binding]:
        """The bindings of the caller that live here, newest first; for an admin, everybody's."""
        if everybody and not caller.principal.is_admin:
            raise Forbidden("only admins see the sandboxes of others")
        user = caller.principal.user
        found = [live.binding for live in self._by_id.values() if everybody or live.binding.user == user]
        return sorted(found, key=lambda binding: binding.created_at, reverse=True)

    def base_url(self, binding: Binding) -> str | None:
        """Return the URL of the server that has the sandbox of a binding; None for this one."""
        live = self._by_id.get(binding.id)
        return live.sandbox.base_url if live is not None and live.sandbox is not None else None

    async def get_live(self, caller: Caller, binding_id: str, *, admin: bool = False) -> LiveBinding:
        """A binding that lives and is the caller's own, or that they may see as an ``admin``."""
        live = self._by_id.get(binding_id)
        if live is not None:
            self._require_owner(caller, live.binding, admin=admin)
            return live
        ended = await self._store.binding(binding_id)
        if ended is None or ended.state is not SandboxState.TERMINATED:
            raise NotFound("there is no such binding", binding_id=binding_id)
        self._require_owner(caller, ended, admin=admin)
        raise Expired("the binding has ended; ask for a new one", binding_id=binding_id)

    def _require_owner(self, caller: Caller, binding: Binding, *, admin: bool = False) -> None:
        if binding.user != caller.principal.user and not (admin and caller.principal.is_admin):
            raise Forbidden(f"this {binding.scope.type.value} is another user's")

    async def release(self, caller: Caller, binding_id: str) -> Binding:
        """End a binding, and its sandbox with everything in it; every token is dead at once."""
        live = self._by_id.get(binding_id)
        if live is None:
            raise NotFound("there is no such binding", binding_id=binding_id)
        self._require_owner(caller, live.binding, admin=True)
        await asyncio.shield(self._end(live, keep=False))
        return live.binding

    async def release_sandbox(self, caller: Caller, sandbox_id: str) -> Binding:
        """End the bindings of a sandbox, as ``release`` does."""
        having = self._having(sandbox_id)
        if not having:
            raise NotFound("there is no such sandbox", sandbox_id=sandbox_id)
        ended = [await self.release(caller, live.binding.id) for live in having]
        return ended[0]

    async def end_scope(self, caller: Caller, scope: Scope) -> Binding | None:
        """Remove what belonged to a thread, say, that has ended."""
        live = self._by_scope.get(scope)
        if live is None:
            if (ending := self._ending.get(scope)) is not None:
                await asyncio.shield(ending)
            return None
        return await self.release(caller, live.binding.id)

    def _end(self, live: LiveBinding, *, keep: bool, started: bool = True, record: bool = True) -> asyncio.Task[None]:
        """Begin to end a binding; ``keep`` lets it be known for a while that there was one.

        ``started`` is false for the task that makes its sandbox, which cannot wait for itself; ``record`` is false
        where the store is not to be told.
        """
        if live.ending is None:
            scope = live.binding.scope
            before = self._ending.get(scope)
            live.ending = asyncio.get_running_loop().create_task(self._ended(live, keep, started, record, before))
            self._by_scope.pop(scope, None)
            self._by_id.pop(live.binding.id, None)
            self._ending[scope] = live.ending
            live.ending.add_done_callback(lambda task: self._end_of_ending(scope, task))
        return live.ending

    def _end_of_ending(self, scope: Scope, task: asyncio.Task[None]) -> None:
        if self._ending.get(scope) is task:
            del self._ending[scope]
        error = task.exception()
        if error is not None and not isinstance(error, TideboxError):
            internal_error("the end of a sandbox", error)

    async def _ended(
        self, live: LiveBinding, keep: bool, started: bool, record: bool, before: asyncio.Task[None] | None
    ) -> None:
        if started and live.starting is not None:
            await asyncio.wait([live.starting])
        if before is not None:
            await asyncio.wait([before])
        live.transition(SandboxState.TERMINATED)
        ended = replace(live.binding, active_at=time.time()) if keep else None
        try:
            if record:
                await self._ended_bindings.save(live.binding.id, ended)
        finally:
            await self._provisioner.end(live)

    async def reap(self) -> None:
        """Suspend idle sandboxes, end expired ones, and retry what could not be saved in the store."""
        now = time.time()
        for live in list(self._by_id.values()):
            if live.starting is None and not live.over:
                await self._see_to(live, now)
        await self._ended_bindings.retry()

    async def _see_to(self, live: LiveBinding, now: float) -> None:
        sandbox = live.sandbox
        following = due(live.binding, self.terms, now, in_use=sandbox is not None and sandbox.in_use)
        if following is SandboxState.TERMINATED:
            self._provisioner.record("sandbox.access.expired", live.binding, "expired")
            await asyncio.shield(self._end(live, keep=True))
            return
        if sandbox is not None and not sandbox.in_use and self._provisioner.is_gone(live.binding):
            await self._provisioner.give_up(live, sandbox)
        elif following is SandboxState.SUSPENDED:
            # Somebody may need it, or it may be lost, while it is frozen.
            usable = live.usable
            if usable is not None and await usable.suspend() and live.binding.state is SandboxState.IDLE:
                live.transition(SandboxState.SUSPENDED)
        elif following is SandboxState.IDLE:
            live.transition(SandboxState.IDLE)
            if sandbox is not None:
                sandbox.verify_idle()
        if live.unsaved and not live.over:
            live.unsaved = False
            await self._store.save_binding(live.binding)


def _extras(request: BindingRequest) -> SandboxExtras:
    return SandboxExtras(request.packages, request.egress)

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
from tidebox.broker.sandboxes.ended_bindings import Endings
from tidebox.broker.sandboxes.leases import Terms, due
from tidebox.broker.sandboxes.live_binding import Ask, Held, Mode, Over
from tidebox.broker.sandboxes.providers.base import Extras, Provider, Providers
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
# A scope can be released under whoever asks for it; but not each time.
_TRIES = 5


class Bindings(Resident):
    """Makes, finds and ends bindings."""

    def __init__(
        self,
        *,
        store: Store,
        audit: Audit,
        providers: Providers,
        terms: Terms,
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
        self._by_scope: dict[Scope, Held] = {}
        self._by_id: dict[str, Held] = {}
        self._ending: dict[Scope, asyncio.Task[None]] = {}
        self._endings = Endings(store)

    async def start(self) -> None:
        """Take up the bindings that an earlier server of this node left; sandboxes of its own are lost."""
        await self.providers.start()
        await self.recover(self._membership.owner)

    async def recover(self, owner: Owner) -> None:
        """Take up the bindings of this node."""
        now = time.time()
        for binding in await self._store.recover_bindings(owner.node_id):
            provider = self.providers.get(binding.provider)
            keeper = provider if provider is not None and provider.keeps else None
            # Whoever used one could not say so while there was no server.
            left = self.terms.leased(replace(binding, state=SandboxState.FAILED), now)
            held = Held(left if keeper is not None else replace(left, sandbox_id=None))
            held.had_sandbox = held.unsaved = True
            held.recorded.set()
            self._by_scope[binding.scope] = self._by_id[binding.id] = held
            if keeper is not None:
                held.go(SandboxState.PROVISIONING)
                self._start(held, self._provisioner.resume(held, keeper))

    async def stop(self) -> None:
        """End the sandboxes that are here: their scopes may have others by now. The bindings stay."""
        for held in list(self._by_id.values()):
            provider = self.providers.get(held.binding.provider)
            if held.usable is not None and provider is not None and not provider.keeps:
                self._provisioner.discard(held.usable)

    async def abandon(self) -> None:
        """End every binding here, and nothing in the store: there they have ended, or are another server's."""
        endings = [self._end(held, keep=True, tell=False) for held in list(self._by_id.values())]
        await asyncio.gather(*endings, return_exceptions=True)

    async def inherit(self, estate: Estate) -> None:
        """Write down which bindings ended with their node."""
        for binding in estate.bindings:
            self._provisioner.record("sandbox.access.lost", binding, Reason.NODE_LOST.value)

    async def close(self) -> None:
        """Let go of everything; the bindings stay in the store, and the boxes end with their runtime."""
        tasks = {held.starting for held in self._by_id.values() if held.starting is not None}
        tasks |= {*self._ending.values(), *self._provisioner.closing}
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_SECONDS)
        await self.providers.close()

    def count(self) -> dict[SandboxState, int]:
        """How many bindings there are in each state."""
        found = dict.fromkeys(SandboxState, 0)
        for held in self._by_id.values():
            found[held.binding.state] += 1
        return found

    async def obtain(self, caller: Caller, ask: Ask) -> tuple[Held, LiveSandbox]:
        """The binding of a scope and its sandbox, made where the mode allows it and there is none.

        Raises ``NotFound`` or ``Conflict`` as the mode says, ``Forbidden`` for a scope of somebody else,
        ``SandboxStarting`` where it takes longer than ``ask.wait``, ``QuotaExceeded``, and what keeps a box from being
        made.
        """
        for _ in range(_TRIES):
            try:
                held = await self._bound(caller, ask)
                return held, await self._running(held, ask)
            except Over:
                continue
        raise Conflict("the sandbox is released as often as it is asked for", scope=ask.scope.id)

    def live(self, binding_id: str) -> Held | None:
        """The binding of that id, unless it has ended."""
        return self._by_id.get(binding_id)

    def of_scope(self, scope: Scope) -> Held | None:
        """The binding of a scope, unless it has ended."""
        return self._by_scope.get(scope)

    def _having(self, sandbox_id: str) -> list[Held]:
        """The bindings that have a sandbox: one, or some of one user that share it."""
        return [held for held in self._by_id.values() if held.sandbox is not None and held.sandbox.id == sandbox_id]

    async def _bound(self, caller: Caller, ask: Ask) -> Held:
        held = self._by_scope.get(ask.scope)
        if held is None:
            if not ask.mode.creates:
                raise NotFound(f"this {ask.scope.type.value} has no sandbox")
            return self._begin(caller, ask)
        self._require_owner(caller, held.binding)
        if ask.mode is Mode.CREATE_ONLY or (ask.mode.creates and ask.claim is not None):
            await self._settle(held, ask)
        return held

    async def _settle(self, held: Held, ask: Ask) -> None:
        """See whether the request is one that was done before; without that nothing can be created twice."""
        replayed = False
        if ask.claim is not None:
            await held.recorded.wait()
            if held.over:
                raise Over
            now = time.time()
            creation = BindingCreation(
                binding=replace(held.binding, id=new_id("bind"), created_at=now),
                claim=ask.claim,
                valid_after=now - self._claims_kept,
            )
            bound = await self._store.create_binding(creation)
            if bound.created:
                # It ended meanwhile: what was written belongs to nobody.
                await self._store.delete_binding(creation.binding.id)
                raise Over
            replayed = bound.replayed
        if ask.mode is Mode.CREATE_ONLY and not replayed:
            raise Conflict(f"this {ask.scope.type.value} has a sandbox already", binding_id=held.binding.id)

    def _begin(self, caller: Caller, ask: Ask) -> Held:
        """Bind a scope that has no binding. Nobody comes in between: the rest is done by a task that all wait for."""
        candidates, like = self._chosen(caller, ask)
        now = time.time()
        binding = Binding(
            id=new_id("bind"),
            scope=ask.scope,
            user=caller.principal.user,
            provider=candidates[0].name,
            state=SandboxState.PROVISIONING,
            created_at=now,
            active_at=now,
            lease_expires_at=now + min(self.terms.lease_ttl, self.terms.hard_ttl),
            expires_at=now + self.terms.hard_ttl,
            node_id=self._membership.owner.node_id,
        )
        held = Held(binding)
        self._by_scope[ask.scope] = self._by_id[binding.id] = held
        # Known now: when the task gets its turn, the end of this very binding may have begun.
        self._start(held, self._create(held, candidates, like, ask, self._ending.get(ask.scope)))
        return held

    def _chosen(self, caller: Caller, ask: Ask) -> tuple[list[Provider], LiveSandbox | None]:
        """Who may make the sandbox of a new binding; where the hint is good, it is the one that made that sandbox."""
        candidates = self.providers.preferred(ask.provider)
        for other in self._having(ask.hint) if ask.hint is not None else ():
            maker = self.providers.get(other.binding.provider)
            if other.binding.user == caller.principal.user and other.usable is not None and maker in candidates:
                assert maker is not None
                return [maker], other.usable
        return candidates, None

    async def _running(self, held: Held, ask: Ask) -> LiveSandbox:
        """The sandbox of a binding, made anew where it is lost."""
        wait = ask.wait
        sandbox = held.usable
        if sandbox is not None:
            return sandbox
        if held.over:
            raise Over
        if held.starting is None:
            self._membership.check()
            if held.sandbox is not None:
                # It may be known to be gone before it has said so.
                self._provisioner.lose(held, held.sandbox)
            held.go(SandboxState.PROVISIONING)
            candidates = self._provisioner.candidates(held.binding, ask.provider)
            self._start(held, self._provisioner.provision(held, candidates, extras=_extras(ask)))
        task = held.starting
        assert task is not None
        if wait > 0:
            await asyncio.wait([task], timeout=wait)
        if not task.done() or wait <= 0:
            raise SandboxStarting(
                "the sandbox is being made", retry_after=_RETRY_AFTER_SECONDS, binding_id=held.binding.id
            )
        task.result()
        sandbox = held.usable
        if sandbox is None:
            raise Over
        return sandbox

    def _start(self, held: Held, work: Coroutine[Any, Any, None]) -> None:
        def done(task: asyncio.Task[None]) -> None:
            held.starting = None
            if held.binding.state is SandboxState.PROVISIONING and not held.over:
                held.go(SandboxState.FAILED)
            error = None if task.cancelled() else task.exception()
            if error is not None and not isinstance(error, (TideboxError, Over)):
                internal_error("the making of a sandbox", error)

        held.starting = asyncio.get_running_loop().create_task(work, name=f"start {held.binding.id}")
        held.starting.add_done_callback(done)

    async def _create(
        self,
        held: Held,
        candidates: list[Provider],
        like: LiveSandbox | None,
        ask: Ask,
        before: asyncio.Task[None] | None,
    ) -> None:
        """Let the store know of a new binding, and give it a sandbox; after the end of the scope's last one."""
        fresh = candidates[0].take() if like is None and not _extras(ask) else None
        try:
            if before is not None:
                await asyncio.wait([before])
            if held.over:
                raise Over
            now = held.binding.created_at
            state = SandboxState.ACTIVE if fresh is not None else SandboxState.PROVISIONING
            sandbox_id = fresh.id if fresh is not None else None
            creation = BindingCreation(
                binding=replace(held.binding, state=state, sandbox_id=sandbox_id),
                claim=ask.claim,
                valid_after=now - self._claims_kept,
                check=self._check_quota,
            )
            bound = await self._store.create_binding(creation)
            if bound.binding.node_id != held.binding.node_id:
                raise Conflict(
                    f"another server has the sandbox of this {held.binding.scope.type.value}: ask that one",
                    node_id=bound.binding.node_id,
                )
            if not bound.created:
                # One whose end the store could not be told of.
                self._by_id.pop(held.binding.id, None)
                self._endings.taken_back(bound.binding.id)
                held.binding = replace(held.binding, id=bound.binding.id)
                if not held.over:
                    self._by_id[held.binding.id] = held
            held.recorded.set()
            taken, fresh = fresh, None
            await self._provisioner.provision(held, candidates, taken, like, _extras(ask))
        except BaseException:
            if fresh is not None:
                self._provisioner.discard(fresh)
            if not held.over:
                await asyncio.shield(self._end(held, keep=False, started=False))
            raise
        finally:
            held.recorded.set()

    def _check_quota(self, held: int) -> None:
        limit = self._max_per_user
        if limit is not None and held >= limit:
            raise QuotaExceeded(f"no more than {limit} sandboxes for one user", quota="sandboxes", limit=limit)

    async def get(self, caller: Caller, binding_id: str) -> Binding:
        """A binding of the caller's own; an admin may see any."""
        held = await self.found(caller, binding_id, admin=True)
        in_use = held.usable is not None and held.usable.in_use
        return replace(held.binding, active_at=time.time()) if in_use else held.binding

    def list(self, caller: Caller, *, everybody: bool = False) -> list[Binding]:
        """The bindings of the caller that live here, newest first; for an admin, everybody's."""
        if everybody and not caller.principal.is_admin:
            raise Forbidden("only admins see the sandboxes of others")
        user = caller.principal.user
        found = [held.binding for held in self._by_id.values() if everybody or held.binding.user == user]
        return sorted(found, key=lambda binding: binding.created_at, reverse=True)

    def base_url(self, binding: Binding) -> str | None:
        """Where clients reach the sandbox of a binding, if not here."""
        held = self._by_id.get(binding.id)
        return held.sandbox.base_url if held is not None and held.sandbox is not None else None

    async def found(self, caller: Caller, binding_id: str, *, admin: bool = False) -> Held:
        """A binding that lives and is the caller's own, or that he may see as an ``admin``."""
        held = self._by_id.get(binding_id)
        if held is not None:
            self._require_owner(caller, held.binding, admin=admin)
            return held
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
        held = self._by_id.get(binding_id)
        if held is None:
            raise NotFound("there is no such binding", binding_id=binding_id)
        self._require_owner(caller, held.binding, admin=True)
        await asyncio.shield(self._end(held, keep=False))
        return held.binding

    async def release_sandbox(self, caller: Caller, sandbox_id: str) -> Binding:
        """The same, by the sandbox."""
        having = self._having(sandbox_id)
        if not having:
            raise NotFound("there is no such sandbox", sandbox_id=sandbox_id)
        ended = [await self.release(caller, held.binding.id) for held in having]
        return ended[0]

    async def end_scope(self, caller: Caller, scope: Scope) -> Binding | None:
        """Remove what belonged to a thread, say, that has ended."""
        held = self._by_scope.get(scope)
        if held is None:
            if (ending := self._ending.get(scope)) is not None:
                await asyncio.shield(ending)
            return None
        return await self.release(caller, held.binding.id)

    def _end(self, held: Held, *, keep: bool, started: bool = True, tell: bool = True) -> asyncio.Task[None]:
        """Begin to end a binding; ``keep`` lets it be known for a while that there was one.

        ``started`` is false for whoever is making its sandbox, and so cannot be waited for; ``tell`` is false where the
        store is not to be told.
        """
        if held.ending is None:
            scope = held.binding.scope
            before = self._ending.get(scope)
            held.ending = asyncio.get_running_loop().create_task(self._ended(held, keep, started, tell, before))
            self._by_scope.pop(scope, None)
            self._by_id.pop(held.binding.id, None)
            self._ending[scope] = held.ending
            held.ending.add_done_callback(lambda task: self._end_of_ending(scope, task))
        return held.ending

    def _end_of_ending(self, scope: Scope, task: asyncio.Task[None]) -> None:
        if self._ending.get(scope) is task:
            del self._ending[scope]
        error = task.exception()
        if error is not None and not isinstance(error, TideboxError):
            internal_error("the end of a sandbox", error)

    async def _ended(
        self, held: Held, keep: bool, started: bool, tell: bool, before: asyncio.Task[None] | None
    ) -> None:
        if started and held.starting is not None:
            await asyncio.wait([held.starting])
        if before is not None:
            await asyncio.wait([before])
        held.go(SandboxState.TERMINATED)
        ended = replace(held.binding, active_at=time.time()) if keep else None
        try:
            if tell:
                await self._endings.tell(held.binding.id, ended)
        finally:
            await self._provisioner.end(held)

    async def look(self) -> None:
        """See to what time has brought about: idle and expired sandboxes, and what the store was not told yet."""
        now = time.time()
        for held in list(self._by_id.values()):
            if held.starting is None and not held.over:
                await self._see_to(held, now)
        await self._endings.look()

    async def _see_to(self, held: Held, now: float) -> None:
        sandbox = held.sandbox
        following = due(held.binding, self.terms, now, in_use=sandbox is not None and sandbox.in_use)
        if following is SandboxState.TERMINATED:
            self._provisioner.record("sandbox.access.expired", held.binding, "expired")
            await asyncio.shield(self._end(held, keep=True))
            return
        if sandbox is not None and not sandbox.in_use and self._provisioner.is_gone(held.binding):
            await self._provisioner.give_up(held, sandbox)
        elif following is SandboxState.SUSPENDED:
            # Somebody may need it, or it may be lost, while it is frozen.
            usable = held.usable
            if usable is not None and await usable.suspend() and held.binding.state is SandboxState.IDLE:
                held.go(SandboxState.SUSPENDED)
        elif following is SandboxState.IDLE:
            held.go(SandboxState.IDLE)
            if sandbox is not None:
                sandbox.doubted()
        if held.unsaved and not held.over:
            held.unsaved = False
            await self._store.save_binding(held.binding)


def _extras(ask: Ask) -> Extras:
    return Extras(ask.packages, ask.egress)

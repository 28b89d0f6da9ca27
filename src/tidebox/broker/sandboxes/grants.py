"""Access to sandboxes: grants, and the tokens that prove them.

A token is checked against what is live in this process, without asking the store: it is dead as soon as its binding
is released, its sandbox lost, or its epoch over. Where clients use another server's sandbox themselves, that server's
token is what they are granted; of such tokens no more than a digest is kept, to know them again.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from tidebox.broker.audit.audit_log import Audit
from tidebox.broker.sandboxes.bindings import Bindings
from tidebox.broker.sandboxes.live_binding import BindingRequest, LiveBinding
from tidebox.broker.sandboxes.processes import ProcessTable
from tidebox.broker.sandboxes.reaper import Reaper
from tidebox.broker.sandboxes.sandbox import Gate, LiveSandbox, SandboxAccess
from tidebox.errors import BoxGone, CapabilityDenied, Conflict, Expired, Forbidden, SandboxStarting, Unauthorized
from tidebox.model.ids import new_id
from tidebox.model.principal import Actor, Caller, Principal
from tidebox.model.sandbox import (
    Binding,
    Capability,
    CapabilityPolicy,
    Grant,
    SandboxState,
    Scope,
    ScopeType,
    named,
    token_scopes,
)

if TYPE_CHECKING:
    from tidebox.broker.sandboxes.access_tokens import Claims, KeyRing

_ANY_USER = ""
# A sandbox on another server can be released or lost while it is requested; but not each time.
_TRIES = 5


class Sandboxes(Gate):
    """Grants access to sandboxes by signed tokens, and authorizes the holders of tokens."""

    def __init__(
        self,
        bindings: Bindings,
        *,
        audit: Audit,
        keys: Callable[[], KeyRing],
        capabilities: CapabilityPolicy,
        bind_address: bool = False,
        reap_interval: float = 5.0,
    ) -> None:
        """``keys`` blocks, and loads cryptography; ``bind_address`` ties tokens to the address of who asked."""
        self.bindings = bindings
        self.terms = bindings.terms
        self.processes = ProcessTable()
        self._audit = audit
        self._load_keys = keys
        self._keys: KeyRing | None = None
        self.opened = asyncio.Event()
        """Set once the signing keys are loaded."""
        self._capabilities = capabilities
        self._bind_address = bind_address
        self.granted = 0
        """How many access tokens were issued."""
        self._ended_threads: dict[tuple[str, str], float] = {}
        self._handed_out: dict[bytes, Claims] = {}
        """Claims of tokens of other servers, by the digest of the token."""
        self._reaper = Reaper(self._reap, reap_interval)

    @property
    def keys(self) -> KeyRing:
        """The keys that sign and verify access tokens."""
        assert self._keys is not None
        return self._keys

    async def start(self) -> None:
        """Recover the bindings that an earlier server left."""
        await self.bindings.start()

    async def open(self) -> None:
        """Be ready to grant, and to let in; cryptography is loaded for it."""
        self._keys = await asyncio.to_thread(self._load_keys)
        self._reaper.start()
        self.opened.set()

    async def close(self) -> None:
        """Let go of everything."""
        await self._reaper.close()
        await self.bindings.close()

    async def grant(self, caller: Caller, request: BindingRequest) -> Grant:
        """Access to the sandbox of a scope; raises what ``Bindings.ensure`` does, and ``CapabilityDenied``."""
        self._audit.check()
        capabilities = self._capabilities.granted(caller.principal, request.actor, request.capabilities)
        self.bindings.providers.preferred(request.provider)
        before = self.bindings.of_scope(request.scope)
        waited = before is not None and before.usable is None
        live, grant = await self._obtained(caller, request, capabilities)
        live.last_grant = (request.actor, request.capabilities)
        recreated = live.recreated and (waited or not live.recreation_reported)
        live.recreation_reported = True
        if grant.thread_id is not None:
            self._ended_threads.pop((caller.principal.user, grant.thread_id), None)
            self._ended_threads.pop((_ANY_USER, grant.thread_id), None)
        return replace(grant, recreated=recreated)

    async def _obtained(
        self, caller: Caller, request: BindingRequest, capabilities: frozenset[Capability], tries: int = _TRIES
    ) -> tuple[LiveBinding, Grant]:
        live, sandbox = await self.bindings.ensure(caller, request)
        thread_id = request.thread_id or live.binding.thread_id
        try:
            return live, await self._minted(live, sandbox, caller, request.actor, capabilities, thread_id)
        except BoxGone:
            if tries <= 1 and live.over:
                raise Conflict("the sandbox is released as often as it is asked for", scope=request.scope.id) from None
            if tries <= 1:
                raise
        return await self._obtained(caller, request, capabilities, tries - 1)

    async def _minted(
        self,
        live: LiveBinding,
        sandbox: LiveSandbox,
        caller: Caller,
        actor: Actor,
        capabilities: frozenset[Capability],
        thread_id: str | None,
    ) -> Grant:
        """Sign a fresh token, and renew the lease: who gets a token needs the sandbox."""
        from tidebox.broker.sandboxes.access_tokens import Claims

        epoch = live.epoch
        leave = await sandbox.issue_pass(actor, capabilities)
        if live.over or live.usable is not sandbox:
            raise BoxGone("the sandbox is gone", sandbox_id=sandbox.id)
        now = time.time()
        live.binding = self.terms.leased(live.binding, now)
        if not sandbox.in_use and not sandbox.frozen:
            live.mark_used()
        if leave is not None and not (capabilities := capabilities & leave.capabilities):
            raise CapabilityDenied("the server of the sandbox grants nothing of it")
        direct = leave if sandbox.base_url is not None else None
        # No token outlives its binding.
        expires = int(
            direct.expires_at if direct is not None else min(now + self.terms.token_ttl, live.binding.expires_at)
        )
        claims = Claims(
            sub=caller.principal.user,
            sandbox_id=sandbox.id,
            binding=live.binding.id,
            capabilities=named(capabilities),
            scopes=token_scopes(capabilities),
            iat=int(now),
            exp=expires,
            jti=new_id("tok"),
            epoch=epoch,
            actor=actor,
            thread_id=thread_id,
            address=caller.address if self._bind_address else None,
        )
        if direct is not None:
            self._handed_out[_digest(direct.token)] = claims
        self.granted += 1
        return Grant(
            binding=live.binding,
            sandbox_id=sandbox.id,
            token=direct.token if direct is not None else self.keys.sign(claims),
            expires_at=float(expires),
            capabilities=capabilities,
            thread_id=thread_id,
            base_url=sandbox.base_url,
        )

    async def authorize(self, token: str, *, address: str, sandbox_id: str | None = None) -> SandboxAccess:
        """Verify a token and return what it gives access to."""
        claims, live, sandbox = self._proven(token, address)
        if sandbox.base_url is not None:
            raise Unauthorized("the sandbox of the token is on another server, and is used there")
        if sandbox_id not in (None, sandbox.id):
            raise Forbidden("the token is for another sandbox")
        return SandboxAccess(
            sandbox,
            frozenset(map(Capability, claims.capabilities)),
            float(claims.exp),
            _holder(claims),
            still_good=lambda: live.epoch == claims.epoch,
        )

    def holder(self, token: str, address: str) -> Principal:
        """Whose a token is; raises as ``authorize`` does."""
        return _holder(self._proven(token, address)[0])

    def _proven(self, token: str, address: str) -> tuple[Claims, LiveBinding, LiveSandbox]:
        handed_out = self._handed_out.get(_digest(token)) if self._handed_out else None
        if handed_out is not None and handed_out.exp <= time.time():
            raise Unauthorized("the token has expired")
        claims = handed_out or self.keys.verify(token)
        live = self.bindings.find(claims.binding)
        sandbox = live.usable if live is not None else None
        if live is None or sandbox is None or sandbox.id != claims.sandbox_id:
            raise Unauthorized("the sandbox of the token is gone")
        if live.epoch != claims.epoch:
            raise Unauthorized("the token was revoked")
        if claims.address not in (None, address):
            raise Unauthorized("the token is bound to another address")
        return claims, live, sandbox

    async def refresh_token(self, token: str, address: str, caller: Caller | None = None) -> Grant:
        """A new token for one that is still good, which is ``caller``'s own where they have another credential too."""
        self._audit.check()
        claims, live, sandbox = self._proven(token, address)
        if caller is not None and caller.principal.user != claims.sub:
            raise Forbidden("the token is another user's")
        if self._thread_ended(claims):
            raise Unauthorized("the thread of the token has ended")
        principal = _holder(claims)
        holder = caller or Caller(principal, address, "", "")
        capabilities = frozenset(map(Capability, claims.capabilities))
        try:
            return await self._minted(live, sandbox, holder, principal.actor, capabilities, claims.thread_id)
        except BoxGone:
            raise Unauthorized("the sandbox of the token is gone") from None

    def _thread_ended(self, claims: Claims) -> bool:
        thread = claims.thread_id
        return thread is not None and any((user, thread) in self._ended_threads for user in (claims.sub, _ANY_USER))

    async def refresh(self, caller: Caller, binding_id: str) -> Grant:
        """A new token for the owner of a binding; what it covers is as it was last granted."""
        self._audit.check()
        live = await self.bindings.get_live(caller, binding_id)
        sandbox = live.usable
        if sandbox is None:
            if live.starting is not None:
                raise SandboxStarting("the sandbox is being made", retry_after=1.0)
            raise _lost(binding_id)
        actor, requested = live.last_grant
        capabilities = self._capabilities.granted(caller.principal, actor, requested)
        try:
            return await self._minted(live, sandbox, caller, actor, capabilities, live.binding.thread_id)
        except BoxGone:
            raise _lost(binding_id) from None

    async def heartbeat(self, caller: Caller, binding_id: str) -> Binding:
        """Say that a binding is still needed; tokens are not touched by it."""
        live = await self.bindings.get_live(caller, binding_id)
        live.binding = self.terms.leased(live.binding, time.time())
        live.unsaved = True
        if live.binding.state is SandboxState.IDLE:
            live.mark_used()
        if live.sandbox is not None:
            live.sandbox.send_heartbeat()
        return live.binding

    async def revoke(self, caller: Caller, binding_id: str) -> Binding:
        """Revoke every token of a binding; its sandbox goes on."""
        live = await self.bindings.get_live(caller, binding_id, admin=True)
        live.epoch += 1
        if live.sandbox is not None:
            await live.sandbox.revoke()
        return live.binding

    async def end_scope(self, caller: Caller, scope: Scope) -> Binding | None:
        """Remove what belonged to a thread, say, that has ended; tokens made for it are not refreshed any more."""
        ended = await self.bindings.end_scope(caller, scope)
        if scope.type is ScopeType.THREAD:
            user = _ANY_USER if caller.principal.is_admin else caller.principal.user
            self._ended_threads[user, scope.id] = time.time()
        return ended

    async def _reap(self) -> None:
        """Rotate keys, drop expired entries, and reap bindings."""
        self.keys.rotate_if_due()
        now = time.time()
        self._handed_out = {digest: claims for digest, claims in self._handed_out.items() if claims.exp > now}
        oldest = now - self.terms.token_ttl - 1
        self._ended_threads = {thread: at for thread, at in self._ended_threads.items() if at > oldest}
        await self.bindings.reap()


def _holder(claims: Claims) -> Principal:
    return Principal(claims.sub, actor="agent" if claims.actor == "agent" else "human")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _lost(binding_id: str) -> Expired:
    return Expired("the sandbox is lost; ask for a new one", binding_id=binding_id)

"""Provisioning: gives a binding its sandbox, from the first provider that can make one or the one that has it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from tidebox.broker.audit.audit_log import Audit
from tidebox.broker.internal_errors import internal_error
from tidebox.broker.sandboxes.leases import LeaseTerms
from tidebox.broker.sandboxes.live_binding import BindingEnded, LiveBinding
from tidebox.broker.sandboxes.providers.base import NO_EXTRAS, Provider, Providers, SandboxExtras
from tidebox.broker.sandboxes.sandbox import LiveSandbox
from tidebox.errors import (
    BoxGone,
    ProviderUnavailable,
    ProvisionFailed,
    RuntimeUnavailable,
    StoreUnavailable,
    TideboxError,
)
from tidebox.model.events import EgressSeen, Preparing
from tidebox.model.packages import PACKAGE_ERRORS
from tidebox.model.principal import Caller, Principal
from tidebox.model.remote_servers import AUTO
from tidebox.model.sandbox import Binding, SandboxState
from tidebox.store.base import Store

REAPER = Caller(Principal("system"), "", "", "reaper")
# After these the next provider is asked.
_CANNOT = (RuntimeUnavailable, ProvisionFailed, ProviderUnavailable, BoxGone)


class Provisioner:
    """Gives bindings their sandboxes, and sees when they are lost."""

    def __init__(
        self,
        providers: Providers,
        store: Store,
        audit: Audit,
        terms: LeaseTerms,
        having: Callable[[str], Sequence[LiveBinding]],
    ) -> None:
        """``having`` tells which bindings have a sandbox."""
        self.providers = providers
        self._having = having
        self._store = store
        self._audit = audit
        self._terms = terms
        self._closing: set[asyncio.Task[None]] = set()

    def candidates(self, binding: Binding, preference: str) -> list[Provider]:
        """Return the providers to recreate a sandbox: the last one, which may have it; then others, if it is gone."""
        known = self.providers.get(binding.provider)
        if known is None:
            return self.providers.preferred(AUTO)
        if preference != AUTO or not self.is_gone(binding):
            return [known]
        return [known, *(other for other in self.providers.preferred(AUTO) if other is not known)]

    def is_gone(self, binding: Binding) -> bool:
        """Whether the provider of a binding has been silent for so long that what it had is idle, and so over."""
        provider = self.providers.get(binding.provider)
        return provider is not None and provider.silent_for > self._terms.idle_timeout

    async def give_up(self, live: LiveBinding, sandbox: LiveSandbox) -> None:
        """Take a sandbox for lost whose provider is gone, so that the next who asks gets another one."""
        self.lose(live, sandbox)
        live.sandbox = None
        await sandbox.close()

    async def provision(
        self,
        live: LiveBinding,
        candidates: Sequence[Provider],
        fresh: LiveSandbox | None = None,
        like: LiveSandbox | None = None,
        extras: SandboxExtras = NO_EXTRAS,
    ) -> None:
        """Give a binding a sandbox: ``fresh``, which the first of the candidates had ready, or one that they make."""
        lost, live.sandbox = live.sandbox, None
        if lost is not None:
            await lost.close()
        provider = candidates[0]
        if fresh is None:
            try:
                provider, fresh = await self._made(live, candidates, like, extras)
            except TideboxError as error:
                live.transition(SandboxState.FAILED)
                self.record("sandbox.access.failed", live.binding, error.code)
                raise
        await self._place(live, provider, fresh)

    async def _made(
        self, live: LiveBinding, candidates: Sequence[Provider], like: LiveSandbox | None, extras: SandboxExtras
    ) -> tuple[Provider, LiveSandbox]:
        reasons: list[TideboxError] = []
        packages = extras.packages

        def on_preparing(event: Preparing) -> None:
            if event.layer is not None:
                self.record(
                    "sandbox.packages.built", live.binding, "built", packages=packages.shown(), layer=event.layer
                )

        def on_egress(seen: EgressSeen) -> None:
            outcome = "allowed" if seen.allowed else "denied"
            self.record(f"sandbox.access.egress_{outcome}", live.binding, seen.reason or outcome, **seen.shown())

        for provider in candidates:
            live.contacted.add(provider.name)
            try:
                wanted = replace(extras, on_preparing=on_preparing, on_egress=on_egress, user=live.binding.user)
                return provider, await provider.create(live.binding.id, like, wanted)
            except PACKAGE_ERRORS as error:
                self.record("sandbox.packages.failed", live.binding, error.code, packages=packages.shown())
                raise
            except _CANNOT as error:
                reasons.append(error)
        # The best of them is the one whose reason counts.
        raise reasons[0]

    async def resume(self, live: LiveBinding, provider: Provider) -> None:
        """Give a binding the sandbox that it had when this server was another."""
        live.contacted.add(provider.name)
        try:
            found = await provider.resume(live.binding.id)
        except TideboxError:
            live.transition(SandboxState.FAILED)
            raise
        if found is None:
            live.transition(SandboxState.FAILED)
            self.record("sandbox.access.lost", live.binding, "box_gone")
        else:
            await self._place(live, provider, found)

    async def _place(self, live: LiveBinding, provider: Provider, sandbox: LiveSandbox) -> None:
        if live.over:
            self.discard(sandbox)
            raise BindingEnded
        self._check_id(live, provider, sandbox)
        sandbox.bind(live.binding.id, lambda seconds: self._mark_used(live, sandbox, seconds))
        known = live.binding.sandbox_id
        live.recreated, live.had_sandbox, live.recreation_reported = (
            live.had_sandbox and sandbox.id != known,
            True,
            False,
        )
        live.sandbox = sandbox
        live.binding = self._terms.leased(
            replace(live.binding, sandbox_id=sandbox.id, provider=provider.name), time.time()
        )
        live.transition(SandboxState.ACTIVE)
        sandbox.on_gone(lambda: self.lose(live, sandbox))
        if sandbox.gone:
            self.lose(live, sandbox)
        if provider.durable:
            await self._save(live)
        for name in live.contacted - {provider.name}:
            self._later(self._release(name, live.binding.id))
        live.contacted &= {provider.name}

    def _check_id(self, live: LiveBinding, provider: Provider, sandbox: LiveSandbox) -> None:
        """Another server must not name a sandbox of somebody else's as its own."""
        whose = (live.binding.user, provider.name)
        for other in self._having(sandbox.id):
            if other is not live and (other.binding.user, other.binding.provider) != whose:
                self.discard(sandbox)
                live.transition(SandboxState.FAILED)
                raise ProviderUnavailable(f"the provider {provider.name} gives out what is another's")

    async def _save(self, live: LiveBinding) -> None:
        """Save the binding at once: a sandbox that outlives this server must be found by the next one."""
        live.unsaved = False
        try:
            await self._store.save_binding(live.binding)
        except StoreUnavailable:
            live.unsaved = True
            raise

    def _mark_used(self, live: LiveBinding, sandbox: LiveSandbox, seconds_ago: float) -> None:
        at = time.time() - seconds_ago
        if at > live.binding.active_at:
            live.binding = replace(live.binding, active_at=at)
            # What is lost may still be told of, when another one is being made or all is over.
            if seconds_ago < self._terms.idle_timeout and live.sandbox is sandbox and live.binding.state.live:
                live.mark_used()

    def lose(self, live: LiveBinding, sandbox: LiveSandbox) -> None:
        """A sandbox is gone by itself; the binding stays. Harmless where that is known."""
        if live.over or live.sandbox is not sandbox or not live.binding.state.live:
            return
        live.transition(SandboxState.FAILED)
        self.record("sandbox.access.lost", live.binding, "box_gone")

    async def end(self, live: LiveBinding) -> None:
        """Leave nothing of a binding's sandbox."""
        if live.sandbox is not None:
            await live.sandbox.close()
        for name in live.contacted:
            await self._release(name, live.binding.id)

    async def _release(self, name: str, binding_id: str) -> None:
        provider = self.providers.get(name)
        if provider is not None:
            await provider.release(binding_id)

    def discard(self, sandbox: LiveSandbox) -> None:
        """Let go of a sandbox that no binding has, or may have, in the background."""
        self._later(sandbox.close())

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._closing.add(task)
        task.add_done_callback(self._closed)

    def _closed(self, task: asyncio.Task[None]) -> None:
        self._closing.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, TideboxError):
            internal_error("the end of a sandbox", error)

    @property
    def closing(self) -> set[asyncio.Task[None]]:
        """Tasks that are still closing sandboxes."""
        return set(self._closing)

    def record(self, event: str, binding: Binding, outcome: str, **more: Any) -> None:
        """Write into the audit log what happened to a binding by itself."""
        self._audit.record(
            event,
            REAPER,
            outcome,
            binding_id=binding.id,
            sandbox_id=binding.sandbox_id,
            scope_type=binding.scope.type.value,
            scope_id=binding.scope.id,
            thread_id=binding.thread_id,
            owner=binding.user,
            provider=binding.provider,
            **more,
        )

"""Leases of sandboxes: idle timeout, suspension, expiry. Pure rules that the reaper applies."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tidebox.model.sandbox import Binding, SandboxState


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTerms:
    """Lease durations, in seconds."""

    token_ttl: float = 600.0
    lease_ttl: float = 3600.0
    idle_timeout: float = 900.0
    hard_ttl: float = 28800.0
    grace: float = 60.0
    """How long a sandbox that is to go can still be come back to."""

    def leased(self, binding: Binding, now: float) -> Binding:
        """Return the binding with its lease renewed at ``now``."""
        return replace(binding, active_at=now, lease_expires_at=min(now + self.lease_ttl, binding.expires_at))


def due(binding: Binding, terms: LeaseTerms, now: float, *, in_use: bool) -> SandboxState | None:
    """The state that a sandbox should go into now; None where it stays as it is.

    What nobody used for the idle time is marked as idle, frozen at the next look, and removed after the grace. An
    expired lease ends it after the grace too. The hard end has no grace, and does not wait for users of the sandbox.
    """
    if now >= binding.expires_at:
        return SandboxState.TERMINATED
    if in_use:
        return None
    idle_at = binding.active_at + terms.idle_timeout
    if now >= min(idle_at, binding.lease_expires_at) + terms.grace:
        return SandboxState.TERMINATED
    if binding.state is SandboxState.IDLE:
        return SandboxState.SUSPENDED
    if binding.state is SandboxState.ACTIVE and now >= idle_at:
        return SandboxState.IDLE
    return None

"""A live binding in this process, and the request for one."""

from __future__ import annotations

import asyncio
import enum
import secrets
from dataclasses import dataclass, replace

from tidebox.broker.internal_errors import internal_error
from tidebox.broker.sandboxes.sandbox import LiveSandbox
from tidebox.model.idempotency import Claim
from tidebox.model.packages import NO_PACKAGES, Packages
from tidebox.model.principal import Actor
from tidebox.model.remote_servers import AUTO
from tidebox.model.requested_egress import BoxEgress
from tidebox.model.sandbox import TRANSITIONS, Binding, Capability, SandboxState, Scope


class BindingMode(enum.Enum):
    """Whether a request gets an existing binding, creates one, or either."""

    GET = "get"
    ENSURE = "ensure"
    ATTACH_ONLY = "attach_only"
    CREATE_ONLY = "create_only"

    @property
    def creates(self) -> bool:
        """Whether it may make a binding."""
        return self in (BindingMode.ENSURE, BindingMode.CREATE_ONLY)


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingRequest:
    """A request for the sandbox of a scope."""

    scope: Scope
    mode: BindingMode
    actor: Actor = "human"
    capabilities: frozenset[Capability] | None = None
    """None requests all that the caller may have."""
    provider: str = AUTO
    """The provider to create the sandbox, where there is none."""
    hint: str | None = None
    """A sandbox of the same user that a scope without one is to share."""
    thread_id: str | None = None
    """The thread it is for, where the scope is not a thread itself."""
    wait: float = 30.0
    """How long to wait for a sandbox that is being made."""
    claim: Claim | None = None
    packages: Packages = NO_PACKAGES
    """Packages of a sandbox created by this request; an existing one stays as it is."""
    egress: BoxEgress | None = None
    """Egress of such a sandbox."""


class BindingEnded(Exception):
    """Raised where a binding ended while its sandbox was waited for."""


class LiveBinding:
    """A live binding, with its sandbox where it has one, and its revocation epoch."""

    def __init__(self, binding: Binding) -> None:
        self.binding = binding
        self.sandbox: LiveSandbox | None = None
        self.contacted: set[str] = set()
        """Names of providers that may hold a sandbox of it."""
        self.starting: asyncio.Task[None] | None = None
        self.ending: asyncio.Task[None] | None = None
        self.recorded = asyncio.Event()
        """Set when the store knows of it."""
        self.had_sandbox = False
        self.recreated = False
        self.recreation_reported = False
        """Whether a client was told that the sandbox was recreated."""
        # Another one in every process: a sandbox may outlive its server, and what was revoked there stays revoked.
        self.epoch = secrets.randbits(48)
        self.last_grant: tuple[Actor, frozenset[Capability] | None] = ("human", None)
        """Actor and requested capabilities of the last grant."""
        self.unsaved = False

    @property
    def over(self) -> bool:
        """Whether it has ended, although not all of it may be gone yet."""
        return self.ending is not None

    @property
    def usable(self) -> LiveSandbox | None:
        """The sandbox, unless it is lost."""
        return self.sandbox if self.sandbox is not None and not self.sandbox.gone else None

    def transition(self, state: SandboxState) -> None:
        """Change the state; a step that the table does not have is a defect of ours and changes nothing."""
        before = self.binding.state
        if state not in TRANSITIONS[before]:
            error = ValueError(f"{before.value} to {state.value}")
            raise internal_error(f"the step of a sandbox from {error}", error) from error
        self.binding = replace(self.binding, state=state)
        self.unsaved = True

    def mark_used(self) -> None:
        """Mark the sandbox, which exists, as active."""
        if self.binding.state is not SandboxState.ACTIVE:
            self.transition(SandboxState.ACTIVE)

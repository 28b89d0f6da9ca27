"""A binding that lives, and what somebody wants of one."""

from __future__ import annotations

import asyncio
import enum
import secrets
from dataclasses import dataclass, replace

from tidebox.broker.internal_errors import internal_error
from tidebox.broker.sandboxes.sandbox import LiveSandbox
from tidebox.model.idempotency import Claim
from tidebox.model.outward import BoxEgress
from tidebox.model.packages import NO_PACKAGES, Packages
from tidebox.model.principal import Actor
from tidebox.model.providers import AUTO
from tidebox.model.sandbox import TRANSITIONS, Binding, Capability, SandboxState, Scope


class Mode(enum.Enum):
    """What is to be done where a scope has a binding, and where it has none."""

    GET = "get"
    ENSURE = "ensure"
    ATTACH_ONLY = "attach_only"
    CREATE_ONLY = "create_only"

    @property
    def creates(self) -> bool:
        """Whether it may make a binding."""
        return self in (Mode.ENSURE, Mode.CREATE_ONLY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What somebody wants of a scope's sandbox."""

    scope: Scope
    mode: Mode
    actor: Actor = "human"
    capabilities: frozenset[Capability] | None = None
    """None is all that he may have."""
    provider: str = AUTO
    """Who is to make the sandbox, where there is none."""
    hint: str | None = None
    """A sandbox of the same user that a scope without one is to share."""
    thread_id: str | None = None
    """The thread it is for, where the scope is not a thread itself."""
    wait: float = 30.0
    """How long to wait for a sandbox that is being made."""
    claim: Claim | None = None
    packages: Packages = NO_PACKAGES
    """What a sandbox has that is made for this; one that is there stays as it is."""
    egress: BoxEgress | None = None
    """What such a sandbox may reach."""


class Over(Exception):
    """The binding ended while its sandbox was waited for."""


class Held:
    """A binding that lives, and its sandbox where it has one."""

    def __init__(self, binding: Binding) -> None:
        self.binding = binding
        self.sandbox: LiveSandbox | None = None
        self.asked: set[str] = set()
        """The providers that may have something of it."""
        self.starting: asyncio.Task[None] | None = None
        self.ending: asyncio.Task[None] | None = None
        self.recorded = asyncio.Event()
        """Set when the store knows of it."""
        self.had_sandbox = False
        self.recreated = False
        self.told = False
        """Whether somebody knows that it was made anew."""
        # Another one in every process: a sandbox may outlive its server, and what was revoked there stays revoked.
        self.epoch = secrets.randbits(48)
        self.last: tuple[Actor, frozenset[Capability] | None] = ("human", None)
        """Who was granted access last, and what he had asked for."""
        self.unsaved = False

    @property
    def over(self) -> bool:
        """Whether it has ended, although not all of it may be gone yet."""
        return self.ending is not None

    @property
    def usable(self) -> LiveSandbox | None:
        """The sandbox, unless it is lost."""
        return self.sandbox if self.sandbox is not None and not self.sandbox.gone else None

    def go(self, state: SandboxState) -> None:
        """Change the state; a step that the table does not have is a defect of ours and changes nothing."""
        before = self.binding.state
        if state not in TRANSITIONS[before]:
            error = ValueError(f"{before.value} to {state.value}")
            raise internal_error(f"the step of a sandbox from {error}", error) from error
        self.binding = replace(self.binding, state=state)
        self.unsaved = True

    def used(self) -> None:
        """Somebody uses or needs the sandbox, which is there."""
        if self.binding.state is not SandboxState.ACTIVE:
            self.go(SandboxState.ACTIVE)

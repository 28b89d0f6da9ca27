"""A binding that lives, and what somebody wants of one."""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass, replace

from tidebox.broker.sandboxes import Sandbox
from tidebox.model.idempotency import Claim
from tidebox.model.principal import Actor
from tidebox.model.sandbox import TRANSITIONS, Binding, Capability, SandboxState, Scope

AUTO = "auto"


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
    thread_id: str | None = None
    """The thread it is for, where the scope is not a thread itself."""
    wait: float = 30.0
    """How long to wait for a sandbox that is being made."""
    claim: Claim | None = None


class Over(Exception):
    """The binding ended while its sandbox was waited for."""


class Held:
    """A binding that lives, and its sandbox where it has one."""

    def __init__(self, binding: Binding) -> None:
        self.binding = binding
        self.sandbox: Sandbox | None = None
        self.starting: asyncio.Task[None] | None = None
        self.ending: asyncio.Task[None] | None = None
        self.recorded = asyncio.Event()
        """Set when the store knows of it."""
        self.had_sandbox = False
        self.recreated = False
        self.told = False
        """Whether somebody knows that it was made anew."""
        self.epoch = 0
        self.last: tuple[Actor, frozenset[Capability] | None] = ("human", None)
        """Who was granted access last, and what he had asked for."""
        self.unsaved = False

    @property
    def over(self) -> bool:
        """Whether it has ended, although not all of it may be gone yet."""
        return self.ending is not None

    @property
    def usable(self) -> Sandbox | None:
        """The sandbox, unless its box is dead."""
        return self.sandbox if self.sandbox is not None and not self.sandbox.box.gone else None

    def go(self, state: SandboxState) -> None:
        """Change the state, where the table has such a change."""
        if state in TRANSITIONS[self.binding.state]:
            self.binding = replace(self.binding, state=state)
            self.unsaved = True

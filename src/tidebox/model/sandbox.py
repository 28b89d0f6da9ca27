"""Sandboxes that clients share for a while: what they are bound to, who may do what in them, and how they live.

A *binding* ties a scope (a thread, say) to a sandbox; its id outlives the sandbox, which may have to be made anew. The
states are those of the sandbox, and change only along ``TRANSITIONS``.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tidebox.errors import CapabilityDenied, InvalidRequest
from tidebox.model.principal import Actor, Principal

MAX_SCOPE_ID_LENGTH = 256


class SandboxState(enum.Enum):
    """Where a sandbox is in its life."""

    PROVISIONING = "provisioning"
    ACTIVE = "active"
    IDLE = "idle"
    """Nobody has used it for a while: it is marked to be removed."""
    SUSPENDED = "suspended"
    """Idle, and its processes are frozen until somebody uses it."""
    TERMINATED = "terminated"
    FAILED = "failed"
    """It could not be made, or its box was lost; the binding's next use makes another one."""

    @property
    def live(self) -> bool:
        """Whether there is a box that can be used."""
        return self in _LIVE


_LIVE = frozenset({SandboxState.ACTIVE, SandboxState.IDLE, SandboxState.SUSPENDED})

TRANSITIONS: Mapping[SandboxState, frozenset[SandboxState]] = {
    SandboxState.PROVISIONING: frozenset({SandboxState.ACTIVE, SandboxState.FAILED, SandboxState.TERMINATED}),
    SandboxState.ACTIVE: frozenset({SandboxState.IDLE, SandboxState.FAILED, SandboxState.TERMINATED}),
    SandboxState.IDLE: frozenset(
        {SandboxState.ACTIVE, SandboxState.SUSPENDED, SandboxState.FAILED, SandboxState.TERMINATED}
    ),
    SandboxState.SUSPENDED: frozenset({SandboxState.ACTIVE, SandboxState.FAILED, SandboxState.TERMINATED}),
    SandboxState.FAILED: frozenset({SandboxState.PROVISIONING, SandboxState.TERMINATED}),
    SandboxState.TERMINATED: frozenset(),
}


class Capability(enum.Enum):
    """A permission that a grant gives in a sandbox."""

    FS_READ = "fs_read"
    FS_WRITE = "fs_write"
    EXEC = "exec"
    SHELL = "shell"


ALL_CAPABILITIES = frozenset(Capability)

SCOPES: Mapping[str, frozenset[Capability]] = {
    "fs:read": frozenset({Capability.FS_READ}),
    "fs:write": frozenset({Capability.FS_WRITE}),
    "shell:exec": frozenset({Capability.EXEC, Capability.SHELL}),
}
"""The words of the negotiation protocol."""


def token_scopes(capabilities: frozenset[Capability]) -> list[str]:
    """Capabilities in the words of the negotiation protocol; a word only where all it stands for is granted."""
    return [word for word, meant in SCOPES.items() if meant <= capabilities]


def named(capabilities: Iterable[Capability]) -> list[str]:
    """The names of capabilities, always in the same order."""
    held = set(capabilities)
    return [capability.value for capability in Capability if capability in held]


class ScopeType(enum.Enum):
    """The kinds of scope that a sandbox can be bound to."""

    THREAD = "thread"
    WORKSPACE = "workspace"
    ASSISTANT = "assistant"
    DEPLOYMENT = "deployment"
    USER = "user"
    RUN = "run"


@dataclass(frozen=True, slots=True)
class Scope:
    """A thread, or something else that has one sandbox."""

    type: ScopeType
    id: str

    def __post_init__(self) -> None:
        if not 0 < len(self.id) <= MAX_SCOPE_ID_LENGTH or not self.id.isprintable():
            raise InvalidRequest(
                f"the id of a {self.type.value} has 1 to {MAX_SCOPE_ID_LENGTH} printable characters",
                field=f"{self.type.value}_id",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """A scope and its sandbox. Times are seconds since the epoch."""

    id: str
    scope: Scope
    user: str
    """Whose it is: who bound the scope first."""
    provider: str
    state: SandboxState
    created_at: float
    active_at: float
    """When it was last used."""
    lease_expires_at: float
    """Until when somebody has said to need it."""
    expires_at: float
    """When it ends, needed or not."""
    sandbox_id: str | None = None
    node_id: str = ""
    """The node that has it; empty for one that was made before there were nodes."""

    @property
    def thread_id(self) -> str | None:
        """The thread it belongs to, where it belongs to one."""
        return self.scope.id if self.scope.type is ScopeType.THREAD else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Access to one sandbox for a short time."""

    binding: Binding
    sandbox_id: str
    token: str = field(repr=False)
    expires_at: float
    capabilities: frozenset[Capability]
    thread_id: str | None = None
    base_url: str | None = None
    """Where the sandbox is used, if not at this server: another one, whose own token this is."""
    recreated: bool = False
    """Whether the binding had a sandbox before, which is lost with all that was in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapabilityPolicy:
    """Who may be granted what."""

    human: frozenset[Capability] = ALL_CAPABILITIES
    agent: frozenset[Capability] = ALL_CAPABILITIES
    roles: Mapping[str, frozenset[Capability]] = field(default_factory=dict)
    """Users with any of these roles get no more than those roles allow together; admins are not bound by it."""

    def granted(
        self, principal: Principal, actor: Actor, requested: frozenset[Capability] | None
    ) -> frozenset[Capability]:
        """Return the part of ``requested`` (None is everything) that an actor gets; raises where that is nothing."""
        allowed = self.agent if actor == "agent" else self.human
        bounds = [self.roles[role] for role in principal.roles if role in self.roles]
        if bounds and not principal.is_admin:
            allowed &= frozenset().union(*bounds)
        found = allowed if requested is None else allowed & requested
        if not found:
            raise CapabilityDenied(f"{', '.join(named(requested or ALL_CAPABILITIES)) or 'nothing'} not granted")
        return found

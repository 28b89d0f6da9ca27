"""Who asks, and from where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Actor = Literal["human", "agent"]
ADMIN_ROLE = "sandbox_admin"


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated user, or an agent acting for one."""

    user: str
    roles: frozenset[str] = frozenset()
    actor: Actor = "human"

    @property
    def is_admin(self) -> bool:
        """Whether this principal may see and change what belongs to others."""
        return ADMIN_ROLE in self.roles


@dataclass(frozen=True, slots=True)
class Caller:
    """A principal asking for something: what limits and audit need to know of a request."""

    principal: Principal
    address: str
    request_id: str
    surface: str

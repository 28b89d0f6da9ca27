"""The authenticated caller: principal, roles, and the client program a request came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Actor = Literal["human", "agent"]
ADMIN_ROLE = "sandbox_admin"
ClientSource = Literal["SDK", "CLI", "MCP", "IDE", "Web"]
"""The kind of program that a client says it is. Recorded, and trusted for nothing."""
SOURCES: tuple[ClientSource, ...] = get_args(ClientSource)
SOURCE_HEADER = "X-Tidebox-Source"
CLIENT_HEADER = "X-Tidebox-Client"
MAX_CLIENT_LENGTH = 64


def find_source(word: str) -> ClientSource | None:
    """The source of that name; None if there is none."""
    return next((source for source in SOURCES if source == word), None)


def clean_client(name: str) -> str | None:
    """The name of a client program as it is recorded: printable ASCII, cut to a length; None if nothing is left."""
    kept = "".join(char for char in name if char.isascii() and char.isprintable())
    return kept.strip()[:MAX_CLIENT_LENGTH].strip() or None


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
    source: ClientSource | None = None
    client: str | None = None
    """The name of the client program, as it gives it. Recorded, and trusted for nothing."""

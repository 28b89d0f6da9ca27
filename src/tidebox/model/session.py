"""A session: a kept workspace with a time to live, and the terms on which runs share it.

Two rules. A session is ``active`` until it is closed, by its user or because its time is over, and then never again.
Only an active session takes another run; what closes it first says so, then ends its runs and removes its files.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidebox.model.node import NOBODY
from tidebox.model.principal import Caller


class SessionState(enum.Enum):
    """Whether a session can be used."""

    ACTIVE = "active"
    CLOSING = "closing"
    """Its runs are being ended and its files removed; after that there is no such session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A session and the rules of its runs. Times are seconds since the epoch."""

    id: str
    caller: Caller
    runtime: str
    base_image: str
    spec_version: str
    policy: Mapping[str, Any]
    """The rules its runs are under, as they were worked out when it was created."""
    policy_hash: str
    created_at: float
    expires_at: float
    runtime_version: str | None = None
    image_digest: str | None = None
    trust_level: str | None = None
    timeout_sec: float | None = None
    """How long a run of it may take that does not say itself."""
    resources: Mapping[str, float] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    labels: Mapping[str, str] = field(default_factory=dict)
    state: SessionState = SessionState.ACTIVE
    node_id: str = NOBODY.node_id
    """The node that has its files, and alone can run something in it."""

    @property
    def user(self) -> str:
        """Whose it is."""
        return self.caller.principal.user

    def usable(self, now: float) -> bool:
        """Whether it takes another run."""
        return self.state is SessionState.ACTIVE and now < self.expires_at

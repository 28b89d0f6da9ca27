"""The way out of a native box: what its network leads to, and the egress process that holds the other end."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidebox.model.events import EgressSeen
from tidebox.model.result import EgressUsage
from tidebox.runtime.base import EgressSettings

if TYPE_CHECKING:
    from tidebox.egress.client import Attachment, EgressClient
    from tidebox.egress.keys import KeyPair
    from tidebox.model.requested_egress import BoxEgress

# Of what is seen before anybody wants to hear of it.
_MOST_KEPT = 1000


def make_authority() -> KeyPair:
    """A certificate authority for one box."""
    # What comes with it takes its time to load, and few need it.
    from tidebox.egress import authority

    return authority.make_authority()


class WaysOut:
    """The egress process of one runtime, from the first box that needs it on."""

    def __init__(self, settings: EgressSettings) -> None:
        self._settings = settings
        self._egress: EgressClient | None = None

    @property
    def egress(self) -> EgressClient:
        """The client of the process; what comes with it is loaded by the first who asks."""
        if self._egress is None:
            from tidebox.egress.client import EgressClient
            from tidebox.egress.messages import BoxLimits, ProcessSettings

            settings = self._settings
            self._egress = EgressClient(
                ProcessSettings(
                    resolver=settings.resolver,
                    connections=settings.connections_total,
                    proxy=settings.proxy,
                    idle=settings.idle,
                    ca_file=None if settings.ca_file is None else str(settings.ca_file),
                ),
                BoxLimits(connections=settings.connections, bytes=settings.bytes, rate=settings.rate),
                settings.secrets,
            )
        return self._egress

    async def close(self) -> None:
        """End the process."""
        if self._egress is not None:
            await self._egress.close()


class Outward:
    """The way out of one box, at the egress process."""

    def __init__(self, ways_out: WaysOut, ends: list[int], authority: KeyPair | None) -> None:
        """``ends`` are what its network leads to; ``authority`` is what its programs trust besides."""
        self._authority = authority
        self._ways_out = ways_out
        self._ends = ends
        self._attachment: Attachment | None = None
        self._kept: deque[EgressSeen] = deque(maxlen=_MOST_KEPT)
        self._tell: Callable[[EgressSeen], None] = self._kept.append

    async def allow(self, egress: BoxEgress) -> None:
        """Lead out by these rules from now on."""
        if self._attachment is None:
            ends, self._ends = self._ends, []
            self._attachment = await self._ways_out.egress.attach(
                ends, egress, lambda seen: self._tell(seen), self._authority
            )
        else:
            self._attachment.allow(egress)

    def on_seen(self, callback: Callable[[EgressSeen], None]) -> None:
        """Call ``callback`` for what is allowed and denied, from the first on."""
        self._tell = callback
        while self._kept:
            callback(self._kept.popleft())

    async def usage(self, *, close: bool = False) -> EgressUsage:
        """Return the traffic so far; with ``close``, every connection is closed first."""
        return EgressUsage() if self._attachment is None else await self._attachment.usage(close=close)

    def close(self) -> None:
        """The box is gone."""
        if self._attachment is not None:
            self._attachment.close()
        for descriptor in self._ends:
            os.close(descriptor)
        self._ends = []

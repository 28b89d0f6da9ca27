"""Connection limits: so many in all, so many of one address, and idle ones only while there is room."""

from __future__ import annotations

import asyncio
import ipaddress
import resource
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog
from uvicorn.server import ServerState

if TYPE_CHECKING:
    from tidebox.config import Settings

_log = structlog.get_logger("tidebox.api")

LINE_SECONDS = 10.0
# What the server needs itself: boxes, the database, files that are sent or received.
_RESERVED_SHARE = 4
_UNLIMITED = 65536


@dataclass(slots=True)
class _Peer:
    """The connections of one address."""

    most: int
    open: int = 0
    idle: dict[asyncio.Transport, None] = field(default_factory=dict)
    """Longest idle first."""


class ConnectionLimiter:
    """Counts connections. One too many takes the place of the longest idle one, or is refused if none is idle.

    Idle is a connection without a request in progress: a client that wants to send another connects again.
    """

    def __init__(self, most: int, most_per_address: int, exempt: Sequence[str] = ()) -> None:
        self._most = most
        self._most_per_address = most_per_address
        self._exempt = [ipaddress.ip_network(network) for network in exempt]
        self._peers: dict[str, _Peer] = {}
        self._names: dict[asyncio.Transport, str] = {}
        self._idle: dict[asyncio.Transport, None] = {}

    def admit(self, transport: asyncio.Transport, address: str) -> bool:
        """Whether there is room for this connection, which is idle at first."""
        name = _name(address)
        peer = self._peers.get(name)
        if peer is None:
            peer = self._peers[name] = _Peer(self._share(address))
        if peer.open >= peer.most and not self._evict(peer.idle):
            return False
        if len(self._names) >= self._most and not self._evict(self._idle):
            if not peer.open:
                del self._peers[name]
            return False
        # The last connection of this address may have been the one that made room.
        self._peers[name] = peer
        self._names[transport] = name
        peer.open += 1
        self.idle(transport)
        return True

    def idle(self, transport: asyncio.Transport) -> None:
        """Note that no request is in progress on a connection."""
        name = self._names.get(transport)
        if name is not None:
            self._idle[transport] = None
            self._peers[name].idle[transport] = None

    def busy(self, transport: asyncio.Transport) -> None:
        """Note that a request is in progress on a connection."""
        name = self._names.get(transport)
        if name is not None:
            self._idle.pop(transport, None)
            self._peers[name].idle.pop(transport, None)

    def leave(self, transport: asyncio.Transport) -> None:
        """Stop counting a connection, which was closed or never admitted."""
        self.busy(transport)
        name = self._names.pop(transport, None)
        if name is not None:
            peer = self._peers[name]
            peer.open -= 1
            if not peer.open:
                del self._peers[name]

    def _evict(self, idle: dict[asyncio.Transport, None]) -> bool:
        oldest = next(iter(idle), None)
        if oldest is None:
            return False
        self.leave(oldest)
        # Not closed, which would wait for a client that does not read.
        oldest.abort()
        return True

    def _share(self, address: str) -> int:
        if self._exempt and address:
            found = ipaddress.ip_address(address.partition("%")[0])
            if any(found in network for network in self._exempt):
                return self._most
        return self._most_per_address


def _name(address: str) -> str:
    """Return the key that connections are counted by: the IPv4 address, or the /64 network of an IPv6 address."""
    if ":" not in address:
        return address
    found = ipaddress.IPv6Address(address.partition("%")[0])
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((found, 64), strict=False))


class RefusalLog:
    """Writes that clients were refused before they had made a request: one line for each reason and time.

    An unauthenticated client can be refused any number of times, and must not fill the disk by that.
    """

    def __init__(self) -> None:
        self._suppressed: dict[str, int] = {}

    def note(self, reason: str, address: str) -> None:
        """Log or count a refusal; ``reason`` is one of a few."""
        if reason in self._suppressed:
            self._suppressed[reason] += 1
            return
        self._suppressed[reason] = 0
        _log.warning("refused", reason=reason, address=address)
        asyncio.get_running_loop().call_later(LINE_SECONDS, self._count, reason)

    def close(self) -> None:
        """Log the refusals that were only counted so far."""
        for reason in list(self._suppressed):
            self._count(reason)

    def _count(self, reason: str) -> None:
        count = self._suppressed.pop(reason, 0)
        if count:
            _log.warning("refused", reason=reason, suppressed=count)


class ConnectionState(ServerState):
    """State that the connections of one listener share."""

    def __init__(self, admission: ConnectionLimiter) -> None:
        super().__init__()
        self.admission = admission
        self.refusals = RefusalLog()


def connection_state(settings: Settings) -> ConnectionState:
    """Make the state with the limits of the settings, leaving the server enough file descriptors for itself."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptors = _UNLIMITED if soft == resource.RLIM_INFINITY else soft
    most = min(settings.max_connections, descriptors - descriptors // _RESERVED_SHARE)
    per_address = min(settings.max_connections_per_address, max(1, most // 2))
    return ConnectionState(ConnectionLimiter(most, per_address, settings.trusted_proxies))

"""The door to interception: a connection that is handed over, and the interface of an interceptor."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tidebox.egress.relay import Scan
from tidebox.model.egress import Address


@dataclass(frozen=True, slots=True, kw_only=True)
class InterceptedConnection:
    """A connection that was allowed and dialled, to put secrets into. The caller closes its sockets."""

    client: socket.socket
    """The program's, non-blocking; its first bytes were looked at and not taken."""
    upstream: socket.socket
    """Connected to ``address``, non-blocking; nothing was sent."""
    host: str
    """The name that the program shows, in its normal form: allowed, and pinned to ``address``."""
    address: Address
    port: int
    count: Callable[[int, bool], float]
    """To be told how many bytes go by, and whether the box sent them: how long to wait before the next; raises
    ``relay.ConnectionStopped`` at the box's limit."""
    deny: Callable[[str], None]
    """To be told why the connection is ended."""


class Interceptor(Protocol):
    """Opens the connections of one box that secrets are put into."""

    def opens(self, host: str) -> bool:
        """Whether connections of TLS to a host are handed over."""

    def scan(self) -> Scan | None:
        """Return a scan for the bytes sent on connections that are not opened; None if there is nothing to find."""

    async def run(self, intercepted: InterceptedConnection) -> None:
        """Serve one connection until its end; raises ``relay.ConnectionStopped`` where it must not go on."""

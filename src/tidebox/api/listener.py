"""uvicorn as this server uses it: told when to stop by the server, not by signals."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import uvicorn

from tidebox.api.asgi import App
from tidebox.api.bounded_http import BoundedHttp
from tidebox.api.bounded_websocket import BoundedWebSocket
from tidebox.api.connection_limits import connection_state

if TYPE_CHECKING:
    from tidebox.config import Settings

# Longer than proxies keep theirs, so that it is they who close: nginx 60 s, most cloud load balancers 60 s.
_KEEP_ALIVE_SECONDS = 65
_LAST_WORDS_SECONDS = 5
# A message that is a little too long is answered, one beyond this ends the connection.
_OVERSIZE_FACTOR = 2


class Listener(uvicorn.Server):
    """Accepts connections on a socket that was bound before."""

    def __init__(self, app: App, settings: Settings) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                interface="asgi3",
                http=BoundedHttp,
                ws=BoundedWebSocket,
                ws_max_size=settings.max_frame_bytes * _OVERSIZE_FACTOR,
                ws_ping_interval=settings.ws_heartbeat_sec,
                ws_ping_timeout=settings.ws_heartbeat_sec,
                ws_per_message_deflate=False,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=bool(settings.trusted_proxies),
                forwarded_allow_ips=list(settings.trusted_proxies),
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=_LAST_WORDS_SECONDS,
            )
        )
        self.server_state = self._connections = connection_state(settings)
        self._ready = asyncio.Event()

    @contextlib.asynccontextmanager
    async def listening(self, sock: socket.socket) -> AsyncIterator[None]:
        """Accept connections within this context; at its end the open ones are closed."""
        serving = asyncio.create_task(self.serve([sock]), name="listener")
        ready = asyncio.create_task(self._ready.wait())
        try:
            await asyncio.wait({serving, ready}, return_when=asyncio.FIRST_COMPLETED)
            yield
        finally:
            ready.cancel()
            self.should_exit = True
            await serving
            self._connections.refusals.close()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept."""
        await super().startup(sockets)
        self._ready.set()

    def stop_accepting(self) -> None:
        """Refuse new connections; the open ones stay."""
        for server in self.servers:
            server.close()

    def hurry(self) -> None:
        """Do not wait for anything when closing."""
        self.force_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield

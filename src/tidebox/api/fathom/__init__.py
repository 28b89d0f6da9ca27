"""The Fathom execute protocol on the WebSocket ``/ws``, as docs/fathom.md describes it.

A message is parsed into an order for the broker, and its events are sent back as they come. The package may import what
``api`` may, and of the protocol's messages ``protocols.fathom``.
"""

from __future__ import annotations

from tidebox.api.asgi import Receive, Scope, Send
from tidebox.api.fathom.surface import FathomSurface
from tidebox.api.services import Services
from tidebox.api.surface import Surface
from tidebox.errors import Forbidden

PATH = "/ws"


def make_surface(services: Services) -> Surface:
    """Return the surface of the Fathom protocol."""
    return Surface(
        name="fathom",
        matches=lambda scope: scope["path"] == PATH,
        app=FathomSurface(services) if services.settings.enable_execution else _refuse,
        kinds=frozenset({"websocket"}),
    )


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    raise Forbidden("execution is turned off on this server")

"""The Fathom execute protocol on ``/ws``: docs/fathom.md."""

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

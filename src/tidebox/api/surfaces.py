"""The list of all surfaces. A new protocol is a line here."""

from __future__ import annotations

from collections.abc import Sequence

from tidebox.api import access, dataplane, fathom, interpreter, webui
from tidebox.api.mcp import McpSurface
from tidebox.api.services import Services
from tidebox.api.surface import READ_METHODS, Surface


def all_surfaces(services: Services, mcp: McpSurface) -> Sequence[Surface]:
    """Every surface, in the order in which they are asked whether a request is theirs."""
    return (
        Surface(
            name="health",
            matches=lambda scope: scope["path"] == "/healthz",
            app=services.health,
            methods=READ_METHODS,
            needs_credential=lambda path: False,
            quiet=True,
        ),
        Surface(
            name="metrics",
            matches=lambda scope: scope["path"] == "/metrics",
            app=services.metrics,
            methods=READ_METHODS,
            quiet=True,
        ),
        fathom.make_surface(services),
        webui.make_surface(),
        mcp.as_surface(services.settings),
        interpreter.make_stream_surface(services),
        dataplane.make_surface(services),
        access.make_surface(services),
        interpreter.make_admin_surface(services),
        interpreter.make_surface(services),
        # The OpenAPI document, and paths that are nobody's.
        Surface(name="rest", matches=lambda scope: True),
    )

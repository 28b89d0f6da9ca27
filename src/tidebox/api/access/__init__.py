"""Access to sandboxes: the session access protocol, server-driven negotiation, and the keys that verify tokens (JWKS).

Its routes negotiate, refresh and release grants with the broker, and audit every call. The package may import what
``api`` may; FastAPI only in its route modules, which are loaded lazily.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidebox.api.access.dialect import dialect_of
from tidebox.api.surface import Surface
from tidebox.protocols.access import JWKS, NEGOTIATION_PREFIX, PREFIX, REFRESH

if TYPE_CHECKING:
    from fastapi import APIRouter

    from tidebox.api.services import Services

_PREFIXES = (f"{PREFIX}/", f"{NEGOTIATION_PREFIX}/")


def make_surface(services: Services) -> Surface:
    """The protocols as the front sees them."""
    return Surface(
        name="access",
        matches=lambda scope: scope["path"].startswith(_PREFIXES) or scope["path"] == JWKS,
        routes=_make_router,
        # Keys are public, and a token is refreshed by itself.
        needs_credential=lambda path: path not in (JWKS, REFRESH),
        dialect=dialect_of,
        describe=_describe,
        ready=services.sandboxes.opened,
    )


def _make_router() -> APIRouter:
    from fastapi import APIRouter, Depends

    from tidebox.api.access import jwks, negotiation, sessions
    from tidebox.api.route_dependencies import refuse_repeated_parameters

    router = APIRouter(dependencies=[Depends(refuse_repeated_parameters)])
    for part in (sessions, negotiation, jwks):
        router.include_router(part.router)
    return router


def _describe(document: dict[str, Any]) -> None:
    """Say which routes need no credential of the server, or take a token for a sandbox too."""
    from tidebox.api.dataplane.openapi import SCHEME

    security: dict[str, list[dict[str, list[str]]]] = {
        JWKS: [],
        REFRESH: [{SCHEME: []}, {"apiKey": []}, {"bearer": []}],
    }
    for path, ways in security.items():
        for operation in document["paths"][path].values():
            operation["security"] = ways

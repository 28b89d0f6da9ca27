"""Access to sandboxes: the session access protocol, server-driven negotiation, and the keys that verify tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastapi import APIRouter


def make_router() -> APIRouter:
    """Every route of it; loads FastAPI, as nothing else of this package's front does."""
    from fastapi import APIRouter, Depends

    from tidebox.api.access import jwks, negotiation, sessions
    from tidebox.api.interpreter.common import once_each

    router = APIRouter(dependencies=[Depends(once_each)])
    for part in (sessions, negotiation, jwks):
        router.include_router(part.router)
    return router

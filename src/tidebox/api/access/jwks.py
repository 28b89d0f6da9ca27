"""The keys of tokens for sandboxes: public ones for everybody, and how an admin replaces them."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from starlette.responses import Response

from tidebox.api.access import schemas
from tidebox.api.access.common import audited
from tidebox.api.access.paths import JWKS, PREFIX
from tidebox.api.common import AdminDep, DocumentRoute, ServicesDep, answer, errors

router = APIRouter(tags=["access"], route_class=DocumentRoute)


@router.get(
    JWKS,
    response_model=schemas.JwksAnswer,
    responses=errors(),
    summary="The keys that verify tokens",
)
async def keys(services: ServicesDep) -> Response:
    """What an external dataplane verifies tokens with. Needs no credential."""
    found = answer(services.sandboxes.keys.jwks())
    found.headers["Cache-Control"] = "public, max-age=60"
    return found


@router.post(
    f"{PREFIX}/keys/rotate", response_model=schemas.JwksAnswer, responses=errors(403), summary="Replace the key"
)
async def rotate(services: ServicesDep, caller: AdminDep, body: schemas.RotationBody | None = None) -> Response:
    """Sign with a new key from now on. In an emergency every token made before is dead at once."""
    emergency = body is not None and body.emergency
    async with audited(services, "keys_rotated", caller, emergency=emergency):
        await asyncio.to_thread(services.sandboxes.keys.rotate, emergency=emergency)
    return answer(services.sandboxes.keys.jwks())

"""The keys of tokens for sandboxes: public ones for everybody, and how an admin replaces them."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Response

from tidebox.api.access.answers import JwksAnswer
from tidebox.api.access.audited_calls import audited
from tidebox.api.access.requests import RotationBody
from tidebox.api.route_dependencies import AdminDep, DocumentRoute, ServicesDep, errors
from tidebox.protocols.access import JWKS, PREFIX

router = APIRouter(tags=["access"], route_class=DocumentRoute)


@router.get(
    JWKS,
    responses=errors(),
    summary="The keys that verify tokens",
)
async def keys(response: Response, services: ServicesDep) -> JwksAnswer:
    """The public keys with which an external dataplane verifies tokens. Needs no credential."""
    response.headers["Cache-Control"] = "public, max-age=60"
    return JwksAnswer(**services.sandboxes.keys.jwks())


@router.post(f"{PREFIX}/keys/rotate", responses=errors(403), summary="Replace the key")
async def rotate(services: ServicesDep, caller: AdminDep, body: RotationBody | None = None) -> JwksAnswer:
    """Sign with a new key from now on. In an emergency every token made before is dead at once."""
    emergency = body is not None and body.emergency
    async with audited(services, "keys_rotated", caller, emergency=emergency):
        await asyncio.to_thread(services.sandboxes.keys.rotate, emergency=emergency)
    return JwksAnswer(**services.sandboxes.keys.jwks())

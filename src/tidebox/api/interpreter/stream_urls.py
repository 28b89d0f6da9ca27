"""The URL of a run's log stream."""

from __future__ import annotations

from fastapi import Request

from tidebox.api.services import Services
from tidebox.api.signed_urls import base_url


def stream_url(request: Request, services: Services, run_id: str, *, from_seq: int | None = None) -> str:
    """The URL of a run's log stream, signed where the server signs them."""
    base = base_url(request.scope, services.settings.public_url)
    return services.signer.url(base, run_id, from_seq=from_seq)

"""How the server is: in full for users, in a word for everybody."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

import tidebox
from tidebox.api.common import CallerDep, ServicesDep, answer, errors
from tidebox.api.interpreter.schemas import HealthAnswer, PublicHealth
from tidebox.api.services import Services
from tidebox.errors import StoreUnavailable

router = APIRouter(tags=["health"])

_UNWELL: dict[int | str, dict[str, Any]] = {
    503: {"model": HealthAnswer, "description": "The server is stopping, or its store does not answer."}
}
_PUBLICLY_UNWELL: dict[int | str, dict[str, Any]] = {
    503: {"model": PublicHealth, "description": "The server is stopping, or its store does not answer."}
}


@router.get("/health", response_model=HealthAnswer, responses=errors() | _UNWELL, summary="How the server is")
async def health(services: ServicesDep, _caller: CallerDep) -> Response:
    """Whether the server takes work and its store answers, and how much there is to do."""
    latency = await _store_latency(services)
    status = _status(services, latency)
    load = services.broker.load
    shown = {
        "status": status,
        "version": tidebox.__version__,
        "execution_enabled": services.policy.enable_execution,
        "store": {"mode": services.broker.store_mode, "ok": latency is not None, "latency_ms": latency},
        "load": {"active": load.active, "queued": load.queued},
        "runtimes": {info.name: info.available for info in services.runtimes.infos},
    }
    return answer(shown, 200 if status == "ok" else 503)


@router.get(
    "/health/public",
    response_model=PublicHealth,
    responses=_PUBLICLY_UNWELL,
    summary="Whether the server takes work",
    openapi_extra={"security": []},
)
async def public_health(services: ServicesDep) -> Response:
    """The same in one word, without a credential."""
    status = _status(services, await _store_latency(services))
    return answer({"status": status}, 200 if status == "ok" else 503)


def _status(services: Services, latency: float | None) -> str:
    if services.health.draining:
        return "draining"
    return "degraded" if latency is None else "ok"


async def _store_latency(services: Services) -> float | None:
    """How many milliseconds the store takes to say that there is no such run; None if it does not answer."""
    started = time.monotonic()
    try:
        await services.broker.ask_store()
    except StoreUnavailable:
        return None
    return round((time.monotonic() - started) * 1000, 3)

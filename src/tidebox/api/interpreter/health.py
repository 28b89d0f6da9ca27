"""Health of the server: in full for users, in a word for everybody."""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import Literal, Self

from fastapi import APIRouter, Response
from pydantic import BaseModel

import tidebox
from tidebox.api.route_dependencies import CallerDep, ServicesDep, errors
from tidebox.api.services import Services
from tidebox.errors import StoreUnavailable

router = APIRouter(tags=["health"])

Status = Literal["ok", "degraded", "draining"]


class StoreHealth(BaseModel):
    """Whether the store answers."""

    mode: str
    ok: bool
    latency_ms: float | None


class LoadAnswer(BaseModel):
    """The number of runs that are active, and that wait."""

    active: int
    queued: int


class HealthAnswer(BaseModel):
    """The health of the server and its parts."""

    status: Status
    version: str
    execution_enabled: bool
    store: StoreHealth
    load: LoadAnswer
    runtimes: dict[str, bool]

    @classmethod
    def of(cls, services: Services, latency: float | None) -> Self:
        """Make the answer, given the latency of the store in milliseconds, or None if it did not answer."""
        load = services.broker.load
        return cls(
            status=_status(services, latency),
            version=tidebox.__version__,
            execution_enabled=services.policy.enable_execution,
            store=StoreHealth(mode=services.broker.store_mode, ok=latency is not None, latency_ms=latency),
            load=LoadAnswer(active=load.active, queued=load.queued),
            runtimes={info.name: info.available for info in services.runtimes.infos},
        )


class PublicHealth(BaseModel):
    """Whether the server takes work."""

    status: Status


_UNWELL = "The server is stopping, or its store does not answer."


@router.get(
    "/health",
    responses={**errors(), 503: {"model": HealthAnswer, "description": _UNWELL}},
    summary="How the server is",
)
async def health(response: Response, services: ServicesDep, _caller: CallerDep) -> HealthAnswer:
    """Whether the server takes work and its store answers, and how much there is to do."""
    found = HealthAnswer.of(services, await _store_latency(services))
    response.status_code = _http_status(found.status)
    return found


@router.get(
    "/health/public",
    responses={503: {"model": PublicHealth, "description": _UNWELL}},
    summary="Whether the server takes work",
    openapi_extra={"security": []},
)
async def public_health(response: Response, services: ServicesDep) -> PublicHealth:
    """The same in one word, without a credential."""
    status = _status(services, await _store_latency(services))
    response.status_code = _http_status(status)
    return PublicHealth(status=status)


def _http_status(status: Status) -> HTTPStatus:
    return HTTPStatus.OK if status == "ok" else HTTPStatus.SERVICE_UNAVAILABLE


def _status(services: Services, latency: float | None) -> Status:
    if services.health.draining:
        return "draining"
    return "degraded" if latency is None else "ok"


async def _store_latency(services: Services) -> float | None:
    """Measure a lookup in the store, in milliseconds; None if the store does not answer."""
    started = time.monotonic()
    try:
        await services.broker.ask_store()
    except StoreUnavailable:
        return None
    return round((time.monotonic() - started) * 1000, 3)

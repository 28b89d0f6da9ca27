"""The list of surfaces: which path is whose, and that a value is all it takes to add a protocol."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx2
import pytest
from fastapi import APIRouter

from tidebox.api import problems
from tidebox.api.app import SurfaceRouter
from tidebox.api.asgi import Receive, Scope, Send, caller_of
from tidebox.api.auth import Authenticator
from tidebox.api.health import HealthEndpoint
from tidebox.api.mcp import McpApp, McpSurface
from tidebox.api.metrics import Levels, ServerMetrics
from tidebox.api.middleware import BodyLimit, RequestLog
from tidebox.api.rate_limit import RateLimiter
from tidebox.api.rest_apps import RestApps
from tidebox.api.services import Services
from tidebox.api.surface import Surface, find_surface
from tidebox.api.surfaces import all_surfaces
from tidebox.config import load_settings
from tidebox.model.languages import BUILT_IN
from tidebox.model.limits import MIB

KEY = "the-key-of-the-single-user"
SMALL, INLINE, FILES = MIB, 4 * MIB, 100 * MIB


def no_mcp() -> McpApp:
    raise AssertionError("nobody asks for it")


NO_MCP = McpSurface(no_mcp)


@pytest.fixture
def services(tmp_path: Path) -> Services:
    return cast(
        Services,
        SimpleNamespace(
            settings=load_settings(
                data_dir=tmp_path, max_body_bytes=SMALL, max_inline_body_bytes=INLINE, max_upload_mb=FILES // MIB
            ),
            authenticator=Authenticator(KEY),
            rate_limiter=RateLimiter("off"),
            metrics=ServerMetrics("native", lambda: Levels(active=0, queued=0, cells=0, boxes=0)),
            health=HealthEndpoint(),
            languages={"python": "host"},
            known_languages=BUILT_IN,
            broker=SimpleNamespace(recovered=asyncio.Event()),
            sandboxes=SimpleNamespace(opened=asyncio.Event()),
        ),
    )


@pytest.mark.parametrize(
    ("path", "name", "known", "limit"),
    [
        ("/healthz", "health", False, SMALL),
        ("/metrics", "metrics", True, SMALL),
        ("/ws", "fathom", True, SMALL),
        ("/api/v1/sandbox/runs", "rest", True, INLINE),
        ("/api/v1/sandbox/runs/run-1", "rest", True, SMALL),
        ("/api/v1/sandbox/runs/run-1/stream", "interpreter", False, SMALL),
        ("/api/v1/sandbox/runs/run-1/more/stream", "rest", True, SMALL),
        ("/api/v1/sandbox/sessions/ses-1/files", "rest", True, FILES + 4 * MIB),
        ("/api/v1/sandbox/sessions/ses-1/files/a", "rest", True, SMALL),
        ("/api/v1/sandbox/health", "rest", True, SMALL),
        ("/api/v1/sandbox/admin/usage", "rest", True, SMALL),
        ("/api/v1/sandbox/health/public", "rest", False, SMALL),
        ("/v1/sandbox/sessions", "access", True, SMALL),
        ("/v1/sandbox/keys/rotate", "access", True, SMALL),
        ("/sandbox/acquire", "access", True, SMALL),
        ("/sandbox/refresh", "access", False, SMALL),
        ("/.well-known/jwks.json", "access", False, SMALL),
        ("/v1/exec", "dataplane", False, INLINE),
        ("/v1/exec/ws", "dataplane", False, SMALL),
        ("/v1/files/upload", "dataplane", False, None),
        ("/v1/files/mkdir", "dataplane", False, SMALL),
        ("/ws/sb-1", "dataplane", False, SMALL),
        ("/api/sb-1/exec", "dataplane", False, INLINE),
        ("/api/sb-1/files/upload", "dataplane", False, None),
        # What only looks like a path of a protocol is answered to known callers only, and reads no long body.
        ("/api/sb-NO/files/upload", "rest", True, SMALL),
        ("/api/sb-" + "1" * 41 + "/files/upload", "rest", True, SMALL),
        ("/v1/sandbox", "rest", True, SMALL),
        ("/mcp", "mcp", True, INLINE),
        ("/mcp/", "mcp", True, INLINE),
        ("/mcp/more", "rest", True, SMALL),
        ("/openapi.json", "rest", True, SMALL),
        ("/", "rest", True, SMALL),
    ],
)
async def test_every_path_has_one_surface(
    services: Services, path: str, name: str, known: bool, limit: int | None
) -> None:
    surface = find_surface(all_surfaces(services, NO_MCP), {"type": "http", "path": path, "headers": []})
    assert surface.name == name
    assert surface.needs_credential(path) is known
    assert surface.body_limit(path, SMALL) == limit


def server(services: Services, surfaces: Sequence[Surface]) -> httpx2.AsyncClient:
    async def rest(scope: Scope, receive: Receive, send: Send) -> None:
        await problems.respond(scope, send, problems.of_status(404))

    app = RequestLog(BodyLimit(SurfaceRouter(services, rest), SMALL), services.metrics, surfaces)
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://server")


async def test_a_protocol_is_added_by_a_value(services: Services) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        name = caller_of(scope).surface.encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": name})

    new = Surface(
        name="new",
        # By a header instead of a path, as some protocols have it.
        matches=lambda scope: (b"x-new", b"1") in scope["headers"],
        app=app,
        dialect=lambda scope: lambda problem: replace(problem, code=f"NEW_{problem.code}"),
        body_limits={re.compile("/long"): 2 * SMALL},
    )
    key = {"X-API-KEY": KEY}
    async with server(services, [new, *all_surfaces(services, NO_MCP)]) as client:

        async def answer(path: str, size: int, headers: dict[str, str]) -> tuple[int, Any]:
            found = await client.post(path, content=b"x" * size, headers={**headers, "X-New": "1"})
            return found.status_code, found.json()["error"]["code"] if found.status_code >= 400 else found.text

        assert await answer("/v1/exec", 0, key) == (200, "new")
        assert await answer("/v1/exec", 0, {}) == (401, "NEW_unauthorized")
        assert await answer("/v1/exec", SMALL + 1, key) == (413, "NEW_payload_too_large")
        assert await answer("/long", 2 * SMALL, key) == (200, "new")
        assert await answer("/long", 2 * SMALL + 1, {}) == (413, "NEW_payload_too_large")
        assert (await client.get("/nothing", headers=key)).json()["error"]["code"] == "not_found"


async def test_routes_are_loaded_by_surface_and_described_together(services: Services) -> None:
    loaded: list[str] = []

    def routed(name: str, *, first: bool = False) -> Surface:
        def routes() -> APIRouter:
            loaded.append(name)
            router = APIRouter()
            router.add_api_route(f"/{name}/it", lambda: name)
            return router

        return Surface(
            name=name, matches=lambda scope: scope["path"].startswith(f"/{name}/"), routes=routes, first=first
        )

    given = [routed("late"), routed("early", first=True), Surface(name="rest", matches=lambda scope: True)]
    parts = RestApps(services, given)
    app = RequestLog(SurfaceRouter(services, parts), services.metrics, parts.surfaces)
    key = {"X-API-KEY": KEY}
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://server", headers=key) as client:
        await parts.load_first()
        assert loaded == ["early"]
        assert (await client.get("/early/it")).json() == "early"
        assert (await client.get("/early/none")).json()["error"]["code"] == "not_found"
        assert loaded == ["early"]
        # The other is loaded by a request for it, and by one for the description of all.
        document = (await client.get("/openapi.json")).json()
        assert set(document["paths"]) == {"/early/it", "/late/it"}
        assert (await client.get("/late/it")).json() == "late"
        assert (await client.post("/late/it")).status_code == 405
        assert (await client.get("/none")).json()["error"]["code"] == "not_found"
        await parts.load()
        assert loaded == ["early", "late"]


async def test_parts_that_are_asked_for_at_once_are_made_one_after_another(services: Services) -> None:
    """What FastAPI does to make one is not for several threads at a time."""
    making = threading.Lock()
    overlapped: list[str] = []

    def routed(name: str) -> Surface:
        def make_routes() -> APIRouter:
            if not making.acquire(blocking=False):
                overlapped.append(name)
                return APIRouter()
            time.sleep(0.05)
            making.release()
            return APIRouter()

        return Surface(name=name, matches=lambda scope: scope["path"] == f"/{name}", routes=make_routes)

    parts = RestApps(services, [routed(name) for name in ("one", "two", "three")])
    app = RequestLog(SurfaceRouter(services, parts), services.metrics, parts.surfaces)
    key = {"X-API-KEY": KEY}
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://server", headers=key) as client:
        await asyncio.gather(parts.load(), *(client.get(f"/{name}") for name in ("one", "two", "three")))
    assert not overlapped


@pytest.mark.parametrize(
    "path", ["/v1/sandbox/sessions", "/sandbox/acquire", "/.well-known/jwks.json", "/v1/exec", "/ws/sb-1"]
)
async def test_what_uses_tokens_waits_until_there_are_keys(services: Services, path: str) -> None:
    surface = find_surface(all_surfaces(services, NO_MCP), {"type": "http", "path": path, "headers": []})
    assert surface.ready is services.sandboxes.opened

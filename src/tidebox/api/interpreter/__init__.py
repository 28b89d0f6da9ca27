"""The interpreter service: sessions, runs, their files, logs and artifacts, and the admin routes.

The package may import what ``api`` may. Its routes are imported only when the server is up: FastAPI and its models take
longer to load than everything else together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidebox.api.interpreter import paths
from tidebox.api.lazy_app import LazyApp
from tidebox.api.surface import Surface
from tidebox.model.limits import MIB
from tidebox.model.policy import ALLOWLIST, DENY_ALL

if TYPE_CHECKING:
    from fastapi import APIRouter

    from tidebox.api.asgi import App
    from tidebox.api.services import Services

# What a form or an archive adds to the files in it: a thousand of them with long names.
_FORM_BYTES = 4 * MIB


def make_surface(services: Services) -> Surface:
    """Return the surface of the service's REST routes."""
    settings = services.settings
    return Surface(
        name="rest",
        matches=lambda scope: paths.is_service(scope["path"]),
        routes=_make_router,
        # What most clients ask for first.
        first=True,
        needs_credential=lambda path: path != paths.PUBLIC_HEALTH,
        body_limits={
            # Files and input are within its JSON.
            paths.RUNS_PATH: settings.max_inline_body_bytes,
            # They go to the disk, and what counts for them are the files.
            paths.UPLOAD_PATH: settings.max_upload_mb * MIB + _FORM_BYTES,
        },
        describe=lambda document: _describe(document, services),
        ready=services.broker.recovered,
    )


def make_admin_surface(services: Services) -> Surface:
    """Return the surface of the admin routes, loaded apart from the rest: few servers are ever asked for them."""
    return Surface(
        name="rest",
        matches=lambda scope: paths.is_admin(scope["path"]),
        routes=_make_admin_router,
        ready=services.broker.recovered,
    )


def make_stream_surface(services: Services) -> Surface:
    """Return the surface of live log streams, whose app authenticates by a credential or by a signed URL."""
    return Surface(
        name="interpreter",
        matches=lambda scope: paths.run_of_stream(scope["path"]) is not None,
        # Loaded together with the rest: until that is there nobody has a run.
        app=LazyApp(lambda: _make_stream(services)),
        kinds=frozenset({"websocket"}),
        needs_credential=lambda path: False,
        ready=services.broker.recovered,
    )


def _make_router() -> APIRouter:
    from fastapi import APIRouter, Depends

    from tidebox.api.interpreter import artifacts, files, health, logs, me, runs, runtimes, sessions
    from tidebox.api.route_dependencies import refuse_repeated_parameters

    router = APIRouter(prefix=paths.PREFIX)
    for part in (runtimes, me, sessions, runs, logs, artifacts, health):
        router.include_router(part.router, dependencies=[Depends(refuse_repeated_parameters)])
    router.include_router(files.router)
    return router


def _make_admin_router() -> APIRouter:
    from fastapi import APIRouter, Depends

    from tidebox.api.interpreter import admin
    from tidebox.api.route_dependencies import refuse_repeated_parameters

    router = APIRouter(prefix=paths.PREFIX)
    router.include_router(admin.router, dependencies=[Depends(refuse_repeated_parameters)])
    return router


def _make_stream(services: Services) -> App:
    from tidebox.api.interpreter.log_stream import LogStreamSurface

    return LogStreamSurface(services)


def _lets_out(services: Services) -> bool:
    able = any(info.available and info.features.egress for info in services.runtimes.infos)
    return able and services.planner.egress.offered


def _describe(document: dict[str, Any], services: Services) -> None:
    """Restrict enumerations in the OpenAPI document to what this server is able to do."""
    able = {
        "spec_version": list(services.policy.supported_spec_versions),
        "runtime": [info.name for info in services.runtimes.infos if info.available],
        "network_policy": [DENY_ALL, ALLOWLIST] if _lets_out(services) else [DENY_ALL],
    }
    schemas = document["components"]["schemas"]
    for name in ("RunRequest", "SessionRequest"):
        for field, values in able.items():
            described = schemas[name]["properties"][field]
            described.get("anyOf", [described])[0]["enum"] = values

"""The server's front: which path belongs to which surface, and who may use it.

Everything asks for a credential unless its route says that it does not.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from http import HTTPStatus

from tidebox.api import problems
from tidebox.api.access.dialect import is_access
from tidebox.api.asgi import App, Receive, Scope, Send, context_of
from tidebox.api.dataplane.paths import target_of
from tidebox.api.deferred import Deferred
from tidebox.api.fathom import FathomSurface
from tidebox.api.middleware import BodyLimit, OriginGuard, RequestLog
from tidebox.api.services import Services
from tidebox.api.signing import is_stream
from tidebox.errors import Forbidden, NotFound
from tidebox.model.limits import MIB
from tidebox.model.principal import Caller

# What a form or an archive adds to the files in it: a thousand of them with long names.
_FORM_BYTES = 4 * MIB


@dataclass(frozen=True, slots=True)
class Route:
    """What serves one path."""

    app: App
    surface: str
    kind: str | None = "http"
    """Or websocket; None for what speaks both."""
    needs_credential: bool = True
    """Without, whoever serves it asks for one, or nobody does."""


class Front:
    """Finds the route, proves the caller, counts the request, and hands it on."""

    def __init__(
        self,
        services: Services,
        routes: dict[str, Route],
        *,
        stream: Route,
        access: Route,
        dataplane: Route,
        rest: Route,
    ) -> None:
        self._services = services
        self._routes = routes
        self._stream = stream
        self._access = access
        self._dataplane = dataplane
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = context_of(scope)
        route = self._route(scope["path"])
        context.surface = route.surface
        fits = route.kind in (None, scope["type"])
        if route.needs_credential or not fits:
            principal = self._services.authenticator.authenticate(scope["headers"])
            context.caller = Caller(principal, context.address, context.request_id, route.surface, context.source)
            await self._services.rate_limiter.check(principal)
        if not fits:
            return await self._mismatch(scope, send)
        if route.kind == "http" and route.app is not self._rest.app and scope["method"] not in ("GET", "HEAD"):
            return await problems.respond(
                scope, send, problems.of_status(HTTPStatus.METHOD_NOT_ALLOWED, headers=((b"allow", b"GET, HEAD"),))
            )
        return await route.app(scope, receive, send)

    def _route(self, path: str) -> Route:
        if (found := self._routes.get(path)) is not None:
            return found
        if is_stream(path):
            return self._stream
        if target_of(path) is not None:
            return self._dataplane
        return self._access if is_access(path) else self._rest

    async def _mismatch(self, scope: Scope, send: Send) -> None:
        if scope["type"] == "websocket":
            raise NotFound("there is no WebSocket at this path")
        upgrade = ((b"upgrade", b"websocket"), (b"connection", b"upgrade"))
        problem = problems.of_status(HTTPStatus.UPGRADE_REQUIRED, "this path speaks WebSocket only", headers=upgrade)
        await problems.respond(scope, send, problem)

    async def _connect(self, route: Route, scope: Scope, receive: Receive, send: Send) -> None:
        with self._services.metrics.connection(route.surface):
            await route.app(scope, receive, send)


class Application:
    """The whole server as an ASGI app."""

    def __init__(self, app: App, rest: Deferred) -> None:
        self._app = app
        self._rest = rest

    def load(self) -> asyncio.Future[App]:
        """Begin to load what was left for after the start."""
        return self._rest.load()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


def create_app(services: Services) -> Application:
    """Every surface behind what all requests pass through."""
    settings = services.settings
    rest = Deferred(lambda: _make_rest(services), services.broker.taken_up, below="/api/")
    routes = {
        "/healthz": Route(services.health, "health", needs_credential=False),
        "/api/v1/sandbox/health/public": Route(rest, "rest", needs_credential=False),
        "/metrics": Route(services.metrics, "metrics"),
        "/.well-known/jwks.json": Route(rest, "access", needs_credential=False),
        # Here a token for a sandbox is a credential too.
        "/sandbox/refresh": Route(rest, "access", needs_credential=False),
        "/ws": Route(FathomSurface(services) if settings.enable_execution else _refuse, "fathom", kind="websocket"),
    }
    # Loaded together with the rest: until that is there nobody has a run.
    stream_app = Deferred(lambda: _make_stream(services), services.broker.taken_up)
    stream = Route(stream_app, "interpreter", kind="websocket", needs_credential=False)
    # Tokens for sandboxes are checked by the surface itself, some of them in the first frame of a socket.
    dataplane_app = Deferred(lambda: _make_dataplane(services), services.broker.taken_up)
    app: App = Front(
        services,
        routes,
        stream=stream,
        access=Route(rest, "access"),
        dataplane=Route(dataplane_app, "dataplane", kind=None, needs_credential=False),
        rest=Route(rest, "rest"),
    )
    app = BodyLimit(
        app,
        settings.max_body_bytes,
        inline_limit=settings.max_inline_body_bytes,
        upload_limit=settings.max_upload_mb * MIB + _FORM_BYTES,
    )
    app = OriginGuard(app, allowed=settings.allowed_origins, public_url=settings.public_url)
    return Application(RequestLog(app, services.metrics), rest)


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    raise Forbidden("execution is turned off on this server")


def _make_rest(services: Services) -> App:
    from tidebox.api.rest import make_rest

    rest: App = make_rest(services)
    return rest


def _make_stream(services: Services) -> App:
    from tidebox.api.interpreter.stream import StreamSurface

    return StreamSurface(services)


def _make_dataplane(services: Services) -> App:
    from tidebox.api.dataplane.surface import DataplaneSurface

    return DataplaneSurface(
        services.sandboxes, services.audit, services.rate_limiter, services.metrics, services.settings
    )

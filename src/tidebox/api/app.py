"""The server's ASGI app: finds the surface of a request, authenticates the caller, and hands the request on.

It knows no protocol: those are the values of ``surfaces``.
"""

from __future__ import annotations

from http import HTTPStatus

from tidebox.api import problems
from tidebox.api.asgi import App, Receive, Scope, Send, context_of
from tidebox.api.mcp import MakeMcp, McpSurface
from tidebox.api.middleware import BodyLimit, OriginGuard, RequestLog
from tidebox.api.rest_apps import RestApps
from tidebox.api.services import Services
from tidebox.api.surfaces import all_surfaces
from tidebox.errors import NotFound


class SurfaceRouter:
    """Authenticates the caller, applies the rate limit, and hands the request to the app of its surface."""

    def __init__(self, services: Services, rest: App) -> None:
        """``rest`` is the app of surfaces that have none of their own."""
        self._services = services
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = context_of(scope)
        surface = context.surface
        fits = scope["type"] in surface.kinds
        if not fits or surface.needs_credential(scope["path"]):
            principal = self._services.authenticator.authenticate(scope["headers"])
            context.caller = context.caller_as(principal, surface.name)
            await self._services.rate_limiter.check(principal)
        if not fits:
            return await self._mismatch(scope, send)
        if surface.methods is not None and scope["method"] not in surface.methods:
            allow = ((b"allow", ", ".join(surface.methods).encode()),)
            return await problems.respond(scope, send, problems.of_status(HTTPStatus.METHOD_NOT_ALLOWED, headers=allow))
        if surface.ready is not None:
            await surface.ready.wait()
        return await (surface.app or self._rest)(scope, receive, send)

    async def _mismatch(self, scope: Scope, send: Send) -> None:
        if scope["type"] == "websocket":
            raise NotFound("there is no WebSocket at this path")
        upgrade = ((b"upgrade", b"websocket"), (b"connection", b"upgrade"))
        problem = problems.of_status(HTTPStatus.UPGRADE_REQUIRED, "this path speaks WebSocket only", headers=upgrade)
        await problems.respond(scope, send, problem)


class Application:
    """The whole server as an ASGI app."""

    def __init__(self, app: App, rest: RestApps, mcp: McpSurface) -> None:
        self._app = app
        self._rest = rest
        self._mcp = mcp

    async def load_first(self) -> None:
        """Load, after the start, the apps that most clients ask for first."""
        await self._rest.load_first()

    async def load(self) -> None:
        """Load, after the start, every other app; otherwise the first request for each does."""
        await self._rest.load()

    async def close(self) -> None:
        """End MCP sessions, which go on although their requests are over."""
        await self._mcp.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


def create_app(services: Services, make_mcp: MakeMcp) -> Application:
    """Every surface behind what all requests pass through.

    ``make_mcp`` makes the one that is a client of all others.
    """
    settings = services.settings

    async def itself(scope: Scope, receive: Receive, send: Send) -> None:
        await application(scope, receive, send)

    mcp = McpSurface(lambda: make_mcp(itself))
    rest = RestApps(services, all_surfaces(services, mcp))
    app: App = SurfaceRouter(services, rest)
    app = BodyLimit(app, settings.max_body_bytes)
    app = OriginGuard(app, allowed=settings.allowed_origins, public_url=settings.public_url)
    application = Application(RequestLog(app, services.metrics, rest.surfaces), rest, mcp)
    return application

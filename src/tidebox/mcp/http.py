"""Streamable HTTP: the protocol at one path of a server, in the name of each request's caller.

The tools are clients of that same server, within its process, with the credential of the request: what REST refuses to
a user is refused here, by the same code.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings

from tidebox.errors import InvalidRequest
from tidebox.mcp.server import Backend, Context, ToolServer, client_name
from tidebox.mcp.session_quota import IDLE_SECONDS, IdInUse, SessionQuota, refuse_id
from tidebox.sdk.in_process import App, InProcessHttp
from tidebox.sdk.interpreter.client import AsyncInterpreter
from tidebox.sdk.sandboxes.access import AsyncAccess

USER = "tidebox.user"
"""Key of the ASGI scope under which the name of a request's user is."""
_DEPARTURE = "tidebox.departure"
_MAX_SESSIONS = 1000


class HttpServer:
    """An ASGI app; requests come to it authenticated, with their origin checked."""

    def __init__(self, app: App, *, public_url: str | None, dotted_names: bool, max_body_bytes: int) -> None:
        """``app`` is the server that the tools use."""
        self._app = app
        self._public_url = public_url
        self._tools = ToolServer(self._connect, dotted_names=dotted_names, departure=_departure)
        self._manager = StreamableHTTPSessionManager(
            self._tools.make_server(),
            # Origins are refused before anything gets here, by the rules of the whole server.
            security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
            session_idle_timeout=IDLE_SECONDS,
            max_sessions=_MAX_SESSIONS,
            max_request_body_size=max_body_bytes,
        )
        self._sessions = SessionQuota()
        self._ready = asyncio.Event()
        self._stopped = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one request."""
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._run(), name="mcp sessions")
        await self._ready.wait()
        departure = asyncio.Event()
        scope[_DEPARTURE] = departure
        # A session is for the user who opened it, by whichever token.
        scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=scope[USER], scopes=[]))

        async def noticing() -> Any:
            message = await receive()
            if message["type"] == "http.disconnect":
                departure.set()
            return message

        request_id, again = await _peek(noticing) if scope["method"] == "POST" else (None, noticing)
        try:
            async with self._sessions.watched(scope[USER], scope, request_id, send) as watched:
                await self._manager.handle_request(scope, again, watched)
        except IdInUse:
            await refuse_id(send)

    async def close(self) -> None:
        """End every session, and what was called in it."""
        self._stopped.set()
        if self._running is not None:
            await asyncio.wait({self._running})
        await self._tools.close()

    async def _run(self) -> None:
        async with self._manager.run():
            self._ready.set()
            await self._stopped.wait()

    @asynccontextmanager
    async def _connect(self, context: Context) -> AsyncIterator[Backend]:
        scope = context.request.scope if context.request is not None else {}
        headers = {name: value.decode("latin-1") for name, value in scope.get("headers", ())}
        url = self._public_url or f"{scope.get('scheme')}://{headers.get(b'host', '')}"
        key = headers.get(b"x-api-key") or headers.get(b"authorization", "").partition(" ")[2].strip()
        if not key:
            raise InvalidRequest("the request has no credential")
        address = (scope.get("client") or ("",))[0]

        def http() -> InProcessHttp:
            return InProcessHttp(self._app, url, address=address, source="MCP", client=client_name(context))

        backend = Backend(AsyncInterpreter(url, api_key=key, http=http()), AsyncAccess(url, api_key=key, http=http()))
        try:
            yield backend
        finally:
            await backend.close()


class _MessageHead(msgspec.Struct):
    """The fields of a message that are read before the protocol's library parses it."""

    id: str | int | None = None
    method: str | None = None


async def _peek(receive: Any) -> tuple[str | None, Any]:
    """The id of a request, and ``receive`` as if nothing had been looked at.

    Bodies come here in one piece. What is none of the protocol has no id, and is refused by the protocol itself.
    """
    first = await receive()
    try:
        head = msgspec.json.decode(first.get("body", b""), type=_MessageHead)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        head = _MessageHead()
    waiting = [first]

    async def again() -> Any:
        return waiting.pop() if waiting else await receive()

    # The protocol's own part tells requests apart by the text of their ids: 1 and "1" are the same to it.
    return None if head.id is None or head.method is None else str(head.id), again


def _departure(context: Context) -> asyncio.Event | None:
    found: asyncio.Event | None = None if context.request is None else context.request.scope.get(_DEPARTURE)
    return found

"""``/mcp``: the Model Context Protocol over HTTP.

Its tools are clients of this same server: what serves them is made by the server's composition root and asks the whole
app, in the name of each caller. Here is what every surface has: the credential was checked, and the body is bounded.
"""

from __future__ import annotations

import gc
import ipaddress
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from tidebox.api.asgi import App, Message, Receive, Scope, Send, caller_of, header
from tidebox.api.lazy_app import LazyApp
from tidebox.api.surface import Surface
from tidebox.errors import Forbidden
from tidebox.protocols.documents import check_values

if TYPE_CHECKING:
    from tidebox.config import Settings

PATH = "/mcp"
USER = "tidebox.user"
"""Where the scope of a request has the name of the user who sent it."""


class McpApp(Protocol):
    """The ASGI app of the MCP server, with its sessions."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...

    async def close(self) -> None:
        """End every session, and what was called in it."""


MakeMcp = Callable[[App], McpApp]
"""Makes what serves the protocol, as a client of the app it is given; called in a thread."""


class McpSurface:
    """The MCP surface. The first request loads it: most servers never see one, and it is larger than all the rest."""

    def __init__(self, make: Callable[[], McpApp]) -> None:
        self._make = make
        self._server: McpApp | None = None
        self._known_origins: frozenset[str | None] = frozenset()
        self._app = LazyApp(self._load)

    def as_surface(self, settings: Settings) -> Surface:
        """The surface of this app."""
        self._known_origins = frozenset(
            urlsplit(url).hostname for url in (*settings.allowed_origins, settings.public_url) if url is not None
        )
        return Surface(
            name="mcp",
            matches=lambda scope: scope["path"] in (PATH, PATH + "/"),
            app=self,
            body_limits={re.compile(rf"{PATH}/?"): settings.max_inline_body_bytes},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._check_origin(scope)
        scope[USER] = caller_of(scope).principal.user
        # Spaces around a value are none of it (RFC 9110, 5.5), and the protocol compares values.
        scope["headers"] = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
        if scope["method"] == "POST":
            receive = await _checked(receive)
        await self._app(scope, receive, send)

    def _check_origin(self, scope: Scope) -> None:
        """Refuse a page that only seems to be the server's own, by a name that its owner lets mean this machine."""
        try:
            host = urlsplit((header(scope, b"origin") or b"").decode("latin-1")).hostname
            if host is None or host == "localhost" or host in self._known_origins:
                return
            ipaddress.ip_address(host)
        except ValueError:
            raise Forbidden("pages of this origin may not use the server by a name that it does not know") from None

    async def close(self) -> None:
        """End every session."""
        if self._server is not None:
            await self._server.close()

    def _load(self) -> App:
        self._server = self._make()
        # As after the start: what was loaded stays, and need not be looked through for garbage.
        gc.freeze()
        return self._server


async def _checked(receive: Receive) -> Receive:
    """``receive`` of a request whose body was read, and has a bounded number of values."""
    body = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return receive  # disconnected; a reader of more is told so
        body += message.get("body", b"")
        more = message.get("more_body", False)
    check_values(body)
    first: Message | None = {"type": "http.request", "body": bytes(body), "more_body": False}

    async def again() -> Message:
        nonlocal first
        if first is None:
            return await receive()
        message, first = first, None
        return message

    return again

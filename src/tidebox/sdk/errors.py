"""Errors between a client and a server.

    TideboxError
    ├── ServerUnreachable     no connection could be made
    ├── ConnectionLost        the connection broke before the answer came
    ├── ClientClosed          the client was closed, by its own side
    ├── VersionRefused        the server does not speak this version of the protocol
    ├── SandboxRecreated      the sandbox was lost with all that was in it; there is a new one now
    └── ServerRefused         refused for good, for a reason that has no class of its own

``ServerProtocolError`` of ``tidebox.errors`` says that the server broke the protocol. What the server itself found
wrong keeps its class of ``tidebox.errors``: ``InvalidRequest``, ``UnknownLanguage``,
``Overloaded``, ``Unauthorized`` and so on; ``details['code']`` is the code as the protocol spells it.
"""

from __future__ import annotations

import json
from typing import Any

from tidebox.errors import (
    Forbidden,
    InvalidRequest,
    NotFound,
    RateLimited,
    TideboxError,
    Unauthorized,
)
from tidebox.errors import ServerProtocolError as ServerProtocolError

VERSION_HEADER = "X-Protocol-Version"


class ServerUnreachable(TideboxError):
    """No connection to the server could be made."""

    code = "server_unreachable"
    retryable = True
    http_status = 503


class ConnectionLost(TideboxError):
    """The connection broke before the answer came; the server ends what ran on it."""

    code = "connection_lost"
    retryable = True
    http_status = 503


class ClientClosed(TideboxError):
    """The client was closed."""

    code = "client_closed"


class VersionRefused(TideboxError):
    """The server does not speak the version of the protocol that this client speaks."""

    code = "version_refused"


class SandboxRecreated(TideboxError):
    """The sandbox was lost with all that was in it, and there is a new, empty one: nothing was done in that yet."""

    code = "sandbox_recreated"
    retryable = True
    http_status = 409


class ServerRefused(TideboxError):
    """The server refused for a reason that this client has no class for; asking again does not help."""

    code = "server_refused"


_BY_STATUS: dict[int, type[TideboxError]] = {
    400: InvalidRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    426: VersionRefused,
    429: RateLimited,
    503: ServerUnreachable,
}


def from_response(status: int, body: bytes) -> TideboxError:
    """Make the error of an HTTP answer other than the upgrade."""
    try:
        said = json.loads(body)["error"]
        message, code, more = str(said["message"]), str(said["code"]), dict(said.get("details") or {})
    except (ValueError, KeyError, TypeError):
        message, code, more = f"the server answered with HTTP status {status}", "", {}
    kind = _BY_STATUS.get(status)
    if kind is None:
        kind = ServerUnreachable if status >= 500 else ServerRefused
    if more.get("field") == VERSION_HEADER:
        kind = VersionRefused
    details: dict[str, Any] = more | {"status": status} | ({"code": code} if code else {})
    return kind(message, **details)

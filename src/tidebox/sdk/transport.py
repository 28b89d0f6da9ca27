"""Opening of WebSocket connections, and the meaning of their errors."""

from __future__ import annotations

import ssl
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.client import ClientProtocol
from websockets.datastructures import Headers
from websockets.exceptions import (
    ConnectionClosed,
    InvalidHandshake,
    InvalidMessage,
    InvalidStatus,
    InvalidURI,
    ProtocolError,
    WebSocketException,
)
from websockets.frames import Frame

import tidebox
from tidebox.errors import InvalidRequest, TideboxError
from tidebox.model.principal import ClientSource
from tidebox.protocols.fathom import VERSION
from tidebox.sdk.errors import (
    VERSION_HEADER,
    ConnectionLost,
    ServerProtocolError,
    ServerUnreachable,
    VersionRefused,
    from_response,
)
from tidebox.sdk.server_target import ServerTarget, source_headers

# How often an idle connection is looked after, and how long the answer may take.
HEARTBEAT_SECONDS = 20.0
CLOSE_SECONDS = 2.0
# A server splits its output into much smaller messages.
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
# Of frames that are shorter than any message, pings for the most part, how many may come in one piece of data: that may
# hold a hundred thousand, and nothing else is done until all are answered.
_SHORTEST_MESSAGE = 8
_MOST_IDLE_FRAMES = 256


def options(target: ServerTarget, timeout: float, source: ClientSource) -> dict[str, Any]:
    """The arguments of ``connect`` for a target."""
    headers = {VERSION_HEADER: str(VERSION), **source_headers(source)}
    if target.key is not None:
        headers["Authorization"] = f"Bearer {target.key}"
    return {
        "additional_headers": headers,
        "user_agent_header": f"tidebox/{tidebox.__version__}",
        "compression": None,
        "proxy": None if target.local else True,
        "open_timeout": timeout,
        "ping_interval": HEARTBEAT_SECONDS,
        "ping_timeout": HEARTBEAT_SECONDS,
        "close_timeout": CLOSE_SECONDS,
        "max_size": MAX_MESSAGE_BYTES,
        # A caller that leaves output unread must not stop the answers to pings and the output of other executions. It
        # is bounded all the same: by the output limits that the executions were given.
        "max_queue": None,
    }


def check_version(headers: Headers | None) -> None:
    """Refuse a server that says it speaks another version."""
    said = headers.get(VERSION_HEADER) if headers is not None else None
    if said is not None and str(VERSION) not in (word.strip() for word in said.split(",")):
        raise VersionRefused(f"the server speaks version {said} of the protocol, this client version {VERSION}")


def opening_error(target: ServerTarget, error: Exception) -> TideboxError:
    """Make the error of a connection that could not be opened."""
    if isinstance(error, InvalidStatus):
        refused = from_response(error.response.status_code, bytes(error.response.body or b""))
        if error.response.status_code != 401 or target.key is not None:
            return refused
        return type(refused)(
            f"{refused.message} (no key was given, none is in SANDBOX_API_KEY or in the server's data directory)",
            **refused.details,
        )
    if isinstance(error, InvalidURI):
        return InvalidRequest(str(error), field="url")
    if isinstance(error, ssl.SSLCertVerificationError):
        return ServerUnreachable(f"the certificate of {target.uri} cannot be trusted: {error.verify_message}")
    if isinstance(error, InvalidHandshake) and not isinstance(error, InvalidMessage):
        return ServerProtocolError(f"what answers at {target.uri} is not a Tidebox server: {error}")
    reason = str(error) or "it was closed before it was made"
    return ServerUnreachable(f"no connection to {target.uri}: {reason}")


def closing_error(error: Exception) -> TideboxError:
    """Make the error of a connection that was lost or closed."""
    if isinstance(error, ConnectionClosed) and error.rcvd is not None:
        words = f"{error.rcvd.code} {error.rcvd.reason}".strip()
        return ConnectionLost(f"the server closed the connection ({words})", close_code=error.rcvd.code)
    return ConnectionLost(f"the connection to the server broke: {error}")


class BoundedConnection(ClientConnection):
    """A connection whose other side cannot keep the event loop busy with frames that say nothing."""

    def __init__(self, protocol: ClientProtocol, **options: Any) -> None:
        super().__init__(protocol, **options)
        self._idle_frames = 0
        self._take_frame = protocol.recv_frame
        protocol.recv_frame = self._recv_frame  # type: ignore[method-assign]

    def data_received(self, data: bytes) -> None:
        self._idle_frames = 0
        super().data_received(data)

    def _recv_frame(self, frame: Frame) -> None:
        if len(frame.data) < _SHORTEST_MESSAGE:
            self._idle_frames += 1
            if self._idle_frames > _MOST_IDLE_FRAMES:
                raise ProtocolError("more pings, or empty frames, at once than anybody needs")
        self._take_frame(frame)


class Connect(connect):
    """Connects, and follows no redirect: a credential, and what programs are given, go to no other host."""

    def __init__(self, uri: str, **options: Any) -> None:
        super().__init__(uri, create_connection=BoundedConnection, **options)

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


OPENING_ERRORS = (OSError, TimeoutError, WebSocketException)

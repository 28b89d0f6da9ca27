"""The WebSocket upgrade of the protocol: its version is checked, and the connection is served."""

from __future__ import annotations

from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING

from tidebox.api import problems
from tidebox.api.asgi import Receive, Scope, Send, caller_of, context_of, header
from tidebox.api.fathom.connection import FathomConnection, FathomSettings
from tidebox.api.fathom.outbox import FathomOutbox
from tidebox.errors import InvalidRequest
from tidebox.protocols.fathom import VERSION

if TYPE_CHECKING:
    from tidebox.api.services import Services

_HEADER = b"x-protocol-version"
# The document calls itself 1.0 and its messages' version 1.
_NAMES = frozenset({b"1", b"1.0"})
_SPOKEN = (_HEADER, b"%d" % VERSION)
_ACCEPT = {"type": "websocket.accept", "headers": [_SPOKEN]}
_UNSUPPORTED = replace(
    problems.of_error(
        InvalidRequest(
            f"this server speaks version {VERSION} of the protocol", field="X-Protocol-Version", supported=[VERSION]
        )
    ),
    headers=(_SPOKEN,),
)


class FathomSurface:
    """Serves WebSocket upgrades whose caller is already known."""

    def __init__(self, services: Services) -> None:
        settings = services.settings
        self._services = services
        self._terms = FathomSettings(
            languages=services.languages,
            known=services.known_languages,
            compile_timeout=settings.compile_timeout_sec,
            max_executions=settings.max_executions_per_connection,
            max_message_bytes=settings.max_frame_bytes,
            buffer_frames=settings.ws_buffer_frames,
            orphan_grace=settings.orphan_grace_sec,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection, from the upgrade to its end."""
        if not is_supported_version(header(scope, _HEADER)):
            return await problems.respond(scope, send, _UNSUPPORTED)
        await receive()
        try:
            await send(_ACCEPT)
        except OSError:
            return None  # gone before it was let in
        context_of(scope).status = HTTPStatus.SWITCHING_PROTOCOLS
        outbox = FathomOutbox(send, self._terms.buffer_frames)
        services = self._services
        session = FathomConnection(outbox, caller_of(scope), services.broker, services.rate_limiter, self._terms)
        with services.metrics.connection("fathom"):
            return await session.serve(receive)


def is_supported_version(offered: bytes | None) -> bool:
    """Whether a version that the client offers is ours; one that does not say is taken to speak it."""
    if offered is None:
        return True
    return not _NAMES.isdisjoint(version.strip() for version in offered.split(b","))

"""``GET /healthz``: whether the server takes work. Asked without a credential, so it tells nothing else."""

from __future__ import annotations

from http import HTTPStatus

from tidebox.api.asgi import Receive, Scope, Send
from tidebox.api.problems import JSON

OK = (HTTPStatus.OK, b'{"status":"ok"}')
DRAINING = (HTTPStatus.SERVICE_UNAVAILABLE, b'{"status":"draining"}')


class HealthEndpoint:
    """Answers with whether the server takes work or drains."""

    def __init__(self) -> None:
        self.draining = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status, body = DRAINING if self.draining else OK
        headers = [(b"content-type", JSON), (b"content-length", b"%d" % len(body)), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

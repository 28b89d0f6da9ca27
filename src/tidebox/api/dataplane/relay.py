"""Requests for sandboxes of another server, which are handed on to it as they come, and its answers as they come.

Who may ask for what was decided here before. Of the other server a client sees what it would see of this one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import msgspec

from tidebox.api.asgi import Headers, Scope, context_of, header
from tidebox.api.dataplane.bodies import Body, ClientLeft
from tidebox.broker.providers.remote_sandbox import RemoteSandbox
from tidebox.errors import ProviderUnavailable

if TYPE_CHECKING:
    import httpx2

    from tidebox.api.dataplane.surface import DataplaneSurface, Exchange, Serve

_SILENCE_SECONDS = 60.0
_DESCRIBED = frozenset({"files/mkdir", "files/move", "files/remove"})
_RECORDED = ("path", "source", "target")
_REQUEST_HEADERS = (b"accept", b"content-type", b"content-length", b"if-range", b"range")
# What belongs to the connection between the two servers, or is said by this one itself (RFC 9110, 7.6.1).
_KEPT_BACK = frozenset(
    {
        b"connection",
        b"date",
        b"keep-alive",
        b"proxy-authenticate",
        b"server",
        b"set-cookie",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"www-authenticate",
        b"x-request-id",
    }
)


def to(operation: str) -> Serve:
    """What serves an operation by handing it on."""

    async def serve(_: DataplaneSurface, exchange: Exchange) -> None:
        sandbox = exchange.access.sandbox
        assert isinstance(sandbox, RemoteSandbox)
        query: Mapping[str, str] = exchange.query
        body: bytes | None = None
        asked: Mapping[str, Any] = query
        if operation in _DESCRIBED:
            # Read here, where it is recorded who did what to which file.
            asked = await exchange.described()
            query, body = {}, msgspec.json.encode(asked)
        exchange.fields = {name: str(asked[name]) for name in _RECORDED if name in asked}
        async with sandbox.use():
            await _unless_left(_Errand(exchange, sandbox, operation, query, body))

    return serve


class _Errand:
    """A request on its way."""

    def __init__(
        self,
        exchange: Exchange,
        sandbox: RemoteSandbox,
        operation: str,
        query: Mapping[str, str],
        body: bytes | None,
    ) -> None:
        self._exchange = exchange
        self._sandbox = sandbox
        self._target = f"/v1/{operation}" + (f"?{urlencode(query)}" if query else "")
        # A program may be silent until its end.
        self._silence = None if operation == "exec" else _SILENCE_SECONDS
        self._body = body
        self._sent = asyncio.Event()

    async def run(self) -> None:
        """Hand on the request, and then the answer."""
        scope = self._exchange.scope
        async with aclosing(self._pieces()) as pieces:
            body: bytes | AsyncGenerator[bytes, None] | None = self._body
            if body is None and _has_body(scope):
                body = pieces
            else:
                self._sent.set()
            async with self._sandbox.relay(
                scope["method"], self._target, self._headers(), body, silence=self._silence
            ) as answer:
                await _answer(self._exchange, answer)

    async def client_left(self) -> None:
        """Wait for that; while the body is still to come, whoever reads it is told instead."""
        await self._sent.wait()
        while (await self._exchange.receive())["type"] != "http.disconnect":
            pass

    async def _pieces(self) -> AsyncGenerator[bytes, None]:
        async with aclosing(Body(self._exchange.receive).chunks()) as chunks:
            async for chunk in chunks:
                yield chunk
        self._sent.set()

    def _headers(self) -> dict[str, str]:
        scope = self._exchange.scope
        kept = _REQUEST_HEADERS if self._body is None else (b"accept",)
        found = {name.decode(): value.decode("latin-1") for name in kept if (value := header(scope, name)) is not None}
        if self._body is not None:
            found["content-type"] = "application/json"
        # So that the logs of both servers speak of the same request.
        return {**found, "x-request-id": context_of(scope).request_id}


async def _unless_left(errand: _Errand) -> None:
    """Hand on a request; when its client leaves, the other server is left too, and ends what it does for it."""
    running = asyncio.ensure_future(errand.run())
    leaving = asyncio.ensure_future(errand.client_left())
    try:
        await asyncio.wait({running, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (running, leaving):
            task.cancel()
        await asyncio.wait({running, leaving})
    if running.cancelled():
        raise ClientLeft
    running.result()


async def _answer(exchange: Exchange, answer: httpx2.Response) -> None:
    if answer.status_code < HTTPStatus.OK:
        raise ProviderUnavailable("the server of the sandbox does not speak this protocol")
    await exchange.start(answer.status_code, _answer_headers(answer))
    async for piece in answer.aiter_raw():
        await exchange.body(piece, more=True)
    await exchange.body(b"")


def _has_body(scope: Scope) -> bool:
    return header(scope, b"content-length") not in (None, b"0") or header(scope, b"transfer-encoding") is not None


def _answer_headers(answer: httpx2.Response) -> Headers:
    return [(name.lower(), value) for name, value in answer.headers.raw if name.lower() not in _KEPT_BACK]

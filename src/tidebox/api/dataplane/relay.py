"""Requests for sandboxes of another server, which are handed on to it as they come, and its answers as they come.

Who may ask for what was decided here before. Of the other server a client sees what it would see of this one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from tidebox.api.asgi import Headers, context_of, header
from tidebox.api.dataplane.bodies import Body, ClientLeft
from tidebox.broker.providers.remote_sandbox import RemoteSandbox
from tidebox.errors import ProviderUnavailable

if TYPE_CHECKING:
    import httpx2

    from tidebox.api.dataplane.surface import DataplaneSurface, Exchange, Serve

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
        exchange.fields = {name: exchange.query[name] for name in ("path",) if name in exchange.query}
        async with sandbox.use():
            await _unless_left(exchange, sandbox, operation)

    return serve


async def _unless_left(exchange: Exchange, sandbox: RemoteSandbox, operation: str) -> None:
    """Hand on a request; when its client leaves, the other server is left too, and ends what it does for it."""
    sent = asyncio.Event()
    relaying = asyncio.ensure_future(_relay(exchange, sandbox, operation, sent))
    leaving = asyncio.ensure_future(_leaving(exchange, sent))
    try:
        await asyncio.wait({relaying, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (relaying, leaving):
            task.cancel()
        await asyncio.wait({relaying, leaving})
    if relaying.cancelled():
        raise ClientLeft
    relaying.result()


async def _leaving(exchange: Exchange, sent: asyncio.Event) -> None:
    # While the body is still to come, whoever reads it is told.
    await sent.wait()
    while (await exchange.receive())["type"] != "http.disconnect":
        pass


async def _relay(exchange: Exchange, sandbox: RemoteSandbox, operation: str, sent: asyncio.Event) -> None:
    method = exchange.scope["method"]
    target = f"/v1/{operation}" + (f"?{urlencode(exchange.query)}" if exchange.query else "")
    shown = await sandbox.pass_()
    async with aclosing(_body(exchange, sent)) as body:
        content = body if _has_body(exchange) else None
        if content is None:
            sent.set()
        async with sandbox.relay(method, target, _request_headers(exchange), content, shown.token) as answer:
            if answer.status_code == HTTPStatus.UNAUTHORIZED:
                raise await sandbox.refused()
            await _answer(exchange, answer)


async def _answer(exchange: Exchange, answer: httpx2.Response) -> None:
    if answer.status_code < HTTPStatus.OK:
        raise ProviderUnavailable("the server of the sandbox does not speak this protocol")
    await exchange.start(answer.status_code, _answer_headers(answer))
    async for piece in answer.aiter_raw():
        await exchange.body(piece, more=True)
    await exchange.body(b"")


async def _body(exchange: Exchange, sent: asyncio.Event) -> AsyncGenerator[bytes, None]:
    async with aclosing(Body(exchange.receive).chunks()) as chunks:
        async for chunk in chunks:
            yield chunk
    sent.set()


def _has_body(exchange: Exchange) -> bool:
    length = header(exchange.scope, b"content-length")
    return length not in (None, b"0") or header(exchange.scope, b"transfer-encoding") is not None


def _request_headers(exchange: Exchange) -> dict[str, str]:
    found = {
        name.decode(): value.decode("latin-1")
        for name in _REQUEST_HEADERS
        if (value := header(exchange.scope, name)) is not None
    }
    # So that the logs of both servers speak of the same request.
    return {**found, "x-request-id": context_of(exchange.scope).request_id}


def _answer_headers(answer: httpx2.Response) -> Headers:
    return [(name.lower(), value) for name, value in answer.headers.raw if name.lower() not in _KEPT_BACK]

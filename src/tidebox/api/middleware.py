"""Middleware before the surfaces: request log, CORS, body limits. Plain ASGI: no WebSocket frame is touched here."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from http import HTTPStatus
from urllib.parse import urlsplit

import structlog

from tidebox.api import problems
from tidebox.api.asgi import App, Message, Receive, RequestContext, Scope, Send, attach, context_of, header
from tidebox.api.metrics import ServerMetrics
from tidebox.api.surface import Surface, find_surface
from tidebox.errors import Forbidden, PayloadTooLarge, TideboxError
from tidebox.model.ids import new_id
from tidebox.model.principal import CLIENT_HEADER, SOURCE_HEADER, clean_client, find_source

_log = structlog.get_logger("tidebox.api")

_SANE_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,64}")
_SOURCE = SOURCE_HEADER.lower().encode()
_CLIENT = CLIENT_HEADER.lower().encode()
_MAX_LOGGED_PATH = 256
_INTERNAL_ERROR = 1011  # RFC 6455, 7.4.1


class RequestLog:
    """Gives each request an id, answers errors that nothing else answered, and logs one line about it.

    The line has the path without its query: that is where signed URLs carry their token.
    """

    def __init__(self, app: App, metrics: ServerMetrics, surfaces: Sequence[Surface]) -> None:
        self._app = app
        self._metrics = metrics
        self._surfaces = surfaces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = header(scope, b"x-request-id")
        sane = given is not None and _SANE_REQUEST_ID.fullmatch(given)
        request_id = given.decode() if given is not None and sane else new_id("req")
        # Known from the first moment on: a refusal is spelled in the dialect of the surface that was meant.
        surface = find_surface(self._surfaces, scope)
        context = RequestContext(
            request_id,
            (scope.get("client") or ("",))[0],
            surface,
            find_source((header(scope, _SOURCE) or b"").decode("latin-1")),
            clean_client((header(scope, _CLIENT) or b"").decode("latin-1")),
            dialect=surface.dialect(scope),
        )
        attach(scope, context)
        started = time.monotonic()
        answer = _noting(send, context) if scope["type"] == "http" else send
        try:
            await self._app(scope, receive, answer)
        except Exception as error:
            await self._fail(scope, answer, error)
        finally:
            self._metrics.request(surface.name, context.status)
            _write_line(scope, context, time.monotonic() - started)

    async def _fail(self, scope: Scope, send: Send, error: Exception) -> None:
        context = context_of(scope)
        gone = isinstance(error, OSError) and context.status == HTTPStatus.SWITCHING_PROTOCOLS
        if gone:
            return  # as a server says that nobody is there to be sent something
        if not isinstance(error, TideboxError):
            _log.error("unexpected_failure", request_id=context.request_id, exc_info=error)
        if not context.status:
            await problems.respond(scope, send, problems.of_error(error))
        elif context.status == HTTPStatus.SWITCHING_PROTOCOLS:
            await send({"type": "websocket.close", "code": _INTERNAL_ERROR})


def _noting(send: Send, context: RequestContext) -> Send:
    """``send`` that notes how a request is answered, and puts on the answer what every one has."""

    async def noting(message: Message) -> None:
        if message["type"] == "http.response.start":
            context.status = message["status"]
            headers = [*message["headers"], *context.headers]
            if not any(name == b"x-request-id" for name, _ in headers):
                headers.append((b"x-request-id", context.request_id.encode()))
            message["headers"] = headers
        await send(message)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            # What was sent leaves when the loop gets its turn: before it is written down what was done, not after.
            await asyncio.sleep(0)

    return noting


def _write_line(scope: Scope, context: RequestContext, seconds: float) -> None:
    quiet = context.surface.quiet and context.status < HTTPStatus.BAD_REQUEST
    (_log.debug if quiet else _log.info)(
        "request" if scope["type"] == "http" else "connection",
        method=scope.get("method", "GET"),
        path=scope.get("raw_path", b"").decode("ascii", "backslashreplace")[:_MAX_LOGGED_PATH],
        status=context.status,
        ms=round(seconds * 1000, 1),
        address=context.address,
        user=context.caller.principal.user if context.caller else None,
        request_id=context.request_id,
    )


class OriginGuard:
    """Refuses requests of web pages of other origins (CSRF), and lets allowed origins read the answers (CORS).

    A browser sends the header; a program does not, and is not asked for it.
    """

    def __init__(self, app: App, *, allowed: tuple[str, ...], public_url: str | None) -> None:
        self._app = app
        self._allowed = frozenset(map(_normal_origin, allowed))
        self._own = _normal_origin(public_url) if public_url else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = header(scope, b"origin")
        if given is None:
            return await self._app(scope, receive, send)
        origin = given.decode("latin-1")
        if self._is_own(origin, scope):
            return await self._app(scope, receive, send)
        if _normal_origin(origin) not in self._allowed:
            raise Forbidden("pages of this origin may not use the server; SANDBOX_ALLOWED_ORIGINS names those that may")
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        allow = context_of(scope).headers
        allow += [
            (b"access-control-allow-origin", given),
            (b"access-control-expose-headers", b"content-range, mcp-session-id, retry-after, x-request-id"),
            (b"vary", b"origin"),
        ]
        if scope["method"] == "OPTIONS" and header(scope, b"access-control-request-method") is not None:
            allow += [
                (b"access-control-allow-methods", b"GET, HEAD, POST, PUT, PATCH, DELETE"),
                (
                    b"access-control-allow-headers",
                    b"authorization, content-type, idempotency-key, last-event-id, mcp-method, mcp-name, "
                    b"mcp-protocol-version, mcp-session-id, prefer, range, x-api-key, x-request-id, "
                    + _CLIENT
                    + b", "
                    + _SOURCE,
                ),
                (b"access-control-max-age", b"600"),
            ]
            await send({"type": "http.response.start", "status": HTTPStatus.NO_CONTENT, "headers": []})
            await send({"type": "http.response.body"})
            return None
        return await self._app(scope, receive, send)

    def _is_own(self, origin: str, scope: Scope) -> bool:
        scheme = {"ws": "http", "wss": "https"}.get(scope["scheme"], scope["scheme"])
        host = (header(scope, b"host") or b"").decode("latin-1")
        return _normal_origin(origin) in (_normal_origin(f"{scheme}://{host}"), self._own)


def _normal_origin(url: str) -> str:
    """Scheme, host and port of ``url``; what is no URL is an origin that equals no other."""
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
        return f"{parts.scheme}://{parts.hostname}:{port}"
    except (ValueError, KeyError):
        return f"unknown {url!r}"


class BodyLimit:
    """Answers 413 as soon as a body is known to be too long, which is before it was read.

    Each surface says which of its paths have another limit than all others.
    """

    def __init__(self, app: App, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        limit = context_of(scope).surface.body_limit(scope["path"], self._limit)
        if scope["type"] != "http" or limit is None:
            return await self._app(scope, receive, send)
        announced = header(scope, b"content-length")
        if announced is not None and announced.isdigit() and int(announced) > limit:
            return await self._refuse(scope, send, limit)
        received = 0
        refused = False

        async def counting() -> Message:
            nonlocal received, refused
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit and not refused:
                refused = True
                if not context_of(scope).status:
                    await self._refuse(scope, send, limit)
            # A reader of the rest of the body is told that the client is gone.
            return {"type": "http.disconnect"} if refused else message

        async def unless_refused(message: Message) -> None:
            if not refused:
                await send(message)

        try:
            return await self._app(scope, counting, unless_refused)
        except Exception:
            if not refused:
                raise
            return None

    async def _refuse(self, scope: Scope, send: Send, limit: int) -> None:
        error = PayloadTooLarge(f"the body is longer than {limit} bytes", limit=limit)
        # The rest of the body is still on its way: without the connection there is nothing to read it from.
        problem = replace(problems.of_error(error), headers=((b"connection", b"close"),))
        await problems.respond(scope, send, problem)

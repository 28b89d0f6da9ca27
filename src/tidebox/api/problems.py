"""Every error answer of the server, whatever raised it: one envelope, or problem details (RFC 9457) on request.

{"error": {"code", "message", "details", "retryable", "request_id"}}
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import msgspec

from tidebox.api.asgi import Headers, Scope, Send, context_of, header
from tidebox.errors import InternalError, TideboxError

JSON = b"application/json"
PROBLEM_JSON = b"application/problem+json"

_CODES = {400: "invalid_request", 413: "payload_too_large", 422: "invalid_request", 500: "internal_error"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiProblem:
    """An error answer: status, code, message and details."""

    status: int
    code: str
    message: str
    details: Mapping[str, Any] = field(default_factory=dict)
    retryable: bool = False
    headers: tuple[tuple[bytes, bytes], ...] = ()


def of_error(error: BaseException) -> ApiProblem:
    """Return the answer to ``error``; it tells nothing of the content of an unexpected one."""
    if not isinstance(error, TideboxError):
        error = InternalError("something failed that should not have; the server's log has the rest")
    headers: list[tuple[bytes, bytes]] = []
    if error.http_status == HTTPStatus.UNAUTHORIZED:
        headers.append((b"www-authenticate", b"Bearer"))
    if error.http_status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        headers.append((b"content-range", b"bytes */%d" % error.details["size"]))
    if (seconds := error.details.get("retry_after")) is not None:
        headers.append((b"retry-after", b"%d" % math.ceil(seconds)))
    return ApiProblem(
        status=error.http_status,
        code=error.code,
        message=error.message,
        details=error.details,
        retryable=error.retryable,
        headers=tuple(headers),
    )


def of_status(
    status: int,
    message: str | None = None,
    *,
    details: Mapping[str, Any] | None = None,
    headers: tuple[tuple[bytes, bytes], ...] = (),
) -> ApiProblem:
    """Return the answer of an HTTP status without an error of ours."""
    phrase = HTTPStatus(status).phrase
    return ApiProblem(
        status=status,
        code=_CODES.get(status) or phrase.lower().replace(" ", "_").replace("-", "_"),
        message=message or phrase,
        details=details or {},
        retryable=status in (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE),
        headers=headers,
    )


def render(problem: ApiProblem, request_id: str, *, as_details: bool = False) -> tuple[Headers, bytes]:
    """The headers and the body of the answer."""
    shared = {
        "code": problem.code,
        "details": problem.details,
        "retryable": problem.retryable,
        "request_id": request_id,
    }
    body: dict[str, Any]
    if as_details:
        body = {
            "type": f"urn:tidebox:error:{problem.code}",
            "title": HTTPStatus(problem.status).phrase,
            "status": problem.status,
            "detail": problem.message,
            "extensions": {"code": problem.code, **problem.details},
            **shared,
        }
    else:
        body = {"error": {"message": problem.message, **shared}}
    try:
        content = msgspec.json.encode(body, enc_hook=str)
    except UnicodeEncodeError:
        # A message may quote half a surrogate pair of the request.
        content = msgspec.json.encode(_encodable(body))
    headers = [
        (b"content-type", PROBLEM_JSON if as_details else JSON),
        (b"content-length", b"%d" % len(content)),
        (b"x-request-id", request_id.encode()),
        *problem.headers,
    ]
    return headers, content


def _encodable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(item) for item in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value).encode("utf-8", "backslashreplace").decode()


def wants_details(scope: Scope) -> bool:
    """Whether the client asked for problem details."""
    return PROBLEM_JSON in (header(scope, b"accept") or b"").lower()


def spelled(scope: Scope, problem: ApiProblem) -> ApiProblem:
    """``problem`` as the document of the request's surface spells it."""
    dialect = context_of(scope).dialect
    return dialect(problem) if dialect is not None else problem


async def respond(scope: Scope, send: Send, problem: ApiProblem) -> None:
    """Answer a request, or a WebSocket upgrade that is not to be, with ``problem``."""
    context = context_of(scope)
    problem = spelled(scope, problem)
    context.status = problem.status
    headers, content = render(problem, context.request_id, as_details=wants_details(scope))
    prefix = "websocket.http" if scope["type"] == "websocket" else "http"
    await send({"type": f"{prefix}.response.start", "status": problem.status, "headers": headers})
    await send({"type": f"{prefix}.response.body", "body": content})

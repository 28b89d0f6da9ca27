"""FastAPI dependencies of the REST routes of all surfaces: caller, services, idempotency key, errors."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import Depends, Header, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.responses import Response

from tidebox.api.asgi import caller_of
from tidebox.api.services import Services
from tidebox.errors import Forbidden, InvalidRequest
from tidebox.model.idempotency import MAX_KEY_LENGTH, Claim, fingerprint
from tidebox.model.principal import Caller
from tidebox.protocols.documents import check_values


class ErrorBody(BaseModel):
    """An error: its code, message and details."""

    code: str
    message: str
    details: dict[str, Any]
    retryable: bool
    request_id: str


class ErrorEnvelope(BaseModel):
    """Every error answer of the server."""

    error: ErrorBody


_ERRORS = {
    400: "The request is wrong; `details` says where.",
    401: "No credential, or a wrong one.",
    403: "The caller may not do this.",
    404: "There is nothing of that name that the caller may see.",
    409: "The idempotency key was used with another body, or the thing is not in a state that allows this.",
    410: "It is on the disk of a server that is lost; `details` names that.",
    413: "More bytes than the server accepts.",
    416: "The range asked for is not there.",
    422: "A policy that nothing on this server can enforce.",
    431: "The request line and headers are longer than the server reads.",
    429: "The queue is full, the quota is used up, or there were too many requests; see `Retry-After`.",
    503: "The runtime, the store or the whole server is not available.",
}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI responses of a route with these error statuses and those that every route has."""
    found: dict[int | str, dict[str, Any]] = {}
    for status in sorted({*statuses, 400, 401, 429, 431, 503}):
        found[status] = {"model": ErrorEnvelope, "description": _ERRORS[status]}
        if status == 429:
            found[status]["headers"] = {
                "Retry-After": {"description": "Seconds to wait before the next try.", "schema": {"type": "integer"}}
            }
    # Where a route has an answer for the rest of them, FastAPI does not add its own 422 for wrong requests.
    found["4XX"] = {"model": ErrorEnvelope, "description": "Any other refusal."}
    return found


async def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


async def _caller(request: Request) -> Caller:
    return caller_of(request.scope)


async def _admin(request: Request) -> Caller:
    caller = caller_of(request.scope)
    if not caller.principal.is_admin:
        raise Forbidden("only an admin may see this")
    return caller


async def refuse_repeated_parameters(request: Request) -> None:
    """Refuse a query that repeats a parameter: another reader of it might take the other value."""
    if request.scope["query_string"]:
        names = [name for name, _ in request.query_params.multi_items()]
        if len(set(names)) < len(names):
            raise InvalidRequest("a query parameter is given more than once", field="query")


ServicesDep = Annotated[Services, Depends(_services)]
CallerDep = Annotated[Caller, Depends(_caller)]
AdminDep = Annotated[Caller, Depends(_admin)]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        description="The same key with the same body, within its time, is answered with what the first request made.",
        min_length=1,
        max_length=MAX_KEY_LENGTH,
        pattern=r"^[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?$",
    ),
]


def claim_of(endpoint: str, caller: Caller, key: str | None, body: Any) -> Claim | None:
    """Make the idempotency claim of a request that has an idempotency key."""
    if key is None:
        return None
    return Claim(endpoint, caller.principal.user, key, fingerprint(body))


class DocumentRoute(APIRoute):
    """A route whose body is a JSON document with a bounded number of values."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of the route, behind the check of its body."""
        serve = super().get_route_handler()
        if self.body_field is None:
            return serve

        async def checked(request: Request) -> Response:
            check_values(await request.body())
            return await serve(request)

        return checked

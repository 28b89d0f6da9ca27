"""The FastAPI apps of REST routes: FastAPI, whose own errors come in the server's one envelope too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidebox.lean import deferred_models

with deferred_models():  # those of the description, whose validators are never used
    from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

import tidebox
from tidebox.api import problems
from tidebox.api.asgi import context_of
from tidebox.api.openapi import describe
from tidebox.api.services import Services
from tidebox.api.surface import Surface
from tidebox.errors import TideboxError

_MAX_FIELDS = 32


def make_part(services: Services, surface: Surface) -> FastAPI:
    """The app of one surface's routes, without a description."""
    part = bare_rest(described=False)
    part.state.services = services
    assert surface.routes is not None
    part.include_router(surface.routes())
    return part


def make_rest(parts: Sequence[FastAPI], surfaces: Sequence[Surface]) -> FastAPI:
    """The app of paths that are no surface's, and of the description of all that are."""
    rest = bare_rest()
    describe(rest, [route for part in parts for route in part.routes], surfaces)
    return rest


def bare_rest(*, described: bool = True) -> FastAPI:
    """An app without routes, whose errors come in the envelope."""
    rest = FastAPI(
        title="Tidebox",
        version=tidebox.__version__,
        description="Runs untrusted code in fresh, isolated boxes.",
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json" if described else None,
    )
    rest.add_exception_handler(TideboxError, _on_known)
    rest.add_exception_handler(RequestValidationError, _on_invalid)
    rest.add_exception_handler(HTTPException, _on_status)
    rest.add_exception_handler(ClientDisconnect, _on_leaving)
    rest.add_exception_handler(Exception, _on_unknown)
    return rest


async def _on_known(request: Request, error: Exception) -> Response:
    return _answer(request, problems.of_error(error))


async def _on_leaving(request: Request, error: Exception) -> Response:
    return _answer(request, problems.of_status(400, "the client left before the end of its body"))


async def _on_unknown(request: Request, error: Exception) -> Response:
    # It is raised again after the answer was sent, and logged further out.
    return _answer(request, problems.of_error(error))


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    # Of what is wrong in every one of many places, some are enough.
    fields = [_field(found) for found in error.errors()[:_MAX_FIELDS]]
    message = "; ".join(f"{found['field']}: {found['problem']}" for found in fields[:3])
    return _answer(request, problems.of_status(400, message, details={"fields": fields}))


async def _on_status(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = tuple((name.lower().encode(), value.encode()) for name, value in (error.headers or {}).items())
    return _answer(request, problems.of_status(error.status_code, error.detail, headers=headers))


def _field(found: Any) -> dict[str, str]:
    """Describe a validation error: the field and the problem, never the value, which may be a secret."""
    where: Sequence[int | str] = found["loc"]
    if found["type"] == "json_invalid":
        return {"field": "body", "problem": f"not valid JSON at position {where[-1]}"}
    if found["type"] == "model_attributes_type" and where == ("body",):
        # FastAPI reads no JSON that is not said to be JSON, which is what curl -d sends.
        return {"field": "body", "problem": "not a JSON object, sent as Content-Type: application/json"}
    path = where[1:] if len(where) > 1 and where[0] in ("body", "query", "path", "header") else where
    return {"field": ".".join(map(str, path)), "problem": found["msg"]}


def _answer(request: Request, problem: problems.ApiProblem) -> Response:
    problem = problems.spelled(request.scope, problem)
    details = problems.wants_details(request.scope)
    headers, content = problems.render(problem, context_of(request.scope).request_id, as_details=details)
    response = Response(content, problem.status)
    response.raw_headers = headers
    return response

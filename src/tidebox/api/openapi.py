"""The OpenAPI document: FastAPI's, with authentication and the routes that FastAPI does not know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.routing import BaseRoute

from tidebox.api.surface import Surface

_SCHEMES = {
    "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-KEY", "description": "The key of the single user."},
    "bearer": {"type": "http", "scheme": "bearer", "description": "The key, or a signed token."},
}


def describe(rest: FastAPI, routes: Sequence[BaseRoute], surfaces: Sequence[Surface]) -> None:
    """Let ``rest`` describe these routes, and every surface that has none as well."""

    def openapi() -> dict[str, Any]:
        if rest.openapi_schema is None:
            rest.openapi_schema = _completed(
                get_openapi(title=rest.title, version=rest.version, description=rest.description, routes=routes),
                surfaces,
            )
        return rest.openapi_schema

    rest.openapi = openapi  # type: ignore[method-assign] # as FastAPI's documentation says


def _completed(document: dict[str, Any], surfaces: Sequence[Surface]) -> dict[str, Any]:
    document.setdefault("components", {})["securitySchemes"] = dict(_SCHEMES)
    document["security"] = [{"apiKey": []}, {"bearer": []}]
    for operations in document["paths"].values():
        for operation in operations.values():
            for parameter in operation.get("parameters", ()):
                parameter["schema"] = _not_null(parameter["schema"])
    for surface in surfaces:
        if surface.describe is not None:
            surface.describe(document)
    return document


def _not_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter that need not be there is missing, or it is something: a query and a header know no null."""
    options = schema.get("anyOf", [])
    if {"type": "null"} not in options or len(options) != 2:
        return schema
    return {**{key: value for key, value in schema.items() if key != "anyOf"}, **options[0]}

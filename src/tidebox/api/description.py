"""The OpenAPI document: what FastAPI cannot know of the server is added to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

_SCHEMES = {
    "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-KEY", "description": "The key of the single user."},
    "bearer": {"type": "http", "scheme": "bearer", "description": "The key, or a signed token."},
}


def describe(rest: FastAPI, spec_versions: Sequence[str]) -> None:
    """Let ``rest`` describe itself completely."""

    def openapi() -> dict[str, Any]:
        if rest.openapi_schema is None:
            rest.openapi_schema = _completed(
                get_openapi(title=rest.title, version=rest.version, description=rest.description, routes=rest.routes),
                spec_versions,
            )
        return rest.openapi_schema

    rest.openapi = openapi  # type: ignore[method-assign] # as FastAPI's documentation says


def _completed(document: dict[str, Any], spec_versions: Sequence[str]) -> dict[str, Any]:
    components = document.setdefault("components", {})
    components["securitySchemes"] = _SCHEMES
    document["security"] = [{"apiKey": []}, {"bearer": []}]
    for operations in document["paths"].values():
        for operation in operations.values():
            # What FastAPI believes a wrong request is answered with; here that is 400, which each route names.
            answers = operation["responses"]
            if "HTTPValidationError" in str(answers.get("422")):
                del answers["422"]
    schemas = components.get("schemas", {})
    for name in ("RunRequest", "SessionRequest"):
        if name in schemas:
            schemas[name]["properties"]["spec_version"]["enum"] = list(spec_versions)
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    return document

"""Routes of FastAPI whose bodies are looked at before they are read."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from tidebox.api.documents import check_values


class DocumentRoute(APIRoute):
    """A route whose body is a JSON document with a bounded number of values."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """What serves the route."""
        serve = super().get_route_handler()
        if self.body_field is None:
            return serve

        async def checked(request: Request) -> Response:
            check_values(await request.body())
            return await serve(request)

        return checked

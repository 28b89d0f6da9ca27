"""A surface: one protocol that the server speaks, as the router and middleware see it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidebox.api.asgi import App, Scope

if TYPE_CHECKING:
    from fastapi import APIRouter

    from tidebox.api.problems import ApiProblem


Dialect = Callable[["ApiProblem"], "ApiProblem"]
READ_METHODS = ("GET", "HEAD")


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """One protocol. It has an app of its own, or routes that FastAPI makes one of."""

    name: str
    """In metrics and in the audit log."""
    matches: Callable[[Scope], bool]
    """Whether a request is for it; the first surface of the list that says so is asked."""
    app: App | None = None
    routes: Callable[[], APIRouter] | None = None
    """Its routes. Called in a thread, once: it may load FastAPI."""
    first: bool = False
    """Whether its routes are loaded before those of other surfaces."""
    kinds: frozenset[str] = frozenset({"http"})
    """Of requests: ``http``, ``websocket``."""
    methods: Sequence[str] | None = None
    """Those it serves, where the app leaves the others to the front."""
    needs_credential: Callable[[str], bool] = lambda path: True
    """Whether a path is served only to a caller whom the front knows. Otherwise the app asks, or it is for anybody."""
    dialect: Callable[[Scope], Dialect | None] = lambda scope: None
    """How errors of a request are spelled; None for the way of the server itself."""
    body_limits: Mapping[re.Pattern[str], int | None] = field(default_factory=dict)
    """Bytes of a body for paths with another limit than the server's; None where the app sees to it."""
    describe: Callable[[dict[str, Any]], None] | None = None
    """Adds what FastAPI does not know of it to the OpenAPI document."""
    ready: asyncio.Event | None = None
    """Requests wait for this, if there is one."""
    quiet: bool = False
    """Whether requests that succeed are left out of the log: something asks every few seconds."""

    def body_limit(self, path: str, default: int) -> int | None:
        """Return the most bytes that the body of a request may have; None for any number."""
        return next((limit for pattern, limit in self.body_limits.items() if pattern.fullmatch(path)), default)


def find_surface(surfaces: Sequence[Surface], scope: Scope) -> Surface:
    """The surface of a request; the last one of the list matches whatever is left."""
    return next(surface for surface in surfaces if surface.matches(scope))

"""REST apps, one for each surface: a request waits only until the part that serves it is loaded.

FastAPI takes a long time to make an app of routes, most of which a server without a browser or an admin never needs.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tidebox.api.asgi import App, Receive, Scope, Send
from tidebox.api.lazy_app import LazyApp
from tidebox.api.services import Services
from tidebox.api.surface import Surface

if TYPE_CHECKING:
    from fastapi import FastAPI


class RestApps:
    """The FastAPI apps of all surfaces with routes; itself the app of unknown paths, and of the OpenAPI document."""

    def __init__(self, services: Services, surfaces: Sequence[Surface]) -> None:
        self._parts: list[tuple[Surface, LazyApp[FastAPI]]] = []
        # Held while one is made: FastAPI silences warnings meanwhile, which another thread that does so too undoes.
        self._making = threading.Lock()
        self.surfaces = tuple(self._with_app(services, surface) for surface in surfaces)
        """Those given, each with the app that serves its routes."""
        self._rest = LazyApp(self._make_rest)

    def _with_app(self, services: Services, surface: Surface) -> Surface:
        if surface.routes is None:
            return surface
        part = LazyApp(partial(self._make_part, services, surface))
        self._parts.append((surface, part))
        return replace(surface, app=part)

    async def load_first(self) -> None:
        """Load the surfaces that are marked as ``first``."""
        await self._load([part for surface, part in self._parts if surface.first])

    async def load(self) -> None:
        """Load every app, those of ``load_first`` before the others."""
        await self.load_first()
        await self._load([part for _, part in self._parts])
        await asyncio.wait((self._rest.load(),))

    async def _load(self, parts: Sequence[LazyApp[FastAPI]]) -> None:
        # A failure is raised by who asks for it.
        for part in parts:
            await asyncio.wait((part.load(),))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for _, part in self._parts:
            await part.loaded()
        await self._rest(scope, receive, send)

    def _make_rest(self) -> App:
        """Called when every part is loaded."""
        with self._making:
            from tidebox.api.rest import make_rest

            rest: App = make_rest([part.load().result() for _, part in self._parts], self.surfaces)
            return rest

    def _make_part(self, services: Services, surface: Surface) -> FastAPI:
        with self._making:
            from tidebox.api.rest import make_part

            return make_part(services, surface)

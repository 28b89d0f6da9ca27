"""Lazy loading of an ASGI app: in a thread, while the server goes on with its work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from tidebox.api.asgi import App, Receive, Scope, Send

AnApp = TypeVar("AnApp", bound=App)


class LazyApp(Generic[AnApp]):
    """An ASGI app that a thread loads; requests that come earlier wait for it."""

    def __init__(self, make: Callable[[], AnApp]) -> None:
        self._make = make
        self._made: asyncio.Future[AnApp] | None = None

    def load(self) -> asyncio.Future[AnApp]:
        """Begin to load the app, unless that was begun before."""
        if self._made is None:
            self._made = asyncio.get_running_loop().run_in_executor(None, self._make)
        return self._made

    async def loaded(self) -> AnApp:
        """Return the app as soon as it is loaded."""
        # Shielded: a client that leaves must not take the app of all others along.
        return await asyncio.shield(self.load())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = await self.loaded()
        await app(scope, receive, send)

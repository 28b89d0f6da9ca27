"""An app that takes long to load is loaded beside the server's work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from tidebox.api.asgi import App, Receive, Scope, Send

AnApp = TypeVar("AnApp", bound=App)


class LazyApp(Generic[AnApp]):
    """Stands for an app that a thread makes; requests that come earlier wait for it."""

    def __init__(self, make: Callable[[], AnApp]) -> None:
        self._make = make
        self._made: asyncio.Future[AnApp] | None = None

    def load(self) -> asyncio.Future[AnApp]:
        """Begin to make it; once."""
        if self._made is None:
            self._made = asyncio.get_running_loop().run_in_executor(None, self._make)
        return self._made

    async def loaded(self) -> AnApp:
        """The app, as soon as it is made."""
        # Shielded: a client that leaves must not take the app of all others along.
        return await asyncio.shield(self.load())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = await self.loaded()
        await app(scope, receive, send)

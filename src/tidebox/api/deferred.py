"""An app that takes long to load is loaded beside the server's work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidebox.api.asgi import App, Receive, Scope, Send


class Deferred:
    """Stands for an app that a thread makes; requests that come earlier wait for it."""

    def __init__(self, make: Callable[[], App]) -> None:
        self._make = make
        self._made: asyncio.Future[App] | None = None

    def load(self) -> asyncio.Future[App]:
        """Begin to make it; once."""
        if self._made is None:
            self._made = asyncio.get_running_loop().run_in_executor(None, self._make)
        return self._made

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Shielded: a client that leaves must not take the app of all others along.
        app = await asyncio.shield(self.load())
        await app(scope, receive, send)

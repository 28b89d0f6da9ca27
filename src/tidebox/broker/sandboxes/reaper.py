"""The sandbox reaper: a background task that suspends idle sandboxes and ends expired ones."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from tidebox.broker.internal_errors import internal_error
from tidebox.errors import TideboxError

_log = logging.getLogger(__name__)


class Reaper:
    """Lets idle sandboxes rest, and ends those whose time is over."""

    def __init__(self, reap: Callable[[], Awaitable[None]], interval: float) -> None:
        self._reap_once = reap
        self._interval = interval
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the background task."""
        self._task = asyncio.get_running_loop().create_task(self._reap(), name="sandbox reaper")

    async def close(self) -> None:
        """Stop the background task."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            try:
                await self._reap_once()
            except TideboxError as error:
                _log.warning("sandboxes could not be looked after: %s", error)
            except Exception as error:
                internal_error("the look at the sandboxes", error)

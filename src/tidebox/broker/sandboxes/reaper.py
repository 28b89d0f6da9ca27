"""Looks at the sandboxes from time to time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from tidebox.broker.internal_errors import internal_error
from tidebox.errors import TideboxError

_log = logging.getLogger(__name__)


class Reaper:
    """Lets idle sandboxes rest, and ends those whose time is over."""

    def __init__(self, look: Callable[[], Awaitable[None]], interval: float) -> None:
        self._look_once = look
        self._interval = interval
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        self._task = asyncio.get_running_loop().create_task(self._look(), name="sandbox reaper")

    async def close(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            try:
                await self._look_once()
            except TideboxError as error:
                _log.warning("sandboxes could not be looked after: %s", error)
            except Exception as error:
                internal_error("the look at the sandboxes", error)

"""Output of a program as progress of its call, while it runs: often enough to watch, and never as fast as it comes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from tidebox.mcp.tool_results import Tail
from tidebox.model.limits import KIB

Report = Callable[[float, str], Awaitable[None]]
"""Reports how much there was so far, and the newest of it."""

PAUSE_SECONDS = 0.1
_MESSAGE_BYTES = 8 * KIB


class ProgressReporter:
    """Reports a program's new output as progress, at a bounded rate."""

    def __init__(self) -> None:
        self._fresh = Tail(_MESSAGE_BYTES)
        self._total = 0
        self._came = asyncio.Event()

    def add(self, data: bytes) -> None:
        """Note what it printed."""
        self._fresh.add(data)
        self._total += len(data)
        self._came.set()

    @contextlib.asynccontextmanager
    async def reported(self, report: Report | None) -> AsyncIterator[None]:
        """Report within this context, if somebody wants to know."""
        if report is None:
            yield
            return
        reporting = asyncio.get_running_loop().create_task(self._report(report), name="mcp progress")
        try:
            yield
        finally:
            reporting.cancel()
            await asyncio.wait({reporting})

    async def _report(self, report: Report) -> None:
        while True:
            await self._came.wait()
            self._came.clear()
            fresh, self._fresh = self._fresh, Tail(_MESSAGE_BYTES)
            text = fresh.last(_MESSAGE_BYTES).decode("utf-8", "replace")
            if fresh.total > _MESSAGE_BYTES:
                text = f"[... {fresh.total - _MESSAGE_BYTES} bytes left out ...]\n{text}"
            await report(self._total, text)
            await asyncio.sleep(PAUSE_SECONDS)

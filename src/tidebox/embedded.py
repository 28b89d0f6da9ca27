"""Tidebox without a server: the composition root of ``tidebox.run`` and of the commands that need no daemon."""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from tidebox.config import Settings, load_settings
from tidebox.errors import InvalidRequest
from tidebox.model.events import Event, Output
from tidebox.model.launch import WORKSPACE, Launch, plan_code, plan_command
from tidebox.model.limits import Limits, make_limits
from tidebox.model.result import Result
from tidebox.runtime.base import BoxSpec, CaptureRule
from tidebox.runtime.driver import Driver, Ending, Order, Sink
from tidebox.runtime.images import ImageStore
from tidebox.runtime.native.runtime import NativeRuntime
from tidebox.runtime.pool import CellKey, Pool

class Engine:
    """Native runtime, pool and driver, living on one event loop."""

    def __init__(self, settings: Settings | None = None, *, pool: bool = True) -> None:
        self.settings = settings or load_settings()
        self.images = ImageStore(self.settings.data_dir / "images")
        self.runtime = NativeRuntime(self.settings, self.images)
        sizes = self._pool_sizes() if pool else {}
        self.pool = Pool(self.runtime, sizes=sizes, limits=Limits(), max_age=self.settings.pool_max_age_sec)
        self.driver = Driver(self.runtime, self.pool)

    def _pool_sizes(self) -> dict[CellKey, int]:
        found = self.runtime.interpreters
        spec = BoxSpec()
        return {
            CellKey.of(self.runtime, "python", spec): self.settings.pool_python,
            CellKey.of(self.runtime, "node", spec): self.settings.pool_node if found.node else 0,
            CellKey.of(self.runtime, "elixir", spec): self.settings.pool_elixir if found.elixir else 0,
        }

    def start(self) -> None:
        """Begin to fill the pool."""
        self.pool.start()

    async def close(self) -> None:
        """End everything; nothing is left behind."""
        await self.pool.close()
        await self.driver.close()
        await self.runtime.close()

    async def run(code: str | bytes | None = None, language: str = "python", **options: Any) -> Result:
    """Run ``code`` in a fresh box and wait for its end.

    Options: ``command`` (a sequence, instead of code), ``env``, ``stdin``, ``files`` (name -> bytes, placed in /workspace), ``artifacts``
    (patterns of files to bring back), ``image``, and the limits, which are the fields of ``tidebox.model.limits.Limits``: timeout, memory,
    pids, cpus, output, workspace, ... The first call starts the machinery and a pool of warm cells, which live as long as the process.
    """
    return _background.submit(code, language, **options).result()


async def arun(code: str | bytes | None = None, language: str = "python", **options: Any) -> Result:
    """``run`` for asynchronous callers: cancelling the call kills the box."""
    return await asyncio.wrap_future(_background.submit(code, language, **options))


def shut_down() -> None:
    """End the background engine of ``run`` now instead of with the process."""
    _background.close()

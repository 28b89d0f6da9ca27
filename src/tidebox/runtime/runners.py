"""A runner per runtime: its driver and its pool, made when the first run or probe asks for that runtime."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

from tidebox.model.order import Ending, Order, Sink
from tidebox.model.runtimes import Report, RuntimeInfo
from tidebox.model.switch import Switch
from tidebox.runtime import registry
from tidebox.runtime.base import Runner, Runtime
from tidebox.runtime.driver import Driver
from tidebox.runtime.pool import Pool


@dataclass(frozen=True, slots=True)
class RuntimeRunner:
    """One runtime with its pool and its driver."""

    runtime: Runtime
    pool: Pool
    driver: Driver

    async def close(self) -> None:
        """End everything; nothing is left behind."""
        try:
            await self.pool.close()
            await self.driver.close()
        finally:
            await self.runtime.close()


class Runners(Runner):
    """Runs each order on the runtime that its spec names, or on the default one."""

    def __init__(self, make: Callable[[str], RuntimeRunner], default: str) -> None:
        """``make`` is called once for each runtime that is used; it raises for one that there is not."""
        self._make = make
        self._made: dict[str, RuntimeRunner] = {}
        self._default = default
        self._keeps_cells = False

    def __getitem__(self, name: str) -> RuntimeRunner:
        """The runner of a runtime; raises ``RuntimeUnavailable`` where there is none of that name."""
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def __iter__(self) -> Iterator[RuntimeRunner]:
        """Those that were made so far."""
        return iter(self._made.values())

    @property
    def default(self) -> RuntimeRunner:
        """The runner of orders that name no runtime."""
        return self[self._default]

    def start(self) -> None:
        """Keep cells ready from now on: of the default runtime at once, of others from their first run on."""
        self._keeps_cells = True
        self.default.pool.start()

    def run(self, order: Order, sink: Sink, cancel: Switch | None = None) -> Coroutine[Any, Any, Ending]:
        """Run ``order`` on its runtime."""
        runner = self[order.spec.runtime or self._default]
        if self._keeps_cells:
            runner.pool.start()
        return runner.driver.run(order, sink, cancel)

    async def probe(self) -> dict[str, Report]:
        """What every runtime of this server can enforce on this machine, by name."""
        reports = await asyncio.gather(*(self[name].runtime.probe() for name in registry.RUNTIMES))
        return dict(zip(registry.RUNTIMES, reports, strict=True))

    def describe(self, reports: dict[str, Report]) -> tuple[RuntimeInfo, ...]:
        """What clients are told of every known runtime, given what ``probe`` found."""
        found = (registry.describe(self[name].runtime, report) for name, report in reports.items())
        return (*found, *registry.absent())

    async def close(self) -> None:
        """Close every runner that was made."""
        # One after the other in this task: whoever is told to stop over it still leaves nothing behind.
        async with contextlib.AsyncExitStack() as stack:
            for runner in self:
                stack.push_async_callback(runner.close)

"""What clients are told of every runtime, kept true: each is probed at the start, and those that come and go again.

One that comes and goes is no reason to wait: until its probe is over it counts as one that works, and a run that asks
for it learns the rest. Nothing looks at it all the time either: it is probed again when somebody asked for it in vain.
"""

from __future__ import annotations

import asyncio
import time

from tidebox.errors import TideboxError
from tidebox.model.runtimes import Report, Runtimes
from tidebox.runtime import registry
from tidebox.runtime.base import Runtime
from tidebox.runtime.runners import Runners

# One that does not work is not asked more often, however many ask for it.
_PAUSE_SECONDS = 1.0


class Survey:
    """Probes the runtimes of one engine."""

    def __init__(self, runners: Runners, runtimes: Runtimes, patience: float) -> None:
        """``runtimes`` is told what is found, and asks for more; ``patience`` is how long a probe may take."""
        self._runners = runners
        self._runtimes = runtimes
        self._patience = patience
        self._probes: dict[str, asyncio.Task[Report]] = {}
        self._not_before: dict[str, float] = {}

    def begin(self, default: str) -> asyncio.Task[Report]:
        """Probe every runtime. What the default one can enforce is known with what stays as it is."""
        self._runtimes.infos = registry.known()
        self._runtimes.look_again = self._runners.on_unavailable = self.look_again
        for name in registry.usable():
            self._probe(name)
        return asyncio.get_running_loop().create_task(self._settled(default))

    async def _settled(self, default: str) -> Report:
        for name, probe in list(self._probes.items()):
            if name == default or not registry.load(name).external:
                await probe
        return await self._probes[default]

    def look_again(self, name: str) -> None:
        """Probe a runtime that may work by now, or may not any more."""
        last = self._probes.get(name)
        may = last is not None and last.done() and time.monotonic() >= self._not_before.get(name, 0.0)
        if may and registry.load(name).external:
            self._probe(name)

    def _probe(self, name: str) -> None:
        self._probes[name] = asyncio.get_running_loop().create_task(self._report(name), name=f"probe of {name}")

    async def _report(self, name: str) -> Report:
        runtime = self._runners[name].runtime
        report = await runtime.probe() if not runtime.external else await self._patiently(runtime)
        self._not_before[name] = time.monotonic() + _PAUSE_SECONDS
        found = registry.describe(runtime, report)
        self._runtimes.infos = tuple(found if info.name == name else info for info in self._runtimes.infos)
        return report

    async def _patiently(self, runtime: Runtime) -> Report:
        limit = asyncio.timeout(self._patience)
        try:
            async with limit:
                return await runtime.probe()
        except TimeoutError:
            if not limit.expired():
                raise
            reason = f"it did not answer within {self._patience:g} s"
        except TideboxError as error:
            reason = error.message
        return Report(runtime.name, available=False, findings=(), reason=reason)

    async def close(self) -> None:
        """Give up the probes that are under way."""
        for task in self._probes.values():
            task.cancel()
        if self._probes:
            await asyncio.wait(self._probes.values())

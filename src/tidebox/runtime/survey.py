"""Survey of the runtimes for clients, kept true: each is probed at the start, and those that come and go again.

One that comes and goes is no reason to wait: until its probe is over it counts as one that works, and a run that asks
for it learns the rest. Nothing looks at it all the time either: it is probed again when somebody asked for it in vain.
One that is lazy is only glanced at, until somebody asks for it or wants to know.
"""

from __future__ import annotations

import asyncio
import logging
import time

from tidebox.errors import TideboxError
from tidebox.model.runtimes import RuntimeCatalog, RuntimeReport
from tidebox.runtime import registry
from tidebox.runtime.base import Runtime
from tidebox.runtime.runners import Runners

_log = logging.getLogger(__name__)

# The first caller to ask waits this long for what is not known yet.
_WAIT_SECONDS = 5.0
# One that does not work is not asked more often, however many ask for it.
_PAUSE_SECONDS = 1.0


class Survey:
    """Probes the runtimes of one engine."""

    def __init__(self, runners: Runners, runtimes: RuntimeCatalog, patience: float) -> None:
        """``runtimes`` is told what is found, and asks for more; ``patience`` is how long a probe may take."""
        self._runners = runners
        self._runtimes = runtimes
        self._patience = patience
        self._probes: dict[str, asyncio.Task[RuntimeReport]] = {}
        self._not_before: dict[str, float] = {}
        self._glanced: set[str] = set()
        """Those of which no more is known than that they may work."""

    def begin(self, default: str) -> asyncio.Task[RuntimeReport]:
        """Probe every runtime. What the default one can enforce is known with what stays as it is."""
        self._runtimes.infos = registry.known()
        self._runtimes.look_again = self._runners.on_unavailable = self.look_again
        self._runtimes.look_closer = self.look_closer
        for name in registry.usable():
            if name != default and registry.load(name).lazy:
                self._glance(name)
            else:
                self._probe(name)
        return asyncio.get_running_loop().create_task(self._settled(default))

    async def _settled(self, default: str) -> RuntimeReport:
        for name, probe in list(self._probes.items()):
            if name == default or not registry.load(name).external:
                await probe
        return await self._probes[default]

    def look_again(self, name: str) -> None:
        """Probe a runtime that may work by now, or may not any more."""
        last = self._probes.get(name)
        may = last is not None and last.done() and time.monotonic() >= self._not_before.get(name, 0.0)
        if may and registry.load(name).external:
            self._glanced.discard(name)
            self._probe(name)

    async def look_closer(self) -> None:
        """Probe those that were only glanced at, and wait for that for a while; it goes on after that."""
        for name in [name for name in self._glanced if self._probes[name].done()]:
            self._glanced.discard(name)
            self._probe(name)
        waiting = [probe for name, probe in self._probes.items() if registry.load(name).lazy and not probe.done()]
        if waiting:
            await asyncio.wait(waiting, timeout=_WAIT_SECONDS)

    def _glance(self, name: str) -> None:
        self._glanced.add(name)
        self._probes[name] = asyncio.get_running_loop().create_task(self._glimpse(name), name=f"glance at {name}")

    async def _glimpse(self, name: str) -> RuntimeReport:
        runtime = self._runners[name].runtime
        reason = runtime.absence()
        report = RuntimeReport(name, available=reason is None, findings=(), reason=reason)
        self._found(runtime, report)
        if reason is None:
            try:
                await runtime.tidy()
            except TideboxError as error:
                _log.info("%s", error.message)
        else:
            # There is nothing to probe; it is looked for again when somebody asks for it.
            self._glanced.discard(name)
        return report

    def _probe(self, name: str) -> None:
        self._probes[name] = asyncio.get_running_loop().create_task(self._report(name), name=f"probe of {name}")

    async def _report(self, name: str) -> RuntimeReport:
        runtime = self._runners[name].runtime
        report = await runtime.probe() if not runtime.external else await self._patiently(runtime)
        self._found(runtime, report)
        return report

    def _found(self, runtime: Runtime, report: RuntimeReport) -> None:
        self._not_before[runtime.name] = time.monotonic() + _PAUSE_SECONDS
        found = registry.describe(runtime, report)
        self._runtimes.infos = tuple(found if info.name == runtime.name else info for info in self._runtimes.infos)

    async def _patiently(self, runtime: Runtime) -> RuntimeReport:
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
        return RuntimeReport(runtime.name, available=False, findings=(), reason=reason)

    async def close(self) -> None:
        """Give up the probes that are under way."""
        for task in self._probes.values():
            task.cancel()
        # Also what failed is taken note of: nobody else may have waited for it.
        await asyncio.gather(*self._probes.values(), return_exceptions=True)

"""Examination of a server by its answers: whether it can be reached, its version, which runtimes enforce what."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tidebox
from tidebox.cli.remote import Server
from tidebox.sdk.interpreter.results import GuaranteeAnswer, RuntimeAnswer, RuntimesAnswer, ServiceHealth


@dataclass(frozen=True, slots=True)
class ServerExamination:
    """All that was found."""

    url: str
    seconds: float
    """The time that an answer takes."""
    health: ServiceHealth
    runtimes: RuntimesAnswer
    client_version: str = tidebox.__version__

    @property
    def healthy(self) -> bool:
        """Whether it runs programs, and its default runtime enforces every guarantee."""
        default = next((each for each in self.runtimes.runtimes if each.name == self.runtimes.default_runtime), None)
        if default is None or not default.available or default.isolation is None:
            return False
        works = bool(self.health.execution_enabled) and (self.health.store is None or self.health.store.ok)
        return works and all(each.enforced for each in default.isolation.guarantees)

    def guarantees(self) -> Iterator[tuple[RuntimeAnswer, GuaranteeAnswer, str]]:
        """Every guarantee of the runtimes that are there, and whether it is enforced."""
        for runtime in self.runtimes.runtimes:
            for guarantee in runtime.isolation.guarantees if runtime.available and runtime.isolation else ():
                yield runtime, guarantee, "yes" if guarantee.enforced else "no"

    def fields(self) -> dict[str, Any]:
        """The same for a JSON object."""
        return {
            "url": self.url,
            "seconds": self.seconds,
            "client_version": self.client_version,
            "health": self.health,
            "runtimes": self.runtimes,
        }


async def examine_server(server: Server) -> ServerExamination:
    """Ask a server."""
    async with server.interpreter() as client:
        runtimes = await client.runtimes()
        # The connection is there now: this is one answer.
        began = time.perf_counter()
        health = await client.health()
        return ServerExamination(server.target().http_url, time.perf_counter() - began, health, runtimes)

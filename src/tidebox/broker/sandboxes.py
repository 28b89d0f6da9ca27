"""Sandboxes as whoever uses them sees them."""

from __future__ import annotations

import abc
import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from tidebox.errors import BoxGone, CapabilityDenied
from tidebox.model.principal import Principal
from tidebox.model.sandbox import Capability
from tidebox.runtime.base import Box


class Sandbox:
    """A live, long-lived box."""

    def __init__(self, id: str, binding_id: str, box: Box, on_use: Callable[[], None] = lambda: None) -> None:
        """``on_use`` is called when a use begins and when it ends."""
        self.id = id
        self.binding_id = binding_id
        self.box = box
        self.users = 0
        """How many use it at the moment."""
        self.frozen = False
        self._on_use = on_use
        self._freezing = asyncio.Lock()

    def use(self) -> AbstractAsyncContextManager[Box]:
        """The box, running, and kept from being suspended or removed for idleness until the end of the context."""
        return self._use()

    @asynccontextmanager
    async def _use(self) -> AsyncIterator[Box]:
        if self.box.gone:
            raise BoxGone("the sandbox is gone", sandbox_id=self.id)
        self.users += 1
        try:
            if self.frozen or self._freezing.locked():
                await self.resume()
            self._on_use()
            yield self.box
        finally:
            self.users -= 1
            self._on_use()

    async def suspend(self) -> bool:
        """Freeze every process in it; False where somebody uses it."""
        async with self._freezing:
            if self.users or self.frozen:
                return self.frozen
            await self.box.freeze()
            self.frozen = True
            return True

    async def resume(self) -> None:
        """Let its processes go on."""
        async with self._freezing:
            if self.frozen:
                await self.box.thaw()
                self.frozen = False


@dataclass(frozen=True, slots=True)
class Access:
    """What the holder of a token may do, and where."""

    sandbox: Sandbox
    capabilities: frozenset[Capability]
    expires_at: float
    """When the token ends, in seconds since the epoch."""
    principal: Principal
    still_good: Callable[[], bool] = lambda: True
    """Whether the token was not revoked since."""

    def require(self, capability: Capability) -> None:
        """Refuse what the token does not cover."""
        if capability not in self.capabilities:
            raise CapabilityDenied(f"{capability.value} not granted", capability=capability.value)


class Gate(abc.ABC):
    """Lets the holders of tokens into sandboxes."""

    @abc.abstractmethod
    async def authorize(self, token: str, *, address: str, sandbox_id: str | None = None) -> Access:
        """What a token gives access to.

        Raises ``Unauthorized`` for a token that is wrong, expired, revoked, or used from another address than it is
        bound to, or whose sandbox is gone; ``Forbidden`` for one of another sandbox than ``sandbox_id``.
        """

"""The contract of sandbox providers, and the order in which they are asked."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tidebox.broker.sandboxes.sandbox import LiveSandbox
from tidebox.errors import RuntimeUnavailable
from tidebox.model.events import EgressSeen, Preparing
from tidebox.model.packages import NO_PACKAGES, Packages
from tidebox.model.remote_servers import AUTO
from tidebox.model.requested_egress import BoxEgress


@dataclass(frozen=True, slots=True)
class SandboxExtras:
    """Packages and egress of a sandbox, with callbacks for progress and connections."""

    packages: Packages = NO_PACKAGES
    egress: BoxEgress | None = None
    on_preparing: Callable[[Preparing], None] = lambda _: None
    """Called as packages are installed."""
    on_egress: Callable[[EgressSeen], None] = lambda _: None
    """Called for the connections that its programs make or are denied."""
    user: str = ""
    """The user who requests them."""

    def __bool__(self) -> bool:
        return bool(self.packages) or self.egress is not None


NO_EXTRAS = SandboxExtras()


class Provider(abc.ABC):
    """Makes sandboxes for bindings, each of which has one at a time, and finds them again."""

    name: str
    durable: bool
    """Whether its sandboxes outlive this server."""

    @property
    @abc.abstractmethod
    def up(self) -> bool:
        """Whether the provider can be asked."""

    @property
    def busy(self) -> bool:
        """Whether a new request waits for many others, so that another provider is asked first."""
        return False

    @property
    def silent_for(self) -> float:
        """The seconds between the first and the last try since it answered; 0 where it did."""
        return 0.0

    @abc.abstractmethod
    async def start(self) -> None:
        """Start the provider; called once."""

    @abc.abstractmethod
    def take(self) -> LiveSandbox | None:
        """A sandbox that is ready for any binding, if there is one."""

    @abc.abstractmethod
    async def create(
        self, binding_id: str, like: LiveSandbox | None = None, extras: SandboxExtras = NO_EXTRAS
    ) -> LiveSandbox:
        """The sandbox of a binding: the one it has here, or a new one with ``extras``; with ``like``, that one, shared.

        Raises ``RuntimeUnavailable``, ``ProvisionFailed`` or ``ProviderUnavailable`` where it can make none.
        """

    @abc.abstractmethod
    async def resume(self, binding_id: str) -> LiveSandbox | None:
        """The sandbox that an earlier server had from here for a binding, if it is still there."""

    @abc.abstractmethod
    async def release(self, binding_id: str) -> None:
        """A binding ended: nothing of it is needed here any more. Raises nothing; what fails is tried again later."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Let go of everything."""


class Providers:
    """All providers, in the order in which they are asked."""

    def __init__(self, providers: Sequence[Provider]) -> None:
        self._by_name = {provider.name: provider for provider in providers}

    def get(self, name: str) -> Provider | None:
        """Return the provider of that name."""
        return self._by_name.get(name)

    def preferred(self, preference: str) -> list[Provider]:
        """Return the providers that may be asked: the named one, or all, first those that are up and not busy."""
        if preference == AUTO:
            return sorted(self._by_name.values(), key=lambda provider: (not provider.up, provider.busy))
        named = self._by_name.get(preference)
        if named is None:
            raise RuntimeUnavailable(f"there is no provider {preference!r} here", provider=preference)
        return [named]

    async def start(self) -> None:
        """Start the provider; called once."""
        for provider in self._by_name.values():
            await provider.start()

    async def close(self) -> None:
        """Let go of everything."""
        for provider in self._by_name.values():
            await provider.close()

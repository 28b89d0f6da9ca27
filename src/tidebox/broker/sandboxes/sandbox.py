"""Live sandboxes, local or remote, and access to them: the contract, and boxes of this server."""

from __future__ import annotations

import abc
import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

from tidebox.broker.sandboxes.files import LocalFiles, SandboxFiles
from tidebox.errors import BoxGone, CapabilityDenied
from tidebox.model.box import Command
from tidebox.model.principal import Actor, Principal
from tidebox.model.sandbox import Capability
from tidebox.runtime.base import Box, Exec
from tidebox.runtime.base import BoxWatch as BoxWatch  # surfaces hold one, and know no runtime


class SandboxOperations(abc.ABC):
    """Operations in a sandbox in use: files, programs, watches, wherever the sandbox is."""

    @property
    @abc.abstractmethod
    def files(self) -> SandboxFiles:
        """The files of the sandbox."""

    @abc.abstractmethod
    async def exec(self, command: Command) -> Exec:
        """Start a program."""

    @abc.abstractmethod
    async def watch(self, path: str, recursive: bool) -> BoxWatch:
        """Be told of changes in a directory of the workspace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessPass:
    """A token by which another server lets its holder into a sandbox of its own."""

    token: str = field(repr=False)
    expires_at: float
    renew_at: float
    """When it is time to ask for the next one."""
    capabilities: frozenset[Capability]


class LiveSandbox(abc.ABC):
    """A sandbox that lives: here, or on another server."""

    base_url: str | None = None
    """Where its clients reach it, if not here."""

    def __init__(self, id: str, binding_id: str) -> None:
        self.id = id
        self.binding_id = binding_id
        self._on_use: Callable[[float], None] = lambda seconds: None

    def bind(self, binding_id: str, on_use: Callable[[float], None]) -> None:
        """Say whose it is; ``on_use`` is told whenever it was used, and how many seconds ago that was."""
        self.binding_id = binding_id
        self._on_use = on_use

    @property
    @abc.abstractmethod
    def gone(self) -> bool:
        """Whether it is lost, with everything in it."""

    @abc.abstractmethod
    def on_gone(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when it is lost."""

    @property
    @abc.abstractmethod
    def in_use(self) -> bool:
        """Whether somebody uses it at the moment."""

    @property
    @abc.abstractmethod
    def frozen(self) -> bool:
        """Whether its processes stand still."""

    @abc.abstractmethod
    def use(self, request_id: str | None = None) -> AbstractAsyncContextManager[SandboxOperations]:
        """The sandbox, running, and kept from being suspended or removed for idleness until the end of the context.

        ``request_id`` names whatever it is used for in the log of another server that has the sandbox.
        """

    @abc.abstractmethod
    async def suspend(self) -> bool:
        """Let it rest until its next use; False where somebody uses it."""

    @abc.abstractmethod
    async def issue_pass(self, actor: Actor, capabilities: frozenset[Capability]) -> AccessPass | None:
        """Return a pass of the server that has the sandbox, or None where that is this one; raises ``BoxGone``."""

    @abc.abstractmethod
    async def revoke(self) -> None:
        """Revoke the passes that were issued."""

    @abc.abstractmethod
    def send_heartbeat(self) -> None:
        """Forward a heartbeat: a client still needs the sandbox."""

    @abc.abstractmethod
    def verify_idle(self) -> None:
        """Ask whether it is really idle: nobody has used it here for the idle timeout."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Let go of it. What is here of it, and is nobody else's, ends."""


class _LocalOperations(SandboxOperations):
    """A box of this server."""

    def __init__(self, box: Box) -> None:
        self._box = box

    @property
    def files(self) -> SandboxFiles:
        """The box's files."""
        return LocalFiles(self._box.files)

    async def exec(self, command: Command) -> Exec:
        """Start a program in the box."""
        return await self._box.exec(command)

    async def watch(self, path: str, recursive: bool) -> BoxWatch:
        """Watch a directory of the box."""
        return await self._box.watch(path, recursive)


class _SharedBox:
    """State of a box that several bindings share: users, freezing, and who lets it rest."""

    def __init__(self) -> None:
        self.users = 0
        self.frozen = False
        self.freezing = asyncio.Lock()
        self.holders: set[LocalSandbox] = set()
        self.resting: set[LocalSandbox] = set()


class LocalSandbox(LiveSandbox):
    """A live, long-lived box. Several bindings may share one: it rests when all of them do, and ends with the last."""

    def __init__(self, id: str, binding_id: str, box: Box, shared: _SharedBox | None = None) -> None:
        super().__init__(id, binding_id)
        self.box = box
        self._inside = _LocalOperations(box)
        self._shared = shared or _SharedBox()
        self._shared.holders.add(self)

    def sibling(self) -> LocalSandbox:
        """The same sandbox, for another binding."""
        return LocalSandbox(self.id, "", self.box, self._shared)

    @property
    def gone(self) -> bool:
        """Whether its box is dead."""
        return self.box.gone

    def on_gone(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when its box dies."""
        self.box.on_gone(callback)

    @property
    def users(self) -> int:
        """Number of users at the moment."""
        return self._shared.users

    @property
    def in_use(self) -> bool:
        """Whether the sandbox is used at the moment."""
        return self._shared.users > 0

    @property
    def frozen(self) -> bool:
        """Whether its processes stand still."""
        return self._shared.frozen

    def use(self, request_id: str | None = None) -> AbstractAsyncContextManager[SandboxOperations]:
        """The box, running, and kept from being suspended or removed for idleness until the end of the context."""
        return self._use()

    @asynccontextmanager
    async def _use(self) -> AsyncIterator[SandboxOperations]:
        if self.box.gone:
            raise BoxGone("the sandbox is gone", sandbox_id=self.id)
        shared = self._shared
        shared.users += 1
        try:
            if shared.frozen or shared.freezing.locked():
                await self._resume()
            shared.resting.discard(self)
            self._on_use(0.0)
            yield self._inside
        finally:
            shared.users -= 1
            self._on_use(0.0)

    async def suspend(self) -> bool:
        """Freeze every process in it, once all who share it let it rest; False where somebody uses it."""
        shared = self._shared
        async with shared.freezing:
            if shared.users:
                return shared.frozen
            shared.resting.add(self)
            # Where nothing can be frozen it rests as it is.
            if self.box.features.freezes and not shared.frozen and shared.resting >= shared.holders:
                await self.box.freeze()
                shared.frozen = True
            return True

    async def _resume(self) -> None:
        shared = self._shared
        async with shared.freezing:
            if shared.frozen:
                await self.box.thaw()
                shared.frozen = False

    async def issue_pass(self, actor: Actor, capabilities: frozenset[Capability]) -> AccessPass | None:
        """Return None: tokens of this server suffice."""
        if not self._shared.frozen:
            self._shared.resting.discard(self)
        return None

    async def revoke(self) -> None:
        """No passes are handed out."""

    def send_heartbeat(self) -> None:
        """Do nothing: the lease is renewed here."""

    def verify_idle(self) -> None:
        """Do nothing: all use of a local box is seen here."""

    async def close(self) -> None:
        """End the box, unless another binding has it too."""
        self._shared.holders.discard(self)
        self._shared.resting.discard(self)
        if not self._shared.holders:
            await self.box.close()


@dataclass(frozen=True, slots=True)
class SandboxAccess:
    """Access by a token: a sandbox, and capabilities in it."""

    sandbox: LiveSandbox
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
    async def authorize(self, token: str, *, address: str, sandbox_id: str | None = None) -> SandboxAccess:
        """Verify a token and return what it gives access to.

        Raises ``Unauthorized`` for a token that is wrong, expired, revoked, or used from another address than it is
        bound to, or whose sandbox is gone; ``Forbidden`` for one of another sandbox than ``sandbox_id``.
        """

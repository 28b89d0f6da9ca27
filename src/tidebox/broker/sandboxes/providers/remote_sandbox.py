"""A sandbox on another server, as this one sees it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from tidebox.broker.sandboxes.providers.peer import failure
from tidebox.broker.sandboxes.providers.remote_operations import RemoteOperations
from tidebox.broker.sandboxes.sandbox import AccessPass, LiveSandbox, SandboxOperations
from tidebox.errors import BoxGone, ProviderUnavailable, TideboxError, Unauthorized
from tidebox.model.principal import Actor
from tidebox.model.sandbox import Capability
from tidebox.sdk.sandboxes.grants import SandboxGrant, at_server

if TYPE_CHECKING:
    from tidebox.broker.sandboxes.providers.remote_provider import RemoteProvider
    from tidebox.sdk.http_client import HttpClient

Answer = TypeVar("Answer")


class RemoteSandbox(LiveSandbox):
    """A sandbox on another server, used through this one, or by its clients with access passes."""

    frozen = False

    def __init__(
        self, id: str, binding_id: str, provider: RemoteProvider, session_id: str, base_url: str | None
    ) -> None:
        super().__init__(id, binding_id)
        self.base_url = base_url
        self.session_id = session_id
        self._provider = provider
        self._users = 0
        self._gone = False
        self._on_gone: list[Callable[[], None]] = []
        self._pass: AccessPass | None = None
        self._renewing = asyncio.Lock()
        self._beating = False

    @property
    def gone(self) -> bool:
        """Whether that server has it no more."""
        return self._gone

    def on_gone(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when it is known to be lost."""
        self._on_gone.append(callback)

    def lose(self) -> None:
        """Mark the sandbox as lost on its server."""
        if not self._gone:
            self._gone = True
            for callback in self._on_gone:
                callback()

    @property
    def in_use(self) -> bool:
        """Whether it is used through this server."""
        return self._users > 0

    def use(self, request_id: str | None = None) -> AbstractAsyncContextManager[SandboxOperations]:
        """The sandbox, through this server."""
        return self._use(request_id)

    @asynccontextmanager
    async def _use(self, request_id: str | None) -> AsyncIterator[SandboxOperations]:
        if self._gone:
            raise BoxGone("the sandbox is gone", sandbox_id=self.id)
        self._users += 1
        self._on_use(0.0)
        try:
            yield RemoteOperations(self, request_id)
        finally:
            self._users -= 1
            self._on_use(0.0)

    async def suspend(self) -> bool:
        """Mark it as suspended here: its server freezes it by itself."""
        return self._users == 0

    # Passes

    async def issue_pass(self, actor: Actor, capabilities: frozenset[Capability]) -> AccessPass | None:
        """A pass for a client; where this server relays, its own, which only shows what may be granted."""
        if self.base_url is not None:
            return await self._provider.issue_pass(self, actor, capabilities)
        async with self._renewing:
            return await self._renewed()

    async def _renewed(self) -> AccessPass:
        self._pass = await self._provider.issue_pass(self, "human")
        return self._pass

    async def pass_(self) -> AccessPass:
        """A pass of this server's own that has some of its time left."""
        async with self._renewing:
            if self._pass is None or time.time() >= self._pass.renew_at:
                return await self._renewed()
            return self._pass

    async def refused(self) -> Exception:
        """Find out why that server refused a pass, and return the error for the client."""
        self._pass = None
        try:
            await self.pass_()
        except BoxGone:
            return Unauthorized("the sandbox of the token is gone")
        # Somebody has revoked it there; the next one is good.
        return ProviderUnavailable("the sandbox cannot be reached at the moment", provider=self._provider.name)

    async def revoke(self) -> None:
        """Invalidate the passes that clients were given."""
        if self.base_url is not None:
            await self._provider.revoke(self)

    # Life

    def send_heartbeat(self) -> None:
        """Let that server know, once for all who say so at the same time."""
        if not self._beating and not self._gone:
            self._beating = True
            self._provider.soon(self._beat())

    async def _beat(self) -> None:
        try:
            await self._provider.beat(self)
        finally:
            self._beating = False

    def verify_idle(self) -> None:
        """Ask the server of the sandbox: clients may use it without this server seeing that."""
        if self.base_url is not None and not self._gone:
            self._provider.soon(self._ask_for_use())

    async def _ask_for_use(self) -> None:
        seconds = await self._provider.idle_seconds(self)
        if seconds is not None and not self._gone:
            self._on_use(seconds)

    async def close(self) -> None:
        """Nothing of it is here but a pass."""
        self._pass = None

    # Through this server

    @property
    def http(self) -> HttpClient:
        """The connections to that server."""
        return self._provider.peer.http

    async def grant(self) -> SandboxGrant:
        """Its own pass for that server's dataplane, wherever that says it is: a pass goes to no other host."""
        shown = await self.pass_()
        return at_server(self._provider.peer.url, self.id, shown.token, shown.expires_at)

    async def after(self, grant: SandboxGrant) -> SandboxGrant | None:
        """The grant that comes after this one, when it is time for it; None if there is none."""
        shown = self._pass
        if shown is not None and shown.token == grant.token:
            await asyncio.sleep(max(0.0, shown.renew_at - time.time()))
        try:
            return await self.grant()
        except TideboxError:
            return None  # what was opened with the last one ends with it

    @asynccontextmanager
    async def granted(self) -> AsyncIterator[SandboxGrant]:
        """A pass that is good; what goes wrong within is told as of a sandbox of this server."""
        grant = await self.grant()
        try:
            with self._provider.peer.reaching():
                yield grant
        except Unauthorized:
            raise await self.refused() from None
        except TideboxError as error:
            raise failure(error) from None

    async def do(self, attempt: Callable[[SandboxGrant], Awaitable[Answer]]) -> Answer:
        """The same, once."""
        async with self.granted() as grant:
            return await attempt(grant)

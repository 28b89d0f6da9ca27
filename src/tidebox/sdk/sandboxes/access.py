"""Access to sandboxes, for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any

from tidebox.model.packages import packages_of
from tidebox.model.principal import ClientSource
from tidebox.model.requested_egress import requested_egress_of
from tidebox.protocols.access import ActorType, ScopeType
from tidebox.sdk.closeable import AsyncCloseable
from tidebox.sdk.errors import ClientClosed
from tidebox.sdk.http_client import HttpClient
from tidebox.sdk.interpreter.results import Page
from tidebox.sdk.sandboxes.grant_sources import (
    DEFAULT_CREATION,
    BindingGrantSource,
    ControlPlane,
    CreationOptions,
    GrantSource,
    Mode,
    NegotiatedGrantSource,
    SessionGrantSource,
    SessionRequests,
)
from tidebox.sdk.sandboxes.results import SandboxInfo
from tidebox.sdk.sandboxes.sandbox import AsyncSandbox
from tidebox.sdk.sandboxes.shared_grant import SharedGrant
from tidebox.sdk.server_target import find_target


class AsyncAccess(AsyncCloseable):
    """Asks a server for sandboxes, and keeps one grant for each scope, shared by all callers in this process.

    ``url`` is the server's address, ``api_key`` the key for it; ``tidebox.sdk.server_target`` says what is used without
    them. ``connect_timeout`` is how long a connection may take to be made, ``source`` what kind of program this is, for
    the server's audit log.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        connect_timeout: float = 10.0,
        source: ClientSource = "SDK",
        http: HttpClient | None = None,
    ) -> None:
        """``http`` is how requests travel, where that is not over connections of its own."""
        self._http = http or HttpClient(connect_timeout, source)
        target = find_target(url, api_key)
        self._control = ControlPlane(self._http, target.http_url, target.key)
        self.sessions = SessionRequests(self._control)
        """The requests of the protocol, one by one."""
        self._shared_grants: dict[Hashable, SharedGrant] = {}
        self._closed = False

    async def close(self) -> None:
        """Release the sandboxes that are still held, but for those to keep, and end the connections."""
        self._closed = True
        try:
            await asyncio.gather(*(each.close() for each in self._shared_grants.values()))
        finally:
            await self._http.close()

    async def acquire(self, thread_id: str, assistant_id: str | None = None, *, keep: bool = False) -> AsyncSandbox:
        """The sandbox that the server has for a thread of an assistant; it is made if there is none.

        It is released when all who hold it here have closed it, unless it is to be kept.
        """
        source = NegotiatedGrantSource(self._control, thread_id, assistant_id)
        return await self._hold(("acquire", thread_id, assistant_id), source, keep)

    async def ensure(
        self,
        scope_id: str,
        *,
        scope_type: ScopeType = "thread",
        capabilities: Collection[str] | None = None,
        actor: ActorType | None = None,
        packages: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
        egress: Sequence[str] | Mapping[str, Any] | None = None,
        keep: bool = False,
    ) -> AsyncSandbox:
        """The sandbox of a thread, or of another scope; it is made if there is none.

        ``capabilities`` are what is wanted of ``fs_read``, ``fs_write``, ``exec`` and ``shell``; without them, all that
        is allowed. ``packages`` are of Python, or by language, and ``egress`` is what its programs may reach, hosts or
        all that a request may say: what it has if it is made; one that is there stays as it is. It is released when
        all who hold it here have closed it, unless it is to be kept.
        """
        extras = CreationOptions(packages_of(packages), None if egress is None else requested_egress_of(egress))
        return await self._session("ensure", scope_id, scope_type, capabilities, actor, keep, extras)

    async def get(
        self,
        scope_id: str,
        *,
        scope_type: ScopeType = "thread",
        capabilities: Collection[str] | None = None,
        actor: ActorType | None = None,
    ) -> AsyncSandbox:
        """The same if there is one, and otherwise ``NotFound``; it is not released by being closed."""
        return await self._session("get", scope_id, scope_type, capabilities, actor, True)

    async def list(self, *, everybody: bool = False, limit: int = 50, offset: int = 0) -> Page[SandboxInfo]:
        """The caller's sandboxes on this server, newest first; for admins those of ``everybody``, where wanted."""
        return await self._control.list_sandboxes(everybody=everybody, limit=limit, offset=offset)

    async def release(self, session_id: str) -> None:
        """End a sandbox by its session, with all that is in it, for all who hold it; raises if there is none."""
        await self._control.release(session_id)

    async def open(self, session_id: str) -> AsyncSandbox:
        """The sandbox of a session that was asked for before, here or elsewhere; it is not released by being closed."""
        return await self._hold(("open", session_id), BindingGrantSource(self._control, session_id), True)

    async def _session(
        self,
        mode: Mode,
        scope_id: str,
        scope_type: ScopeType,
        capabilities: Collection[str] | None,
        actor: ActorType | None,
        keep: bool,
        extras: CreationOptions = DEFAULT_CREATION,
    ) -> AsyncSandbox:
        wanted = None if capabilities is None else frozenset(capabilities)
        source = SessionGrantSource(self._control, scope_type, scope_id, mode, wanted, actor, extras)
        return await self._hold((mode, scope_type, scope_id, wanted, actor, extras), source, keep)

    async def _hold(self, key: Hashable, source: GrantSource, keep: bool) -> AsyncSandbox:
        if self._closed:
            raise ClientClosed("the client was closed")
        shared_grant = self._shared_grants.get(key)
        if shared_grant is None:
            # What nobody holds is kept for the next who asks, while it is good.
            self._shared_grants = {known: there for known, there in self._shared_grants.items() if not there.idle}
            shared_grant = self._shared_grants[key] = SharedGrant(source)
        grant = await shared_grant.take(keep=keep)
        return AsyncSandbox(self._http, shared_grant, grant)

"""Access to sandboxes, for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Hashable
from types import TracebackType
from typing import Self

from tidebox.model.principal import ClientSource
from tidebox.sdk.errors import ClientClosed
from tidebox.sdk.http import Http
from tidebox.sdk.sandboxes.holding import Held
from tidebox.sdk.sandboxes.sandbox import AsyncSandbox
from tidebox.sdk.sandboxes.sources import ActorType, Control, Mode, Negotiation, ScopeType, Session, Source
from tidebox.sdk.target import DEFAULT_URL, find_target


class AsyncAccess:
    """Asks a server for sandboxes, and keeps what it grants: one grant for each scope, whoever asks for it here.

    ``url`` is the server's address. Without ``api_key`` the key is that of ``SANDBOX_API_KEY`` or, for a server on
    this machine, the one in its data directory. ``connect_timeout`` is how long a connection may take to be made,
    ``source`` what kind of program this is, for the server's audit log.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        connect_timeout: float = 10.0,
        source: ClientSource = "SDK",
    ) -> None:
        self._http = Http(connect_timeout, source)
        self._control = Control(self._http, find_target(url, api_key))
        self._held: dict[Hashable, Held] = {}
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Release the sandboxes that are still held, but for those to keep, and end the connections."""
        self._closed = True
        try:
            await asyncio.gather(*(held.close() for held in self._held.values()))
        finally:
            await self._http.close()

    async def acquire(self, thread_id: str, assistant_id: str | None = None, *, keep: bool = False) -> AsyncSandbox:
        """The sandbox that the server has for a thread of an assistant; it is made if there is none.

        It is released when whoever holds it here has closed it, unless it is to be kept.
        """
        source = Negotiation(self._control, thread_id, assistant_id)
        return await self._hold(("acquire", thread_id, assistant_id), source, keep)

    async def ensure(
        self,
        scope_id: str,
        *,
        scope_type: ScopeType = "thread",
        capabilities: Collection[str] | None = None,
        actor: ActorType | None = None,
        keep: bool = False,
    ) -> AsyncSandbox:
        """The sandbox of a thread, or of another scope; it is made if there is none.

        ``capabilities`` are what is wanted of ``fs_read``, ``fs_write``, ``exec`` and ``shell``; without them, all that
        is allowed. It is released when whoever holds it here has closed it, unless it is to be kept.
        """
        return await self._session("ensure", scope_id, scope_type, capabilities, actor, keep)

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

    async def _session(
        self,
        mode: Mode,
        scope_id: str,
        scope_type: ScopeType,
        capabilities: Collection[str] | None,
        actor: ActorType | None,
        keep: bool,
    ) -> AsyncSandbox:
        wanted = None if capabilities is None else frozenset(capabilities)
        source = Session(self._control, scope_type, scope_id, mode, wanted, actor)
        return await self._hold((mode, scope_type, scope_id, wanted, actor), source, keep)

    async def _hold(self, key: Hashable, source: Source, keep: bool) -> AsyncSandbox:
        if self._closed:
            raise ClientClosed("the client was closed")
        held = self._held.get(key)
        if held is None:
            # What nobody holds is kept for the next who asks, while it is good.
            self._held = {known: there for known, there in self._held.items() if not there.idle}
            held = self._held[key] = Held(source)
        grant = await held.take(keep=keep)
        return AsyncSandbox(self._http, held, grant)

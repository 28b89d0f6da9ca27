"""Watching of files in a sandbox for changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Literal, NamedTuple, Protocol, Self, get_args
from urllib.parse import urlencode

from tidebox.errors import ServerProtocolError
from tidebox.protocols.codec import decode, encode, to_fields
from tidebox.protocols.dataplane.frames import Auth, WatchFrame
from tidebox.protocols.dataplane.routes import WatchRequest
from tidebox.sdk.closeable import AsyncCloseable
from tidebox.sdk.http_client import HttpClient
from tidebox.sdk.message_socket import MessageSocket
from tidebox.sdk.sandboxes.grants import SandboxGrant

ChangeKind = Literal["created", "modified", "removed", "moved", "overflow"]
_KINDS: tuple[ChangeKind, ...] = get_args(ChangeKind)


class Change(NamedTuple):
    """Something that happened to a file or a directory."""

    kind: ChangeKind
    """``overflow`` says that more happened below ``path`` than could be told."""
    path: str
    source: str | None = None
    """Where it was before, if it was moved."""
    is_directory: bool = False


class GrantFeed(Protocol):
    """Tells when there is another grant."""

    async def after(self, grant: SandboxGrant) -> SandboxGrant | None:
        """The grant that comes after this one, as soon as it is there; None if none will come."""


class AsyncWatch(AsyncCloseable):
    """A directory that is watched; iterate over it for what changes there, until it is removed. One task reads."""

    def __init__(self, socket: MessageSocket) -> None:
        self._socket = socket
        self._path = ""
        self._showing: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        http: HttpClient,
        grants: GrantFeed,
        grant: SandboxGrant,
        request: WatchRequest,
        headers: Mapping[str, str] | None = None,
    ) -> Self:
        """Begin to watch; what happens from now on is told."""
        query = urlencode(to_fields(request))
        watch = cls(await MessageSocket.open(http, f"{grant.watch_url}?{query}", grant.token, headers))
        try:
            frame = await watch._receive()
            if frame is None or frame.type != "ready":
                raise ServerProtocolError("the sandbox did not say that the directory is watched")
        except BaseException:
            await watch.close()
            raise
        watch._path = frame.path or request.path
        # A watch ends with its token, so each new one is shown.
        watch._showing = asyncio.get_running_loop().create_task(watch._show_tokens(grants, grant), name="tidebox watch")
        return watch

    async def __aiter__(self) -> AsyncIterator[Change]:
        while (change := await self.read()) is not None:
            yield change

    async def read(self) -> Change | None:
        """The next change; None when the directory is not there any more."""
        while (frame := await self._receive()) is not None:
            kind = next((known for known in _KINDS if known == frame.type), None)
            if kind is not None:
                return Change(kind, frame.path or self._path, frame.source or None, frame.entry == "directory")
        return None

    async def close(self) -> None:
        """Watch no more."""
        if self._showing is not None:
            self._showing.cancel()
            await asyncio.wait([self._showing])
        await self._socket.close(at_once=True)

    async def _show_tokens(self, grants: GrantFeed, grant: SandboxGrant) -> None:
        while (fresh := await grants.after(grant)) is not None and fresh.sandbox_id == grant.sandbox_id:
            grant = fresh
            await self._socket.send(encode(Auth(grant.token)))

    async def _receive(self) -> WatchFrame | None:
        message = await self._socket.receive()
        if message is None:
            return None
        frame = decode(WatchFrame, message)
        if frame.error:
            raise self._socket.failed(frame.error)
        return frame

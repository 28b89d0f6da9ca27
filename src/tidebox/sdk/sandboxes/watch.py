"""What changes among the files of a sandbox, as it happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Literal, NamedTuple, Self, get_args
from urllib.parse import urlencode

import msgspec

from tidebox.sdk.errors import ServerProtocolError
from tidebox.sdk.failures import Told
from tidebox.sdk.http import Http
from tidebox.sdk.sandboxes import frames
from tidebox.sdk.sandboxes.grants import Grant
from tidebox.sdk.sandboxes.holding import Held
from tidebox.sdk.sockets import Socket

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


class _Frame(msgspec.Struct):
    type: str
    path: str = ""
    source: str | None = None
    entry: str = "file"
    error: Told | None = None


_decode = msgspec.json.Decoder(_Frame).decode


class AsyncWatch:
    """A directory that is watched; iterate over it for what changes there, until it is removed. One task reads."""

    def __init__(self, socket: Socket) -> None:
        self._socket = socket
        self._path = ""
        self._showing: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, http: Http, held: Held, grant: Grant, path: str, recursive: bool) -> Self:
        """Begin to watch; what happens from now on is told."""
        query = urlencode({"path": path, "recursive": "true" if recursive else "false"})
        watch = cls(await Socket.open(http, f"{grant.watch_url}?{query}", grant.token))
        try:
            frame = await watch._receive()
            if frame is None or frame.type != "ready":
                raise ServerProtocolError("the sandbox did not say that the directory is watched")
        except BaseException:
            await watch.close()
            raise
        watch._path = frame.path
        # A watch ends with its token, so each new one is shown.
        watch._showing = asyncio.get_running_loop().create_task(watch._show_tokens(held, grant), name="tidebox watch")
        return watch

    async def __aiter__(self) -> AsyncIterator[Change]:
        while (change := await self.read()) is not None:
            yield change

    async def read(self) -> Change | None:
        """The next change; None when the directory is not there any more."""
        while (frame := await self._receive()) is not None:
            kind = next((known for known in _KINDS if known == frame.type), None)
            if kind is not None:
                return Change(kind, frame.path or self._path, frame.source, frame.entry == "directory")
        return None

    async def close(self) -> None:
        """Watch no more."""
        if self._showing is not None:
            self._showing.cancel()
            await asyncio.wait([self._showing])
        await self._socket.close(at_once=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _show_tokens(self, held: Held, grant: Grant) -> None:
        while (fresh := await held.after(grant)) is not None and fresh.sandbox_id == grant.sandbox_id:
            grant = fresh
            await self._socket.send(frames.encode("auth", token=grant.token))

    async def _receive(self) -> _Frame | None:
        message = await self._socket.receive()
        if message is None:
            return None
        try:
            frame = _decode(message)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise ServerProtocolError(f"the sandbox sent a frame that is not in the protocol: {error}") from None
        if frame.error is not None:
            raise self._socket.failed(frame.error)
        return frame

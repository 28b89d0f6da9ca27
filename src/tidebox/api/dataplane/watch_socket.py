"""``WS /v1/files/watch``: a client is told what changes in a directory of its sandbox."""

from __future__ import annotations

import asyncio
import posixpath
import time

import structlog

from tidebox.api.asgi import Scope, Send, context_of
from tidebox.api.dataplane.connection import (
    INTERNAL_ERROR,
    NORMAL,
    POLICY,
    ConnectionServices,
    DataplaneConnection,
    revoked,
)
from tidebox.api.dataplane.paths import DataplaneTarget
from tidebox.broker.sandboxes.sandbox import BoxWatch, SandboxAccess
from tidebox.errors import CapabilityDenied, Conflict, TideboxError, Unauthorized
from tidebox.model.launch import WORKSPACE
from tidebox.model.sandbox import Capability
from tidebox.protocols.codec import text_of
from tidebox.protocols.dataplane.frames import Request, WatchFrame
from tidebox.untrusted_files.tree_watch import ChangeKind, TreeChange

_log = structlog.get_logger("tidebox.api")

_AT_ONCE = 256


class WatchConnection(DataplaneConnection):
    """A socket on which changes are told. It keeps nothing: what its client does not take waits in the kernel."""

    def __init__(
        self, shared: ConnectionServices, scope: Scope, target: DataplaneTarget, send: Send, path: str, recursive: bool
    ) -> None:
        super().__init__(shared, scope, target, send)
        self._path = path
        self._recursive = recursive
        self._watch: BoxWatch | None = None
        self._telling: asyncio.Task[None] | None = None

    async def _begin(self) -> None:
        access = self._access
        assert access is not None
        try:
            access.require(Capability.FS_READ)
            self._shared.audit.check()
            # Using it for a moment and no longer: who only watches does not keep a sandbox from being suspended.
            async with access.sandbox.use(context_of(self._scope).request_id) as inside:
                self._watch = await inside.watch(self._path, self._recursive)
        except TideboxError as error:
            self._record(access, "sandbox.files.watch", error.code, path=self._path)
            await self._tell(error)
            return await self._close(POLICY if isinstance(error, CapabilityDenied) else NORMAL)
        self._record(access, "sandbox.files.watch", "started", path=self._path)
        await self._say(text_of(WatchFrame("ready", self._path, self._recursive)))
        self._telling = asyncio.get_running_loop().create_task(self._tell_changes(self._watch), name="watch")
        return None

    async def _handle(self, request: Request) -> None:
        raise Conflict("on this connection changes are told, and nothing is started")

    async def _tell_changes(self, watch: BoxWatch) -> None:
        """Send changes until the directory, the sandbox or the token's time is over."""
        try:
            while changes := await self._changes(watch):
                for start in range(0, len(changes), _AT_ONCE):
                    if not self._good:
                        raise revoked()
                    await self._say(*map(_frame, changes[start : start + _AT_ONCE]))
                    # A client that reads as fast as a program writes must not keep the server to itself.
                    await asyncio.sleep(0)
            await self._close(NORMAL)
        except TideboxError as error:
            await self._end(error)
        except (OSError, RuntimeError):
            pass  # as a server says that the connection is gone; the receiving side is told so as well
        except Exception as error:
            _log.error("unexpected_failure", request_id=context_of(self._scope).request_id, exc_info=error)
            await self._close(INTERNAL_ERROR)

    async def _end(self, error: TideboxError) -> None:
        try:
            await self._tell(error)
        except (OSError, RuntimeError):
            return
        await self._close(POLICY if isinstance(error, Unauthorized) else NORMAL)

    async def _changes(self, watch: BoxWatch) -> list[TreeChange]:
        waiting = asyncio.ensure_future(watch.changes())
        try:
            # A new token, shown meanwhile, may give more time.
            while not waiting.done():
                seconds = self._current.expires_at - time.time()
                if seconds <= 0:
                    raise Unauthorized("the token has expired")
                await asyncio.wait((waiting,), timeout=seconds)
            return waiting.result()
        finally:
            waiting.cancel()

    @property
    def _current(self) -> SandboxAccess:
        assert self._access is not None
        return self._access

    async def _leave(self) -> None:
        if self._telling is not None and not self._telling.done():
            self._telling.cancel()
            await asyncio.wait((self._telling,))
        if self._watch is not None:
            await self._watch.close()


def _frame(change: TreeChange) -> str:
    frame = WatchFrame(change.kind.value)
    if change.kind is not ChangeKind.OVERFLOW:
        frame.path, frame.entry = _shown(change.path), "directory" if change.is_directory else "file"
    if change.source is not None:
        frame.source = _shown(change.source)
    return text_of(frame)


def _shown(path: str) -> str:
    """A path in the box; bytes that are no UTF-8 become replacement characters, as in a listing."""
    return posixpath.join(WORKSPACE, path).rstrip("/").encode("utf-8", "surrogateescape").decode("utf-8", "replace")

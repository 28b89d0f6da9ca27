"""A grant that is kept valid while somebody holds it: refreshed before it expires, asked for again when refused."""

from __future__ import annotations

import asyncio
import random
import time

from tidebox.errors import TideboxError
from tidebox.sdk.errors import ClientClosed
from tidebox.sdk.reconnection import Reconnection
from tidebox.sdk.sandboxes.grant_sources import GrantSource
from tidebox.sdk.sandboxes.grants import SandboxGrant

# Of a token's life, when the next one is asked for: early enough to try again, and not all clients at once.
_REFRESH_BETWEEN = (0.75, 0.85)
_SHORTEST_PAUSE = 0.5
# Of a token that had expired before it came: then one of the two clocks is wrong, and the token may be good.
_UNKNOWN_LIFE = 60.0
# A server that does not answer does not keep its client from leaving.
RELEASE_SECONDS = 10.0


class SharedGrant:
    """One scope's grant, shared by all who hold it."""

    def __init__(self, source: GrantSource) -> None:
        self._source = source
        self._grant: SandboxGrant | None = None
        self._good_until = 0.0
        """By the clock that nobody sets."""
        # Guards the grant: one request for it is under way at a time, and the others wait for what that brings.
        self._changing = asyncio.Lock()
        self._changed = asyncio.Event()
        self._refresh_task: asyncio.Task[None] | None = None
        self._holders = 0
        self._kept = False
        self._closed = False

    @property
    def idle(self) -> bool:
        """Whether nobody holds it, no request for it is under way, and it has expired."""
        return not self._holders and not self._changing.locked() and self._good is None

    @property
    def _good(self) -> SandboxGrant | None:
        return self._grant if time.monotonic() < self._good_until else None

    async def take(self, *, keep: bool) -> SandboxGrant:
        """Hold it, and get a grant, asked for if there is none that is good. With ``keep`` the sandbox stays after."""
        self._holders += 1
        try:
            async with self._changing:
                self._check_open()
                grant = self._good or await self._ask()
                self._keep_fresh()
        except BaseException:
            self._holders -= 1
            raise
        # Not before: a caller that was refused has no say in what becomes of it.
        self._kept |= keep
        return grant

    async def drop(self) -> None:
        """Hold it no more; the last one releases the sandbox, as well as that can be done."""
        self._holders -= 1
        if self._holders:
            return
        await self._stop()
        try:
            async with asyncio.timeout(RELEASE_SECONDS), self._changing:
                await self._leave()
        except (TideboxError, TimeoutError):
            pass  # nobody can help it; the server removes what nobody uses

    async def release(self) -> None:
        """End the sandbox. Others who still hold it get another one."""
        async with self._changing:
            await self._release()

    async def _leave(self) -> None:
        if self._holders:
            return  # somebody came meanwhile
        kept, self._kept = self._kept, False
        if not kept:
            await self._release()

    async def _release(self) -> None:
        if self._grant is not None:
            await self._source.release(self._grant)
            self._grant = None

    async def current(self) -> SandboxGrant:
        """A grant that is good, as far as that is known."""
        return self._good or await self.renewed(self._grant)

    async def renewed(self, refused: SandboxGrant | None) -> SandboxGrant:
        """Another grant than one that was refused."""
        async with self._changing:
            self._check_open()
            grant = self._grant
            if grant is None or grant is refused:
                grant = await self._ask()
                self._keep_fresh()
            return grant

    async def after(self, grant: SandboxGrant) -> SandboxGrant | None:
        """The grant that comes after this one, as soon as it is there; None if none will come."""
        while not self._closed and (self._grant is None or self._grant is grant):
            await self._changed.wait()
        return None if self._closed else self._grant

    async def _ask(self) -> SandboxGrant:
        return self._set(await self._source.ask(self._grant))

    def _set(self, grant: SandboxGrant) -> SandboxGrant:
        life = grant.expires_at - time.time()
        self._good_until = time.monotonic() + (life if life > 0 else _UNKNOWN_LIFE)
        self._grant = grant
        self._changed.set()
        self._changed = asyncio.Event()
        return grant

    async def close(self) -> None:
        """Let go for all who hold it."""
        self._closed = True
        self._changed.set()
        if self._holders:
            self._holders = 1
            await self.drop()

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("the client was closed")

    def _keep_fresh(self) -> None:
        if self._holders and not self._closed and (self._refresh_task is None or self._refresh_task.done()):
            self._refresh_task = asyncio.get_running_loop().create_task(self._refresh_in_time(), name="tidebox grant")

    async def _stop(self) -> None:
        task, self._refresh_task = self._refresh_task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _refresh_in_time(self) -> None:
        """Refresh the token before it expires, until that is refused; then the next use asks for a new grant."""
        loop = asyncio.get_running_loop()
        attempts = Reconnection()
        while (grant := self._grant) is not None:
            left = self._good_until - time.monotonic()
            await asyncio.sleep(max(left * random.uniform(*_REFRESH_BETWEEN), _SHORTEST_PAUSE))
            while True:
                try:
                    async with self._changing:
                        if self._grant is grant:
                            self._set(await self._source.refresh(grant))
                    attempts.connected(loop.time())
                    break
                except TideboxError as error:
                    if not error.retryable:
                        return
                    attempts.failed(loop.time())
                    await asyncio.sleep(attempts.pause(loop.time()))

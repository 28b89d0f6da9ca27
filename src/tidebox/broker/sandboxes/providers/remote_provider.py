"""Sandboxes of another Tidebox server, which are asked for with its own access protocol.

There each binding of this server has a scope of its own, named by the binding's id: so whatever is asked twice is done
once, a sandbox is found again after a restart of this server, and can be released by who knows nothing but its binding.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Coroutine
from typing import Any, Final

from tidebox.broker.internal_errors import internal_error
from tidebox.broker.sandboxes.providers.base import NO_EXTRAS, Provider, SandboxExtras
from tidebox.broker.sandboxes.providers.peer import ANSWER_SECONDS, Peer, PeerUnreachable
from tidebox.broker.sandboxes.providers.remote_sandbox import RemoteSandbox
from tidebox.broker.sandboxes.sandbox import AccessPass, LiveSandbox
from tidebox.errors import (
    BoxGone,
    CapabilityDenied,
    Expired,
    InvalidRequest,
    NotFound,
    ProviderUnavailable,
    SandboxStarting,
    ServerProtocolError,
    TideboxError,
)
from tidebox.model.packages import PACKAGE_ERRORS, Packages
from tidebox.model.principal import Actor
from tidebox.model.remote_servers import DIRECT, LOCAL, RemoteServer
from tidebox.model.sandbox import Capability, named
from tidebox.protocols import access
from tidebox.protocols.codec import decode
from tidebox.sdk.sandboxes.grant_sources import PACKAGES_SECONDS, STARTING_SECONDS
from tidebox.sdk.sandboxes.grants import SandboxGrant, from_session

_log = logging.getLogger(__name__)

_SCOPE_TYPE: Final = "workspace"
# What that server answers where it has the sandbox no more.
_LOST = (NotFound, Expired)
_SANDBOX_ID = re.compile(r"sb-[a-z0-9]{1,40}", re.ASCII)
_CREATE_SECONDS = 45.0
_STARTING_SECONDS = 1.0
# A pass is replaced while it still has so much of its time.
_RENEWED_BEFORE = 0.25
_LONGEST_BEFORE_SECONDS = 60.0
_SHORTEST_SECONDS = 0.5
_RELEASE_RETRY_SECONDS = 1.0
_LONGEST_RETRY_SECONDS = 60.0
# By then the idle time and the lease of what nobody touches are over there, unless they were made longer.
_RELEASE_SECONDS = 3600.0


class RemoteProvider(Provider):
    """Another Tidebox server that makes sandboxes for this one."""

    durable = True

    def __init__(self, server: RemoteServer, key: str) -> None:
        self.name = server.name
        self.direct = server.mode == DIRECT
        self.peer = Peer(server.name, server.url, key, server.ca)
        self._asked: set[str] = set()
        """Bindings for which there may be something there."""
        self._releasing: dict[str, asyncio.Task[None]] = {}
        self._errands: set[asyncio.Task[None]] = set()

    @property
    def up(self) -> bool:
        """Whether it answered when it was last tried."""
        return self.peer.up

    @property
    def silent_for(self) -> float:
        """The time between the first and the last try since the server answered."""
        return self.peer.silent_for

    async def start(self) -> None:
        """Do nothing: whether the server answers shows at the first request."""

    def take(self) -> LiveSandbox | None:
        """Return None: warm boxes of the other server are taken there."""
        return None

    async def create(
        self, binding_id: str, like: LiveSandbox | None = None, extras: SandboxExtras = NO_EXTRAS
    ) -> LiveSandbox:
        """The sandbox there, made if there is none."""
        if extras.egress is not None:
            raise ProviderUnavailable(f"the provider {self.name} is not asked for egress: name `local`")
        await self._keep(binding_id)
        try:
            async with asyncio.timeout(PACKAGES_SECONDS if extras.packages else STARTING_SECONDS):
                grant = await self._made(binding_id, like, extras.packages)
        except PeerUnreachable:
            raise
        except PACKAGE_ERRORS as error:
            self._asked.add(binding_id)
            raise type(error)(error.message, field="packages", provider=self.name) from None
        except ProviderUnavailable:
            self._asked.add(binding_id)
            raise
        except TimeoutError:
            self._asked.add(binding_id)
            raise ProviderUnavailable(f"the provider {self.name} takes too long", provider=self.name) from None
        self._asked.add(binding_id)
        return self._sandbox(binding_id, grant)

    async def _made(self, binding_id: str, like: LiveSandbox | None, packages: Packages) -> SandboxGrant:
        while True:
            try:
                return await self._negotiate(
                    binding_id,
                    "ensure",
                    meant=(SandboxStarting, *PACKAGE_ERRORS),
                    seconds=_CREATE_SECONDS,
                    sandbox_hint=None if like is None else like.id,
                    packages=access.Packages(**packages.shown()) if packages else None,
                )
            except SandboxStarting:
                self._asked.add(binding_id)
            await asyncio.sleep(_STARTING_SECONDS)

    async def resume(self, binding_id: str) -> LiveSandbox | None:
        """The sandbox there, if it is there."""
        self._asked.add(binding_id)
        try:
            return self._sandbox(binding_id, await self._negotiate(binding_id, "attach_only", meant=_LOST))
        except _LOST:
            return None

    async def issue_pass(
        self, sandbox: RemoteSandbox, actor: Actor, capabilities: frozenset[Capability] | None = None
    ) -> AccessPass:
        """A pass for a sandbox; raises ``BoxGone`` where it is not the one that is there, and tells it so."""
        try:
            found = await self._negotiate(
                sandbox.binding_id,
                "attach_only",
                meant=(CapabilityDenied, *_LOST),
                actor=access.Actor(actor),
                requested_capabilities=None if capabilities is None else named(capabilities),
            )
        except CapabilityDenied as error:
            raise CapabilityDenied(error.message) from None
        except _LOST:
            found = None
        if found is None or found.sandbox_id != sandbox.id:
            sandbox.lose()
            raise BoxGone("the sandbox is gone", sandbox_id=sandbox.id)
        now = time.time()
        before = min(_LONGEST_BEFORE_SECONDS, (found.expires_at - now) * _RENEWED_BEFORE)
        return AccessPass(
            token=found.token,
            expires_at=found.expires_at,
            # The two clocks may differ by more than the pass is good for.
            renew_at=max(now + _SHORTEST_SECONDS, found.expires_at - before),
            capabilities=frozenset(held for held in Capability if held.value in (found.capabilities or ())),
        )

    async def _negotiate(
        self,
        binding_id: str,
        mode: access.Mode,
        *,
        meant: tuple[type[TideboxError], ...],
        seconds: float = ANSWER_SECONDS,
        **more: Any,
    ) -> SandboxGrant:
        # Only of that server itself: two servers that are providers of each other would ask each other for ever.
        scope = access.Scope(_SCOPE_TYPE, binding_id)
        asked = access.SessionRequest(scope=scope, mode=mode, provider_preference=LOCAL, **more)
        body = await self.peer.ask("POST", access.SESSIONS, asked, seconds=seconds, meant=meant)
        with self.peer.reaching():
            grant = from_session(body)
            if grant.session_id is None or not _SANDBOX_ID.fullmatch(grant.sandbox_id):
                raise ServerProtocolError("an answer that names no session or sandbox")
        return grant

    def _sandbox(self, binding_id: str, grant: SandboxGrant) -> RemoteSandbox:
        base_url = grant.http_url.removesuffix("/v1") if self.direct else None
        return RemoteSandbox(grant.sandbox_id, binding_id, self, grant.session_id or "", base_url)

    # What goes on beside requests

    async def beat(self, sandbox: RemoteSandbox) -> None:
        """Say that a sandbox is needed."""
        await self._of_session(sandbox, "POST", "/heartbeat")

    async def idle_seconds(self, sandbox: RemoteSandbox) -> float | None:
        """Return how long nobody has used a sandbox, in seconds."""
        body = await self._of_session(sandbox, "GET", "")
        seconds = None if body is None else decode(access.BindingAnswer, body).binding.idle_seconds
        return None if seconds is None else max(0.0, seconds)

    async def revoke(self, sandbox: RemoteSandbox) -> None:
        """Let every token that was handed out for a sandbox be dead."""
        await self._of_session(sandbox, "POST", "/revoke")

    async def _of_session(self, sandbox: RemoteSandbox, method: str, what: str) -> bytes | None:
        try:
            return await self.peer.ask(method, access.session_path(sandbox.session_id, what), meant=_LOST)
        except _LOST:
            sandbox.lose()
            return None

    def soon(self, errand: Coroutine[Any, Any, None]) -> None:
        """Do something that nobody waits for."""
        task = asyncio.get_running_loop().create_task(errand, name=f"errand to {self.name}")
        self._errands.add(task)
        task.add_done_callback(self._errand_done)

    def _errand_done(self, task: asyncio.Task[None]) -> None:
        self._errands.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, TideboxError):
            internal_error("an errand to a provider", error)

    async def release(self, binding_id: str) -> None:
        """End what is there of a binding. Where that fails it is tried again, for as long as it would last there."""
        if binding_id not in self._asked:
            return
        self._asked.discard(binding_id)
        try:
            # Many may end at once: they must not wait, one after the other, for a server that is not there.
            if self.up:
                return await self._released(binding_id)
        except ProviderUnavailable as error:
            _log.warning("the sandbox of %s is not released yet: %s", binding_id, error)
        task = asyncio.get_running_loop().create_task(self._release_later(binding_id), name="release")
        self._releasing[binding_id] = task
        task.add_done_callback(lambda _: self._releasing.pop(binding_id, None))
        return None

    async def _released(self, binding_id: str) -> None:
        await self.peer.ask("DELETE", f"{access.SCOPES}/{_SCOPE_TYPE}/{binding_id}", meant=())

    async def _release_later(self, binding_id: str) -> None:
        pause, until = _RELEASE_RETRY_SECONDS, time.monotonic() + _RELEASE_SECONDS
        while time.monotonic() < until:
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_RETRY_SECONDS)
            try:
                return await self._released(binding_id)
            except ProviderUnavailable:
                continue
        return None

    async def _keep(self, binding_id: str) -> None:
        """Do not release what is asked for again."""
        task = self._releasing.get(binding_id)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def close(self) -> None:
        """Let go of every connection; the sandboxes stay."""
        tasks = {*self._errands, *self._releasing.values()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self.peer.close()


def make_remote(server: RemoteServer, *, bind_address: bool) -> RemoteProvider:
    """A provider as an operator describes it; raises ``InvalidRequest`` where that cannot be."""
    if bind_address and server.mode == DIRECT:
        raise InvalidRequest(
            f"SANDBOX_PROVIDERS: {server.name} is direct, but its tokens cannot be bound to addresses of clients here",
            field="providers",
        )
    key = server.api_key
    if server.api_key_file is not None:
        try:
            key = server.api_key_file.read_text("ascii").strip()
        except (OSError, UnicodeDecodeError):
            key = None
    if not key or not key.isascii() or not key.isprintable():
        raise InvalidRequest(f"SANDBOX_PROVIDERS: {server.name} has no key that can be read", field="providers")
    try:
        return RemoteProvider(server, key)
    except OSError:
        raise InvalidRequest(f"SANDBOX_PROVIDERS: the ca of {server.name} cannot be read", field="providers") from None

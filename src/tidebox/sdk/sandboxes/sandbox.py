"""A sandbox, for asyncio."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self, TypeVar, Unpack

from tidebox.errors import InvalidRequest, Unauthorized
from tidebox.model.principal import ClientSource
from tidebox.protocols.dataplane import routes
from tidebox.protocols.dataplane.frames import Start
from tidebox.sdk.closeable import AsyncCloseable
from tidebox.sdk.errors import ClientClosed, SandboxRecreated
from tidebox.sdk.http_client import HttpClient
from tidebox.sdk.sandboxes.dataplane import DataplaneClient
from tidebox.sdk.sandboxes.files import AsyncFiles
from tidebox.sdk.sandboxes.grant_sources import HandedOverGrant
from tidebox.sdk.sandboxes.grants import SandboxGrant, from_config
from tidebox.sdk.sandboxes.process import AsyncProcess, verify_token
from tidebox.sdk.sandboxes.requests import (
    Command,
    ExecOptions,
    ProcessOptions,
    ShellOptions,
    make_exec,
    make_start,
)
from tidebox.sdk.sandboxes.results import ExecResult, executed
from tidebox.sdk.sandboxes.shared_grant import SharedGrant

Answer = TypeVar("Answer")


class AsyncSandbox(AsyncCloseable):
    """A box that lives on between programs, with a workspace that they share."""

    def __init__(
        self, http: HttpClient, shared_grant: SharedGrant, grant: SandboxGrant, *, owns_http: bool = False
    ) -> None:
        self._http = http
        self._shared_grant = shared_grant
        self._grant = grant
        self._owns_http = owns_http
        self._closed = False
        self.recreated = grant.recreated
        """Whether there was another sandbox before, which is lost with all that was in it."""
        self._plane = DataplaneClient(http, self._use)
        self.files = AsyncFiles(self._plane, shared_grant)

    @classmethod
    async def connect(
        cls, config: Mapping[str, Any], *, connect_timeout: float = 10.0, source: ClientSource = "SDK"
    ) -> Self:
        """The sandbox that somebody else negotiated, as the configuration of a run has it in ``configurable.sandbox``.

        Its token is refreshed if ``refresh_url`` is there. Closing it does not release it, which is for the one who
        negotiated it.
        """
        http = HttpClient(connect_timeout, source)
        shared_grant = SharedGrant(HandedOverGrant(http, from_config(config)))
        sandbox = cls(http, shared_grant, await shared_grant.take(keep=True), owns_http=True)
        try:
            await sandbox._use(sandbox._verify_token)
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    @property
    def id(self) -> str:
        """The sandbox's name."""
        return self._grant.sandbox_id

    @property
    def session_id(self) -> str | None:
        """The binding through which it was got."""
        return self._grant.session_id

    @property
    def capabilities(self) -> frozenset[str] | None:
        """The capabilities of its grant; None where the server did not say."""
        return self._grant.capabilities

    async def close(self) -> None:
        """Be done with it. The last who holds it releases it, with all that is in it, unless it is to be kept."""
        if self._closed:
            return
        self._closed = True
        if self._owns_http:
            await self._shared_grant.close()
            await self._http.close()
        else:
            await self._shared_grant.drop()

    async def release(self) -> None:
        """End it now, with all that is in it, also for others who hold it."""
        self._check_open()
        await self._shared_grant.release()
        await self.close()

    async def exec(self, command: Command, **options: Unpack[ExecOptions]) -> ExecResult:
        """Run a program and wait for its end. A list is a program with its arguments, a text a line for the shell.

        See ``ExecOptions`` for what else can be said. Cancelling the call kills the program.
        """
        return executed(await self._plane.ask(routes.EXEC, make_exec(command, **options)))

    async def start(self, command: Command, **options: Unpack[ProcessOptions]) -> AsyncProcess:
        """Begin to run a program; see ``ProcessOptions`` for what else can be said."""
        return await self._start(_exec_url, make_start(command, **options))

    async def shell(self, **options: Unpack[ShellOptions]) -> AsyncProcess:
        """Open a login shell on a terminal; see ``ShellOptions`` for what else can be said."""
        return await self._start(_shell_url, make_start(**options))

    async def attach(self, process_id: str, offset: int = 0) -> AsyncProcess:
        """Go on with a program that was left running, from that place in its output or the oldest that is kept."""
        return await self._start(_exec_url, Start(process_id=process_id, offset=offset))

    async def _start(self, url_of: Callable[[SandboxGrant], str], request: Start) -> AsyncProcess:
        async def attempt(grant: SandboxGrant) -> AsyncProcess:
            return await AsyncProcess.start(self._http, url_of(grant), grant.token, request)

        return await self._use(attempt)

    async def _verify_token(self, grant: SandboxGrant) -> None:
        """See whether a token is good, and for which sandbox."""
        known = await verify_token(self._http, grant.exec_url, grant.token)
        if known.sandbox_id != grant.sandbox_id:
            raise InvalidRequest("configurable.sandbox: the token is for another sandbox", field="sandbox")

    async def _use(self, attempt: Callable[[SandboxGrant], Awaitable[Answer]]) -> Answer:
        """Do something with a token that is good; if it turns out not to be, once more with another one."""
        self._check_open()
        grant = self._noticed(await self._shared_grant.current())
        try:
            return await attempt(grant)
        except Unauthorized:
            fresh = await self._shared_grant.renewed(grant)
        return await attempt(self._noticed(fresh))

    def _noticed(self, grant: SandboxGrant) -> SandboxGrant:
        """A grant, unless it is for another sandbox: a caller that relies on what was in the last one has to know."""
        last, self._grant = self._grant, grant
        if grant.sandbox_id != last.sandbox_id:
            self.recreated = True
            raise SandboxRecreated(
                f"the sandbox {last.sandbox_id} is lost with all that was in it; now there is {grant.sandbox_id}",
                sandbox_id=grant.sandbox_id,
                lost_sandbox_id=last.sandbox_id,
            )
        return grant

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("the sandbox was closed")


def _exec_url(grant: SandboxGrant) -> str:
    return grant.exec_url


def _shell_url(grant: SandboxGrant) -> str:
    return grant.shell_url

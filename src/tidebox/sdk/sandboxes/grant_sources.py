"""Where grants come from: whom to ask for one, for the next token, and to whom to say that it is not needed any more.

All of these requests can be repeated without harm, so one whose answer was lost is sent again, once.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec

from tidebox.errors import InvalidRequest, NotFound, SandboxStarting, ServerProtocolError, Unauthorized
from tidebox.model.limits import MIB
from tidebox.model.packages import NO_PACKAGES, Packages
from tidebox.model.requested_egress import RequestedEgress
from tidebox.protocols import access
from tidebox.protocols.access import AcquireRequest, ActorType, ReleaseRequest, ScopeType, SessionRequest, session_path
from tidebox.protocols.codec import decode, encode
from tidebox.sdk.errors import ConnectionLost
from tidebox.sdk.http_client import HttpClient, timed_out
from tidebox.sdk.interpreter.results import Page
from tidebox.sdk.sandboxes.grants import SandboxGrant, from_negotiation, from_session, with_token
from tidebox.sdk.sandboxes.results import SandboxInfo

Mode = Literal["ensure", "get"]

# A server that has not made a sandbox by then is not about to.
STARTING_SECONDS = 120.0
# Those that it puts into the sandbox may have to be fetched first.
PACKAGES_SECONDS = 600.0
_PAUSE_SECONDS = 1.0
# For what is answered without making anything.
_ANSWER_SECONDS = 30.0
_MAX_ANSWER_BYTES = MIB


class GrantSource(Protocol):
    """Issues grants for one scope."""

    async def ask(self, last: SandboxGrant | None) -> SandboxGrant:
        """A grant, whatever became of the last one."""

    async def refresh(self, grant: SandboxGrant) -> SandboxGrant:
        """The same with a new token."""

    async def release(self, grant: SandboxGrant) -> None:
        """End the sandbox, if it is still there."""


class ControlPlane:
    """The access routes of one server, with its credential."""

    def __init__(self, http: HttpClient, url: str, key: str | None) -> None:
        self.http = http
        self.url = url
        self._key = key

    async def ask(
        self,
        method: str,
        path: str,
        content: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        seconds: float | None = None,
    ) -> bytes:
        """The answer to a request, sent again where a connection was lost, but not where time was."""

        async def attempt() -> bytes:
            return await self.http.ask(
                method,
                self.url + path,
                bearer=self._key,
                content=content,
                headers=headers,
                seconds=seconds,
                limit=_MAX_ANSWER_BYTES,
            )

        try:
            return await attempt()
        except ConnectionLost as error:
            if timed_out(error):
                raise
        return await attempt()

    async def list_sandboxes(self, *, everybody: bool, limit: int, offset: int) -> Page[SandboxInfo]:
        """The sandboxes of the caller, or of everybody."""
        query = f"?limit={limit}&offset={offset}" + ("&everybody=true" if everybody else "")
        answer = await self.ask("GET", access.SESSIONS + query, seconds=_ANSWER_SECONDS)
        return decode(Page[SandboxInfo], answer)

    async def release(self, session_id: str) -> None:
        """End a sandbox."""
        await self.ask("DELETE", session_path(session_id), seconds=_ANSWER_SECONDS)

    async def ask_until_started(
        self, path: str, content: Any, headers: Mapping[str, str], seconds: float = STARTING_SECONDS
    ) -> bytes:
        """The same for a sandbox that may have to be made first, which the server may not want to be waited for."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                return await self.ask("POST", path, content, headers=headers)
            except SandboxStarting as error:
                pause = error.details.get("retry_after", _PAUSE_SECONDS)
                if time.monotonic() + pause > deadline:
                    raise
                await asyncio.sleep(pause)


@dataclass(frozen=True, slots=True)
class CreationOptions:
    """Packages and egress of a sandbox that is created."""

    packages: Packages = NO_PACKAGES
    egress: RequestedEgress | None = None


DEFAULT_CREATION = CreationOptions()


class SessionGrantSource:
    """Grants of the session access protocol."""

    def __init__(
        self,
        control: ControlPlane,
        scope_type: ScopeType,
        scope_id: str,
        mode: Mode,
        capabilities: frozenset[str] | None,
        actor: ActorType | None,
        extras: CreationOptions,
    ) -> None:
        self._control = control
        packages, egress = extras.packages, extras.egress
        self._seconds = PACKAGES_SECONDS if packages else STARTING_SECONDS
        thread = scope_type == "thread"
        self._request = SessionRequest(
            thread_id=scope_id if thread else None,
            scope=None if thread else access.Scope(scope_type, scope_id),
            mode=mode,
            actor=None if actor is None else access.Actor(actor),
            requested_capabilities=None if capabilities is None else sorted(capabilities),
            packages=access.Packages(**packages.shown()) if packages else None,
            network_policy=None if egress is None else "allowlist",
            egress=None if egress is None else msgspec.convert(egress.shown(), access.Egress),
        )

    async def ask(self, last: SandboxGrant | None) -> SandboxGrant:
        # The same for every attempt: they are one request.
        headers = {"Idempotency-Key": secrets.token_hex(16)} if self._request.mode == "ensure" else {}
        answer = await self._control.ask_until_started(access.SESSIONS, self._request, headers, self._seconds)
        grant = from_session(answer)
        if grant.session_id is None:
            raise ServerProtocolError("the server's answer does not name the session")
        return grant

    async def refresh(self, grant: SandboxGrant) -> SandboxGrant:
        answer = await self._control.ask("POST", _path(grant, "/refresh"), {}, seconds=_ANSWER_SECONDS)
        fresh = with_token(grant, answer)
        if fresh.capabilities != grant.capabilities:
            # The server goes by what the binding was last asked for, and that may have been somebody else's request.
            return await self.ask(grant)
        return fresh

    async def release(self, grant: SandboxGrant) -> None:
        try:
            await self._control.ask("DELETE", _path(grant), seconds=_ANSWER_SECONDS)
        except NotFound:
            pass  # somebody else was faster


class BindingGrantSource:
    """Grants for an existing session, by its id: holding it here neither makes nor ends it."""

    def __init__(self, control: ControlPlane, session_id: str) -> None:
        self._control = control
        self._id = _checked(session_id)

    async def ask(self, last: SandboxGrant | None) -> SandboxGrant:
        token = _fields(await self._refreshed())
        shown = _fields(await self._control.ask("GET", session_path(self._id), seconds=_ANSWER_SECONDS))
        return from_session(encode({**shown, **token}))

    async def refresh(self, grant: SandboxGrant) -> SandboxGrant:
        return with_token(grant, await self._refreshed())

    async def release(self, grant: SandboxGrant) -> None:
        await self._control.release(self._id)

    async def _refreshed(self) -> bytes:
        return await self._control.ask("POST", session_path(self._id, "/refresh"), {}, seconds=_ANSWER_SECONDS)


class SessionRequests:
    """The session access protocol with raw answers, for programs that hand them on."""

    def __init__(self, control: ControlPlane) -> None:
        self._control = control

    async def acquire(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Access to the sandbox of a scope, which is made where the request's mode allows it."""
        headers = {"Idempotency-Key": secrets.token_hex(16)} if request.get("mode", "ensure") == "ensure" else {}
        seconds = PACKAGES_SECONDS if request.get("packages") else STARTING_SECONDS
        return _fields(await self._control.ask_until_started(access.SESSIONS, request, headers, seconds))

    async def refresh(self, session_id: str) -> dict[str, Any]:
        """The next token."""
        path = session_path(_checked(session_id), "/refresh")
        return _fields(await self._control.ask("POST", path, {}, seconds=_ANSWER_SECONDS))

    async def heartbeat(self, session_id: str) -> dict[str, Any]:
        """Say that the sandbox is still needed."""
        path = session_path(_checked(session_id), "/heartbeat")
        return _fields(await self._control.ask("POST", path, {}, seconds=_ANSWER_SECONDS))

    async def release(self, session_id: str) -> None:
        """End the sandbox with everything in it."""
        await self._control.release(_checked(session_id))


def _fields(body: bytes) -> dict[str, Any]:
    return decode(dict[str, Any], body)


def _checked(session_id: str) -> str:
    """An id that is one part of a path."""
    if session_id in ("", ".", ".."):
        raise InvalidRequest(f"not the id of a session: {session_id!r}", field="session_id")
    return session_id


def _path(grant: SandboxGrant, what: str = "") -> str:
    assert grant.session_id is not None
    return session_path(grant.session_id, what)


class NegotiatedGrantSource:
    """Grants of server-driven negotiation."""

    def __init__(self, control: ControlPlane, thread_id: str, assistant_id: str | None) -> None:
        self._control = control
        self._request = AcquireRequest(thread_id, assistant_id)

    async def ask(self, last: SandboxGrant | None) -> SandboxGrant:
        answer = await self._control.ask_until_started(access.ACQUIRE, self._request, {})
        return from_negotiation(answer, self._control.url)

    async def refresh(self, grant: SandboxGrant) -> SandboxGrant:
        return await renewed_by_token(self._control.http, grant)

    async def release(self, grant: SandboxGrant) -> None:
        request = ReleaseRequest(grant.sandbox_id)
        try:
            await self._control.ask("POST", access.RELEASE, request, seconds=_ANSWER_SECONDS)
        except NotFound:
            pass  # somebody else was faster


class HandedOverGrant:
    """A grant that another program negotiated: only its token can be refreshed, where it has a URL for that."""

    def __init__(self, http: HttpClient, grant: SandboxGrant) -> None:
        self._http = http
        self._first = grant

    async def ask(self, last: SandboxGrant | None) -> SandboxGrant:
        return self._first if last is None else await self.refresh(last)

    async def refresh(self, grant: SandboxGrant) -> SandboxGrant:
        return await renewed_by_token(self._http, grant)

    async def release(self, grant: SandboxGrant) -> None:
        raise InvalidRequest("this sandbox is released by the program that negotiated it")


async def renewed_by_token(http: HttpClient, grant: SandboxGrant) -> SandboxGrant:
    """The grant with the token that the last one gets."""
    if grant.refresh_url is None:
        raise Unauthorized("the token is not good any more, and nobody was named who could give another one")
    refresh = ControlPlane(http, grant.refresh_url, grant.token)
    return with_token(grant, await refresh.ask("POST", "", {}, seconds=_ANSWER_SECONDS))

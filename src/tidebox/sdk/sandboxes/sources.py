"""Where grants come from: whom to ask for one, for the next token, and to whom to say that it is not needed any more.

All of these requests can be repeated without harm, so one whose answer was lost is sent again, once.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping
from typing import Any, Literal, Protocol
from urllib.parse import quote

from tidebox.errors import InvalidRequest, NotFound, SandboxStarting, Unauthorized
from tidebox.sdk.errors import ConnectionLost, ServerProtocolError
from tidebox.sdk.http import Http
from tidebox.sdk.sandboxes.grants import Grant, from_negotiation, from_session, with_token
from tidebox.sdk.target import Target

ScopeType = Literal["thread", "workspace", "assistant", "deployment"]
Mode = Literal["ensure", "get"]
ActorType = Literal["human", "agent"]

_SESSIONS = "/v1/sandbox/sessions"
# A server that has not made a sandbox by then is not about to.
STARTING_SECONDS = 120.0
_PAUSE_SECONDS = 1.0
# For what is answered without making anything.
_ANSWER_SECONDS = 30.0


class Source(Protocol):
    """Gives grants for one scope."""

    async def ask(self, last: Grant | None) -> Grant:
        """A grant, whatever became of the last one."""

    async def refresh(self, grant: Grant) -> Grant:
        """The same with a new token."""

    async def release(self, grant: Grant) -> None:
        """End the sandbox, if it is still there."""


class Control:
    """A server, and who we are to it."""

    def __init__(self, http: Http, target: Target) -> None:
        self.http = http
        self.url = target.http_url
        self._key = target.key

    async def ask(
        self,
        method: str,
        path: str,
        content: Mapping[str, Any] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        seconds: float | None = None,
    ) -> bytes:
        """The answer to a request."""
        url = self.url + path
        return await asked(self.http, method, url, self._key, content, headers=headers, seconds=seconds)

    async def ask_until_started(self, path: str, content: Mapping[str, Any], headers: Mapping[str, str]) -> bytes:
        """The same for a sandbox that may have to be made first, which the server may not want to be waited for."""
        deadline = time.monotonic() + STARTING_SECONDS
        while True:
            try:
                return await self.ask("POST", path, content, headers=headers)
            except SandboxStarting as error:
                pause = error.details.get("retry_after", _PAUSE_SECONDS)
                if time.monotonic() + pause > deadline:
                    raise
                await asyncio.sleep(pause)


class Session:
    """The session access protocol."""

    def __init__(
        self,
        control: Control,
        scope_type: ScopeType,
        scope_id: str,
        mode: Mode,
        capabilities: frozenset[str] | None,
        actor: ActorType | None,
    ) -> None:
        self._control = control
        scope = {"thread_id": scope_id} if scope_type == "thread" else {"scope": {"type": scope_type, "id": scope_id}}
        self._request: dict[str, Any] = {**scope, "mode": mode}
        if capabilities is not None:
            self._request["requested_capabilities"] = sorted(capabilities)
        if actor is not None:
            self._request["actor"] = {"type": actor}

    async def ask(self, last: Grant | None) -> Grant:
        # The same for every attempt: they are one request.
        headers = {"Idempotency-Key": secrets.token_hex(16)} if self._request["mode"] == "ensure" else {}
        grant = from_session(await self._control.ask_until_started(_SESSIONS, self._request, headers))
        if grant.session_id is None:
            raise ServerProtocolError("the server's answer does not name the session")
        return grant

    async def refresh(self, grant: Grant) -> Grant:
        answer = await self._control.ask("POST", f"{_path(grant)}/refresh", {}, seconds=_ANSWER_SECONDS)
        fresh = with_token(grant, answer)
        if fresh.capabilities != grant.capabilities:
            # The server goes by what the binding was last asked for, and that may have been somebody else's request.
            return await self.ask(grant)
        return fresh

    async def release(self, grant: Grant) -> None:
        try:
            await self._control.ask("DELETE", _path(grant), seconds=_ANSWER_SECONDS)
        except NotFound:
            pass  # somebody else was faster


def _path(grant: Grant) -> str:
    assert grant.session_id is not None
    return f"{_SESSIONS}/{quote(grant.session_id, safe='')}"


class Negotiation:
    """Server-driven negotiation."""

    def __init__(self, control: Control, thread_id: str, assistant_id: str | None) -> None:
        self._control = control
        self._request = {"thread_id": thread_id}
        if assistant_id is not None:
            self._request["assistant_id"] = assistant_id

    async def ask(self, last: Grant | None) -> Grant:
        answer = await self._control.ask_until_started("/sandbox/acquire", self._request, {})
        return from_negotiation(answer, self._control.url)

    async def refresh(self, grant: Grant) -> Grant:
        return await renewed_by_token(self._control.http, grant)

    async def release(self, grant: Grant) -> None:
        content = {"sandbox_id": grant.sandbox_id}
        try:
            await self._control.ask("POST", "/sandbox/release", content, seconds=_ANSWER_SECONDS)
        except NotFound:
            pass  # somebody else was faster


class Given:
    """A grant that somebody else negotiated: there is nobody to ask for another one, but maybe for the next token."""

    def __init__(self, http: Http, grant: Grant) -> None:
        self._http = http
        self._first = grant

    async def ask(self, last: Grant | None) -> Grant:
        return self._first if last is None else await self.refresh(last)

    async def refresh(self, grant: Grant) -> Grant:
        return await renewed_by_token(self._http, grant)

    async def release(self, grant: Grant) -> None:
        raise InvalidRequest("this sandbox is released by whoever negotiated it")


async def renewed_by_token(http: Http, grant: Grant) -> Grant:
    """The grant with the token that the last one gets."""
    if grant.refresh_url is None:
        raise Unauthorized("the token is not good any more, and nobody was named who could give another one")
    return with_token(grant, await asked(http, "POST", grant.refresh_url, grant.token, {}, seconds=_ANSWER_SECONDS))


async def asked(
    http: Http,
    method: str,
    url: str,
    bearer: str | None,
    content: Mapping[str, Any] | None,
    *,
    headers: Mapping[str, str] | None = None,
    seconds: float | None = None,
) -> bytes:
    """The answer to a request that can be repeated."""
    try:
        return await http.ask(method, url, bearer=bearer, content=content, headers=headers, seconds=seconds)
    except ConnectionLost:
        return await http.ask(method, url, bearer=bearer, content=content, headers=headers, seconds=seconds)

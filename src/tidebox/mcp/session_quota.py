"""A quota of open HTTP sessions for each user, so that none takes the places of all others."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from tidebox.errors import QuotaExceeded

IDLE_SECONDS = 900.0
"""After which a session ends in which nothing is under way."""
_MAX_SESSIONS_OF_ONE = 100
_SESSION, _VERSION = b"mcp-session-id", b"mcp-protocol-version"
_INVALID_REQUEST = -32600


class IdInUse(Exception):
    """A request has the id of another in its session that is not answered yet."""


@dataclass(slots=True)
class _HttpSession:
    used: float
    requests: int = 0
    """Requests under way."""
    ids: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _UserSessions:
    sessions: dict[str, _HttpSession] = field(default_factory=dict)
    opening: int = 0
    """Requests that may open a session, which has its place already."""
    requests: int = 0


class SessionQuota:
    """The sessions of each user, known from the answers that pass by."""

    def __init__(self) -> None:
        self._users: dict[str, _UserSessions] = {}

    @asynccontextmanager
    async def watched(self, user: str, scope: Any, request_id: str | None, send: Any) -> AsyncIterator[Any]:
        """``send`` of a request that may open, use or end a session; raises ``QuotaExceeded`` and ``IdInUse``."""
        if _header(scope["headers"], _VERSION) not in (None, *HANDSHAKE_PROTOCOL_VERSIONS):
            yield send  # of no session at all
            return
        share = self._users.setdefault(user, _UserSessions())
        share.requests += 1
        try:
            _forget_idle(share)
            named = _header(scope["headers"], _SESSION)
            using = _opening(share, send) if named is None else _using(share, named, request_id, scope["method"], send)
            async with using as watching:
                yield watching
        finally:
            share.requests -= 1
            if not share.requests and not share.sessions:
                del self._users[user]


@asynccontextmanager
async def _opening(share: _UserSessions, send: Any) -> AsyncIterator[Any]:
    if len(share.sessions) + share.opening >= _MAX_SESSIONS_OF_ONE:
        raise QuotaExceeded(f"one user may have {_MAX_SESSIONS_OF_ONE} sessions open; end one, or wait")
    session = _HttpSession(time.monotonic(), requests=1)
    opening = True
    share.opening += 1

    async def watching(message: Any) -> None:
        nonlocal opening
        if message["type"] == "http.response.start" and message["status"] < HTTPStatus.BAD_REQUEST:
            opened = _header(message["headers"], _SESSION)
            if opened is not None:
                share.sessions[opened] = session
                share.opening -= opening
                opening = False
        await send(message)

    try:
        yield watching
    finally:
        share.opening -= opening
        session.used, session.requests = time.monotonic(), session.requests - 1


@asynccontextmanager
async def _using(
    share: _UserSessions, named: str, request_id: str | None, method: str, send: Any
) -> AsyncIterator[Any]:
    # One that is not known is none of this user's, or has just ended: if it answers after all, it counts.
    session = share.sessions.get(named) or _HttpSession(time.monotonic())
    if request_id in session.ids:
        raise IdInUse

    async def watching(message: Any) -> None:
        if message["type"] == "http.response.start":
            status = message["status"]
            if status == HTTPStatus.NOT_FOUND or (method == "DELETE" and status < HTTPStatus.BAD_REQUEST):
                share.sessions.pop(named, None)
            elif status < HTTPStatus.BAD_REQUEST:
                share.sessions.setdefault(named, session)
        await send(message)

    session.requests += 1
    if request_id is not None:
        session.ids.add(request_id)
    try:
        yield watching
    finally:
        session.used, session.requests = time.monotonic(), session.requests - 1
        if request_id is not None:
            session.ids.discard(request_id)


def _forget_idle(share: _UserSessions) -> None:
    ended = time.monotonic() - IDLE_SECONDS
    for name in [name for name, session in share.sessions.items() if not session.requests and session.used < ended]:
        del share.sessions[name]


def _header(headers: Any, wanted: bytes) -> str | None:
    return next((value.decode("latin-1") for name, value in headers if name.lower() == wanted), None)


async def refuse_id(send: Any) -> None:
    """Answer a request whose id is in use; without that id, which would be taken for the answer to the other."""
    error = {"code": _INVALID_REQUEST, "message": "another request with this id is not answered yet"}
    body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": HTTPStatus.BAD_REQUEST, "headers": headers})
    await send({"type": "http.response.body", "body": body})

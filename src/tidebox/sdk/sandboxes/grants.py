"""Access to one sandbox for a short time, as each of the protocols tells of it. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import msgspec

from tidebox.errors import InvalidRequest
from tidebox.sdk.errors import ServerProtocolError, VersionRefused

PROTOCOL_VERSION = "1.0"
# The words of the negotiation protocol in those of the other one.
_CAPABILITIES = {"fs:read": {"fs_read"}, "fs:write": {"fs_write"}, "shell:exec": {"exec", "shell"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A token for a sandbox, and where that is reached."""

    sandbox_id: str
    token: str = field(repr=False)
    expires_at: float
    """Seconds since the epoch."""
    http_url: str
    """What the paths of requests are below."""
    exec_url: str
    """The socket for programs."""
    shell_url: str
    """The socket for terminals."""
    watch_url: str
    """The socket for changes of files."""
    capabilities: frozenset[str] | None = None
    """What the token covers; None where nobody said so."""
    session_id: str | None = None
    thread_id: str | None = None
    refresh_url: str | None = None
    """Where the token itself gets the next one."""
    recreated: bool = False
    """Whether the scope had a sandbox before, which is lost with all that was in it."""


class _Place(msgspec.Struct):
    id: str
    http_base_url: str
    ws_base_url: str


class _Credentials(msgspec.Struct):
    granted_capabilities: list[str] | None = None


class _Session(msgspec.Struct):
    """The answer of the session access protocol; of its smaller part the fields that may be missing have defaults."""

    sandbox: _Place
    token: str
    expires_at: str
    session_id: str | None = None
    thread_id: str | None = None
    credentials: _Credentials | None = None
    recreated: bool = False
    refresh_url: str | None = None


class _Negotiated(msgspec.Struct):
    """The answer of server-driven negotiation."""

    sandbox_id: str
    token: str
    ws_url: str
    http_url: str
    expires_at: str
    scopes: list[str] | None = None
    refresh_url: str | None = None
    session_id: str | None = None
    thread_id: str | None = None
    recreated: bool = False
    protocol_version: str = PROTOCOL_VERSION


class _Token(msgspec.Struct):
    token: str
    expires_at: str
    credentials: _Credentials | None = None


def from_session(body: bytes) -> Grant:
    """The grant in an answer of ``POST /v1/sandbox/sessions``."""
    try:
        return _of_session(msgspec.json.decode(body, type=_Session))
    except (msgspec.DecodeError, ValueError) as error:
        raise _broken(error) from None


def from_negotiation(body: bytes, server_url: str) -> Grant:
    """The grant in an answer of ``POST /sandbox/acquire``."""
    try:
        return _of_negotiation(msgspec.json.decode(body, type=_Negotiated), server_url)
    except (msgspec.DecodeError, ValueError) as error:
        raise _broken(error) from None


def with_token(grant: Grant, body: bytes) -> Grant:
    """The grant with the new token of an answer."""
    try:
        answer = msgspec.json.decode(body, type=_Token)
        expires_at = _moment(answer.expires_at)
    except (msgspec.DecodeError, ValueError) as error:
        raise _broken(error) from None
    granted = _granted(answer.credentials)
    capabilities = grant.capabilities if granted is None else granted
    return replace(grant, token=answer.token, expires_at=expires_at, capabilities=capabilities)


def from_config(config: Mapping[str, Any]) -> Grant:
    """The grant that somebody else negotiated, out of the configuration of a run.

    That is the whole configuration, its ``configurable`` or what is below ``configurable.sandbox``: an answer of either
    protocol, with or without ``refresh_url``.
    """
    found: Any = config
    for name in ("config", "configurable"):
        if isinstance(found, Mapping) and name in found:
            found = found[name]
    # An answer has a "sandbox" too, beside its token.
    if isinstance(found, Mapping) and "token" not in found and "sandbox" in found:
        found = found["sandbox"]
    if not isinstance(found, Mapping):
        raise InvalidRequest("configurable.sandbox: give an object", field="sandbox")
    try:
        if "sandbox_id" in found:
            return _of_negotiation(msgspec.convert(found, _Negotiated))
        return _of_session(msgspec.convert(found, _Session))
    except (msgspec.ValidationError, ValueError) as error:
        raise InvalidRequest(f"configurable.sandbox: {error}", field="sandbox") from None


def _of_session(answer: _Session) -> Grant:
    place = answer.sandbox
    http, ws = _address(place.http_base_url, "http"), _address(place.ws_base_url, "ws")
    return Grant(
        sandbox_id=place.id,
        token=_fit(answer.token),
        expires_at=_moment(answer.expires_at),
        http_url=http,
        exec_url=f"{ws}/exec/ws",
        shell_url=f"{ws}/shell/ws",
        watch_url=f"{ws}/files/watch",
        capabilities=_granted(answer.credentials),
        session_id=answer.session_id,
        thread_id=answer.thread_id,
        refresh_url=_joined(_origin(http), answer.refresh_url),
        recreated=answer.recreated,
    )


def _of_negotiation(answer: _Negotiated, server_url: str | None = None) -> Grant:
    if answer.protocol_version.partition(".")[0] != PROTOCOL_VERSION.partition(".")[0]:
        raise VersionRefused(
            f"the server speaks version {answer.protocol_version} of the protocol, this client {PROTOCOL_VERSION}"
        )
    http, ws = _address(answer.http_url, "http"), _address(answer.ws_url, "ws")
    capabilities: set[str] | None = None
    if answer.scopes is not None:
        capabilities = set().union(*(_CAPABILITIES.get(word, {word}) for word in answer.scopes))
    return Grant(
        sandbox_id=answer.sandbox_id,
        token=_fit(answer.token),
        expires_at=_moment(answer.expires_at),
        http_url=http,
        # One socket for both: what is started on it tells them apart. Files are found below the other address.
        exec_url=ws,
        shell_url=ws,
        watch_url=f"ws{http.removeprefix('http')}/files/watch",
        capabilities=None if capabilities is None else frozenset(capabilities),
        session_id=answer.session_id,
        thread_id=answer.thread_id,
        refresh_url=_joined(server_url or _origin(http), answer.refresh_url),
        recreated=answer.recreated,
    )


def _granted(credentials: _Credentials | None) -> frozenset[str] | None:
    if credentials is None or credentials.granted_capabilities is None:
        return None
    return frozenset(credentials.granted_capabilities)


def _address(url: str, kind: str) -> str:
    parts = urlsplit(url)
    known = parts.scheme in (kind, f"{kind}s") and parts.hostname and parts.port != 0
    if not known or parts.username is not None or parts.query or parts.fragment:
        raise ValueError("not the address of a sandbox or its server")
    return url.rstrip("/")


def _origin(url: str) -> str:
    return "{0.scheme}://{0.netloc}".format(urlsplit(url))


def _joined(server_url: str, url: str | None) -> str | None:
    """Where a token is refreshed; a path is below the server, wherever that is below."""
    if url is None:
        return None
    return _address(server_url + url if url.startswith("/") else url, "http")


def _fit(token: str) -> str:
    """A token that fits into a header."""
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError("token: not printable ASCII text without spaces")
    return token


def _moment(text: str) -> float:
    found = datetime.fromisoformat(text)
    return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()


def _broken(error: Exception) -> ServerProtocolError:
    return ServerProtocolError(f"the server's answer is not one of this protocol: {error}")

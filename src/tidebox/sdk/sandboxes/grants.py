"""Grants: short-lived tokens for one sandbox, decoded from the answers of each protocol. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from tidebox.errors import InvalidRequest, ServerProtocolError
from tidebox.model.sandbox import SCOPES, named
from tidebox.protocols.access import PROTOCOL_VERSION, AccessAnswer, Credentials, GrantAnswer, TokenAnswer
from tidebox.protocols.codec import convert, decode
from tidebox.sdk.errors import VersionRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxGrant:
    """A token for a sandbox, and where that is reached."""

    sandbox_id: str
    token: str = field(repr=False)
    expires_at: float
    """Seconds since the epoch."""
    http_url: str
    """The base URL of requests."""
    exec_url: str
    """The socket for programs."""
    shell_url: str
    """The socket for terminals."""
    watch_url: str
    """The socket for changes of files."""
    capabilities: frozenset[str] | None = None
    """The capabilities of the token; None where they are not known."""
    session_id: str | None = None
    thread_id: str | None = None
    refresh_url: str | None = None
    """Where the token itself gets the next one."""
    recreated: bool = False
    """Whether the scope had a sandbox before, which is lost with all that was in it."""


def from_session(body: bytes) -> SandboxGrant:
    """The grant in an answer of ``POST /v1/sandbox/sessions``."""
    return _of_session(decode(AccessAnswer, body))


def from_negotiation(body: bytes, server_url: str) -> SandboxGrant:
    """The grant in an answer of ``POST /sandbox/acquire``."""
    return _of_negotiation(decode(GrantAnswer, body), server_url)


def with_token(grant: SandboxGrant, body: bytes) -> SandboxGrant:
    """The grant with the new token of an answer."""
    answer = decode(TokenAnswer, body)
    granted = _granted(answer.credentials)
    capabilities = grant.capabilities if granted is None else granted
    return replace(grant, token=_fit(answer.token), expires_at=_moment(answer.expires_at), capabilities=capabilities)


def from_config(config: Mapping[str, Any]) -> SandboxGrant:
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
            return _of_negotiation(convert(GrantAnswer, found))
        return _of_session(convert(AccessAnswer, found))
    except ServerProtocolError as error:
        raise InvalidRequest(f"configurable.sandbox: {error.message}", field="sandbox") from None


def at_server(server_url: str, sandbox_id: str, token: str, expires_at: float) -> SandboxGrant:
    """The grant that a token of the server at ``server_url`` is."""
    http = f"{server_url}/v1"
    ws = f"ws{http.removeprefix('http')}"
    return _below(http, ws, sandbox_id=sandbox_id, token=token, expires_at=expires_at)


def _below(http: str, ws: str, **fields: Any) -> SandboxGrant:
    """A grant whose routes and sockets are below these addresses."""
    return SandboxGrant(
        http_url=http,
        exec_url=f"{ws}/exec/ws",
        shell_url=f"{ws}/shell/ws",
        watch_url=f"{ws}/files/watch",
        **fields,
    )


def _of_session(answer: AccessAnswer) -> SandboxGrant:
    place = answer.sandbox
    http, ws = _address(place.http_base_url, "http"), _address(place.ws_base_url, "ws")
    return _below(
        http,
        ws,
        sandbox_id=place.id,
        token=_fit(answer.token),
        expires_at=_moment(answer.expires_at),
        capabilities=_granted(answer.credentials),
        session_id=answer.session_id,
        thread_id=answer.thread_id,
        refresh_url=_joined(_origin(http), answer.refresh_url),
        recreated=answer.recreated,
    )


def _of_negotiation(answer: GrantAnswer, server_url: str | None = None) -> SandboxGrant:
    if answer.protocol_version.partition(".")[0] != PROTOCOL_VERSION.partition(".")[0]:
        raise VersionRefused(
            f"the server speaks version {answer.protocol_version} of the protocol, this client {PROTOCOL_VERSION}"
        )
    http, ws = _address(answer.http_url, "http"), _address(answer.ws_url, "ws")
    capabilities: set[str] | None = None
    if answer.scopes is not None:
        capabilities = set().union(*(named(SCOPES[word]) if word in SCOPES else {word} for word in answer.scopes))
    return SandboxGrant(
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


def _granted(credentials: Credentials | None) -> frozenset[str] | None:
    if credentials is None or credentials.granted_capabilities is None:
        return None
    return frozenset(credentials.granted_capabilities)


def _address(url: str, kind: str) -> str:
    try:
        parts = urlsplit(url)
        known = parts.scheme in (kind, f"{kind}s") and parts.hostname and parts.port != 0
        if known and parts.username is None and not parts.query and not parts.fragment:
            return url.rstrip("/")
    except ValueError:
        pass
    raise ServerProtocolError("not the address of a sandbox or its server")


def _origin(url: str) -> str:
    return "{0.scheme}://{0.netloc}".format(urlsplit(url))


def _joined(server_url: str, url: str | None) -> str | None:
    """Return the absolute refresh URL; a path is below the server's address."""
    if url is None:
        return None
    return _address(server_url + url if url.startswith("/") else url, "http")


def _fit(token: str) -> str:
    """A token that fits into a header."""
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ServerProtocolError("token: not printable ASCII text without spaces")
    return token


def _moment(text: str) -> float:
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise ServerProtocolError("expires_at: not a time") from None

"""Messages of the session access protocol and of server-driven negotiation, as their clients write and read them.

The server's own models of them are what describes its REST routes (``tidebox.api.access``); a test holds both equal.
Fields of an answer that its smaller part leaves out, or that another server may not know, have defaults.
"""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import quote

import msgspec
from msgspec import Meta

PROTOCOL_VERSION = "1.0"

PREFIX = "/v1/sandbox"
SESSIONS = f"{PREFIX}/sessions"
SCOPES = f"{PREFIX}/scopes"
NEGOTIATION_PREFIX = "/sandbox"
ACQUIRE = f"{NEGOTIATION_PREFIX}/acquire"
REFRESH = f"{NEGOTIATION_PREFIX}/refresh"
RELEASE = f"{NEGOTIATION_PREFIX}/release"
JWKS = "/.well-known/jwks.json"

MAX_TOKEN_BYTES = 8192

# How errors are spelled: these with a noun before them, sessions in the smaller part and bindings in the full one.
NOUNS = ("SESSION", "BINDING")
NOUN_CODES = ("not_found", "expired", "conflict")

ScopeType = Literal["thread", "workspace", "assistant", "deployment"]
ActorType = Literal["human", "agent"]
Mode = Literal["get", "ensure", "attach_only", "create_only"]
Token = Annotated[str, Meta(min_length=1, max_length=MAX_TOKEN_BYTES)]
Address = Annotated[str, Meta(max_length=2048, pattern=r"^\S+$")]


def session_path(session_id: str, what: str = "") -> str:
    """Where a session is asked about."""
    return f"{SESSIONS}/{quote(session_id, safe='')}{what}"


# Requests


class Scope(msgspec.Struct):
    """The scope that a sandbox is bound to."""

    type: ScopeType
    id: str


class Actor(msgspec.Struct, omit_defaults=True):
    """Who will use it."""

    type: ActorType
    id: str | None = None


class Packages(msgspec.Struct, omit_defaults=True):
    """Packages of a sandbox that is made for a request, by language."""

    python: list[str] = []
    node: list[str] = []


class HeaderRule(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A secret of the server that is put into requests to a host."""

    host: str
    secret: str
    name: str | None = None
    format: str = "{}"
    kind: Literal["aws_sigv4"] | None = None
    region: str | None = None
    service: str | None = None


class Egress(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The network egress of a sandbox that is made for a request."""

    hosts: list[str] | None = None
    cidrs: list[str] | None = None
    ips: list[str] | None = None
    packages: bool = False
    events: bool = False
    headers: list[HeaderRule] = []
    secrets: list[str] = []


class SessionRequest(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Asks for the sandbox of a thread, or of another scope."""

    thread_id: str | None = None
    scope: Scope | None = None
    mode: Mode
    actor: Actor | None = None
    requested_capabilities: list[str] | None = None
    sandbox_hint: str | None = None
    provider_preference: str = "auto"
    packages: Packages | None = None
    network_policy: Literal["deny_all", "allowlist"] | None = None
    egress: Egress | None = None


class AcquireRequest(msgspec.Struct, omit_defaults=True):
    """Asks for the sandbox that the server has for a thread of an assistant."""

    thread_id: str
    assistant_id: str | None = None


class ReleaseRequest(msgspec.Struct):
    """Gives a sandbox back."""

    sandbox_id: str


# Answers


class Sandbox(msgspec.Struct):
    """Where a sandbox is reached."""

    id: str
    http_base_url: Address
    ws_base_url: Address


class Binding(msgspec.Struct):
    """A scope and its sandbox, as far as a client needs it."""

    idle_seconds: float | None = None


class Credentials(msgspec.Struct):
    """The capabilities a token covers."""

    granted_capabilities: list[str] | None = None


class TokenAnswer(msgspec.Struct):
    """A new token."""

    token: Token
    expires_at: str
    credentials: Credentials | None = None


class BindingAnswer(msgspec.Struct):
    """A binding, without a token."""

    binding: Binding


class AccessAnswer(TokenAnswer, kw_only=True):
    """A binding with access to its sandbox."""

    sandbox: Sandbox
    session_id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,128}$")] | None = None
    thread_id: str | None = None
    recreated: bool = False
    refresh_url: Address | None = None
    """Not of this protocol: a configuration may name it beside the answer."""


class GrantAnswer(msgspec.Struct, kw_only=True):
    """Access to the sandbox that the server decided on."""

    sandbox_id: str
    token: Token
    ws_url: Address
    http_url: Address
    expires_at: str
    scopes: list[str] | None = None
    refresh_url: Address | None = None
    session_id: str | None = None
    thread_id: str | None = None
    recreated: bool = False
    protocol_version: str = PROTOCOL_VERSION

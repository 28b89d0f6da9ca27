"""Bindings, tokens and grants as clients see them."""

from __future__ import annotations

import time
from typing import Any, Self

from fastapi import Request
from pydantic import BaseModel, Field

from tidebox.api.answers import Page, Quantity
from tidebox.api.services import Services
from tidebox.api.signed_urls import base_url
from tidebox.model.sandbox import Binding, Capability, Grant, SandboxState, token_scopes
from tidebox.model.timestamps import iso_time
from tidebox.protocols.access import PROTOCOL_VERSION, REFRESH


def _addresses(request: Request, services: Services, elsewhere: str | None) -> tuple[str, str]:
    """Return the HTTP and WebSocket base addresses of a sandbox's dataplane, here or at another server."""
    http = (elsewhere or base_url(request.scope, services.settings.public_url)).rstrip("/")
    return http, http.replace("http", "ws", 1)


class Dataplane(BaseModel):
    """The addresses of the dataplane."""

    http_base_url: str
    ws_base_url: str


class Sandbox(BaseModel):
    """A sandbox and its addresses."""

    id: str
    provider: str
    http_base_url: str
    ws_base_url: str


class BindingShown(BaseModel):
    """A scope and its sandbox."""

    id: str
    scope: dict[str, str]
    sandbox_id: str | None
    provider: str
    state: SandboxState
    lease_expires_at: str
    expires_at: str
    created_at: str
    idle_seconds: float = Field(description="How long nobody has used the sandbox.")

    @classmethod
    def of(cls, binding: Binding) -> Self:
        """``binding`` in the fields of the full protocol."""
        return cls(
            id=binding.id,
            scope={"type": binding.scope.type.value, "id": binding.scope.id},
            sandbox_id=binding.sandbox_id,
            provider=binding.provider,
            state=binding.state,
            lease_expires_at=iso_time(binding.lease_expires_at),
            expires_at=iso_time(binding.expires_at),
            created_at=iso_time(binding.created_at),
            idle_seconds=round(max(0.0, time.time() - binding.active_at), 3),
        )


class BindingList(Page[BindingShown]):
    """Some bindings of a list."""


class PolicyShown(BaseModel):
    """The lifetime of a sandbox."""

    idle_timeout_seconds: Quantity
    hard_ttl_seconds: Quantity


class BindingAnswer(BaseModel):
    """A binding, in the fields of both protocols."""

    session_id: str
    thread_id: str | None
    sandbox: Sandbox | None
    binding: BindingShown
    dataplane: Dataplane
    policy: PolicyShown

    @classmethod
    def of(cls, binding: Binding, request: Request, services: Services) -> Self:
        """``binding``, and where its sandbox is used by the sender of ``request``."""
        http, ws = _addresses(request, services, services.sandboxes.bindings.base_url(binding))
        dataplane = Dataplane(http_base_url=f"{http}/v1", ws_base_url=f"{ws}/v1")
        sandbox = None
        if binding.sandbox_id is not None:
            sandbox = Sandbox(id=binding.sandbox_id, provider=binding.provider, **dict(dataplane))
        terms = services.sandboxes.terms
        return cls(
            session_id=binding.id,
            thread_id=binding.thread_id,
            sandbox=sandbox,
            binding=BindingShown.of(binding),
            dataplane=dataplane,
            policy=PolicyShown(idle_timeout_seconds=terms.idle_timeout, hard_ttl_seconds=terms.hard_ttl),
        )


class Credentials(BaseModel):
    """A token and what it covers."""

    token_type: str
    access_token: str
    expires_at: str
    granted_capabilities: list[Capability]


class TokenAnswer(BaseModel):
    """A new token."""

    session_id: str
    token: str
    expires_at: str
    credentials: Credentials

    @classmethod
    def of(cls, grant: Grant) -> Self:
        """The token of ``grant`` in the fields of both protocols."""
        expires_at = iso_time(grant.expires_at)
        return cls(
            session_id=grant.binding.id,
            token=grant.token,
            expires_at=expires_at,
            credentials=Credentials(
                token_type="Bearer",
                access_token=grant.token,
                expires_at=expires_at,
                granted_capabilities=[each for each in Capability if each in grant.capabilities],
            ),
        )


class AccessAnswer(BindingAnswer):
    """A binding with access to its sandbox."""

    token: str
    expires_at: str
    credentials: Credentials
    recreated: bool = Field(description="The sandbox was lost and made anew: it is empty.")
    sandbox_hint_matched: bool | None = None

    @classmethod
    def granted(cls, grant: Grant, request: Request, services: Services, hint: str | None) -> Self:
        """The binding and the token of ``grant``, for a client who hoped for the sandbox ``hint``."""
        token = TokenAnswer.of(grant)
        found = cls(
            **dict(BindingAnswer.of(grant.binding, request, services)),
            token=token.token,
            expires_at=token.expires_at,
            credentials=token.credentials,
            recreated=grant.recreated,
        )
        if hint is not None:
            found.sandbox_hint_matched = hint == grant.sandbox_id
        return found


class HeartbeatAnswer(BaseModel):
    """A lease that was extended."""

    session_id: str
    lease_expires_at: str
    binding: BindingShown

    @classmethod
    def of(cls, binding: Binding) -> Self:
        """The lease of ``binding``."""
        shown = BindingShown.of(binding)
        return cls(session_id=binding.id, lease_expires_at=shown.lease_expires_at, binding=shown)


class GrantAnswer(BaseModel):
    """Access to a sandbox."""

    protocol_version: str
    sandbox_id: str
    session_id: str
    token: str
    ws_url: str
    http_url: str
    expires_at: str
    scopes: list[str]
    refresh_url: str
    thread_id: str | None
    recreated: bool

    @classmethod
    def of(cls, grant: Grant, request: Request, services: Services) -> Self:
        """``grant``, and where its sandbox is used by the sender of ``request``."""
        http, ws = _addresses(request, services, grant.base_url)
        return cls(
            protocol_version=PROTOCOL_VERSION,
            sandbox_id=grant.sandbox_id,
            session_id=grant.binding.id,
            token=grant.token,
            ws_url=f"{ws}/ws/{grant.sandbox_id}",
            http_url=f"{http}/api/{grant.sandbox_id}",
            expires_at=iso_time(grant.expires_at),
            scopes=token_scopes(grant.capabilities),
            refresh_url=REFRESH,
            thread_id=grant.thread_id,
            recreated=grant.recreated,
        )


class ReleaseAnswer(BaseModel):
    """A sandbox that is gone."""

    sandbox_id: str
    released: bool


class JwksAnswer(BaseModel):
    """Public keys (RFC 7517)."""

    keys: list[dict[str, Any]]

"""Request bodies of the access protocols."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field, StringConstraints, model_validator

from tidebox.api.egress import EgressRequest
from tidebox.api.packages import PackagesRequest
from tidebox.model.sandbox import MAX_SCOPE_ID_LENGTH, Capability
from tidebox.protocols.access import MAX_TOKEN_BYTES, ActorType, Mode, ScopeType

Id = Annotated[str, StringConstraints(min_length=1, max_length=MAX_SCOPE_ID_LENGTH)]


class ScopeBody(BaseModel):
    """The scope that a sandbox is bound to."""

    type: ScopeType
    id: Id


class ActorBody(BaseModel):
    """The user of the sandbox."""

    type: ActorType
    id: Id | None = None


class SessionBody(BaseModel):
    """A request for the sandbox of a thread (`thread_id`), or of any scope (`scope`)."""

    thread_id: Id | None = None
    scope: ScopeBody | None = None
    mode: Mode
    actor: ActorBody | None = None
    requested_capabilities: Annotated[list[Capability], Field(min_length=1, max_length=16)] | None = None
    sandbox_hint: Annotated[str, StringConstraints(max_length=128)] | None = Field(
        None,
        description="A sandbox of the caller's that a scope without one is to share; `sandbox_hint_matched` tells "
        "whether it is the one that was got.",
    )
    provider_preference: Annotated[str, StringConstraints(min_length=1, max_length=64)] = Field(
        "auto",
        description="Who is to make the sandbox, where there is none: `local`, another server's name, or `auto`.",
    )

    packages: PackagesRequest | None = Field(
        None,
        description="What a sandbox has that is made for this request; one that is there stays as it is.",
    )

    network_policy: Literal["deny_all", "allowlist"] | None = Field(
        None, description="What network such a sandbox has."
    )
    egress: EgressRequest | None = Field(None, description="What it may reach, with `network_policy` `allowlist`.")

    @model_validator(mode="after")
    def _one_scope(self) -> SessionBody:
        if self.scope is None and self.thread_id is None:
            raise ValueError("give thread_id or scope")
        if self.scope is not None and self.thread_id not in (None, self.scope.id):
            raise ValueError("thread_id and scope name different things")
        return self


class AcquireBody(BaseModel):
    """A request for the sandbox that the server has for a thread of an assistant."""

    thread_id: Id
    assistant_id: Id | None = None


class RefreshBody(BaseModel):
    """The current token, where it is not the credential of the request."""

    token: Annotated[str, StringConstraints(min_length=1, max_length=MAX_TOKEN_BYTES)] | None = None


class ReleaseBody(BaseModel):
    """The sandbox to release."""

    sandbox_id: Annotated[str, StringConstraints(min_length=1, max_length=128)]


class RotationBody(BaseModel):
    """Options of a key rotation."""

    emergency: bool = Field(False, description="Accept no token any more that was made before.")

"""What requests for access look like, and what they are answered with."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StringConstraints, model_validator

from tidebox.model.sandbox import MAX_SCOPE_ID_LENGTH

Id = Annotated[str, StringConstraints(min_length=1, max_length=MAX_SCOPE_ID_LENGTH)]
CapabilityName = Literal["fs_read", "fs_write", "exec", "shell"]
StateName = Literal["provisioning", "active", "idle", "suspended", "terminated", "failed"]


class ScopeBody(BaseModel):
    """What a sandbox is bound to."""

    type: Literal["thread", "workspace", "assistant", "deployment"]
    id: Id


class ActorBody(BaseModel):
    """Who will use it."""

    type: Literal["human", "agent"]
    id: Id | None = None


class SessionBody(BaseModel):
    """A request for the sandbox of a thread (`thread_id`), or of any scope (`scope`)."""

    thread_id: Id | None = None
    scope: ScopeBody | None = None
    mode: Literal["get", "ensure", "attach_only", "create_only"]
    actor: ActorBody | None = None
    requested_capabilities: Annotated[list[CapabilityName], Field(min_length=1, max_length=16)] | None = None
    sandbox_hint: Annotated[str, StringConstraints(max_length=128)] | None = Field(
        None,
        description="A sandbox of the caller's that a scope without one is to share; `sandbox_hint_matched` tells "
        "whether it is the one that was got.",
    )
    provider_preference: Annotated[str, StringConstraints(min_length=1, max_length=64)] = Field(
        "auto",
        description="Who is to make the sandbox, where there is none: `local`, another server's name, or `auto`.",
    )

    @model_validator(mode="after")
    def _one_scope(self) -> SessionBody:
        if self.scope is None and self.thread_id is None:
            raise ValueError("give thread_id or scope")
        if self.scope is not None and self.thread_id not in (None, self.scope.id):
            raise ValueError("thread_id and scope name different things")
        return self


class Sandbox(BaseModel):
    """Where a sandbox is reached."""

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
    state: StateName
    lease_expires_at: str
    expires_at: str
    created_at: str
    idle_seconds: float = Field(description="How long nobody has used the sandbox.")


class Dataplane(BaseModel):
    """Where the dataplane is."""

    http_base_url: str
    ws_base_url: str


class Credentials(BaseModel):
    """A token and what it covers."""

    token_type: str
    access_token: str
    expires_at: str
    granted_capabilities: list[CapabilityName]


class PolicyShown(BaseModel):
    """How long a sandbox lives."""

    idle_timeout_seconds: float
    hard_ttl_seconds: float


class BindingAnswer(BaseModel):
    """A binding, in the fields of both protocols."""

    session_id: str
    thread_id: str | None
    sandbox: Sandbox | None
    binding: BindingShown
    dataplane: Dataplane
    policy: PolicyShown


class SessionAnswer(BindingAnswer):
    """A binding with access to its sandbox."""

    token: str
    expires_at: str
    credentials: Credentials
    recreated: bool = Field(description="The sandbox was lost and made anew: it is empty.")
    sandbox_hint_matched: bool | None = None


class TokenAnswer(BaseModel):
    """A new token."""

    session_id: str
    token: str
    expires_at: str
    credentials: Credentials


class HeartbeatAnswer(BaseModel):
    """A lease that was extended."""

    session_id: str
    lease_expires_at: str
    binding: BindingShown


class RotationBody(BaseModel):
    """Which keys to give up."""

    emergency: bool = Field(False, description="Accept no token any more that was made before.")


class JwksAnswer(BaseModel):
    """Public keys (RFC 7517)."""

    keys: list[dict[str, Any]]


class AcquireBody(BaseModel):
    """A request for the sandbox that the server has for a thread of an assistant."""

    thread_id: Id
    assistant_id: Id | None = None


class RefreshBody(BaseModel):
    """The current token, where it is not the credential of the request."""

    token: Annotated[str, StringConstraints(min_length=1, max_length=8192)] | None = None


class ReleaseBody(BaseModel):
    """Which sandbox is not needed any more."""

    sandbox_id: Annotated[str, StringConstraints(min_length=1, max_length=128)]


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


class ReleaseAnswer(BaseModel):
    """A sandbox that is gone."""

    sandbox_id: str
    released: bool

"""Egress in requests: its schema, and the allow-list that a request gets."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tidebox.api.auth import LOCAL_USER
from tidebox.broker.runs.planning import Requester
from tidebox.errors import Forbidden, InvalidRequest
from tidebox.model.egress import MAX_RULES
from tidebox.model.injection import MAX_INJECTED
from tidebox.model.policy import DENY_ALL, EGRESS_SINCE
from tidebox.model.principal import Caller
from tidebox.model.requested_egress import BoxEgress, RequestedEgress, read_requested_egress

if TYPE_CHECKING:
    from tidebox.api.services import Services

# What model.egress takes, in the words of a schema and without rare forms.
_HOST = r"^(?:\*\.[a-z][a-z0-9]{0,20}\.)?[a-z][a-z0-9]{0,20}\.[a-z]{2,8}$"
_CIDR = r"^[1-9][0-9]?\.0\.0\.0/8$"
_IP = r"^[1-9][0-9]?\.[1-9][0-9]?\.[1-9][0-9]?\.[1-9][0-9]?$"
_SECRET = r"^[A-Z][A-Z0-9_]{0,63}$"
_FORMAT = r"^[A-Za-z ]{0,40}\{\}$"

HostRule = Annotated[str, Field(min_length=1, max_length=512, json_schema_extra={"pattern": _HOST})]
CidrRule = Annotated[str, Field(min_length=1, max_length=64, json_schema_extra={"pattern": _CIDR})]
IpRule = Annotated[str, Field(min_length=1, max_length=64, json_schema_extra={"pattern": _IP})]
SecretName = Annotated[str, Field(min_length=1, max_length=64, json_schema_extra={"pattern": _SECRET})]


class HeaderRuleRequest(BaseModel):
    """A secret that is put into requests to a host: as a header, or by signing them (`kind`)."""

    model_config = ConfigDict(extra="forbid")

    host: HostRule
    secret: SecretName
    name: (
        Annotated[str, Field(min_length=1, max_length=64, json_schema_extra={"pattern": "^x-[a-z]{1,20}$"})] | None
    ) = Field(None, description="The header, where it is one.")
    format: Annotated[str, Field(max_length=256, json_schema_extra={"pattern": _FORMAT})] = Field(
        "{}", description="The header's value, with the secret in place of `{}`."
    )
    kind: Literal["aws_sigv4"] | None = Field(None, description="Sign requests with AWS Signature Version 4.")
    region: Annotated[str, Field(max_length=64, json_schema_extra={"pattern": "^[a-z0-9-]{1,64}$"})] | None = None
    service: Annotated[str, Field(max_length=64, json_schema_extra={"pattern": "^[a-z0-9-]{1,64}$"})] | None = None


class EgressRequest(BaseModel):
    """An egress allow-list, within what the server allows; without hosts, cidrs and ips all of that."""

    model_config = ConfigDict(extra="forbid")

    hosts: Annotated[list[HostRule], Field(max_length=MAX_RULES)] | None = Field(
        None, description="Names, and `*.example.com` for those below one."
    )
    cidrs: Annotated[list[CidrRule], Field(max_length=MAX_RULES)] | None = Field(None, description="Networks.")
    ips: Annotated[list[IpRule], Field(max_length=MAX_RULES)] | None = Field(None, description="Addresses.")
    packages: Annotated[bool, Field(strict=True)] = Field(
        False, description="Also the mirrors that pip, npm and apt of this server are configured for."
    )
    events: Annotated[bool, Field(strict=True)] = Field(
        False, description="Whether the log tells of connections that are made and denied."
    )
    headers: Annotated[list[HeaderRuleRequest], Field(max_length=MAX_INJECTED)] = Field(
        default_factory=list, description="Secrets of the server that are put into requests to hosts."
    )
    secrets: Annotated[list[SecretName], Field(max_length=MAX_INJECTED)] = Field(
        default_factory=list,
        description="Secrets that programs have a placeholder of, in `$TIDEBOX_SECRET_<NAME>`; it becomes the secret "
        "on the way to the hosts of that secret.",
    )

    def ask(self) -> RequestedEgress:
        """Return the egress that is asked for; raises ``InvalidRequest``."""
        return read_requested_egress(self.model_dump(exclude_none=True, exclude_unset=True))


def asked_egress(body: Any) -> RequestedEgress | None:
    """Return the egress that a request with a ``spec_version`` asks for."""
    if body.egress is None:
        return None
    if body.spec_version < EGRESS_SINCE:
        raise InvalidRequest(f"egress needs spec_version {EGRESS_SINCE}", field="egress", since=EGRESS_SINCE)
    ask: RequestedEgress = body.egress.ask()
    return ask


def user_of(caller: Caller) -> Requester:
    """Return the caller as the planner's user."""
    return Requester(caller.principal.user, owner=caller.principal.user == LOCAL_USER)


@contextlib.contextmanager
def audited_refusals(services: Services, caller: Caller) -> Iterator[None]:
    """Record in the audit log that a caller asked for a secret that they may not use."""
    try:
        yield
    except Forbidden as error:
        services.audit.record("sandbox.egress.refused", caller, error.code, secret=error.details.get("secret"))
        raise


def sandbox_egress(
    services: Services, caller: Caller, network: str | None, egress: EgressRequest | None
) -> BoxEgress | None:
    """Decide the egress of a sandbox that is made for a request."""
    runtime = services.runtimes.named(services.policy.default_runtime)
    ask = egress.ask() if egress is not None else None
    with audited_refusals(services, caller):
        return services.planner.way_out(runtime, network or DENY_ALL, [ask], user_of(caller))

"""Authentication of the dataplane: a token for the sandbox, in a header or in the first frame of a socket."""

from __future__ import annotations

from tidebox.api.asgi import RequestContext, Scope, context_of
from tidebox.api.dataplane.paths import DataplaneTarget
from tidebox.broker.sandboxes.sandbox import Gate, SandboxAccess
from tidebox.errors import Unauthorized
from tidebox.model.principal import Caller
from tidebox.protocols.access import MAX_TOKEN_BYTES

SURFACE = "dataplane"


def header_token(scope: Scope) -> str | None:
    """The token in the Authorization header; None if there is no such header."""
    found = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
    if not found:
        return None
    scheme, _, token = found[0].strip().partition(b" ")
    if len(found) > 1 or scheme.lower() != b"bearer":
        raise Unauthorized("the Authorization header must be: Bearer, a space, and a token for this sandbox")
    return bytes(token).strip().decode("latin-1")


async def authenticate(gate: Gate, scope: Scope, target: DataplaneTarget, token: str) -> SandboxAccess:
    """Verify a token, note its holder as the caller, and return the access that it gives."""
    if len(token) > MAX_TOKEN_BYTES or not token.isascii():
        raise Unauthorized("the token is not valid")
    context = context_of(scope)
    access = await gate.authorize(token, address=context.address, sandbox_id=target.sandbox_id)
    context.caller = caller(access, context)
    return access


def caller(access: SandboxAccess, context: RequestContext) -> Caller:
    """The holder of a token as the audit log names it."""
    return context.caller_as(access.principal, SURFACE)

"""Which paths belong to the access protocols."""

from __future__ import annotations

PREFIX = "/v1/sandbox"
NEGOTIATION_PREFIX = "/sandbox"
JWKS = "/.well-known/jwks.json"
REFRESH = f"{NEGOTIATION_PREFIX}/refresh"

_PREFIXES = (f"{PREFIX}/", f"{NEGOTIATION_PREFIX}/")


def is_access(path: str) -> bool:
    """Whether a path belongs to these protocols."""
    return path.startswith(_PREFIXES) or path == JWKS


def needs_credential(path: str) -> bool:
    """Whether a path asks for a credential of the server: keys are public, and a token is refreshed by itself."""
    return path not in (JWKS, REFRESH)


def has_binding_errors(path: str) -> bool:
    """Whether a path is one of the full protocol, whose errors speak of bindings."""
    return path.endswith(("/refresh-token", "/heartbeat"))

"""Errors as the access protocol spells them: ``SESSION_*`` in its smaller part, ``BINDING_*`` in its full one.

What the request was says which: the routes of the full protocol, and a body with a ``scope``, speak of bindings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus

from tidebox.api.asgi import Scope
from tidebox.api.problems import ApiProblem
from tidebox.protocols.access import JWKS, NOUN_CODES

_SHARED = {
    "unauthorized": "UNAUTHENTICATED",
    "quota_exceeded": "RATE_LIMITED",
    "queue_full": "RATE_LIMITED",
}
_UNAVAILABLE = frozenset(
    {
        "runtime_unavailable",
        "guarantee_missing",
        "provider_unavailable",
        "provision_failed",
        "startup_timeout",
        "box_gone",
        "store_unavailable",
        "audit_unavailable",
        "shutting_down",
    }
)


def dialect_of(scope: Scope) -> Callable[[ApiProblem], ApiProblem] | None:
    """Return the error dialect of a request; None for the JWKS, whose errors are spelled as the server does."""
    path: str = scope["path"]
    if path == JWKS:
        return None
    full = path.endswith(("/refresh-token", "/heartbeat")) or scope.get("method") in ("GET", "HEAD")
    return binding_words if full else session_words


def session_words(problem: ApiProblem) -> ApiProblem:
    """An error in the words of the smaller protocol."""
    return _spelled(problem, "SESSION", "PROVIDER_UNAVAILABLE")


def binding_words(problem: ApiProblem) -> ApiProblem:
    """An error in the words of the full protocol."""
    return _spelled(problem, "BINDING", "BACKEND_UNAVAILABLE")


def _spelled(problem: ApiProblem, noun: str, unavailable: str) -> ApiProblem:
    code = problem.code
    if code in _UNAVAILABLE:
        return replace(problem, code=unavailable, status=HTTPStatus.SERVICE_UNAVAILABLE, retryable=True)
    if code in NOUN_CODES:
        return replace(problem, code=f"{noun}_{code.upper()}")
    if code == "idempotency_conflict":
        return replace(problem, code=f"{noun}_CONFLICT")
    return replace(problem, code=_SHARED.get(code, code.upper()))

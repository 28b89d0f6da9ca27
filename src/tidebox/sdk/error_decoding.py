"""Decoding of error answers of servers and sandboxes into the classes of ``tidebox.errors``.

``details`` has the server's own ``code``, its ``request_id`` and, of an HTTP answer, the ``status``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

from tidebox.errors import (
    BoxGone,
    Conflict,
    FileOperationFailed,
    Forbidden,
    InternalError,
    NotFound,
    Overloaded,
    PayloadTooLarge,
    ProvisionFailed,
    RateLimited,
    ServerProtocolError,
    TideboxError,
    Unauthorized,
    UnknownLanguage,
)
from tidebox.protocols.access import NOUN_CODES, NOUNS
from tidebox.protocols.codec import ErrorBody, ErrorEnvelope, decode
from tidebox.sdk.errors import ServerRefused, ServerUnreachable


def _tree(top: type[TideboxError]) -> Iterator[type[TideboxError]]:
    for kind in top.__subclasses__():
        if kind.__module__ == top.__module__:
            yield kind
            yield from _tree(kind)


_KINDS = {kind.code: kind for kind in _tree(TideboxError) if "code" in vars(kind)} | {"internal_error": InternalError}
# As the interpreter service spells them, each class its own; then as the other protocols do.
_BY_CODE: dict[str, type[TideboxError]] = {
    **_KINDS,
    **{code.upper(): kind for code, kind in _KINDS.items()},
    **{f"{noun}_{code.upper()}": _KINDS[code] for noun in NOUNS for code in NOUN_CODES},
    "LANGUAGE_NOT_SUPPORTED": UnknownLanguage,
    "UNKNOWN_EXECUTION": NotFound,
    "SANDBOX_OVERLOADED": Overloaded,
    "NETWORK_ERROR": InternalError,
    "UNAUTHENTICATED": Unauthorized,
    "PROVIDER_UNAVAILABLE": ProvisionFailed,
    "BACKEND_UNAVAILABLE": BoxGone,
    "FILE_NOT_FOUND": NotFound,
    "FILE_ACCESS_DENIED": Forbidden,
    "FILE_CONFLICT": Conflict,
    "NO_SPACE": FileOperationFailed,
}

# For answers of proxies between us and the server, which have no code.
_BY_STATUS: dict[int, type[TideboxError]] = {
    HTTPStatus.UNAUTHORIZED: Unauthorized,
    HTTPStatus.FORBIDDEN: Forbidden,
    HTTPStatus.NOT_FOUND: NotFound,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: PayloadTooLarge,
    HTTPStatus.TOO_MANY_REQUESTS: RateLimited,
}


def from_told(told: ErrorBody, **more: Any) -> TideboxError:
    """Make the error of an error body; an unknown code counts by whether a retry may help."""
    kind = _BY_CODE.get(told.code)
    if kind is None or kind.retryable is not told.retryable:
        kind = InternalError if told.retryable else ServerRefused
    details = (told.details or {}) | more | {"code": told.code}
    if told.request_id is not None:
        details["request_id"] = told.request_id
    return kind(told.message, **details)


def from_code(code: str, message: str, details: Mapping[str, Any]) -> TideboxError:
    """Make the error of a code, where the server does not say whether a retry may help."""
    return _BY_CODE.get(code, ServerRefused)(message, **{**details, "code": code})


def from_answer(status: int, headers: Mapping[str, str], body: bytes) -> TideboxError:
    """Make the error of an HTTP answer."""
    more: dict[str, Any] = {"status": status}
    if (pause := _retry_after(headers.get("retry-after", ""))) is not None:
        more["retry_after"] = pause
    try:
        return from_told(decode(ErrorEnvelope, body).error, **more)
    except ServerProtocolError:
        kind = _BY_STATUS.get(status) or (ServerUnreachable if status >= 500 else ServerRefused)
        return kind(f"the server answered with HTTP status {status}", **more)


def _retry_after(text: str) -> float | None:
    """Parse ``Retry-After``, given in seconds or as a date, into seconds."""
    if text.isascii() and text.isdigit():
        return float(text[:16])
    from email.utils import parsedate_to_datetime  # which is long to load, and hardly ever needed

    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError, OSError):
        return None

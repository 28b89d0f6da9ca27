"""Errors that another server answers with, as this server raises them for its own sandboxes."""

from __future__ import annotations

import errno
from typing import Any

import msgspec

from tidebox.errors import (
    BoxGone,
    Conflict,
    ExecFailed,
    FileOperationFailed,
    InvalidRequest,
    LimitOutOfRange,
    ProviderUnavailable,
    QuotaExceeded,
    TideboxError,
)

ERRORS: dict[str, type[TideboxError]] = {
    "CONFLICT": Conflict,
    "EXEC_FAILED": ExecFailed,
    "INVALID_REQUEST": InvalidRequest,
    "LIMIT_OUT_OF_RANGE": LimitOutOfRange,
    "RATE_LIMITED": QuotaExceeded,
    "BACKEND_UNAVAILABLE": BoxGone,
}
# What a code of the dataplane means here, so that it is answered by the same code.
_ERRNOS = {
    "FILE_NOT_FOUND": errno.ENOENT,
    "FILE_ACCESS_DENIED": errno.EACCES,
    "FILE_CONFLICT": errno.EEXIST,
    "NO_SPACE": errno.ENOSPC,
}
# Of what another server says no more is handed on than clients can act upon.
_DETAILS = ("field", "offset", "type", "quota", "limit")


class PeerError(msgspec.Struct):
    """What an error answer or frame says."""

    code: str
    message: str = ""
    details: dict[str, Any] = msgspec.field(default_factory=dict)


def failure(error: PeerError) -> TideboxError:
    """The same error of this server."""
    details = {name: error.details[name] for name in _DETAILS if isinstance(error.details.get(name), (str, int))}
    if error.code.startswith("FILE_") or error.code == "NO_SPACE":
        return FileOperationFailed(error.message, errno=_ERRNOS.get(error.code), **details)
    found = ERRORS.get(error.code)
    if found is None:
        return ProviderUnavailable("the server of the sandbox refuses")
    return found(error.message, **details)

"""What clients of the dataplane are told of errors: codes as the access protocol spells them, files by their errno."""

from __future__ import annotations

import errno
from dataclasses import replace
from http import HTTPStatus
from typing import NamedTuple

from tidebox.api import problems
from tidebox.api.problems import Problem
from tidebox.errors import FileOperationFailed

_CODES = {"unauthorized": "UNAUTHENTICATED", "quota_exceeded": "RATE_LIMITED"}
# What is wrong is not the request.
_UNAVAILABLE = frozenset(
    {"box_gone", "provider_unavailable", "audit_unavailable", "shutting_down", "store_unavailable"}
)


class _Kind(NamedTuple):
    status: int
    code: str


_MISSING = _Kind(HTTPStatus.NOT_FOUND, "FILE_NOT_FOUND")
_DENIED = _Kind(HTTPStatus.FORBIDDEN, "FILE_ACCESS_DENIED")
_CONFLICT = _Kind(HTTPStatus.CONFLICT, "FILE_CONFLICT")
_FULL = _Kind(HTTPStatus.INSUFFICIENT_STORAGE, "NO_SPACE")
_BAD_PATH = _Kind(HTTPStatus.BAD_REQUEST, "INVALID_REQUEST")
_FILE_KINDS = {
    errno.ENOENT: _MISSING,
    errno.EACCES: _DENIED,
    errno.EPERM: _DENIED,
    errno.EROFS: _DENIED,
    errno.EEXIST: _CONFLICT,
    errno.ENOTEMPTY: _CONFLICT,
    errno.EISDIR: _CONFLICT,
    errno.ENOTDIR: _CONFLICT,
    errno.EBUSY: _CONFLICT,
    errno.EXDEV: _CONFLICT,
    errno.ETXTBSY: _CONFLICT,
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: _FULL,
    errno.EINVAL: _BAD_PATH,
    errno.ELOOP: _BAD_PATH,
    errno.ENAMETOOLONG: _BAD_PATH,
}


def problem_of(error: BaseException) -> Problem:
    """What to say of ``error``."""
    problem = problems.of_error(error)
    if isinstance(error, FileOperationFailed):
        kind = _FILE_KINDS.get(error.errno or 0)
        if kind is not None:
            return replace(problem, status=kind.status, code=kind.code)
    return words(problem)


def words(problem: Problem) -> Problem:
    """An error in the words of this surface."""
    if problem.code in _UNAVAILABLE:
        return replace(problem, status=HTTPStatus.SERVICE_UNAVAILABLE, code="BACKEND_UNAVAILABLE", retryable=True)
    return replace(problem, code=_CODES.get(problem.code, problem.code.upper()))


def status_problem(status: int, message: str | None = None, headers: tuple[tuple[bytes, bytes], ...] = ()) -> Problem:
    """What to say where only an HTTP status is known."""
    return words(problems.of_status(status, message, headers=headers))

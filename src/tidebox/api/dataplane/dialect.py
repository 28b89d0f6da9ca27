"""Errors as the dataplane spells them: codes of the access protocol, and file errors by their errno."""

from __future__ import annotations

from dataclasses import replace
from http import HTTPStatus

from tidebox.api import problems
from tidebox.api.problems import ApiProblem
from tidebox.errors import FileOperationFailed
from tidebox.protocols.dataplane.routes import FILE_ERRORS

_CODES = {"unauthorized": "UNAUTHENTICATED", "quota_exceeded": "RATE_LIMITED"}
# What is wrong is not the request.
_UNAVAILABLE = frozenset(
    {"box_gone", "provider_unavailable", "audit_unavailable", "shutting_down", "store_unavailable"}
)


_STATUSES = {
    "FILE_NOT_FOUND": HTTPStatus.NOT_FOUND,
    "FILE_ACCESS_DENIED": HTTPStatus.FORBIDDEN,
    "FILE_CONFLICT": HTTPStatus.CONFLICT,
    "NO_SPACE": HTTPStatus.INSUFFICIENT_STORAGE,
    "INVALID_REQUEST": HTTPStatus.BAD_REQUEST,
}
_FILE_CODES = {number: code for code, numbers in FILE_ERRORS.items() for number in numbers}


def problem_of(error: BaseException) -> ApiProblem:
    """Return the answer to ``error``."""
    problem = problems.of_error(error)
    if isinstance(error, FileOperationFailed):
        code = _FILE_CODES.get(error.errno or 0)
        if code is not None:
            return replace(problem, status=_STATUSES[code], code=code)
    return words(problem)


def words(problem: ApiProblem) -> ApiProblem:
    """An error in the words of this surface."""
    if problem.code in _UNAVAILABLE:
        return replace(problem, status=HTTPStatus.SERVICE_UNAVAILABLE, code="BACKEND_UNAVAILABLE", retryable=True)
    return replace(problem, code=_CODES.get(problem.code, problem.code.upper()))


def status_problem(
    status: int, message: str | None = None, headers: tuple[tuple[bytes, bytes], ...] = ()
) -> ApiProblem:
    """Return the answer of an HTTP status without an error of ours."""
    return words(problems.of_status(status, message, headers=headers))

"""Which of the protocol's words stands for which error of ours."""

from __future__ import annotations

import json
from errno import EACCES, ENOENT

import pytest

from tests.api.fathom.client import CODES
from tidebox import errors
from tidebox.api.fathom import answers
from tidebox.api.fathom.connection import error_code
from tidebox.protocols.fathom import RETRYABLE


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.Overloaded("full"), "SANDBOX_OVERLOADED"),
        (errors.RateLimited("often"), "SANDBOX_OVERLOADED"),
        (errors.QueueExpired("long"), "SANDBOX_OVERLOADED"),
        (errors.ShuttingDown("over"), "SANDBOX_OVERLOADED"),
        (errors.InvalidRequest("wrong"), "INVALID_REQUEST"),
        (errors.LimitOutOfRange("wide"), "INVALID_REQUEST"),
        (errors.UnknownLanguage("which"), "LANGUAGE_NOT_SUPPORTED"),
        (errors.ExecFailed("no such file", errno=ENOENT), "LANGUAGE_NOT_SUPPORTED"),
        (errors.ExecFailed("not allowed", errno=EACCES), "INTERNAL_ERROR"),
        (errors.BoxGone("dead"), "INTERNAL_ERROR"),
        (errors.ProvisionFailed("spawner"), "INTERNAL_ERROR"),
        (errors.AuditUnavailable("full disk"), "INTERNAL_ERROR"),
        (errors.InternalError("defect"), "INTERNAL_ERROR"),
    ],
)
def test_every_error_has_a_code(error: errors.TideboxError, code: str) -> None:
    assert error_code(error) == code


def test_what_may_be_retried_is_as_the_document_says() -> None:
    assert {code for code, retryable in CODES.items() if retryable} == RETRYABLE


def test_an_error_can_quote_anything() -> None:
    frame = json.loads(answers.error(None, "INTERNAL_ERROR", "no such file: 'a\udcff'"))
    assert frame["message"] == "no such file: 'a\\udcff'"
    assert "id" not in frame

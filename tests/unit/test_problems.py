"""Every error in one shape, those of the framework too."""

from __future__ import annotations

import errno
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

import httpx2
import pytest
from fastapi import FastAPI, Header, HTTPException, Query, Request
from pydantic import BaseModel, Field

from tidebox.api import problems
from tidebox.api.dataplane import dialect
from tidebox.api.metrics import Levels, ServerMetrics
from tidebox.api.middleware import BodyLimit, RequestLog
from tidebox.api.rest import bare_rest
from tidebox.api.surface import Surface
from tidebox.errors import Conflict, FileOperationFailed, Overloaded, UnknownImage

LIMIT = 1000


class Limits(BaseModel):
    timeout_ms: Annotated[int, Field(ge=1)]


class Order(BaseModel):
    code: str
    limits: Limits


def with_routes() -> FastAPI:
    """The REST app with a route for each way to fail."""
    rest = bare_rest()

    @rest.post("/orders")
    async def order(order: Order, verbose: Annotated[bool, Query()] = False) -> dict[str, str]:
        return {}

    @rest.get("/headers")
    async def headers(x_number: Annotated[int, Header()]) -> dict[str, str]:
        return {}

    @rest.get("/conflict")
    async def conflict() -> None:
        raise Conflict("it is running", state="running")

    @rest.get("/busy")
    async def busy() -> None:
        raise Overloaded("every slot is taken", retry_after=1.2)

    @rest.get("/broken")
    async def broken() -> None:
        raise ValueError("the secret is hunter2")

    @rest.get("/teapot")
    async def teapot() -> None:
        raise HTTPException(418, "short and stout", headers={"X-Kind": "teapot"})

    @rest.post("/upload")
    async def upload(request: Request) -> int:
        return len(await request.body())

    return rest


@pytest.fixture
async def client() -> AsyncIterator[httpx2.AsyncClient]:
    metrics = ServerMetrics("native", lambda: Levels(active=0, queued=0, cells=0, boxes=0))
    surface = Surface(name="rest", matches=lambda scope: True)
    transport = httpx2.ASGITransport(RequestLog(BodyLimit(with_routes(), LIMIT), metrics, [surface]))
    async with httpx2.AsyncClient(transport=transport, base_url="http://server") as client:
        yield client


def error_of(answer: httpx2.Response) -> dict[str, Any]:
    """What the envelope holds, which must be all that it should."""
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert body.keys() == {"error"}
    error: dict[str, Any] = body["error"]
    assert error.keys() == {"code", "message", "details", "retryable", "request_id"}
    assert error["request_id"] == answer.headers["x-request-id"]
    return error


async def test_an_error_of_ours(client: httpx2.AsyncClient) -> None:
    answer = await client.get("/conflict")
    error = error_of(answer)
    assert (answer.status_code, error["code"], error["message"]) == (409, "conflict", "it is running")
    assert error["details"] == {"state": "running"}
    assert error["retryable"] is False


async def test_a_retry_has_its_time(client: httpx2.AsyncClient) -> None:
    answer = await client.get("/busy")
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "2")
    assert error_of(answer)["retryable"] is True


async def test_a_defect_tells_nothing(client: httpx2.AsyncClient) -> None:
    answer = await client.get("/broken")
    assert answer.status_code == 500
    assert error_of(answer)["code"] == "internal_error"
    assert "hunter2" not in answer.text


async def test_no_such_route(client: httpx2.AsyncClient) -> None:
    answer = await client.get("/nowhere")
    assert (answer.status_code, error_of(answer)["code"]) == (404, "not_found")


async def test_no_such_method(client: httpx2.AsyncClient) -> None:
    answer = await client.delete("/orders")
    assert (answer.status_code, error_of(answer)["code"]) == (405, "method_not_allowed")
    assert answer.headers["allow"] == "POST"


async def test_a_status_of_the_framework_keeps_its_headers(client: httpx2.AsyncClient) -> None:
    answer = await client.get("/teapot")
    assert (answer.status_code, answer.headers["x-kind"]) == (418, "teapot")
    assert error_of(answer)["message"] == "short and stout"


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({"limits": {"timeout_ms": 5}}, ["code"]),
        ({"code": "x", "limits": {"timeout_ms": 0}}, ["limits.timeout_ms"]),
        ({"code": 7, "limits": {}}, ["code", "limits.timeout_ms"]),
        ([], [""]),
    ],
)
async def test_what_is_not_valid_is_named(body: Any, fields: list[str], client: httpx2.AsyncClient) -> None:
    answer = await client.post("/orders", json=body)
    error = error_of(answer)
    assert (answer.status_code, error["code"]) == (400, "invalid_request")
    assert [found["field"] or "" for found in error["details"]["fields"]] == [field or "body" for field in fields]


async def test_parameters_are_named_too(client: httpx2.AsyncClient) -> None:
    body = {"code": "x", "limits": {"timeout_ms": 1}}
    answer = await client.post("/orders?verbose=perhaps", json=body)
    assert error_of(answer)["details"]["fields"][0]["field"] == "verbose"
    answer = await client.get("/headers", headers={"X-Number": "seven"})
    assert error_of(answer)["details"]["fields"][0]["field"] == "x-number"


async def test_what_was_sent_is_not_repeated(client: httpx2.AsyncClient) -> None:
    answer = await client.post("/orders", json={"code": {"a": "hunter2"}, "limits": "hunter2"})
    assert answer.status_code == 400
    assert "hunter2" not in answer.text


@pytest.mark.parametrize("content", [b"{", b"", b"nonsense", b'{"code": \xff}', b"[" * 500])
async def test_what_is_no_json_is_said_to_be_none(content: bytes, client: httpx2.AsyncClient) -> None:
    answer = await client.post("/orders", content=content, headers={"content-type": "application/json"})
    error = error_of(answer)
    assert (answer.status_code, error["code"]) == (400, "invalid_request")


async def test_problem_details_on_request(client: httpx2.AsyncClient) -> None:
    answer = await client.get("/conflict", headers={"Accept": "application/problem+json, application/json"})
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json() == {
        "type": "urn:tidebox:error:conflict",
        "title": "Conflict",
        "status": 409,
        "detail": "it is running",
        "extensions": {"code": "conflict", "state": "running"},
        "code": "conflict",
        "details": {"state": "running"},
        "retryable": False,
        "request_id": answer.headers["x-request-id"],
    }


async def test_a_body_of_the_longest_length_is_read(client: httpx2.AsyncClient) -> None:
    answer = await client.post("/upload", content=b"x" * LIMIT)
    assert answer.json() == LIMIT


async def test_a_body_that_announces_too_much_is_not_read(client: httpx2.AsyncClient) -> None:
    answer = await client.post("/upload", content=b"x" * (LIMIT + 1))
    error = error_of(answer)
    assert (answer.status_code, error["code"], error["details"]) == (413, "payload_too_large", {"limit": LIMIT})


async def test_a_body_that_grows_too_long_is_refused_meanwhile(client: httpx2.AsyncClient) -> None:
    sent = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 100 * LIMIT:
            sent += 100
            yield b"x" * 100

    answer = await client.post("/upload", content=pieces())
    assert (answer.status_code, error_of(answer)["code"]) == (413, "payload_too_large")
    assert sent <= 2 * LIMIT


def test_whatever_a_message_quotes_can_be_sent() -> None:
    problem = problems.of_error(UnknownImage("no image \ud800", image="\ud800", path=object, more=[b"x", 1]))
    _, content = problems.render(problem, "r")
    assert json.loads(content)["error"]["message"] == "no image \\ud800"


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (FileOperationFailed("gone", errno=errno.ENOENT), 404, "FILE_NOT_FOUND"),
        (FileOperationFailed("full", errno=errno.ENOSPC), 507, "NO_SPACE"),
        (FileOperationFailed("odd", errno=errno.EIO), 422, "FILE_OPERATION_FAILED"),
        # What an agent says is for people to read.
        (FileOperationFailed("No such file or directory (os error 2)"), 422, "FILE_OPERATION_FAILED"),
    ],
)
def test_files_are_told_by_their_errno(error: FileOperationFailed, status: int, code: str) -> None:
    problem = dialect.problem_of(error)
    assert (problem.status, problem.code) == (status, code)

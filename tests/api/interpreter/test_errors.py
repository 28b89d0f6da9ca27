"""docs/errors.md: every example on the page is sent to a server and answered as the page says."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import httpx2 as httpx
import pytest

from tests.api.conftest import NO_CELLS, RunningServer
from tests.api.interpreter.service import JWT_SECRET, Service, token
from tests.runtimes import RUNTIME

PAGE = Path(__file__).resolve().parents[3] / "docs" / "errors.md"

_HEADING = re.compile(r"^## (\d{3}) `(\w+)`$")
_SETTING = re.compile(r"`SANDBOX_(\w+)=([^`]*)`")
_REQUEST = re.compile(r"^(GET|POST|DELETE) (\S.*)$")
_HEADER = re.compile(r"^([A-Za-z-]+):(.*)$")


class Example(NamedTuple):
    status: int
    code: str
    settings: dict[str, str]
    requests: list[str]

    def __str__(self) -> str:
        return f"{self.status} {self.code}"


def examples() -> list[Example]:
    found: list[Example] = []
    status, code, settings = 0, "", dict[str, str]()
    block: list[str] | None = None
    for line in PAGE.read_text().splitlines():
        if heading := _HEADING.match(line):
            status, code, settings = int(heading[1]), heading[2], {}
        elif line.startswith("Settings:"):
            settings = {name.lower(): value for name, value in _SETTING.findall(line)}
        elif line == "```http":
            block = []
        elif line == "```" and block is not None:
            requests = re.split(r"\n\n(?=[A-Z]+ /)", "\n".join(block))
            found.append(Example(status, code, settings, requests))
            block = None
        elif block is not None:
            block.append(line)
    return found


EXAMPLES = examples()


def send(client: httpx.Client, text: str) -> httpx.Response:
    first, *rest = text.splitlines()
    request = _REQUEST.match(first)
    assert request is not None, first
    headers: dict[str, str] = {"Content-Type": "application/json"} if request[1] == "POST" else {}
    while rest and (header := _HEADER.match(rest[0])):
        headers[header[1]] = header[2].strip()
        rest = rest[1:]
    return client.request(request[1], request[2], headers=headers, content="\n".join(rest) or None)


def filled(text: str, known: dict[str, str]) -> str:
    for name, value in known.items():
        text = text.replace(name, value)
    return text


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_examples(
    example: Example, interpreter_server: RunningServer, start_server: Callable[..., RunningServer]
) -> None:
    if RUNTIME != "native" and "unknown_image" in str(example):
        pytest.skip("native only: an engine may pull an image that is not there")
    # Some leave runs behind that nobody waits for.
    ended_at_once = {"drain_grace_sec": "0", **NO_CELLS}
    settings = {name: value.replace("{secret}", JWT_SECRET) for name, value in example.settings.items()}
    server = start_server(**ended_at_once, **settings) if settings else interpreter_server
    with Service.of(server) as service:
        text = "\n\n".join(example.requests)
        known = {"{1 KiB}": "x" * 1024, "{64 KiB}": "x" * 65536, "{key}": server.key, "{token}": token("ada")}
        if "{session}" in text:
            known["{session}"] = service.session()
        if "{run}" in text:
            known["{run}"] = service.run()["id"]
        headers = {} if "Authorization:" in text else server.headers
        with httpx.Client(base_url=server.url, headers=headers, timeout=30) as client:
            *before, last = (filled(request, known) for request in example.requests)
            for request in before:
                assert send(client, request).status_code < 300
            response = send(client, last)
    assert response.status_code == example.status, response.text
    error = response.json()["error"]
    assert error["code"] == example.code
    assert error.keys() == {"code", "message", "details", "retryable", "request_id"}
    if example.status == 429 and example.code != "quota_exceeded":
        assert int(response.headers["retry-after"]) > 0


def test_every_code_of_an_answer_is_on_the_page() -> None:
    from tidebox import errors

    page = PAGE.read_text()
    # How a run ends, or what other surfaces and the command line answer with.
    elsewhere = {
        "busy",
        "queue_expired",
        "unknown_language",
        "limit_out_of_range",
        "invalid_image",
        "exec_failed",
        "box_gone",
        "unsupported_operation",
        "file_operation_failed",
        "connect_failed",
        "agent_protocol_error",
        "server_protocol_error",
        "capability_denied",
        "expired",
        "sandbox_starting",
    }
    codes = {
        kind.code for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.TideboxError)
    }
    missing = {code for code in codes - elsewhere if f"`{code}`" not in page}
    assert not missing


def test_problem_details(service: Service) -> None:
    response = service.post("/sessions", json={"spec_version": "0.9"}, headers={"Accept": "application/problem+json"})
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert (problem["status"], problem["code"]) == (400, "invalid_spec_version")
    assert problem["detail"] == "Unsupported spec_version '0.9'"
    assert problem["extensions"] == {
        "code": "invalid_spec_version",
        "supported": ["1.0", "1.1"],
        "provided": "0.9",
    }


def test_errors_do_not_repeat_what_was_sent(service: Service) -> None:
    response = service.post("/runs", json={"spec_version": "1.0", "env": {"SECRET": 12345678}})
    assert response.status_code == 400
    assert "12345678" not in response.text

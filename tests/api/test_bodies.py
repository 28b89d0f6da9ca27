"""What users may send: documents, commands and environments of a size that holds up nobody else."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx2
import pytest

from tests.api.conftest import NO_CELLS, RunningServer
from tidebox.model.command_size import MAX_WORD_BYTES
from tidebox.model.limits import KIB, MIB

RUNS = "/api/v1/sandbox/runs"
SESSIONS = "/api/v1/sandbox/sessions"
_JSON = {"Content-Type": "application/json"}
_RUN = '{"spec_version":"1.0","base_image":"host","command":["true"],'
# Longer than any of these takes, on a machine that does much else; without a bound they take ten times as long.
_PATIENCE = 0.5


@pytest.fixture(scope="module")
def client(running_server: RunningServer) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=running_server.url, headers=running_server.headers, timeout=60) as client:
        yield client


def _filled(before: str, value: str, after: str, size: int) -> bytes:
    return (before + ",".join([value] * (size // (len(value) + 1))) + after).encode()


def _names(size: int, value: str) -> str:
    return ",".join(f'"{number:07x}":{value}' for number in range(size // (11 + len(value))))


_DENSE = {
    "lists": _filled("[", "[]", "]", MIB - 16),
    "unknown fields": f"{{{_names(MIB - 16, '0')}}}".encode(),
    "wrong variables": f'{_RUN}"env":{{{_names(MIB - KIB, "0")}}}}}'.encode(),
    "files": _filled(_RUN + '"files":[', "{}", "]}", MIB - KIB),
}


@contextmanager
def _longest_wait(server: RunningServer) -> Iterator[list[float]]:
    """How long others wait for an answer meanwhile; the list has the longest at the end."""
    waits: list[float] = []
    over = threading.Event()

    def ask() -> None:
        with httpx2.Client(base_url=server.url, timeout=60) as other:
            while not over.is_set():
                started = time.monotonic()
                assert other.get("/healthz").status_code == 200
                waits.append(time.monotonic() - started)
                over.wait(0.005)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield waits
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("kind", _DENSE)
@pytest.mark.parametrize("path", [RUNS, SESSIONS, "/v1/sandbox/sessions", "/sandbox/acquire"])
def test_dense_documents_are_refused_before_they_are_read(client: httpx2.Client, path: str, kind: str) -> None:
    answer = client.post(path, content=_DENSE[kind], headers=_JSON)
    assert (answer.status_code, answer.json()["error"]["code"].lower()) == (413, "payload_too_large")
    assert len(answer.content) < KIB


def test_dense_documents_hold_up_nobody(client: httpx2.Client, running_server: RunningServer) -> None:
    with _longest_wait(running_server) as waits:
        deadline = time.monotonic() + 60
        # Refusing them all takes less time than asking a few times.
        while len(waits) < 20 and time.monotonic() < deadline:
            for document in _DENSE.values():
                for path in (RUNS, SESSIONS):
                    client.post(path, content=document, headers=_JSON)
    assert len(waits) >= 20
    assert max(waits) < _PATIENCE


def test_of_many_wrong_fields_some_are_named(client: httpx2.Client) -> None:
    answer = client.post(RUNS, content=f"{{{_names(90_000, '0')}}}", headers=_JSON)
    assert answer.status_code == 400
    assert len(answer.json()["error"]["details"]["fields"]) == 32


@pytest.mark.parametrize(("path", "limit"), [(SESSIONS, MIB), ("/sandbox/acquire", MIB), (RUNS, 4 * MIB)])
def test_long_documents_are_refused_before_they_are_received(client: httpx2.Client, path: str, limit: int) -> None:
    answer = client.post(path, content=b"{" + b" " * limit, headers=_JSON)
    assert (answer.status_code, answer.json()["error"]["code"].lower()) == (413, "payload_too_large")
    # What is just short enough is read, and found to be no document.
    assert client.post(path, content=b"{" + b" " * (limit - 1), headers=_JSON).status_code == 400


def test_the_limits_can_be_set(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(max_body_bytes="2000", max_inline_body_bytes="3000", **NO_CELLS)
    for path, limit in ((SESSIONS, 2000), (RUNS, 3000)):
        answer = httpx2.post(server.url + path, headers=server.headers | _JSON, content=b" " * (limit + 1), timeout=60)
        assert (answer.status_code, answer.json()["error"]["details"]) == (413, {"limit": limit})


@pytest.mark.parametrize(
    "words",
    [
        {"command": ["echo", "x" * (MAX_WORD_BYTES + 1)]},
        {"command": ["python", "-c", "#" * (MAX_WORD_BYTES + 1)]},
        {"command": ["echo", "é" * (MAX_WORD_BYTES // 2 + 1)]},
        {"command": ["echo", *["x" * 65536] * 16]},
        {"command": ["echo"], "env": {f"V{number}": "x" * 65536 for number in range(16)}},
    ],
    ids=["word", "code", "bytes", "words", "variables"],
)
def test_commands_that_the_kernel_would_not_take(client: httpx2.Client, words: dict[str, object]) -> None:
    body = {"spec_version": "1.0", "base_image": "host"} | words
    answer = client.post(RUNS, content=json.dumps(body, ensure_ascii=False).encode(), headers=_JSON)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request"), answer.text


def test_the_longest_word_there_can_be(client: httpx2.Client) -> None:
    word = "x" * MAX_WORD_BYTES
    command = ["sh", "-c", "echo ${#1}", "sh", word]
    answer = client.post(RUNS, json={"spec_version": "1.0", "base_image": "host", "command": command})
    run_id = answer.json()["run_id"]
    assert client.get(f"{RUNS}/{run_id}", params={"wait_sec": 30}).json()["phase"] == "completed"
    assert client.get(f"{RUNS}/{run_id}/logs").text == f"{len(word)}\n"


def test_variables_of_a_session_and_of_its_run_count_together(client: httpx2.Client) -> None:
    def variables(prefix: str, count: int) -> dict[str, str]:
        return {f"{prefix}{number}": "x" * 65000 for number in range(count)}

    too_many = client.post(SESSIONS, json={"spec_version": "1.0", "env": variables("A", 17)})
    assert too_many.status_code in (400, 413)
    session = client.post(SESSIONS, json={"spec_version": "1.0", "env": variables("A", 9)}).json()["session_id"]
    run = {"spec_version": "1.0", "session_id": session, "command": ["true"]}
    assert client.post(RUNS, json=run | {"env": variables("B", 6)}).status_code == 200
    answer = client.post(RUNS, json=run | {"env": variables("B", 9)})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")

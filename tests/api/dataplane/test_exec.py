"""Programs with all their output in one answer."""

from __future__ import annotations

import base64
import threading
import time
from typing import Any

import httpx2
import pytest

from tests.api.dataplane.plane import Plane
from tidebox.broker.sandboxes.sandbox import LocalSandbox
from tidebox.model.sandbox import Capability


def run(http: httpx2.Client, command: list[str] | str, **fields: Any) -> dict[str, Any]:
    answer = http.post("/v1/exec", json={"command": command, **fields})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_all_fields_of_the_answer(http: httpx2.Client) -> None:
    found = run(http, ["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert found.pop("duration_ms") >= 0
    assert found.pop("resource_usage")["cpu_time_ms"] >= 0
    assert found == {
        "exit_code": 3,
        "signal": None,
        "stdout": "out\n",
        "stderr": "err\n",
        "encoding": "utf8",
        "truncated": False,
        "timed_out": False,
    }


def test_a_text_is_a_line_for_the_shell(http: httpx2.Client) -> None:
    assert run(http, "echo $((6 * 7)) | tr 4 x")["stdout"] == "x2\n"


def test_directory_environment_and_input(http: httpx2.Client) -> None:
    found = run(http, "pwd; echo $GREETING; cat", cwd="/tmp", env={"GREETING": "hello"}, stdin="from me\n")
    assert found["stdout"] == "/tmp\nhello\nfrom me\n"
    assert run(http, ["pwd"])["stdout"] == "/workspace\n"


def test_a_relative_directory_is_below_the_workspace(http: httpx2.Client) -> None:
    run(http, ["mkdir", "-p", "below"])
    assert run(http, ["pwd"], cwd="below")["stdout"] == "/workspace/below\n"


def test_much_input_comes_back_byte_by_byte(http: httpx2.Client) -> None:
    text = "0123456789abcdef" * 200_000
    assert run(http, ["cat"], stdin=text)["stdout"] == text


def test_output_that_is_no_text_comes_in_base64(http: httpx2.Client) -> None:
    found = run(http, ["sh", "-c", r"printf '\377\000a'; echo err >&2"])
    assert found["encoding"] == "base64"
    assert base64.b64decode(found["stdout"]) == b"\xff\x00a"
    assert base64.b64decode(found["stderr"]) == b"err\n"


def test_a_program_that_takes_too_long_is_killed(http: httpx2.Client) -> None:
    started = time.monotonic()
    found = run(http, ["sh", "-c", "echo before; sleep 60"], timeout_ms=300)
    assert time.monotonic() - started < 10
    assert (found["stdout"], found["timed_out"], found["signal"], found["exit_code"]) == (
        "before\n",
        True,
        "KILL",
        137,
    )


def test_output_beyond_the_bound_is_dropped_and_said_to_be(http: httpx2.Client) -> None:
    found = run(http, ["sh", "-c", "yes | head -c 3000000; exit 5"], max_output_bytes=1001)
    assert (len(found["stdout"]), found["truncated"], found["exit_code"]) == (1001, True, 5)


def test_a_character_at_the_bound_does_not_make_it_base64(http: httpx2.Client) -> None:
    found = run(http, ["printf", "aé"], max_output_bytes=2)
    assert (found["stdout"], found["encoding"], found["truncated"]) == ("a", "utf8", True)


@pytest.mark.parametrize("script", ["printf 'a\\n\\001é' ; printf 'x' >&2", "printf 'ab\\377cd'; printf 'e' >&2"])
def test_what_was_written_in_many_pieces_is_one_text(http: httpx2.Client, script: str) -> None:
    once = run(http, ["sh", "-c", script])
    many = run(http, ["sh", "-c", f"for i in $(seq 300); do {script}; done"])
    assert many["encoding"] == once["encoding"]
    for stream in ("stdout", "stderr"):
        if once["encoding"] == "utf8":
            assert many[stream] == once[stream] * 300
        else:
            assert base64.b64decode(many[stream]) == base64.b64decode(once[stream]) * 300


def test_much_output_holds_up_nobody_while_it_is_answered(plane: Plane, token: str, http: httpx2.Client) -> None:
    """Each byte of it takes six in JSON: to write that down at once takes seconds."""
    size = 24 * 1024 * 1024
    script = f"head -c {size} /dev/zero"
    answers: list[httpx2.Response] = []

    def ask() -> None:
        with plane.client(token) as other:
            answers.append(other.post("/v1/exec", json={"command": script, "max_output_bytes": size}, timeout=120))

    waits = []
    thread = threading.Thread(target=ask)
    began = time.monotonic()
    thread.start()
    while thread.is_alive():
        started = time.monotonic()
        assert http.get("/v1/files/stat", params={"path": "/workspace"}).status_code == 200
        waits.append(time.monotonic() - started)
        time.sleep(0.005)
    thread.join()
    assert len(answers[0].content) > 6 * size
    # Where it is written down at once, that is most of the time that all of it takes.
    assert max(waits) < max(0.5, (time.monotonic() - began) / 4)


def test_a_signal_that_ends_it_is_named(http: httpx2.Client) -> None:
    found = run(http, ["sh", "-c", "kill -TERM $$"])
    assert (found["exit_code"], found["signal"]) == (143, "TERM")


def test_state_stays_in_the_sandbox(http: httpx2.Client) -> None:
    run(http, "echo kept > state.txt")
    assert run(http, ["cat", "/workspace/state.txt"])["stdout"] == "kept\n"


def test_what_cannot_be_started_is_said(http: httpx2.Client) -> None:
    answer = http.post("/v1/exec", json={"command": ["no-such-program"]})
    assert answer.status_code == 422
    error = answer.json()["error"]
    assert error["code"] == "EXEC_FAILED"
    assert error["retryable"] is False
    assert error["request_id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"command": []}',
        b'{"command": [""]}',
        b'{"command": 5}',
        b'{"command": ["a\\u0000b"]}',
        b'{"command": ["tidebox:python"]}',
        b'{"command": "true", "cwd": ""}',
        b'{"command": "true", "env": {"A=B": "c"}}',
        b'{"command": "true", "env": {"": "c"}}',
        b'{"command": "true", "timeout_ms": 0}',
        b'{"command": "true", "timeout_ms": 99999999999}',
        b'{"command": "true", "max_output_bytes": -1}',
        b'{"command": "\\ud800"}',
        b"[" * 9_000,
    ],
)
def test_what_is_no_request_is_refused(http: httpx2.Client, body: bytes) -> None:
    answer = http.post("/v1/exec", content=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["code"] in ("INVALID_REQUEST", "LIMIT_OUT_OF_RANGE")


@pytest.mark.parametrize(
    "body",
    [
        b'{"command": [' + b'"",' * 100_000 + b'""]}',
        b'{"command": "true", "env": {' + b'"a":"",' * 100_000 + b'"b":""}}',
        b"[" * 100_000,
        b'{"command": ["cat"], "stdin": "' + b"x" * 4 * 1024 * 1024 + b'"}',
    ],
)
def test_what_takes_long_to_read_is_refused_unread(http: httpx2.Client, body: bytes) -> None:
    answer = http.post("/v1/exec", content=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "PAYLOAD_TOO_LARGE")


@pytest.mark.parametrize("words", [["x" * 131_072], ["x" * 65_536] * 17])
def test_a_command_that_the_kernel_would_not_take(http: httpx2.Client, words: list[str]) -> None:
    answer = http.post("/v1/exec", json={"command": ["true", *words]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "INVALID_REQUEST")


def test_the_same_below_the_name_of_the_sandbox(http: httpx2.Client, sandbox: LocalSandbox) -> None:
    answer = http.post(f"/api/{sandbox.id}/exec", json={"command": ["echo", "here"]})
    assert answer.json()["stdout"] == "here\n"


def test_a_client_that_leaves_takes_its_program_along(plane: Plane, token: str, http: httpx2.Client) -> None:
    with plane.client(token) as hasty, pytest.raises(httpx2.ReadTimeout):
        hasty.post("/v1/exec", json={"command": ["sleep", "4242"]}, timeout=0.5)
    deadline = time.monotonic() + 30
    while "4242" in run(http, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")["stdout"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_exec_needs_a_token_with_the_exec_capability(plane: Plane, sandbox: LocalSandbox) -> None:
    with plane.client(plane.token(sandbox, Capability.FS_READ, Capability.SHELL)) as client:
        answer = client.post("/v1/exec", json={"command": ["true"]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "CAPABILITY_DENIED")
    assert answer.json()["error"]["message"] == "exec not granted"
    answer = httpx2.post(f"{plane.url}/v1/exec", json={"command": ["true"]}, timeout=60)
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "UNAUTHENTICATED")
    with plane.client("wrong") as client:
        assert client.post("/v1/exec", json={"command": ["true"]}).json()["error"]["code"] == "UNAUTHENTICATED"


def test_a_token_of_another_sandbox(plane: Plane, sandbox: LocalSandbox, http: httpx2.Client) -> None:
    other = plane.sandbox()
    with plane.client(plane.token(other)) as client:
        assert client.post(f"/api/{sandbox.id}/exec", json={"command": ["true"]}).status_code == 403
        run(http, "echo mine > secret")
        found = run(client, "cat secret; ls")
    assert found["exit_code"] == 0
    assert (found["stdout"], "No such file" in found["stderr"]) == ("", True)


def test_wrong_methods_and_paths_are_refused(http: httpx2.Client) -> None:
    answer = http.get("/v1/exec")
    assert (answer.status_code, answer.json()["error"]["code"]) == (405, "METHOD_NOT_ALLOWED")
    assert answer.headers["allow"] == "POST"
    assert http.get("/v1/exec/ws").status_code == 426
    assert http.get("/v1/files/nothing").json()["error"]["code"] == "NOT_FOUND"


@pytest.mark.parametrize("path", ["/v1/exec", "/v1/files/move", "/v1/files/mkdir"])
def test_a_body_that_is_no_text_is_refused(http: httpx2.Client, path: str) -> None:
    answer = http.post(path, content=b'{"command": "\xff\xfe", "path": "\xff"}')
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "INVALID_REQUEST")

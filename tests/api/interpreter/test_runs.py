"""Runs: phases, reasons, limits, usage, cancel, queue."""

from __future__ import annotations

import base64
import itertools
import json
import re
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.api.conftest import NO_CELLS, RunningServer
from tests.api.interpreter.service import HELLO, Service, error_of
from tidebox.model.run import TRANSITIONS, Phase


def file(path: str, content: bytes) -> dict[str, str]:
    return {"path": path, "content_b64": base64.b64encode(content).decode()}


def test_the_example_of_the_document(ada: Service) -> None:
    response = ada.post(
        "/runs",
        json={
            "runtime": "native",
            "base_image": "python:3.11-slim",
            "spec_version": "1.0",
            "command": ["python", "-c", "print('hello')"],
            "startup_timeout_sec": 20,
            "timeout_sec": 20,
            "resources": {"cpu": 1, "memory_mb": 512},
            "network_policy": "deny_all",
        },
    )
    assert response.status_code == 200
    accepted = response.json()
    assert accepted["phase"] == "starting"
    assert accepted["run_id"] == accepted["id"]
    assert accepted["log_stream_url"].startswith("ws://")
    run = ada.wait(accepted["run_id"])
    assert run["phase"] == "completed"
    assert (run["exit_code"], run["reason_code"], run["status_reason_code"]) == (0, "exit_code_0", "exit_code_0")
    assert (run["runtime"], run["base_image"], run["spec_version"]) == ("native", "python:3.11-slim", "1.0")
    assert run["image_digest"].startswith("sha256:")
    moments = [datetime.fromisoformat(run[name]) for name in ("created_at", "started_at", "finished_at")]
    assert moments == sorted(moments)
    assert ada.log(run["id"]) == "hello\n"


@pytest.mark.parametrize(
    ("command", "output"),
    [
        (["python", "-c", "import sys; print(sys.argv)", "a", "b"], "['-c', 'a', 'b']\n"),
        (["python3", "main.py", "x"], "file x\n"),
        (["sh", "-c", "echo $0 $1", "zero", "one"], "zero one\n"),
        (["echo", "no", "shell", "$HOME"], "no shell $HOME\n"),
        (["cat", "data/in.txt"], "some data"),
        (["pwd"], "/workspace\n"),
    ],
)
def test_commands(ada: Service, command: list[str], output: str) -> None:
    files = [file("main.py", b"import sys; print('file', sys.argv[1])"), file("data/in.txt", b"some data")]
    run_id = ada.start(command, files=files)
    assert ada.wait(run_id)["phase"] == "completed"
    assert ada.log(run_id) == output


def test_waiting_for_the_end(ada: Service) -> None:
    run_id = ada.start(["sleep", "0.3"])
    assert ada.get(f"/runs/{run_id}", params={"wait_sec": 0.01}).json()["phase"] in ("starting", "running")
    assert ada.get(f"/runs/{run_id}", params={"wait_sec": 20}).json()["phase"] == "completed"
    assert ada.get(f"/runs/{run_id}", params={"wait_sec": 20}).json()["phase"] == "completed"
    error_of(ada.get(f"/runs/{run_id}", params={"wait_sec": 1000}), 400, "invalid_request")


def test_runs_on_their_own_share_nothing(ada: Service) -> None:
    ada.run(["sh", "-c", "echo mine > file; echo mine > /tmp/file"])
    run_id = ada.start(["sh", "-c", "ls -A /workspace /tmp"])
    ada.wait(run_id)
    assert "file" not in ada.log(run_id)


@pytest.mark.parametrize(
    ("body", "phase", "exit_code", "reason"),
    [
        ({"command": ["sh", "-c", "exit 7"]}, "failed", 7, "exit_code_nonzero"),
        ({"command": ["sh", "-c", "kill -SEGV $$"]}, "failed", 139, "killed_by_signal"),
        ({"command": ["no-such-program"]}, "failed", 127, "exec_failed"),
        ({"command": ["/etc/passwd"]}, "failed", 126, "exec_failed"),
        ({"command": ["sh", "-c", "no-such-program"]}, "failed", 127, "exit_code_nonzero"),
        (
            {"command": ["sh", "-c", "echo 'sh: No such file or directory' >&2; exit 127"]},
            "failed",
            127,
            "exit_code_nonzero",
        ),
        ({"command": HELLO, "base_image": "nosuch:1"}, "failed", None, "image_pull_failed"),
        ({"command": ["sleep", "60"], "timeout_sec": 0.5}, "timed_out", 137, "execution_timeout"),
        (
            {"command": ["python", "-c", "x = bytearray(10**9)"], "resources": {"memory_mb": 64}},
            "failed",
            137,
            "oom_killed",
        ),
        (
            {
                "command": ["python", "-c", "import os\nwhile True: os.fork() or __import__('time').sleep(9)"],
                "resources": {"pids": 16},
            },
            "failed",
            1,
            "pids_limit_exceeded",
        ),
    ],
)
def test_how_runs_end(ada: Service, body: dict[str, Any], phase: str, exit_code: int | None, reason: str) -> None:
    run = ada.run(**body)
    assert (run["phase"], run["exit_code"], run["reason_code"]) == (phase, exit_code, reason)


def test_a_program_killed_by_a_signal_has_the_shells_exit_code_everywhere(
    ada: Service, interpreter_server: RunningServer
) -> None:
    run = ada.run(["sh", "-c", "kill -KILL $$"])
    lines = ada.get(f"/runs/{run['run_id']}/logs", params={"format": "jsonl"}).text.splitlines()
    (listed,) = (item for item in ada.get("/runs").json()["items"] if item["id"] == run["id"])
    with Service.of(interpreter_server, "root", "sandbox_admin") as admin:
        seen = admin.get(f"/admin/runs/{run['run_id']}").json()
    for found in (run, listed, seen, json.loads(lines[-1])["data"]):
        assert (found["exit_code"], found["signal"]) == (137, 9)


def test_exec_failures_look_the_same_with_files(ada: Service) -> None:
    run = ada.run(["no-such-program"], files=[file("a", b"")])
    assert (run["phase"], run["exit_code"], run["reason_code"]) == ("failed", 127, "exec_failed")
    assert ada.log(run["run_id"]) == "no-such-program: No such file or directory\n"


def test_a_start_that_takes_too_long(start_server: Callable[..., RunningServer]) -> None:
    # Without a pool a box takes longer than this to be made.
    server = start_server(pool_python="0", pool_blank="0", pool_node="0")
    with Service.of(server) as client:
        run = client.run(startup_timeout_sec=0.0001)
    assert (run["phase"], run["reason_code"], run["exit_code"]) == ("timed_out", "startup_timeout", None)


def test_the_start_does_not_count_as_execution(ada: Service) -> None:
    run = ada.run(["sh", "-c", "sleep 0.6"], startup_timeout_sec=20, timeout_sec=5)
    assert run["phase"] == "completed"


# What a run used.


def test_usage_of_a_busy_loop(ada: Service) -> None:
    code = "import time\nt = time.process_time()\nwhile time.process_time() - t < 1: pass"
    usage = ada.run(["python", "-c", code])["resource_usage"]
    assert 0.9 <= usage["cpu_time_sec"] <= 1.6
    assert usage["wall_time_sec"] >= usage["cpu_time_sec"] * 0.9


def test_usage_of_memory(ada: Service) -> None:
    usage = ada.run(["python", "-c", "x = bytearray(b'x') * (100 * 2**20)"])["resource_usage"]
    assert 100 <= usage["peak_rss_mb"] <= 140


def test_usage_of_children(ada: Service) -> None:
    code = "\n".join(
        [
            "import os, time",
            "for _ in range(3):",
            "    if not os.fork():",
            "        t = time.process_time()",
            "        while time.process_time() - t < 0.3: pass",
            "        os._exit(0)",
            "for _ in range(3): os.wait()",
        ]
    )
    usage = ada.run(["python", "-c", code])["resource_usage"]
    assert usage["cpu_time_sec"] >= 0.8
    assert usage["pids"] in (None, 4)


def test_every_key_of_usage(ada: Service) -> None:
    run = ada.run(["sh", "-c", "printf 12345"])
    usage = run["resource_usage"]
    assert usage.keys() == {
        "cpu_time_sec",
        "wall_time_sec",
        "peak_rss_mb",
        "pids",
        "max_open_files",
        "log_bytes",
        "log_truncated",
        "artifact_bytes",
        "files_left_out",
        "oom_kills",
        "egress",
        "limits",
    }
    assert usage["log_bytes"] == 5
    assert usage["artifact_bytes"] == 0
    assert usage["log_truncated"] is False


def test_the_log_is_capped_and_the_run_goes_on(start_server: Callable[..., RunningServer]) -> None:
    with Service.of(start_server(max_log_bytes="1000")) as client:
        run_id = client.start(["sh", "-c", "seq 1 5000; exit 3"])
        run = client.wait(run_id)
        assert (run["phase"], run["exit_code"]) == ("failed", 3)
        assert run["resource_usage"]["log_truncated"] is True
        assert run["resource_usage"]["log_bytes"] == 1000


# Cancel.


def test_cancel_lets_a_program_end_itself(ada: Service) -> None:
    code = (
        "import signal, sys, time\n"
        "signal.signal(15, lambda *_: (print('bye', flush=True), sys.exit(0)))\n"
        "print('up', flush=True)\ntime.sleep(60)"
    )
    run_id = ada.start(["python", "-c", code])
    until_logged(ada, run_id, "up\n")
    response = ada.post(f"/runs/{run_id}/cancel")
    assert response.status_code == 200
    assert response.json()["cancel_requested"] is True
    run = ada.wait(run_id)
    assert (run["phase"], run["message"], run["reason_code"]) == ("killed", "canceled_by_user", "canceled_by_user")
    assert ada.log(run_id) == "up\nbye\n"


def test_cancel_kills_what_does_not_end_itself(ada: Service) -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    run_id = ada.start(["python", "-c", code])
    until_logged(ada, run_id, "up\n")
    started = time.monotonic()
    answer = ada.post(f"/runs/{run_id}/cancel")
    # The request does not wait for the grace.
    assert answer.json()["phase"] == "running"
    assert ada.wait(run_id)["phase"] == "killed"
    assert time.monotonic() - started > 0.9


def until_logged(client: Service, run_id: str, text: str) -> None:
    client.wait(run_id, "running")
    deadline = time.monotonic() + 30
    while client.shown(run_id)["phase"] == "running" and time.monotonic() < deadline:
        answer = client.get(f"/runs/{run_id}/logs")
        if answer.text == text:
            return
        time.sleep(0.02)
    raise AssertionError("never said it")


def test_a_cancelled_run_stays_killed(ada: Service) -> None:
    run_id = ada.start(["sleep", "60"])
    ada.post(f"/runs/{run_id}/cancel")
    ada.wait(run_id)
    time.sleep(0.3)
    assert ada.shown(run_id)["phase"] == "killed"
    again = ada.post(f"/runs/{run_id}/cancel").json()
    assert (again["phase"], again["cancel_requested"]) == ("killed", False)


def test_cancelling_what_is_over_changes_nothing(ada: Service) -> None:
    run = ada.run()
    answer = ada.post(f"/runs/{run['id']}/cancel").json()
    assert (answer["phase"], answer["cancel_requested"]) == ("completed", False)
    assert ada.shown(run["id"]) | {"log_stream_url": ""} == run | {"log_stream_url": ""}


# The queue.


@pytest.fixture
def narrow(start_server: Callable[..., RunningServer]) -> RunningServer:
    return start_server(max_concurrent_runs="1", queue_max_length="1", rate_limit="off", **NO_CELLS)


def test_the_queue_is_bounded(narrow: RunningServer) -> None:
    with Service.of(narrow) as client:
        first = client.start(["sleep", "60"])
        second = client.submit()
        assert (second.status_code, second.json()["phase"]) == (202, "queued")
        assert second.json()["started_at"] is None
        assert second.json()["estimated_start_time"] is not None
        third = client.submit()
        error = error_of(third, 429, "queue_full")
        assert error["retryable"] is True
        assert int(third.headers["retry-after"]) >= 1
        client.post(f"/runs/{first}/cancel")
        assert client.wait(second.json()["id"])["phase"] == "completed"


def test_waiting_has_its_time(start_server: Callable[..., RunningServer]) -> None:
    with Service.of(start_server(max_concurrent_runs="1", queue_ttl_sec="1", rate_limit="off", **NO_CELLS)) as client:
        first = client.start(["sleep", "60"])
        run = client.wait(client.start())
        assert (run["phase"], run["reason_code"]) == ("failed", "queue_ttl_expired")
        client.post(f"/runs/{first}/cancel")


def test_one_that_waits_is_cancelled_at_once(narrow: RunningServer) -> None:
    with Service.of(narrow) as client:
        first = client.start(["sleep", "60"])
        second = client.start()
        client.post(f"/runs/{second}/cancel")
        run = client.wait(second)
        assert (run["phase"], run["started_at"]) == ("killed", None)
        client.post(f"/runs/{first}/cancel")


def test_one_user_does_not_take_everything(start_server: Callable[..., RunningServer]) -> None:
    from tests.api.interpreter.service import JWT_SECRET

    server = start_server(
        max_concurrent_runs="2", max_concurrent_runs_per_user="1", auth_jwt_secret=JWT_SECRET, rate_limit="off"
    )
    with Service.of(server, "ada") as ada, Service.of(server, "bob") as bob:
        first = ada.start(["sleep", "60"])
        second = ada.submit()
        assert second.json()["phase"] == "queued"
        assert bob.run()["phase"] == "completed"
        ada.post(f"/runs/{first}/cancel")
        assert ada.wait(second.json()["id"])["phase"] == "completed"


def test_one_slot_is_always_left_for_another_user(start_server: Callable[..., RunningServer]) -> None:
    """Without a setting of its own."""
    from tests.api.interpreter.service import JWT_SECRET

    server = start_server(
        max_concurrent_runs="3",
        queue_max_length="4",
        auth_jwt_secret=JWT_SECRET,
        rate_limit="off",
        pool_python="1",
        drain_grace_sec="1",
    )
    with Service.of(server, "ada") as ada, Service.of(server, "bob") as bob:
        phases = [ada.submit(["sleep", "60"]).json()["phase"] for _ in range(4)]
        assert phases == ["starting", "starting", "queued", "queued"]
        refusal = ada.submit()
        assert (refusal.status_code, refusal.json()["error"]["details"]["scope"]) == (429, "user")
        assert bob.run()["phase"] == "completed"
        shown = bob.get("/runtimes").json()["runtimes"][0]
        assert (shown["max_concurrent_runs"], shown["max_concurrent_runs_per_user"]) == (3, 2)
        assert (shown["queue_max_length"], shown["queue_max_length_per_user"]) == (4, 2)


def test_a_single_user_may_take_every_slot(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(
        max_concurrent_runs="2", queue_max_length="2", rate_limit="off", pool_python="1", drain_grace_sec="1"
    )
    with Service.of(server) as client:
        phases = [client.submit(["sleep", "60"]).json()["phase"] for _ in range(4)]
        assert phases == ["starting", "starting", "queued", "queued"]
        shown = client.get("/runtimes").json()["runtimes"][0]
        assert (shown["max_concurrent_runs_per_user"], shown["queue_max_length_per_user"]) == (2, 2)


def test_phases_only_change_along_the_table(ada: Service) -> None:
    run_id = ada.start(["sh", "-c", "sleep 0.2"])
    seen = [Phase(ada.shown(run_id)["phase"])]
    while not seen[-1].terminal:
        phase = Phase(ada.shown(run_id)["phase"])
        if phase is not seen[-1]:
            seen.append(phase)
    reachable = {phase: set(TRANSITIONS[phase]) for phase in Phase}
    for phase in Phase:
        for following in list(reachable[phase]):
            reachable[phase] |= TRANSITIONS[following]
    assert all(after in reachable[before] for before, after in itertools.pairwise(seen))
    assert seen[-1] is Phase.COMPLETED


def test_the_diagram_of_the_page_is_the_table() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "interpreter.md").read_text()
    drawn = {(Phase(before), Phase(after)) for before, after in re.findall(r"^    (\w+) --> (\w+)", page, re.MULTILINE)}
    assert drawn == {(before, after) for before, following in TRANSITIONS.items() for after in following}


# Bad requests.


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"command": HELLO},
        {"command": HELLO, "base_image": "host", "session_id": "ses-x"},
        {"base_image": "host"},
        {"base_image": "host", "command": []},
        {"base_image": "host", "command": [""]},
        {"base_image": "host", "command": "ls"},
        {"base_image": "host", "command": ["a\0b"]},
        {"base_image": "host", "command": HELLO, "timeout": 5},
        {"base_image": "host", "command": HELLO, "timeout_sec": 0},
        {"base_image": "host", "command": HELLO, "timeout_sec": "soon"},
        {"base_image": "host", "command": HELLO, "timeout_sec": "5"},
        {"base_image": "host", "command": HELLO, "timeout_sec": True},
        {"base_image": "host", "command": HELLO, "memory_mb": True},
        {"base_image": "host", "command": HELLO, "env": {"A=B": "1"}},
        {"base_image": "host", "command": HELLO, "interactive": "yes"},
        {"base_image": "host", "command": HELLO, "resources": {"cpus": 1}},
        {"base_image": "host", "command": HELLO, "env": {"A=B": "c"}},
        {"base_image": "host", "command": HELLO, "env": ["A"]},
        {"base_image": "host", "command": HELLO, "trust_level": "boundless"},
        {"base_image": "host", "command": HELLO, "network_policy": "everything"},
        {"base_image": "host", "command": HELLO, "interactive": True},
        {"base_image": "host", "command": HELLO, "files": [{"path": "../x", "content_b64": ""}]},
        {"base_image": "host", "command": HELLO, "files": [{"path": "/etc/x", "content_b64": ""}]},
        {"base_image": "host", "command": HELLO, "files": [{"path": "a\\b", "content_b64": ""}]},
        {"base_image": "host", "command": HELLO, "files": [{"path": "a", "content_b64": "?"}]},
        {"base_image": "host", "command": HELLO, "files": [file("a", b""), file("./a", b"")]},
        {"base_image": "host", "command": HELLO, "files": [file("a", b""), file("a/b", b"")]},
    ],
)
def test_invalid_run_requests_are_refused(ada: Service, body: dict[str, Any]) -> None:
    error_of(ada.post("/runs", json={"spec_version": "1.0"} | body), 400, "invalid_request")


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain"])
def test_a_body_that_is_not_said_to_be_json(ada: Service, kind: str) -> None:
    body = b'{"spec_version": "1.0", "base_image": "host", "command": ["true"]}'
    error = error_of(ada.post("/runs", content=body, headers={"Content-Type": kind}), 400, "invalid_request")
    assert "application/json" in error["message"]


def test_too_many_inline_bytes(ada: Service) -> None:
    files = [file(f"f{number}", b"x" * 300_000) for number in range(4)]
    error = error_of(ada.submit(files=files), 413, "payload_too_large")
    assert error["details"]["limit"] == 1024 * 1024
    assert ada.run(files=[file("f", b"x" * 1024 * 1024)])["phase"] == "completed"


def test_a_version_that_is_not_spoken(ada: Service) -> None:
    error = error_of(ada.submit(spec_version="0.9"), 400, "invalid_spec_version")
    assert error["message"] == "Unsupported spec_version '0.9'"
    assert error["details"] == {"supported": ["1.0", "1.1"], "provided": "0.9"}
    error_of(ada.post("/runs", json={"base_image": "host", "command": HELLO}), 400, "invalid_request")

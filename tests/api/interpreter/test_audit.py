"""What the audit log says of sessions, runs and their logs: who, what, when, under which rules; never the program."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.api.conftest import RunningServer
from tests.api.interpreter.service import JWT_SECRET
from tests.api.interpreter.streams import Streams
from tests.runtimes import RUNTIME

StartServer = Callable[..., RunningServer]
StreamsOf = Callable[..., Streams]
Event = dict[str, Any]

EVERY = {"ts", "event", "user_id", "actor", "surface", "source", "address", "request_id", "outcome"}
RUN = {"run_id", "session_id", "runtime", "base_image", "image_digest", "policy_hash", "spec_version", "phase"}


@pytest.fixture
def server(start_server: StartServer) -> RunningServer:
    return start_server(rate_limit="off", auth_jwt_secret=JWT_SECRET, max_concurrent_runs="1")


def events(server: RunningServer, wanted: int, **fields: str) -> list[Event]:
    """So many events at least that have these fields, once they are written."""
    deadline = time.monotonic() + 30
    while True:
        lines = "".join(path.read_text() for path in sorted((server.data_dir / "audit").iterdir())).splitlines()
        found = [json.loads(line) for line in lines if line.endswith("}")]
        found = [event for event in found if fields.items() <= event.items()]
        if len(found) >= wanted:
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def names(found: list[Event]) -> list[str]:
    return [event["event"].removeprefix("sandbox.run.") for event in found]


def test_every_step_of_a_run(server: RunningServer, streams_of: StreamsOf) -> None:
    ada = streams_of(server, "ada")
    blocker = ada.python("import time; time.sleep(30)")["run_id"]
    waiting = ada.python("print('secret output')", env={"TOKEN": "secret value"})["run_id"]
    ada.wait(blocker, "running")
    ada.cancel(blocker)
    ada.wait(waiting)
    ada.wait(blocker)
    killed = events(server, 5, run_id=blocker)
    assert names(killed) == ["created", "starting", "running", "cancel", "killed"]
    assert (killed[-1]["message"], killed[-1]["reason_code"]) == ("canceled_by_user", "canceled_by_user")
    completed = events(server, 5, run_id=waiting)
    assert names(completed) == ["created", "queued", "starting", "running", "completed"]
    for event in (*killed[:3], *completed):
        assert set(event) >= EVERY | RUN
        assert (event["user_id"], event["runtime"], event["spec_version"]) == ("ada", RUNTIME, "1.1")
        assert len(event["policy_hash"]) == 64
        assert event["image_digest"].startswith("sha256:")
    end = completed[-1]
    assert (end["exit_code"], end["outcome"]) == (0, "exit_code_0")
    assert set(end["resource_usage"]) >= {"cpu_time_sec", "wall_time_sec", "peak_rss_mb", "log_bytes", "artifact_bytes"}
    assert end["resource_usage"]["log_bytes"] == len("secret output\n")
    assert set(end["limits"]) >= {"cpu", "memory_mb", "startup_timeout_sec", "timeout_sec"}


@pytest.mark.parametrize(
    ("code", "options", "phase", "reason"),
    [
        ("raise SystemExit(4)", {}, "failed", "exit_code_nonzero"),
        ("import time; time.sleep(30)", {"timeout_sec": 1}, "timed_out", "execution_timeout"),
    ],
)
def test_how_a_run_failed(
    server: RunningServer, streams_of: StreamsOf, code: str, options: dict[str, Any], phase: str, reason: str
) -> None:
    ada = streams_of(server, "ada")
    run_id = ada.python(code, **options)["run_id"]
    ada.wait(run_id)
    last = events(server, 4, run_id=run_id)[-1]
    assert (last["event"], last["reason_code"]) == (f"sandbox.run.{phase}", reason)


def test_a_new_session(server: RunningServer, streams_of: StreamsOf) -> None:
    ada = streams_of(server, "ada")
    session_id = ada.session(base_image="python:3.11-slim")
    (created,) = events(server, 1, event="sandbox.session.created", session_id=session_id)
    assert set(created) >= EVERY | {"runtime", "base_image", "policy_hash", "spec_version"}
    assert created["user_id"] == "ada"


def test_who_read_a_log_and_who_sent_input(server: RunningServer, streams_of: StreamsOf) -> None:
    ada, root = streams_of(server, "ada"), streams_of(server, "root", "sandbox_admin")
    run = ada.python("import sys; sys.stdin.read()", interactive=True)
    with ada.stream(run["run_id"]) as stream:
        stream.send(type="stdin", data="password")
        stream.send(type="stdin_close")
        stream.rest()
    root.log(run["run_id"])
    (sent,) = events(server, 1, event="sandbox.run.input", run_id=run["run_id"])
    assert (sent["user_id"], sent["bytes"]) == ("ada", 8)
    readers = [event["user_id"] for event in events(server, 2, event="sandbox.run.log_read", run_id=run["run_id"])]
    assert readers == ["ada", "root"]


def test_programs_output_env_input_and_tokens_are_never_in_it(server: RunningServer, streams_of: StreamsOf) -> None:
    ada = streams_of(server, "ada")
    run = ada.python("print('word-1')  # word-2\ninput()", env={"NAME": "word-3"}, interactive=True)
    with ada.stream(run["run_id"]) as stream:
        stream.send(type="stdin", data="word-4\n")
        stream.rest()
    events(server, 1, event="sandbox.run.input", run_id=run["run_id"])
    text = "".join(path.read_text() for path in Path(server.data_dir / "audit").iterdir())
    assert "word-" not in text
    token = run["log_stream_url"].partition("token=")[2].partition("&")[0]
    assert token not in text
    assert token not in server.log


def test_the_source_that_a_client_names(server: RunningServer, streams_of: StreamsOf) -> None:
    ada = streams_of(server, "ada")
    for said in ("SDK", "CLI", "MCP", "IDE", "Web", "sdk", "x" * 99, "", None):
        if said is not None:
            ada.http.headers["X-Tidebox-Source"] = said
        else:
            del ada.http.headers["X-Tidebox-Source"]
        session_id = ada.session()
        (created,) = events(server, 1, event="sandbox.session.created", session_id=session_id)
        recorded = said if said in ("SDK", "CLI", "MCP", "IDE", "Web") else None
        assert (created["source"], created["surface"]) == (recorded, "rest")

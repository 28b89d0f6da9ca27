"""Two servers on one PostgreSQL database: each does its own, and of one that is lost the other takes what it can."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.api.access.clients import Client, use, wait_for
from tests.api.conftest import NO_CELLS, RunningServer
from tests.api.interpreter.service import error_of
from tests.api.interpreter.streams import Streams, is_event, output, saying
from tests.api.interpreter.test_restart import kill
from tests.api.test_server_start import refused
from tests.contract import postgres

StartServer = Callable[..., RunningServer]
StreamsOf = Callable[..., Streams]

pytestmark = [
    pytest.mark.skipif(postgres.missing() is not None, reason=str(postgres.missing())),
    pytest.mark.timeout(300),
]

# Within which all is told of a node that was killed.
TOLD_SECONDS = 15.0
KEY = "tb_of_both_servers"
SLEEPER = saying("begun") + "; import time; time.sleep(60)"


@pytest.fixture(scope="module")
def database() -> Iterator[postgres.Server]:
    with postgres.running() as server:
        yield server


@pytest.fixture
def url(database: postgres.Server) -> str:
    return database.fresh_url()


@pytest.fixture
def settings(url: str) -> dict[str, str]:
    common = {"store_backend": "postgres", "store_url": url, "rate_limit": "off", "api_key": KEY}
    return common | {"max_concurrent_runs": "1", "queue_ttl_sec": "600", "drain_grace_sec": "1"} | NO_CELLS


@pytest.fixture
def start_node(start_server: StartServer, settings: dict[str, str]) -> StartServer:
    """Starts servers on one database, which one key opens."""

    def start(data_dir: Path | None = None, **more: Any) -> RunningServer:
        return start_server(data_dir=data_dir, **(settings | more))

    return start


def owners(url: str) -> dict[str, tuple[str, int]]:
    """The node and the attempt of every run."""
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT id, node_id, attempt FROM sandbox_runs").fetchall()
    return {run_id: (node_id, attempt) for run_id, node_id, attempt in found}


def node_of(server: RunningServer) -> str:
    return (server.data_dir / "node-id").read_text().strip()


def test_neither_server_touches_what_the_other_has(
    start_node: StartServer, streams_of: StreamsOf, url: str, tmp_path: Path, settings: dict[str, str]
) -> None:
    first = start_node()
    one = streams_of(first)
    running = one.start(["python3", "-c", SLEEPER])
    one.wait(running, "running")
    waiting = [one.start(["python3", "-c", saying(f"{number}")]) for number in range(2)]
    second = start_node()
    other = streams_of(second)
    # It is ready when it has done something itself.
    own = other.run(["true"])
    assert own["phase"] == "completed"
    assert [other.shown(run_id)["phase"] for run_id in (running, *waiting)] == ["running", "queued", "queued"]
    here, there = (node_of(first), 1), (node_of(second), 1)
    assert owners(url) == {running: here, **dict.fromkeys(waiting, here), own["run_id"]: there}

    # What only the one that has a run can do, the other refuses.
    error_of(other.post(f"/runs/{running}/cancel"), 409, "conflict")
    assert one.shown(running)["phase"] == "running"
    with Client(first) as at_first, Client(second) as at_second:
        bound = at_first.ensure("shared")
        error_of(at_second.negotiate(thread_id="shared", mode="ensure"), 409, "SESSION_CONFLICT")
        assert at_first.ensure("shared")["session_id"] == bound["session_id"]

    # Logs and files of runs are where these ran.
    kept = one.start(["python3", "-c", "open('a.txt', 'w').write('a'); print(1)"], capture_patterns=["*.txt"])
    one.post(f"/runs/{running}/cancel")
    assert one.wait(kept)["phase"] == "completed"
    for path in ("logs", "logs?format=jsonl", "logs?follow=true", "artifacts/a.txt", "artifacts.zip"):
        assert one.get(f"/runs/{kept}/{path}").status_code == 200
        details = error_of(other.get(f"/runs/{kept}/{path}"), 409, "conflict")["details"]
        assert details == {"run_id": kept, "node_id": node_of(first)}
    assert other.get(f"/runs/{kept}/artifacts").json()["total"] == 1

    # So it is with a session, whose files are where it was made.
    session = one.session(base_image="python:3.11-slim")
    assert other.get(f"/sessions/{session}").json()["session_id"] == session
    for answer in (
        other.submit(["true"], session_id=session),
        other.get(f"/sessions/{session}/files"),
        other.post(f"/sessions/{session}/files", json={"files": [{"path": "a", "content_b64": "YQ=="}]}),
        other.http.delete(f"/sessions/{session}"),
    ):
        details = error_of(answer, 409, "conflict")["details"]
        assert details == {"session_id": session, "node_id": node_of(first)}
    assert one.get(f"/sessions/{session}/files").status_code == 200

    # The same request at both is one run, however many send it at once.
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(side.submit, ["true"], key="same") for side in (one, other) * 10]
        answers = [each.result() for each in asked]
    assert {answer.status_code for answer in answers} <= {200, 202}
    [same] = {answer.json()["run_id"] for answer in answers}

    # A third one with the name of one that lives is refused, also if it is a copy of that one's directory.
    environment = {f"SANDBOX_{name.upper()}": value for name, value in settings.items()}
    named = refused("--data-dir", tmp_path / "third", env=environment | {"SANDBOX_NODE_ID": node_of(first)})
    assert f"another server has the node id {node_of(first)}" in named
    copy = tmp_path / "copy"
    shutil.copytree(first.data_dir, copy, ignore=shutil.ignore_patterns("run", "server.lock"))
    assert f"another server has the node id {node_of(first)}" in refused("--data-dir", copy, env=environment)

    for number, run_id in enumerate(waiting):
        assert one.wait(run_id)["phase"] == "completed"
        assert one.log(run_id) == f"{number}\n"
    assert other.wait(same)["phase"] == "completed"
    found = owners(url)
    assert found.pop(same) in (here, there)
    assert found == {running: here, kept: here, **dict.fromkeys(waiting, here), own["run_id"]: there}


def test_a_node_that_is_killed_leaves_to_the_other_what_that_can_do(
    start_node: StartServer, streams_of: StreamsOf, url: str
) -> None:
    first, second = start_node(), start_node(max_concurrent_runs="2")
    one, other = streams_of(first), streams_of(second)
    assert other.run(["true"])["phase"] == "completed"
    session = one.session(base_image="python:3.11-slim")
    running = one.start(["python3", "-c", SLEEPER])
    with one.stream(running) as stream:
        stream.until("stdout")
    waiting = [one.start(["python3", "-c", saying(f"{number}")], key=f"key-{number}") for number in range(3)]
    in_session = one.start(["true"], session_id=session)
    with Client(first) as at_first:
        binding = at_first.ensure("lost")["session_id"]
    killed = time.time()
    kill(first)

    # Everything is told in time, each once.
    for run_id in (*waiting, running, in_session):
        other.wait(run_id, seconds=60)
    with psycopg.connect(url) as connection:
        [[last]] = connection.execute("SELECT max(finished_at) FROM sandbox_runs").fetchall()
    assert datetime.fromisoformat(last).timestamp() - killed < TOLD_SECONDS
    for number, run_id in enumerate(waiting):
        assert other.shown(run_id)["phase"] == "completed"
        assert other.log(run_id) == f"{number}\n"
        frames = other.frames(run_id)
        assert output(frames) == b"%d\n" % number
        assert is_event(frames[-1], "end")
        assert [frame["data"]["lost_count"] for frame in frames if is_event(frame, "resume")] == [0]
        # A client that followed it at the other one goes on by number, and misses nothing.
        assert output(other.frames(run_id, "?from_seq=50")) == b"%d\n" % number
        replayed = other.submit(["python3", "-c", saying(f"{number}")], key=f"key-{number}")
        assert replayed.json()["run_id"] == run_id
    for run_id in (running, in_session):
        shown = other.shown(run_id)
        assert (shown["phase"], shown["reason_code"]) == ("failed", "node_lost")
        assert "lost" in shown["message"]
        assert is_event(other.frames(run_id)[-1], "end")
    for answer in (
        other.get(f"/sessions/{session}"),
        other.get(f"/sessions/{session}/files"),
        other.submit(["true"], session_id=session),
    ):
        assert error_of(answer, 410, "node_lost")["details"] == {"session_id": session, "node_id": node_of(first)}
    answer = other.get(f"/runs/{running}/logs")
    assert error_of(answer, 410, "node_lost")["details"] == {"run_id": running, "node_id": node_of(first)}
    found = owners(url)
    assert {found[run_id] for run_id in waiting} == {(node_of(second), 2)}
    by_node = {
        node: other.get("/admin/runs", params={"node_id": node}).json() for node in map(node_of, (first, second))
    }
    assert {item["run_id"] for item in by_node[node_of(first)]["items"]} == {running, in_session}
    assert {item["node_id"] for item in by_node[node_of(second)]["items"]} == {node_of(second)}
    with Client(second) as at_second:
        assert at_second.of_session("GET", binding).status_code == 410
        assert at_second.ensure("lost")["session_id"] != binding

    # The one that was killed comes back, and finds what was told of it.
    again = streams_of(start_node(data_dir=first.data_dir))
    assert again.run(["true"])["phase"] == "completed"
    assert again.shown(running)["reason_code"] == "node_lost"
    assert again.run(["true"], session_id=session)["phase"] == "completed"
    assert output(again.frames(running)) == b"begun\n"
    assert owners(url)[running] == (node_of(first), 1)


def test_a_node_that_stood_still_stops_what_was_taken_from_it(
    start_node: StartServer, streams_of: StreamsOf, url: str
) -> None:
    first, second = start_node(), start_node()
    one, other = streams_of(first), streams_of(second)
    assert other.run(["true"])["phase"] == "completed"
    running = one.start(["python3", "-c", SLEEPER])
    with one.stream(running) as stream:
        stream.until("stdout")
    waiting = one.start(["python3", "-c", saying("once")])
    with Client(first) as at_first, Client(second) as at_second:
        grant = at_first.acquire("moved")["token"]
        assert use(first, grant).status_code == 200
        os.kill(first.pid, signal.SIGSTOP)
        try:
            assert other.wait(waiting, seconds=60)["phase"] == "completed"
            assert other.shown(running)["reason_code"] == "node_lost"
            finished_at = other.shown(running)["finished_at"]
            at_second.acquire("moved")
        finally:
            os.kill(first.pid, signal.SIGCONT)
    # No scope has two sandboxes.
    wait_for(lambda: use(first, grant).status_code == 401)
    deadline = time.monotonic() + 60
    while one.submit(["true"], key="after").status_code == 503:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    # Its program is gone, or it would have no slot.
    assert one.wait(one.submit(["true"], key="after").json()["run_id"])["phase"] == "completed"
    for side in (one, other):
        shown = side.shown(running)
        assert (shown["phase"], shown["reason_code"], shown["finished_at"]) == ("failed", "node_lost", finished_at)
    assert other.log(waiting) == "once\n"
    assert owners(url)[waiting] == (node_of(second), 2)


def test_a_server_that_is_killed_and_started_again_at_once_takes_up_its_own(
    start_node: StartServer, streams_of: StreamsOf, url: str
) -> None:
    first = start_node(node_id="first")
    one = streams_of(first)
    running = one.start(["python3", "-c", SLEEPER])
    one.wait(running, "running")
    waiting = one.start(["python3", "-c", saying("once")])
    kill(first)
    again = streams_of(start_node(data_dir=first.data_dir, node_id="first"))
    assert again.wait(waiting)["phase"] == "completed"
    assert again.log(waiting) == "once\n"
    assert again.shown(running)["reason_code"] == "server_restarted"
    assert owners(url)[waiting] == ("first", 1)


def test_a_server_whose_name_another_has_taken_ends(start_node: StartServer, url: str) -> None:
    server = start_node()
    # As a copy of the whole machine would do it.
    with psycopg.connect(url) as connection:
        connection.execute("UPDATE sandbox_nodes SET epoch = epoch + 1")
    assert server.wait() == 2
    assert f"another server has joined as the node {node_of(server)}" in server.log

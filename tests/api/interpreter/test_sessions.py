"""Sessions: made, shown, shared by runs that take turns, ended with everything that belongs to them."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from tests.api.conftest import RunningServer
from tests.api.interpreter.service import JWT_SECRET, Service, error_of
from tests.runtimes import native_only


def test_what_a_session_is(ada: Service) -> None:
    body = {
        "spec_version": "1.0",
        "runtime": "native",
        "base_image": "python:3.11-slim",
        "timeout_sec": 30,
        "resources": {"cpu": 2, "memory_mb": 256},
        "network_policy": "deny_all",
        "labels": {"team": "blue"},
        "env": {"COLOUR": "secret shade"},
    }
    response = ada.post("/sessions", json=body)
    made = response.json()
    assert made["session_id"] == made["id"]
    assert made["user_id"] == "ada"
    assert made["state"] == "active"
    assert (made["runtime"], made["base_image"], made["spec_version"]) == ("native", "python:3.11-slim", "1.0")
    assert made["image_digest"].startswith("sha256:")
    assert (made["timeout_sec"], made["resources"]["cpu"], made["resources"]["memory_mb"]) == (30, 2, 256)
    assert made["labels"] == {"team": "blue"}
    assert "secret shade" not in response.text
    lifetime = datetime.fromisoformat(made["expires_at"]) - datetime.fromisoformat(made["created_at"])
    assert lifetime.total_seconds() == pytest.approx(3600, abs=1)
    assert ada.get(f"/sessions/{made['id']}").json() == made
    assert made["id"] in [item["id"] for item in ada.get("/sessions").json()["items"]]


def test_runs_have_what_their_session_says(ada: Service) -> None:
    session = ada.session(
        env={"A": "1", "B": "1"}, labels={"x": "1", "y": "1"}, timeout_sec=33, cpu_limit=0.5, memory_mb=100
    )
    code = "import os; print(os.environ['A'], os.environ['B'])"
    run_id = ada.start(["python", "-c", code], session_id=session, env={"B": "2"}, labels={"y": "2"})
    run = ada.wait(run_id)
    assert ada.log(run_id) == "1 2\n"
    assert run["session_id"] == session
    assert run["labels"] == {"x": "1", "y": "2"}
    limits = run["resource_usage"]["limits"]
    assert (limits["timeout_sec"], limits["cpu"], limits["memory_mb"]) == (33, 0.5, 100)
    other = ada.run(session_id=session, timeout_sec=5, resources={"memory_mb": 200})
    assert other["resource_usage"]["limits"]["timeout_sec"] == 5
    assert other["resource_usage"]["limits"]["memory_mb"] == 200
    listed = ada.get("/runs", params={"session_id": session}).json()
    assert {item["id"] for item in listed["items"]} == {run_id, other["id"]}


def test_runs_of_a_session_take_turns(ada: Service) -> None:
    session = ada.session()
    script = "test ! -e busy || exit 9; touch busy; sleep 0.2; rm busy"
    runs = [ada.start(["sh", "-c", script], session_id=session) for _ in range(4)]
    assert [ada.wait(run_id)["exit_code"] for run_id in runs] == [0, 0, 0, 0]
    starts = [datetime.fromisoformat(ada.shown(run_id)["started_at"]) for run_id in runs]
    assert starts == sorted(starts)


def test_one_that_waits_for_its_session_is_queued(ada: Service) -> None:
    session = ada.session()
    first = ada.start(["sleep", "30"], session_id=session)
    second = ada.submit(session_id=session)
    assert second.status_code == 202
    assert second.json()["phase"] == "queued"
    assert datetime.fromisoformat(second.json()["estimated_start_time"]) > datetime.fromisoformat(
        second.json()["created_at"]
    )
    ada.post(f"/runs/{first}/cancel")
    assert ada.wait(second.json()["id"])["phase"] == "completed"


def test_sessions_do_not_wait_for_each_other(ada: Service) -> None:
    slow = ada.start(["sleep", "30"], session_id=ada.session())
    assert ada.run(session_id=ada.session())["phase"] == "completed"
    ada.post(f"/runs/{slow}/cancel")


def test_deleting_kills_its_runs(ada: Service) -> None:
    session = ada.session()
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    running = ada.start(["python", "-c", stubborn], session_id=session)
    waiting = ada.start(session_id=session)
    ada.wait(running, "running")
    started = time.monotonic()
    response = ada.http.delete(f"/sessions/{session}")
    assert response.json() == {"session_id": session, "id": session, "deleted": True, "ok": True}
    assert time.monotonic() - started < 20
    for run_id in (running, waiting):
        run = ada.shown(run_id)
        assert (run["phase"], run["reason_code"]) == ("killed", "session_deleted")
    # What it used until then is counted; the other one never began.
    assert ada.shown(running)["resource_usage"]["wall_time_sec"] > 0
    assert ada.shown(running)["resource_usage"]["peak_rss_mb"] > 0
    assert ada.shown(waiting)["resource_usage"]["wall_time_sec"] is None
    error_of(ada.get(f"/sessions/{session}"), 404, "not_found")
    error_of(ada.submit(session_id=session), 404, "not_found")
    error_of(ada.http.delete(f"/sessions/{session}"), 404, "not_found")


def test_its_time_ends_it_with_its_runs(ada: Service) -> None:
    session = ada.session(ttl_sec=1)
    run_id = ada.start(["sleep", "60"], session_id=session)
    run = ada.wait(run_id)
    assert (run["phase"], run["reason_code"]) == ("killed", "session_expired")
    error_of(ada.get(f"/sessions/{session}"), 404, "not_found")
    error_of(ada.submit(session_id=session), 404, "not_found")
    assert session not in [item["id"] for item in ada.get("/sessions").json()["items"]]


def test_nobody_lives_longer_than_the_policy_allows(ada: Service) -> None:
    made = ada.post("/sessions", json={"spec_version": "1.0", "ttl_sec": 10_000_000}).json()
    lifetime = datetime.fromisoformat(made["expires_at"]) - datetime.fromisoformat(made["created_at"])
    assert lifetime.total_seconds() == pytest.approx(3600, abs=1)


def test_a_session_has_only_so_many_runs(start_server: Callable[..., RunningServer]) -> None:
    with Service.of(start_server(max_runs_per_session="2")) as client:
        session = client.session()
        client.run(session_id=session)
        client.run(session_id=session)
        error = error_of(client.submit(session_id=session), 429, "quota_exceeded")
        assert error["details"]["quota"] == "runs_per_session"
        assert client.run()["phase"] == "completed"


def test_a_user_has_only_so_many_sessions_at_once(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(max_sessions_per_user="2", auth_jwt_secret=JWT_SECRET)
    with Service.of(server, "ada") as ada, Service.of(server, "bob") as bob:
        asked: dict[str, Any] = {"json": {"spec_version": "1.0"}, "headers": {"Idempotency-Key": "first"}}
        first = ada.post("/sessions", **asked).json()["id"]
        ada.session()
        error = error_of(ada.post("/sessions", json={"spec_version": "1.0"}), 429, "quota_exceeded")
        assert (error["details"]["quota"], error["details"]["limit"]) == ("sessions", 2)
        # What was answered before is no new one.
        assert ada.post("/sessions", **asked).json()["id"] == first
        bob.session()
        assert ada.http.delete(f"/sessions/{first}").status_code == 200
        ada.session()


@native_only("an engine may pull it, so a session of it can be made, and its runs fail")
def test_an_image_that_is_not_there(ada: Service) -> None:
    error_of(ada.post("/sessions", json={"spec_version": "1.0", "base_image": "nosuch:1"}), 404, "unknown_image")


def test_a_session_and_its_time_survive_a_restart(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(reaper_interval_sec="0.2")
    with Service.of(server) as client:
        kept, short = client.session(labels={"k": "v"}), client.session(ttl_sec=1)
        shown = client.get(f"/sessions/{kept}").json()
    server.stop()
    time.sleep(1)
    again = start_server(data_dir=server.data_dir, reaper_interval_sec="0.2")
    with Service.of(again) as client:
        assert client.get(f"/sessions/{kept}").json() == shown
        assert client.run(session_id=kept)["phase"] == "completed"
        error_of(client.get(f"/sessions/{short}"), 404, "not_found")
